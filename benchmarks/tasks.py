"""What pretraining buys in fine-tuning, family by family: `make bench-tasks`.

Every family at its pocket size, from scratch and pretrained with its own objective on the same novels, fine-tuned on GLUE's smaller tasks and on tags; some
on more tasks and on Chinese; three seeds for three claims. Operations are counted, not seconds, so cells may share the machine: those of about five
quiet minutes of pretraining on two cores, and of 45 seconds of fine-tuning on one. Every cell is kept in ETYMON_BENCH_RUNS; the same command goes on, and given twice at a
time it has two processes that share the families. `--table` prints what there is.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import etymon
from benchmarks.arms import RARELY, folder, keep, run_of, small, tuned
from benchmarks.harness import needed_corpora, sized
from etymon.families import REGISTRY
from etymon.tables.table import read_table

RUNS = folder("tasks")
TUNING = sized(os.environ.get("ETYMON_BENCH_TUNING", "2.7Tflops"), "1step")
"""About 45 seconds of steps on one core."""
LAST = ["validate_every=1000000"]
"""The model of the last step is scored, not the best by the rows that it is scored on."""
SCRATCH, PRETRAINED = "scratch", "pretrained"
EVERYWHERE = ("SST-2", "CoLA", "RTE", "STS-B", "UD-EWT")
MORE = ("SQuAD", "OpenBookQA", "MRPC")
CHINESE = ("CLUENER", "ChnSentiCorp")
ARTICLES = sized(44, 2)
"""Of SQuAD's 48, those that are trained on."""
FAMILIES = sized(tuple(REGISTRY), ("bert",))
"""Those that learn the tasks everywhere; `MORE` and `CHINESE` are learnt by a few."""
MORE_FAMILIES, CHINESE_FAMILIES = sized(
    (("bert", "gpt1", "xlnet", "t5"), ("bert", "gpt2")), (("t5",), ("bert",))
)
STARTS, SEEDS = sized(((SCRATCH, PRETRAINED), 3), ((PRETRAINED,), 1))
CLAIMED = sized(tuple(REGISTRY), ("bert",))
LENGTH, BATCH, ELMO_BATCH = sized((128, 16, 96), (32, 2, 2))
VOCABULARY = sized(None, 160)


def data() -> Path:
    return needed_corpora("the novels and the tasks")


def squad(train: bool) -> list[Any]:
    rows = read_table(data() / "squad" / "dev-v1.1.json").rows
    titles = list(dict.fromkeys(row["title"] for row in rows))
    chosen = set(titles[:ARTICLES] if train else titles[ARTICLES:])
    return [row for row in rows if row["title"] in chosen]


def asked(task: str) -> dict[str, Any]:
    """What `etymon.finetune` is told of a task."""
    if task == "SQuAD":
        return {
            "task": "answer",
            "train": squad(True),
            "validation": squad(False),
            "metric": ["f1", "exact"],
            "set": LAST,
        }
    places: dict[str, tuple[str, str, str]] = {
        "UD-EWT": ("ud-ewt", "en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu"),
        "CLUENER": ("cluener", "train.json", "dev.json"),
        "ChnSentiCorp": ("chnsenticorp", "train.tsv", "dev.tsv"),
        "OpenBookQA": ("openbookqa", "train.tsv", "dev.tsv"),
    }
    where, *files = places.get(task, (f"glue/{task}", "train.tsv", "dev.tsv"))
    train, validation = (data() / where / name for name in files)
    told: dict[str, dict[str, Any]] = {
        # Rows of a dozen words: 32 of them are hardly more work than Muon's step after them.
        "SST-2": {"task": "classify", "text": "sentence", "metric": "accuracy", "batch": 64},
        "CoLA": {
            "task": "classify", "columns": "source,label,mark,sentence", "text": "sentence", "metric": "matthews", "batch": 64,
        },
        "RTE": {"task": "classify", "text": "sentence1", "second": "sentence2", "metric": "accuracy"},
        "MRPC": {
            "task": "classify", "text": "#1 String", "second": "#2 String", "label": "Quality", "metric": ["f1", "accuracy"],
        },
        "STS-B": {"task": "regress", "text": "sentence1", "second": "sentence2", "label": "score", "metric": "pearson"},
        "UD-EWT": {"task": "tag", "tokens": "tokens", "tags": "upos", "metric": "accuracy"},
        "OpenBookQA": {
            "task": "choose", "text": "Question Stem", "choices": ["Choices"], "label": "Answer Key", "metric": "accuracy",
        },
        "CLUENER": {
            "task": "tag", "text": "text", "entities": "label", "metric": "f1", "set": ["options.overlapping=longest", *LAST],
        },
        "ChnSentiCorp": {"task": "classify", "text": "text_a", "metric": "accuracy"},
    }  # fmt: skip
    return {"train": [train], "validation": [validation], "set": LAST, **told[task]}


@dataclass(frozen=True)
class Cell:
    family: str
    task: str
    start: str
    seed: int = 0
    arm: str = ""
    """What is otherwise than usual, by name."""
    options: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def name(self) -> str:
        parts = (self.family, self.task, self.start, self.arm, str(self.seed) if self.seed else "")
        return "-".join(part for part in parts if part)

    @property
    def language(self) -> str:
        return "zh" if self.task in CHINESE else "en"

    def result(self) -> dict[str, Any] | None:
        kept = RUNS / "cells" / self.name / "result.json"
        return json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None


