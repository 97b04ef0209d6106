"""The runs of a comparison, and the figures by which they may be ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etymon.errors import EtymonError
from etymon.files import read_json
from etymon.lab.compare_plan import Arm
from etymon.lab.compare_text import TaskTable
from etymon.lab.suite_parts import SuitePart
from etymon.training.state import RunFolder


@dataclass
class Entry:
    """A run of the comparison."""

    arm: str
    round: int
    """From 1; 0 is the final."""
    share: float
    """Of the final's budget."""
    seed: int
    folder: Path
    trial: int = 0
    is_dropped: bool = False
    """Whether another learning rate of the arm was better."""

    @property
    def is_scored(self) -> bool:
        return (self.folder / "scores-validation.json").is_file()

    @property
    def is_tested(self) -> bool:
        return (self.folder / "scores-test.json").is_file()

    @property
    def title(self) -> str:
        trial = f", trial {self.trial + 1}" if self.trial else ""
        return f"{self.arm}, {f'round {self.round}{trial}' if self.round else f'final, seed {self.seed}'}"

    def scores(self, part: str) -> dict[str, Any]:
        return read_json(self.folder / f"scores-{part}.json")

    @cached_property
    def cost(self) -> dict[str, float]:
        """What the run took, by the axes of budgets."""
        # Validations and samples have lines of their own, without what a step has used up.
        trained = [record for record in RunFolder(self.folder).metrics() if "tokens_per_second" in record]
        last = trained[-1] if trained else {}
        return {
            # Logged by the step, the others from the beginning of the run.
            "operations": float(sum(record.get("operations", 0.0) for record in trained)),
            "words": float(last.get("words", 0)),
            "tokens": float(last.get("tokens", 0)),
            "time": float(last.get("seconds", 0.0)),
        }


@dataclass(frozen=True)
class Criterion:
    """A figure by which some of the arms may be ranked."""

    name: str
    group: str
    """What sets these arms apart from others; empty if all have it."""
    arms: frozenset[str]
    falls: bool
    is_primary: bool
    tasks: tuple[str, ...] = ()
    """Whose mean it is; none: of what `kind` says."""
    kind: Literal["text", "pairs", "probes", "suite"] = "text"
    parts: tuple[str, ...] = ()
    """Of a suite, whose mean it is."""

    @property
    def is_last(self) -> bool:
        """Whether it is scored at the end alone: a published suite has no part to decide rounds by."""
        return self.kind == "suite"

    def has(self, scores: Mapping[str, Any]) -> bool:
        """Whether a run has all that it is a mean of."""
        return self.kind != "suite" or all(part in scores.get("suite", {}) for part in self.parts)

    def items(self, scores: Mapping[str, Any]) -> tuple[list[float], list[float]]:
        """Values and weights of the items of a run's scores."""
        if self.kind == "suite":
            return [scores["suite"][part] for part in self.parts], [1.0] * len(self.parts)
        if not self.tasks:
            return scores[self.kind]["values"], scores[self.kind]["weights"]
        # Rows of all tasks are items together, so that their mean has one interval.
        values: list[float] = []
        weights: list[float] = []
        for task in self.tasks:  # each counts the same, however many rows it has
            rows = scores["tasks"][task]["values"]
            values += rows
            weights += [1 / len(rows)] * len(rows)
        return values, weights

    def order(self, score: float) -> float:
        """Smaller is better."""
        return score if self.falls else -score

    def error(self, score: float) -> float:
        """What falls with more budget."""
        # A power law falls towards zero: of an accuracy, that is what is missing to 100%.
        return score if self.falls else 100 - score

    def shown(self, score: float) -> str:
        return f"{score:.3f} {self.name}" if self.falls else f"{score:.1f}% {self.name}"


def criteria_of(
    arms: Sequence[Arm],
    tasks: Sequence[TaskTable],
    has_pairs: bool,
    has_probes: bool = False,
    suite: Sequence[SuitePart] = (),
) -> list[Criterion]:
    """The criteria of a comparison. Tasks decide where there are some, else minimal pairs, else probes: bits
    compare only within a group."""
    everyone = frozenset(arm.name for arm in arms)
    criteria = []
    names = tuple(task.name for task in tasks)
    if len(set(names)) < len(names):
        raise EtymonError(f"tasks need files of different names, not {', '.join(names)}")
    if len(names) > 1:
        criteria.append(Criterion("mean over the tasks", "", everyone, False, True, names))
    for name in names:
        criteria.append(Criterion(f"accuracy, {name}", "", everyone, False, len(names) == 1, (name,)))
    if has_pairs:
        criteria.append(Criterion("of minimal pairs", "", everyone, False, not tasks, kind="pairs"))
    if has_probes:
        is_primary = not tasks and not has_pairs
        criteria.append(Criterion("accuracy, probes", "", everyone, False, is_primary, kind="probes"))
    groups: dict[str, set[str]] = {}
    for arm in arms:
        groups.setdefault(arm.group, set()).add(arm.name)
    # Before any work: hours of training would end without an answer for these.
    compares_all = bool(tasks) or has_pairs or has_probes
    if "none" in groups and not compares_all:
        silent = ", ".join(sorted(groups["none"]))
        raise EtymonError(
            f"nothing compares {silent} with others: it gives no likelihood of a text; give --tasks "
            "with a table that all arms learn, --pairs or --probes"
        )
    for group, members in groups.items():
        if group != "none":
            name = "bits per byte" if group.startswith("likelihood") else "pseudo bits per byte"
            criteria.append(Criterion(name, group, frozenset(members), True, not compares_all))
    return [*criteria, *suite_criteria(arms, suite)]


def suite_criteria(arms: Sequence[Arm], suite: Sequence[SuitePart]) -> list[Criterion]:
    """The criteria of a suite's parts, and the mean over those that all arms can be compared by."""
    everyone = frozenset(arm.name for arm in arms)
    common = tuple(part.name for part in suite if part.kind in ("pairs", "finetune", "probe"))
    criteria = []
    # None decides rounds: a published suite has no rows to validate on, and its test rows are read once.
    if len(common) > 1:
        criteria.append(
            Criterion("mean over the suite", "", everyone, False, False, kind="suite", parts=common)
        )
    for part in suite:
        if part.name in common:
            criteria.append(
                Criterion(part.name, "", everyone, False, False, kind="suite", parts=(part.name,))
            )
            continue
        # A text's bits and its last words are asked of likelihoods and of pseudo-likelihoods in other ways.
        for group in dict.fromkeys(arm.group for arm in arms if arm.kind != "none"):
            members = frozenset(arm.name for arm in arms if arm.group == group)
            falls = part.kind == "text"
            name = f"bits per byte, {part.name}" if falls else part.name
            criteria.append(Criterion(name, group, members, falls, False, kind="suite", parts=(part.name,)))
    return criteria


def validation_score(entry: Entry, criterion: Criterion) -> float:
    """The score of a run on the validation part."""
    values, weights = criterion.items(entry.scores("validation"))
    return float(np.average(values, weights=weights))
