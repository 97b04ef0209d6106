"""What a run was said to take in memory, and what it then took: `make bench-memory-estimate`.

Every run is a fresh process of a few steps, with everything that a run does: tokenizer, store, validation, training, checkpoints, report. Its peak is
counted beyond what it held after its imports.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import machine, peak_resident, sized, write_result

TOY_SHAPE = {"dim": 64, "layers": 2, "heads": 2, "positions": 64}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2 pocket": {"family": "gpt2", "batch": 32},
    "gpt2 small": {"family": "gpt2", "size": "small", "batch": 2},
    "bert pocket": {"family": "bert", "batch": 64},
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
}
CONFIGURATIONS = sized(
    CONFIGURATIONS,
    {"gpt2 toy": {"family": "gpt2", "batch": 16, "length": 64, "vocabulary": 400, "shape": TOY_SHAPE}},
)
WORDS = sized(60_000, 6_000)
STEPS = 3


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
    """In a process of its own: the peak of a run beyond its imports, and the estimate with the vocabulary that it then had."""
    import etymon.report.plots
    import etymon.runs.dry_run  # noqa: F401
    from etymon.runs.folder import Job
    from etymon.runs.run import run
    from etymon.runs.run_file import RunFile, assemble
    from etymon.runs.text_data import TextData
    from etymon.text.sources import text_source

    file = assemble(RunFile, {**settings, "data": [str(text)], "budget": f"{STEPS}steps"}, None, ())
    source = text_source(file.data, file)
    job = Job(out, file)
    data = TextData(job, source)
    data.memory_plan().footprint()  # what that imports, too
    before = peak_resident()
    result = run(job, data)
    peak = peak_resident() - before
    estimate = data.memory_plan(result.model.shape).footprint()
    return {
        "measured": peak,
        "estimate": estimate.total,
        "parts": str(estimate),
        "vocabulary": result.model.shape.vocabulary,
    }


def compare(name: str, settings: dict[str, Any], text: Path) -> dict[str, Any]:
    with TemporaryDirectory(prefix="etymon-") as place:
        asked = json.dumps([settings, str(text), f"{place}/run"])
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory_estimate", "--measure", asked], capture_output=True, text=True,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    ratio = found["estimate"] / found["measured"]
    print(
        f"{name}: said {found['estimate'] / 1e6:,.0f} MB, took {found['measured'] / 1e6:,.0f} MB ({ratio - 1:+.0%}); "
        f"{found['parts']}",
        flush=True,
    )
    return {"name": name, **found, "ratio": round(ratio, 3)}


def main(names: Sequence[str] = ()) -> None:
    """Compares all configurations, or the named ones; figures are kept as they are measured."""
    records: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="etymon-") as place:
        text = Path(place) / "text.txt"
        text.write_text(made_up_text(), encoding="utf-8")
        for name, settings in CONFIGURATIONS.items():
            if not names or name in names:
                records.append(compare(name, settings, text))
                write_result("memory_estimate", {"machine": machine(), "runs": records})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        settings, text, out = json.loads(sys.argv[2])
        print(json.dumps(measure(settings, Path(text), Path(out))))
    else:
        main(sys.argv[1:])
