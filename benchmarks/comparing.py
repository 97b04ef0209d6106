"""The whole story of a comparison, with nothing to download: `make compare-demo`, about an hour on two cores.

The text is the prose inside Python, the table says which package of the standard library a paragraph is from. Five
families, and an objective of one's own (GPT-2 reading from the end of a text to its beginning), are compared at equal operations. The report
is kept in ETYMON_BENCH_RUNS, and it goes on where it was stopped.
"""

from __future__ import annotations

import ast
import csv
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import folder, keep, small
from benchmarks.harness import TOY, sized
from etymon.text.prose import StandardLibrary, clean_paragraphs

RUNS = folder("comparing")
PACKAGES = sized(
    ("asyncio", "email", "http", "logging", "multiprocessing", "tkinter", "unittest", "xml"),
    ("http", "logging"),
)
PARAGRAPHS = sized(400, 40)
"""Of a package at most."""
FAMILIES = sized(("gpt2", "bert", "electra", "t5", "xlnet"), ("gpt2",))
OWN = """from etymon.objectives.causal import CausalExample, CausalLM


class Backwards(CausalLM):
    \"\"\"Every token from those after it.\"\"\"

    name = "backwards"

    def prepare(self, split, row, rng):
        start, stop = row.tolist()
        ids = split.stream(start, stop, self.separator)[::-1].copy()
        return CausalExample(ids[:-1], ids[1:])
"""
"""What a user would write into a file of his own."""
BUDGET = sized(os.environ.get("ETYMON_COMPARE_BUDGET", "8Tflops"), "300tokens")
"""Of a run of the final: counted operations, so that it may share the machine. All runs together are nine times as much."""
TASK_BUDGET = sized("4epochs", "1steps")


def paragraphs(package: str) -> Iterator[str]:
    """The prose of a package's docstrings."""
    for path in sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from clean_paragraphs(ast.get_docstring(node) or "")


def prose() -> list[str]:
    return [document.text for document in StandardLibrary().documents()]


def write_data(place: Path) -> tuple[Path, Path]:
    """The text and the table, written once."""
    text, table = place / "prose.txt", place / "packages.csv"
    place.mkdir(parents=True, exist_ok=True)
    if not table.is_file():
        # A blank line ends a document. At toy size the table's own paragraphs do: parsing all of the library takes seconds.
        documents = [row for package in PACKAGES for row in paragraphs(package)] if TOY else prose()
        text.write_text("\n\n".join(documents), encoding="utf-8")
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            for package in PACKAGES:
                rows = dict.fromkeys(paragraphs(package))
                writer.writerows((row, package) for row in list(rows)[:PARAGRAPHS])
    return text, table


def arms(own: Path) -> list[str]:
    """The families as they are, and the objective; at toy size with shapes that take no time."""
    names = [*FAMILIES, f"backwards=gpt2@{own}:Backwards"]
    shapes = [",".join(small(name)) for name in (*FAMILIES, "gpt2")]
    return ["@".join(filter(None, pair)) for pair in zip(names, shapes, strict=True)]


def main(arguments: Sequence[str]) -> None:
    text, table = write_data(RUNS / "data")
    own = RUNS / "data" / "backwards.py"
    own.write_text(OWN, encoding="utf-8")
    settings: dict[str, Any] = sized(
        {"precision": "auto"}, {"length": 16, "batch": 2, "vocabulary": 400, "order": 2, "progress": "silent"}
    )
    compared = etymon.compare(
        arms(own),
        data=[text],
        documents="blank",
        budget=BUDGET,
        tasks=[table],
        task_budget=TASK_BUDGET,
        out=RUNS / "comparison",
        resume="auto",
        **settings,
    )
    if compared.signal:
        sys.exit("stopped: the same command goes on")
    record = compared.record()
    keep("comparing", {name: record[name] for name in ("arms", "criteria", "budget", "design")})
    print(f"report  {compared.report}")


if __name__ == "__main__":
    main(sys.argv[1:])