CLAIMS: dict[str, list[tuple[str, str, str, str, dict[str, Any]]]] = {
    "GPT-1: pretraining helps, and so does language modelling beside the task": [
        ("gpt1", task, start, arm, options)
        for task in ("SST-2", "CoLA", "RTE")
        for start, arm, options in (
            (SCRATCH, "", {}), (PRETRAINED, "", {}), (PRETRAINED, "no-lm", {"language_model": 0.0})
        )
    ],
    "ELMo: a mix of layers beats the last": [
        ("elmo", "UD-EWT", PRETRAINED, arm, options)
        for arm, options in (("", {}), ("last", {"features": "last"}))
    ],
    "BERT: both directions beat one": [
        (family, task, PRETRAINED, "", {})
        for task in ("SST-2", "RTE", "UD-EWT")
        for family in ("bert", "gpt2")
    ],
}  # fmt: skip


GROUPS = ((EVERYWHERE, FAMILIES), (MORE, MORE_FAMILIES), (CHINESE, CHINESE_FAMILIES))


def cells() -> Iterator[Cell]:
    for tasks, families in GROUPS:
        for task in tasks:
            for family in families:
                for start in STARTS:
                    yield Cell(family, task, start)
    for members in CLAIMS.values():
        for family, task, start, arm, options in members:
            for seed in range(SEEDS if family in CLAIMED else 0):
                yield Cell(family, task, start, seed, arm, tuple(options.items()))


def text(language: str) -> list[str]:
    if language == "en":
        return [str(data() / "eltec-novels")]
    whole = RUNS / "chinese.txt"
    if not whole.is_file():
        lines = [row["text_a"] for row in read_table(data() / "chnsenticorp" / "train.tsv").rows]
        lines += [row["text"] for row in read_table(data() / "cluener" / "train.json").rows]
        pairs = (data() / "tatoeba-en-zh" / "cmn.txt").read_text(encoding="utf-8").splitlines()
        lines += [line.split("\t")[1] for line in pairs]
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n", encoding="utf-8")
    return [str(whole)]


def pretrained(family: str, language: str) -> Path:
    """A pocket model of the family, pretrained for about five quiet minutes."""
    if family == "distilbert":
        teacher = pretrained("bert", language)
    # ELMo's segments are short, as published, and so many of them make a step.
    asked: dict[str, Any] = {"length": LENGTH, "batch": BATCH, "set": [*RARELY, *small(family)]}
    if family == "elmo":
        asked |= {"length": 20, "batch": ELMO_BATCH}

    def start(common: dict[str, Any]) -> Any:
        if family == "distilbert":
            return etymon.distill(teacher, family=family, data=text(language), **asked, **common)
        documents = "line" if language == "zh" else "file"
        return etymon.pretrain(
            family,
            size="pocket",
            data=text(language),
            documents=documents,
            vocabulary=VOCABULARY,
            **asked,
            **common,
        )

    return run_of(RUNS / "pretrained" / f"{family}-{language}", 0, start)


def done(cell: Cell) -> None:
    if cell.result() is not None:
        return
    base = pretrained(cell.family, cell.language)
    told = {**asked(cell.task), **dict(cell.options), "seed": cell.seed}
    if cell.start == SCRATCH:
        told |= {"from_scratch": True, "size": "pocket", "tokenizer": base / "tokenizer"}
    tuned(RUNS / "cells" / cell.name, cell.family if cell.start == SCRATCH else base, told, TUNING)


def table() -> None:
    """What is there, and into `benchmarks/results/`."""
    known = {cell.name: cell.result() for cell in cells()}

    def value(cell: Cell) -> str:
        result = known[cell.name]
        return "" if result is None else f"{result['value']:.1f}"

    for tasks, families in GROUPS:
        print("| family | " + " | ".join(f"{task}, {start}" for task in tasks for start in STARTS) + " |")
        print("|---|" + "---|" * (len(STARTS) * len(tasks)))
        for family in families:
            row = [value(Cell(family, task, start)) for task in tasks for start in STARTS]
            print(f"| {family} | " + " | ".join(row) + " |")
        print()
    for claim, members in CLAIMS.items():
        print(claim)
        for family, task, start, arm, options in members:
            each = [
                known.get(Cell(family, task, start, seed, arm, tuple(options.items())).name)
                for seed in range(SEEDS)
            ]
            values = [result["value"] for result in each if result is not None]
            if values:
                told = ", ".join(f"{one:.1f}" for one in values)
                print(f"  {family} {task} {start} {arm}: {statistics.mean(values):.1f} ({told})")
    keep(
        "tasks",
        {"tuning": TUNING, "cells": {name: result for name, result in known.items() if result is not None}},
    )


@contextmanager
def taken(runs: Path, name: str) -> Iterator[bool]:
    """Whether nobody else is at it. A family's cells start from one model, so that they are one process's work."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if "--table" not in arguments:
        whole = sorted(cells(), key=lambda cell: cell.family == "distilbert")  # which learns from BERT's
        for family, language in dict.fromkeys((cell.family, cell.language) for cell in whole):
            with taken(RUNS, f"{family}-{language}") as mine:
                for cell in whole if mine else ():
                    if (cell.family, cell.language) == (family, language):
                        try:
                            done(cell)
                        except etymon.EtymonError as error:
                            print(f"{cell.name}: {error}", flush=True)
    table()


if __name__ == "__main__":
    main(sys.argv[1:])
