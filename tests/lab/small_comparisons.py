"""Comparisons of tiny models that take seconds, trained in this process."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.lab import compare as comparing
from etymon.lab import compare_plan
from etymon.lab.compare_jobs import ArmJob, ArmWorker
from etymon.lab.compare_results import Compared
from etymon.lab.sweep_jobs import RunEnd
from tests import tiny
from tests.verbs.small_runs import with_test_sizes

SETTINGS = ["validate_every=100000", "save_every=3"]


class HereExecutor:
    """Jobs in this process: a worker of its own would take seconds to import what is here already."""

    def run(self, jobs: Iterable[ArmJob]) -> Iterator[tuple[ArmJob, RunEnd]]:
        for job in jobs:
            yield job, ArmWorker()(job)


@contextmanager
def small_comparisons(*, in_this_process: bool = True) -> Iterator[None]:
    """A size called "test" for every family, and one round before the final."""

    @contextmanager
    def open_here(*_: Any) -> Iterator[HereExecutor]:
        yield HereExecutor()

    with with_test_sizes(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_plan, "FEWEST_ROUNDS", 1)
        if in_this_process:
            patch.setattr(comparing, "open_arm_executor", open_here)
        yield


def write_text(folder: Path) -> Path:
    file = folder / "text.txt"
    file.write_text("\n".join(tiny.texts() * 2), encoding="utf-8")
    return file


def write_table(folder: Path, rows: int = 120) -> Path:
    """Sentences that one word decides about."""
    draw = random.Random(0)
    lines = ["text,label"]
    for number in range(rows):
        label = draw.choice(["good", "bad"])
        word = {"good": "river", "bad": "winter"}[label]
        lines.append(f"The {word} answered the captain of {number},{label}")
    file = folder / "reviews.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def write_pairs(folder: Path) -> Path:
    """Sentences of the text beside the same words in another order."""
    words = ("river", "winter", "window", "captain", "letter", "village", "mountain", "question")
    lines = ["good,bad,UID"]
    for number, word in enumerate(words * 3):
        other = words[(number + number // 8 + 1) % 8]
        lines.append(f"The {word} answered the {other}.,The the {word} {other} answered.,order{number % 2}")
    file = folder / "pairs.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def compare(arms: list[str], out: Path, text: Path | None, **changes: Any) -> Compared:
    arguments: dict[str, Any] = {
        "data": None if text is None else [text], "size": "test", "budget": "1500tokens", "out": out, "batch": 8,
        "length": 32, "documents": "line", "progress": "silent", "set": SETTINGS, "validation": 0.15, "test": 0.15,
    }  # fmt: skip
    return etymon.compare(arms, **{**arguments, **changes})
