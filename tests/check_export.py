"""Every cell that `etymon export --list` promises, exported and checked: `python -m tests.check_export` (make
check-export) writes docs/exports.md.

Models are new ones of two layers and width 256. What was checked already with the same versions is not done again, so
that a stopped run goes on: results lie in docs/exports.json. `--only onnx:bert` checks some cells, `--table` none.
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
    """Figures of one export: worst difference, agreement, size, and how long both take for the same rows."""
    model = small_model(family, head)
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
        "worst": result.check.worst,
        "agreement": result.check.agreement,
        "bytes": result.bytes,
        "original_ms": times["original"] * 1000,
        "runtime_ms": times["runtime"] * 1000,
        "versions": {"torch": torch.__version__, **target.versions()},
    }


def write_table(results: dict[str, Any]) -> None:
    promised = {f"{cell.family} {cell.head} {cell.target}" for cell in export_cells() if not cell.reason}
    checked = {key.rpartition(" ")[0] for key, figures in results.items() if "failure" not in figures}
    lines = [
        "# What was exported, and how far it is off",
        "",
        "Written by `make check-export`, which exports every cell that `etymon export --list` promises and has its runtime answer. Models are new ones of two",
        "layers and width 256. Time is that of 8 rows of 64 tokens, the best of 5: of etymon, then of the runtime. Both have the same threads; ratios on a busy",
        "machine are rough. See [exporting.md](exporting.md).",
        "",
        f"Passed: {len(checked & promised)} of {len(promised)} promised cells.",
        "",
        "| family | head | target | weights | worst difference | best outputs agree | size | etymon | runtime |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(results):
        family, head, target, quantization = key.split(" ")
        figures = results[key]
        if "failure" in figures:
            lines.append(
                f"| {family} | {head} | {target} | {quantization} | failed: {figures['failure']} | | | | |"
            )
            continue
        lines.append(
            f"| {family} | {head} | {target} | {quantization} | {figures['worst']:.1e} | {figures['agreement']:.1%} | "
            f"{figures['bytes'] / 1e6:.1f} MB | {figures['original_ms']:.0f} ms | {figures['runtime_ms']:.0f} ms |"
        )
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="target, or target:family, or target:family:head")
    parser.add_argument(
        "--quantize", action="store_true", help="every rounding as well, and not the default alone"
    )
    parser.add_argument(
        "--table", action="store_true", help="write the table of what there is, and check nothing"
    )
    options = parser.parse_args()
    failed = False
    wanted = dict(zip(("target", "family", "head"), filter(None, options.only.split(":"))))
    cells = [cell for cell in export_cells() if not cell.reason]
    cells = [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]
    for cell in [] if options.table else cells:
        target = get_target(cell.target)
        quantizations = list(target.quantizations) if options.quantize else list(target.quantizations)[:1]
        for quantization in quantizations:
            key = f"{cell.family} {cell.head} {cell.target} {quantization}"
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            versions = {"torch": torch.__version__, **target.versions()}
            if key in results and results[key].get("versions") == versions:
                continue
            try:
                figures = check_cell(target, cell.family, cell.head, quantization)
            except Exception as error:  # of whatever runtime: the others are checked all the same
                figures, failed = {"failure": str(error).splitlines()[0][:160]}, True
            # Several of these may run at the same time.
            with FileLock(RESULTS.with_suffix(".lock")):
                results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                write_json(RESULTS, {**results, key: figures})
            print(key, figures.get("failure") or f"{figures['worst']:.1e}", flush=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_table(results)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
