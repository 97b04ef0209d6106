"""Every cell that `etymon export --list` promises, in every rounding of its target, exported and checked:
`python -m tests.check_export` (make check-export) writes docs/exports.md.

Models are new ones of two layers and width 256. What was checked already with the same versions is not done again, so
that a stopped run goes on: results lie in docs/exports.json. `--only onnx:bert` checks some cells, `--weights int8` some
roundings, `--table` none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from etymon.exports import export_cells, get_target
from etymon.exports.check import check_inputs
from etymon.exports.target import STATES, CheckInputs, ExportTarget
from etymon.exports.writing import export_model
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.files import write_json
from tests import tiny

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, TABLE = DOCS / "exports.json", DOCS / "exports.md"
# What makes a tiny shape large enough for its speed to mean something.
LARGER = {
    "dim": 256, "inner_dim": 1024, "heads": 4, "head_dim": 64, "layers": 2, "positions": 128, "embedding_dim": 256,
    "rotary_dim": 32, "word_dim": 256, "readout_dim": 256,
}  # fmt: skip
ROWS, LENGTH, REPEATS = 8, 64, 5
FIGURES = {"worst": ".1e", "agreement": ".1%", "noise": ".1e", "lost": ".1e"}
"""Of the check, as the table prints them."""


def small_model(family: str, head: str) -> Model:
    """A new model of two layers, with numbers that are not all small."""
    known, shape = get_family(family), tiny.shape(family)
    shape |= {name: value for name, value in LARGER.items() if name in shape}
    if family == "elmo":
        shape |= {"dim": 64}
    full = shape_of(known, None, **{**shape, "vocabulary": tiny.tokenizer(family).size})
    model = Model(known, full, {head} - {STATES}, ("0", "1")).initialise(1)
    model.tokenizer = tiny.tokenizer(family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model.eval()


def check_cell(target: ExportTarget, family: str, head: str, quantization: str) -> dict[str, Any]:
    """Figures of one export: those of its check, its size, and how long both take for the same rows."""
    model = small_model(family, head)
    if (reason := target.unsupported_rounding(model, head, quantization)) is not None:
        return {"refused": reason}
    with tempfile.TemporaryDirectory() as place:
        result = export_model(model, target, quantization, Path(place) / "export", head)
        runner = target.open(result.folder)
        longest = check_inputs(model, head)[2]
        row = (list(longest.rows[0]) * LENGTH)[:LENGTH]
        written = None if longest.targets is None else [(list(longest.targets[0]) * LENGTH)[:LENGTH]] * ROWS
        spelled = longest.letters and [longest.letters[0][:LENGTH]] * ROWS
        inputs = CheckInputs([row] * ROWS, written, spelled)
        times: dict[str, float] = {"original": float("inf"), "runtime": float("inf")}
        for _ in range(REPEATS):
            for name, answer in (
                ("original", lambda: target.answers(model, head, inputs)),
                ("runtime", lambda: runner.answer(inputs)),
            ):
                begin = time.perf_counter()
                answer()
                times[name] = min(times[name], time.perf_counter() - begin)
    return {
        **{name: getattr(result.check, name) for name in FIGURES},
        "bytes": result.bytes,
        "original_ms": times["original"] * 1000,
        "runtime_ms": times["runtime"] * 1000,
        "threads": torch.get_num_threads(),
        "checked_by": result.checked_by,
    }


def promised_cells() -> list[tuple[str, str, str, str]]:
    """Family, head, target and weights of all that is promised, weights as they are first: a stopped run has
    checked what most people ask for."""
    cells = [
        (cell.family, cell.head, cell.target, quantization)
        for cell in export_cells()
        if not cell.reason
        for quantization in get_target(cell.target).quantizations
    ]
    return sorted(cells, key=lambda cell: is_rounded(*cell[2:]))


def is_rounded(target: str, quantization: str) -> bool:
    return quantization != next(iter(get_target(target).quantizations))


def write_table(results: dict[str, Any]) -> None:
    promised = promised_cells()
    refused = {key for key, figures in results.items() if "refused" in figures}
    lines = [
        "# What was exported, and how far it is off",
        "",
        "Written by `make check-export`, which exports every cell that `etymon export --list` promises and has its runtime answer. Models are new ones of two",
        "layers and width 256. Time is that of 8 rows of 64 tokens, the best of 5: of etymon, then of the runtime. Both have the same threads; ratios on a busy",
        "machine are rough. See [exporting.md](exporting.md).",
    ]
    for rounded, title, notes in (
        (False, "Weights as they are", []),
        (True, "Rounded weights", ROUNDED_NOTES),
    ):
        cells = sorted(cell for cell in promised if is_rounded(*cell[2:]) == rounded)
        keys = [" ".join(cell) for cell in cells]
        offered = [key for key in keys if key not in refused]
        passed = [key for key in offered if "worst" in results.get(key, {})]
        failed = [key for key in offered if "failure" in results.get(key, {})]
        lines += ["", f"## {title}", "", *notes]
        lines += [f"Passed: {len(passed)} of {len(offered)} promised cells."]
        if len(passed) < len(offered):
            lines += [
                "",
                f"Failed: {len(failed)}. Not checked yet: {len(offered) - len(passed) - len(failed)}.",
            ]
        # A runtime that is not installed did not answer, and the table says who did.
        others = {results[key].get("checked_by", RUNTIME): key.split(" ")[2] for key in passed}
        for checker, target in sorted(others.items()):
            if checker != RUNTIME:
                lines += ["", f"Cells of {target} were checked by {checker.rstrip(',')}."]
        names = list(FIGURES) if rounded else ["worst", "agreement"]
        titles = [TITLES[name] for name in names]
        lines += [
            "",
            f"| family | head | target | weights | {' | '.join(titles)} | size | etymon | runtime |",
            "|---" * (7 + len(names)) + "|",
        ]
        lines += [_table_row(key, results[key], names) for key in offered if key in results]
        reasons: dict[str, list[str]] = {}
        for key in keys:
            if key in refused:
                reasons.setdefault(results[key]["refused"], []).append(key)
        for reason, without in reasons.items():
            lines += ["", f"Refused ({reason}): {', '.join(f'`{key}`' for key in without)}."]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


RUNTIME = "the runtime"
"""Who checks where a target says nothing else."""
TITLES = {
    "worst": "worst difference", "agreement": "best outputs agree", "noise": "noise", "lost": "probability lost",
}  # fmt: skip
ROUNDED_NOTES = [
    "The [check](exporting.md#the-check) holds these to wider limits. New models hardly prefer one word, so their best outputs change places more easily than a trained model's;",
    "noise and lost probability say what rounding does.",
    "",
]


def _table_row(key: str, figures: dict[str, Any], names: list[str]) -> str:
    cells = key.split(" ")
    if "failure" in figures:
        cells += [f"failed: {figures['failure']}", *[""] * (len(names) + 2)]
    else:
        cells += [format(figures[name], FIGURES[name]) for name in names]
        cells += [
            f"{figures['bytes'] / 1e6:.1f} MB",
            f"{figures['original_ms']:.0f} ms",
            f"{figures['runtime_ms']:.0f} ms",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="target, or target:family, or target:family:head")
    parser.add_argument("--weights", default="", help="one rounding alone: float32, int8 ...")
    parser.add_argument(
        "--table", action="store_true", help="write the table of what there is, and check nothing"
    )
    options = parser.parse_args()
    failed = False
    wanted = options.only.split(":")
    for cell in [] if options.table else promised_cells():
        family, head, name, quantization = cell
        if any(part and part != value for part, value in zip(wanted, (name, family, head))):
            continue
        if options.weights not in ("", quantization):
            continue
        target, key = get_target(name), " ".join(cell)
        versions = {"torch": torch.__version__, **target.versions()}
        if (
            (known := read_results().get(key))
            and known.get("versions") == versions
            and "failure" not in known
        ):
            continue
        try:
            figures = check_cell(target, family, head, quantization)
        except Exception as error:  # of whatever runtime: the others are checked all the same
            figures, failed = {"failure": str(error).splitlines()[0][:160]}, True
        # Several of these may run at the same time.
        with FileLock(RESULTS.with_suffix(".lock")):
            write_json(RESULTS, {**read_results(), key: {**figures, "versions": versions}})
        said = figures.get("failure") or figures.get("refused") or f"{figures['worst']:.1e}"
        print(key, said, flush=True)
    write_table(read_results())
    sys.exit(1 if failed else 0)


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


if __name__ == "__main__":
    main()
