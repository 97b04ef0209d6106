"""What `etymon plan` said of a run, and what the run then took, in memory and time: `make bench-plan`.

Every run is a fresh process of a few steps, with everything that a run does: tokenizer, store, validation, training, checkpoints, report. Its peak is
counted beyond what it held after its imports, its time is the median of its steps. The plan is asked in another process, with the vocabulary that the run
then had.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import machine, peak_resident, sized, write_result

TOY_SHAPE = ["shape.dim=64", "shape.layers=2", "shape.heads=2", "shape.positions=64"]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2 pocket": {"family": "gpt2", "batch": 32},
    "gpt2 pocket, bf16": {"family": "gpt2", "batch": 32, "precision": "bf16"},
    "gpt2 small": {"family": "gpt2", "size": "small", "batch": 2},
    "bert pocket": {"family": "bert", "batch": 64},
    "bert pocket, bf16": {"family": "bert", "batch": 64, "precision": "bf16"},
    "t5 pocket": {"family": "t5", "batch": 32},
    "electra pocket": {"family": "electra", "batch": 64},
    "xlnet pocket": {"family": "xlnet", "batch": 32},
    "transformer-xl pocket": {"family": "transformer-xl", "batch": 32, "slices": 2},
    "bart pocket, adafactor": {
        "family": "bart",
        "batch": 16,
        "optimiser": "adafactor",
        "learning_rate": 0.01,
    },
    # Not among those that the simulated allocator was fitted by:
    "roberta pocket": {"family": "roberta", "batch": 32},
    "gptj pocket": {"family": "gptj", "batch": 16},
    "albert pocket": {"family": "albert", "batch": 32},
}
CONFIGURATIONS = sized(
    CONFIGURATIONS,
    {"gpt2 toy": {"family": "gpt2", "batch": 16, "length": 64, "vocabulary": 400, "set": TOY_SHAPE}},
)
WORDS = sized(60_000, 6_000)
STEPS = sized(6, 3)


def made_up_text(words: int = WORDS, vocabulary: int = 20_000, seed: int = 0) -> str:
    """Words of made-up syllables, frequent ones more often, so that a tokenizer finds as many pieces as it is asked for."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in "aeiou"]
    known = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(vocabulary)]
    lines = []
    for _ in range(words // 12):
        chosen = [known[int(vocabulary * draw.random() ** 3)] for _ in range(12)]
        lines.append(" ".join(chosen).capitalize() + "." + ("\n\n" if draw.random() < 0.05 else ""))
    return "\n".join(lines)


def measure(settings: dict[str, Any], text: Path, out: Path) -> dict[str, Any]:
    """In a process of its own: the peak of a run beyond its imports, the time of its steps, and the vocabulary that it had."""
    import etymon.report.plots
    import etymon.runs.dry_run  # noqa: F401
    from etymon.runs.folder import Job
    from etymon.runs.run import run
    from etymon.runs.run_file import RunFile, assemble
    from etymon.runs.text_data import TextData
    from etymon.text.sources import text_source

    given = {name: value for name, value in settings.items() if name != "set"}
    file = assemble(
        RunFile, {**given, "data": [str(text)], "budget": f"{STEPS}steps"}, None, settings.get("set", ())
    )
    source = text_source(file.data, file)
    job = Job(out, file)
    data = TextData(job, source)
    data.memory_plan().footprint()  # what that imports, too
    before = peak_resident()
    result = run(job, data)
    peak = peak_resident() - before
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    tokens = [record["tokens"] for record in records if "tokens" in record]
    speeds = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
    times = [(here - before) / speed for before, here, speed in zip([0, *tokens], tokens, speeds)]
    return {"bytes": peak, "step_seconds": median(times[1:]), "vocabulary": result.model.shape.vocabulary}


def planned(settings: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """What `etymon plan` says of the same run."""
    options = {"precision": "float32", **settings, "vocabulary": vocabulary, "budget": f"{STEPS}steps"}
    words = [options.pop("family")]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    told = json.loads(run_process(["-m", "etymon", "plan", *words, "--json"]))
    return {
        "bytes": told["chosen"]["total"],
        "step_seconds": told["seconds"] / told["steps"],
        "parts": told["chosen"],
    }


def run_process(words: Sequence[str]) -> str:
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def compare(name: str, settings: dict[str, Any], text: Path) -> dict[str, Any]:
    with TemporaryDirectory(prefix="etymon-") as place:
        asked = json.dumps([settings, str(text), f"{place}/run"])
        took = json.loads(run_process(["-m", "benchmarks.plan", "--measure", asked]).splitlines()[-1])
    said = planned(settings, took["vocabulary"])
    ratios = {each: round(said[each] / took[each], 3) for each in ("bytes", "step_seconds")}
    print(
        f"{name}: said {said['bytes'] / 1e6:,.0f} MB, took {took['bytes'] / 1e6:,.0f} ({ratios['bytes'] - 1:+.0%}); "
        f"said {1000 * said['step_seconds']:,.0f} ms a step, took {1000 * took['step_seconds']:,.0f} ({ratios['step_seconds'] - 1:+.0%})",
        flush=True,
    )
    return {"name": name, "said": said, "took": took, "ratios": ratios}


def main(names: Sequence[str] = ()) -> None:
    """Compares all configurations, or the named ones; figures are kept as they are measured."""
    records: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="etymon-") as place:
        text = Path(place) / "text.txt"
        text.write_text(made_up_text(), encoding="utf-8")
        for name, settings in CONFIGURATIONS.items():
            if not names or name in names:
                records.append(compare(name, settings, text))
                write_result("plan", {"machine": machine(), "runs": records})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        settings, text, out = json.loads(sys.argv[2])
        print(json.dumps(measure(settings, Path(text), Path(out))))
    else:
        main(sys.argv[1:])
