"""What a comparison found: scores of the finalists on the test part, what is sure about them, what baselines
reach, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import etymon
from etymon.files import read_json
from etymon.lab.compare_baselines import TextBaselines, task_baselines, text_baselines
from etymon.lab.compare_criteria import Criterion, Entry, validation_score
from etymon.lab.compare_plan import AXES, Arm, budget_text
from etymon.lab.compare_text import TaskTable, TextCounts
from etymon.lab.statistics import (
    Difference,
    ItemScores,
    PowerLaw,
    Verdict,
    budget_to_tell_apart,
    compare_arms,
    interquartile_mean,
    mean_interval,
    resample_items,
)
from etymon.report.inline import Inline
from etymon.training.budgets import Budget

if TYPE_CHECKING:
    from etymon.report.page import Section

MORE = 10
"""Times the budget, for the command that goes on with the winner."""


@dataclass
class CriterionResult:
    """What one criterion says about the finalists."""

    criterion: Criterion
    scores: dict[str, ItemScores]
    """Of the finalists, on the test part, the best first."""
    intervals: dict[str, tuple[float, float]]
    verdict: Verdict | None
    """None if there is nobody to compare with."""
    baselines: dict[str, float] = field(default_factory=dict)
    mixed: dict[str, float] = field(default_factory=dict)
    """Of arms with a likelihood: their bits per byte when they are mixed with counts of n-grams."""
    expected: dict[str, Any] = field(default_factory=dict)
    """Without a winner: at what budget the fits expect one, and the fits."""

    @property
    def leader(self) -> str:
        return next(iter(self.scores))

    @property
    def is_decided(self) -> bool:
        return self.verdict is not None and self.verdict.winner is not None

    def between(self, first: str, second: str) -> Difference | None:
        """The difference of two finalists, in either order."""
        differences = [] if self.verdict is None else self.verdict.differences
        return next((each for each in differences if {each.first, each.second} == {first, second}), None)

    def record(self) -> dict[str, Any]:
        return {
            "criterion": self.criterion.name,
            "group": self.criterion.group,
            "decides": self.criterion.is_primary,
            "smaller_is_better": self.criterion.falls,
            "winner": None if self.verdict is None else self.verdict.winner,
            "leader": self.leader,
            "noise_floor": None if self.verdict is None else self.verdict.noise_floor,
            "scores": {
                name: {
                    "mean": scores.mean,
                    "interval": list(self.intervals[name]),
                    "interquartile_mean": interquartile_mean(scores.by_seed),
                    "by_seed": scores.by_seed.tolist(),
                    "items": len(scores.weights_M),
                }
                for name, scores in self.scores.items()
            },
            "differences": []
            if self.verdict is None
            else [asdict(each) for each in self.verdict.differences],
            "baselines": self.baselines,
            "mixed_with_ngrams": self.mixed,
            "expected": self.expected,
        }


@dataclass
class Compared(Inline):
    """The result of a comparison."""

    folder: Path
    results: list[CriterionResult] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    budget: Budget = field(default_factory=lambda: Budget(1, "seconds"))
    design: Any = None
    text: TextCounts | None = None
    command: str = ""
    """How to go on, when it was stopped."""
    signal: int | None = None
    """What it was stopped by."""

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    @property
    def primary(self) -> list[CriterionResult]:
        """What decides: one result, or one for every group of arms that can be compared."""
        return [result for result in self.results if result.criterion.is_primary]

    @property
    def answers(self) -> list[CriterionResult]:
        """What the report begins with: what decides and, where that leaves kinds of arms apart, what a suite
        says of them all."""
        joint = [result for result in self.results if result.criterion.name == "mean over the suite"]
        return [*self.primary, *(joint if len(self.primary) > 1 else [])]

    @property
    def failed(self) -> list[Arm]:
        return [arm for arm in self.arms if arm.reason]

    @property
    def axis(self) -> str:
        return AXES[self.budget.unit]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def runs_of(self, name: str, round: int) -> list[Entry]:
        """The runs of an arm in a round that counted; round 0 is the final."""
        return [
            entry
            for entry in self.entries
            if entry.arm == name and entry.round == round and not entry.is_dropped and entry.is_scored
        ]

    def points(self, criterion: Criterion, name: str, axis: str) -> list[tuple[float, float]]:
        """(what was used up, validation score) of an arm, round by round; of the final, the mean of its
        seeds."""
        # The final comes last: its round is number 0.
        points = []
        for number in [*sorted({entry.round for entry in self.entries} - {0}), 0]:
            if runs := self.runs_of(name, number):
                used = float(np.mean([run.cost[axis] for run in runs]))
                points.append((used, float(np.mean([validation_score(run, criterion) for run in runs]))))
        return points

    def continue_command(self, name: str) -> str:
        """Trains the arm from the beginning with ten times the budget, on the same text."""
        arm = self.arm(name)
        # The run file of a final run has everything filled in, the chosen learning rate among it.
        config = shlex.quote(str(self.runs_of(name, 0)[0].folder / "run.yaml"))
        out = shlex.quote(f"runs/{self.folder.name}-{arm.folder}")
        # Validations were chosen for this budget's few steps: a longer run chooses its own.
        budget = budget_text(self.budget, MORE)
        size = "--size auto " if arm.file.sizing else ""  # for that budget
        return (
            f"etymon pretrain {arm.file.family} --config {config} {size}--budget {budget} "
            f"--set validate_every=null --out {out}"
        )

    def record(self) -> dict[str, Any]:
        """All of it, as results.json has it."""
        return {
            "etymon": etymon.__version__,
            "design": asdict(self.design),
            "text": None if self.text is None else asdict(self.text),
            "budget": {"axis": self.axis, "amount": self.budget.amount},
            "arms": [
                {
                    "name": arm.name,
                    "family": arm.file.family,
                    "objective": arm.file.objective,
                    "sizing": arm.file.sizing or None,
                    "learning_rate": arm.file.learning_rate or arm.rate,
                    "group": arm.group,
                    "failed": arm.reason or None,
                    "rounds": max(
                        (entry.round for entry in self.entries if entry.arm == arm.name), default=0
                    ),
                    "is_finalist": bool(self.runs_of(arm.name, 0)),
                }
                for arm in self.arms
            ],
            "runs": [
                {
                    "arm": entry.arm,
                    "round": entry.round or "final",
                    "seed": entry.seed,
                    "trial": entry.trial,
                    "folder": str(entry.folder),
                    "cost": entry.cost,
                    "validation": {
                        each.criterion.name: validation_score(entry, each.criterion)
                        for each in self.results
                        if entry.arm in each.criterion.arms and not each.criterion.is_last
                    },
                }
                for entry in self.entries
                if entry.is_scored
            ],
            "criteria": [result.record() for result in self.results],
            "continue": {result.leader: self.continue_command(result.leader) for result in self.primary},
        }

    def inline_sections(self) -> Iterator[Section]:
        from etymon.lab.compare_report import inline_sections

        yield from inline_sections(self)


def judge(
    folder: Path,
    arms: list[Arm],
    entries: list[Entry],
    criteria: Sequence[Criterion],
    tasks: Sequence[TaskTable],
    budget: Budget,
    design: Any,
) -> Compared:
    """Compares the finalists on the test part, with baselines beside them."""
    text = TextCounts(**read_json(folder / "text" / "text.json"))
    compared = Compared(folder, [], arms, entries, budget, design, text)
    for criterion in criteria:
        # An arm that failed in the final has fewer seeds than the others: it is not ranked.
        finalists = [arm for arm in arms if arm.name in criterion.arms and not arm.reason]
        scores: dict[str, ItemScores] = {}
        for arm in finalists:
            tested = [entry.scores("test") for entry in compared.runs_of(arm.name, 0)]
            # Of a suite, an arm may not be able to do a part: it is not ranked by that.
            runs = [criterion.items(each) for each in tested] if all(map(criterion.has, tested)) else []
            if runs:
                scores[arm.name] = ItemScores.of([values for values, _ in runs], runs[0][1])
        if scores:
            compared.results.append(_judge_criterion(compared, criterion, scores))
    for result in compared.results:
        _add_baselines(compared, result, tasks)
    return compared


def _judge_criterion(
    compared: Compared, criterion: Criterion, scores: dict[str, ItemScores]
) -> CriterionResult:
    scores = dict(sorted(scores.items(), key=lambda pair: criterion.order(pair[1].mean)))
    counts_BM = resample_items(len(next(iter(scores.values())).weights_M))
    intervals = {name: mean_interval(each, counts_BM) for name, each in scores.items()}
    # No share is below 0% or above 100%, however few items and seeds there are.
    if all(each.values_SM.min() >= 0 and each.values_SM.max() <= 100 for each in scores.values()):
        most = math.inf if criterion.falls else 100.0
        intervals = {name: (max(0.0, low), min(most, high)) for name, (low, high) in intervals.items()}
    # All pairs of finalists are tested, not the leader against the others: who leads was seen in the same
    # data.
    verdict = compare_arms(scores, falls=criterion.falls) if len(scores) > 1 else None
    result = CriterionResult(criterion, scores, intervals, verdict)
    if verdict is not None and verdict.winner is None and not criterion.is_last:
        result.expected = _expect_winner(compared, result)
    return result


def _expect_winner(compared: Compared, result: CriterionResult) -> dict[str, Any]:
    """At what budget the leader and the next would be told apart, if both went on as they did from round to
    round."""
    leader, rival = list(result.scores)[:2]
    criterion, axis = result.criterion, compared.axis
    laws = {}
    for name in (leader, rival):
        points = [(x, criterion.error(y)) for x, y in compared.points(criterion, name, axis)]
        laws[name] = PowerLaw.fit(points)
    gap = result.between(leader, rival)
    first, second = laws[leader], laws[rival]
    if first is None or second is None or gap is None:
        return {}
    # Half of the interval: a difference that is larger would not have zero in it.
    needed, amount = (gap.high - gap.low) / 2, compared.points(criterion, leader, axis)[-1][0]
    budget = budget_to_tell_apart(first, second, needed, amount) if np.isfinite(needed) else None
    return {
        "budget": budget,
        "times": None if budget is None else budget / amount,
        "needed_difference": needed if np.isfinite(needed) else None,
        "axis": axis,
        "fits": {name: {"scale": law.scale, "slope": law.slope} for name, law in laws.items() if law},
    }


def _add_baselines(compared: Compared, result: CriterionResult, tasks: Sequence[TaskTable]) -> None:
    criterion = result.criterion
    if criterion.tasks:
        scores = [task_baselines(task) for task in tasks if task.name in criterion.tasks]
        # A mean over some of the tasks would not compare with one over all.
        shared = set.intersection(*(set(each) for each in scores)) if scores else set()
        result.baselines = {name: float(np.mean([each[name] for each in scores])) for name in sorted(shared)}
    elif criterion.kind == "text" and criterion.group.startswith("likelihood"):
        runs = {name: [entry.folder for entry in compared.runs_of(name, 0)] for name in result.scores}
        counted: TextBaselines = text_baselines(compared.folder, runs, compared.design.order)
        result.baselines, result.mixed = counted.bits, counted.mixed
