"""What a comparison compares: its arms, the budgets of its rounds, and the figures by which arms may be
ranked."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from etymon.config import _parse_yaml
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.files import read_json
from etymon.lab.compare_jobs import TextKind
from etymon.plugin_settings import resolve_override, resolve_setting
from etymon.runs.folder import Job
from etymon.runs.run_file import RunFile, assemble
from etymon.runs.sizing import AUTO
from etymon.runs.text_data import TextData
from etymon.runs.text_phases import count_sentinels
from etymon.runs.training_settings import training_settings
from etymon.settings.reading import TextSettings
from etymon.training.budgets import Budget, parse_budget

COMPARE_FILE = "compare.json"
AXES = {"flops": "operations", "words": "words", "tokens": "tokens", "seconds": "time"}
"""What a budget can be counted in, and how the report calls it."""
TRIAL_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125)
"""Of the arm's own learning rate, in the order in which they are tried."""
FEWEST_ROUNDS = 2
"""Before the final: a line through fewer budgets would say nothing about the next."""


@dataclass(frozen=True)
class Design:
    """What was asked for; a comparison goes on only with the same."""

    arms: tuple[str, ...]
    budget: str = "20m"
    tasks: tuple[str, ...] = ()
    task_budget: str = "3epochs"
    pairs: tuple[str, ...] = ()
    pair_examples: int = 100
    seeds: int = 3
    trials: int = 1
    finalists: int = 2
    validation: float = 0.05
    test: float = 0.05
    order: int = 5
    seed: int = 0
    probes: tuple[str, ...] = ()
    suite: str | None = None
    suite_data: str | None = None

    @property
    def suite_place(self) -> tuple[str, str | None] | None:
        """The suite and the folder of its files, if there is one."""
        return None if self.suite is None else (self.suite, self.suite_data)

    @staticmethod
    def of(saved: Mapping[str, Any]) -> Design:
        """As compare.json has it."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
        }
        return Design(**values)


@dataclass
class Arm:
    """Something to compare: a family with everything that sets it apart."""

    name: str
    folder: str
    file: RunFile
    kind: TextKind
    group: str
    """Arms of one group give bits of a text that can be compared."""
    rate: float
    """The learning rate that it begins its trials with."""
    sentinels: int
    """Of a tokenizer that is trained for it."""
    reason: str = ""
    """Why it is out; empty as long as it is not."""
    lost: dict[int, str] = field(default_factory=dict)
    """Trials of the first round that failed, and why."""

    def fail(self, trial: int | None, reason: str, trials: int) -> None:
        """A run failed: the arm is out, unless it has learning rates left to try (`trial` is one of them)."""
        if trial is not None:
            self.lost[trial] = reason
        if trial is None or len(self.lost) == trials:
            self.reason = reason

    @property
    def text_key(self) -> tuple[Any, ...]:
        """What tokenizer and token store depend on."""
        file = self.file
        # Of a shape, only what reads the text otherwise: `--size auto` gives arms of one family other widths.
        shape = {
            name: value for name, value in file.shape.items() if name not in file.sizing.get("shape", {})
        }
        text = (file.words, file.normalise, self.sentinels)
        return (file.family, file.size, file.vocabulary, file.tokenizer, file.start, *text, str(shape))

    def trials(self, number: int) -> list[RunFile]:
        """Its settings with so many learning rates."""
        if number == 1:
            return [self.file]
        return [replace(self.file, learning_rate=self.rate * factor) for factor in TRIAL_FACTORS[:number]]


def read_arms(
    specs: Sequence[str],
    given: dict[str, Any],
    overrides: Sequence[str],
    folder: Path,
    choose_size: Callable[[str, RunFile], RunFile],
) -> list[Arm]:
    """The arms as they were named, all settings checked before any work. `choose_size` is asked for those of
    the size `auto`."""
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key != "words" and key in {field.name for field in fields(TextSettings)}:
            raise EtymonError(
                f"the text is read once for all arms: give --{key.replace('_', '-')}, not --set"
            )
    if len(specs) < 2:
        raise EtymonError("there is nothing to compare: name two arms or more, e.g. gpt2 bert@masked")
    arms: list[Arm] = []
    for spec in specs:
        name, settings = split_name(spec)
        file = read_arm(settings, given, overrides)
        if file.size == AUTO:
            file = choose_size(name, file)
        if name in {arm.name for arm in arms}:
            raise EtymonError(
                f"{name} is named twice: let its settings differ, e.g. {name}@learning_rate=1e-3"
            )
        # Objectives may be paths, with signs that no folder's name can have.
        safe = re.sub(r"[^\w.+=,-]+", "-", name)[:80]
        if safe in {arm.folder for arm in arms}:
            safe = f"{safe}-{len(arms) + 1}"
        # Made to be refused: an unknown objective, a shape that cannot be, samples longer than positions.
        data = TextData(Job(folder / "runs" / safe / "new", file), None)
        plan = data.model_plan
        rate = training_settings(plan.recipe, file, steps=1, validations=1).optimiser.learning_rate
        sentinels = count_sentinels(file, plan.family, data.phases)
        kind = text_kind(plan.family, plan.heads)
        group: str = kind
        if plan.family.tokenizer.lowercase and kind != "none":
            group = f"{kind} of lower case"  # another text: fewer bits say it
        arms.append(Arm(name, safe, data.file, kind, group, rate, sentinels))
    return arms


def split_name(spec: str) -> tuple[str, str]:
    """The name of an arm and its settings: `NAME=SETTINGS`, or settings that are their own name."""
    if match := re.match(r"([^@=:/]+)=(?=.)", spec):
        return match[1].strip(), spec[match.end() :]
    return (Path(spec).stem if is_file(spec) else spec), spec


def is_file(spec: str) -> bool:
    return Path(spec).suffix.lower() in (".yaml", ".yml")


def read_arm(spec: str, given: dict[str, Any], overrides: Sequence[str]) -> RunFile:
    """The settings of `FAMILY[:RECIPE][@OBJECTIVE][@key=value,...]`, or of a YAML file of `etymon
    pretrain`."""
    if is_file(spec):
        return assemble(RunFile, given, spec, overrides)
    head, *rest = spec.split("@")
    family, _, recipe = head.partition(":")
    settings = given | {"family": get_family(family).name} | ({"recipe": recipe} if recipe else {})
    changes = []
    for part in rest:
        if "=" not in part:
            # Arms are the user's own words, so a file that is named here may be opened.
            settings = settings | {"objective": resolve_setting("objective", part)}
            continue
        # A comma also parts the members of a list: only one before the next key ends a value.
        for pair in re.split(r",(?=[a-z_.]+=)", part):
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise EtymonError(f"cannot read {pair!r} of {spec!r}: write it as key=value")
            # Its value is read later by the run; a slip is told with the name of the arm now.
            _parse_yaml(value, f"{key} of {spec!r}")
            changes.append(resolve_override(f"{key}={value}"))
    return assemble(RunFile, settings, None, [*overrides, *changes])


def text_kind(family: Any, heads: frozenset[str]) -> TextKind:
    """What a model of the family gives of a text, if it is trained with these heads."""
    if "vocabulary" not in heads:
        return "none"
    if "causal" in family.capabilities:
        return "likelihood"
    # A pseudo-likelihood hides one token after the other behind the mask (Salazar et al. 2020).
    has_mask = "mask" in family.tokenizer.specials
    return "pseudo-likelihood" if "bidirectional" in family.capabilities and has_mask else "none"


def read_saved(marker: Path, design: Design, settings: dict[str, Any]) -> dict[str, Any]:
    """What compare.json says; what is asked for now may repeat that or be left out, and anything else is
    refused."""
    folder = marker.parent
    if not marker.is_file():
        raise EtymonError(
            f"there is no comparison in {folder} to resume: it has no {COMPARE_FILE}", code="no-run"
        )
    saved = read_json(marker)
    usual, before = Design(design.arms), Design.of(saved["settings"]["design"])
    if design.arms != before.arms:
        raise EtymonError(
            f"the comparison in {folder} began with the arms {shlex.join(before.arms)}: name the same, or "
            "give another --out",
            code="run-changed",
        )
    for part in fields(Design):
        now, then = getattr(design, part.name), getattr(before, part.name)
        if now not in (then, getattr(usual, part.name)):
            raise EtymonError(
                f"the comparison in {folder} began with {part.name} {then}, not {now}: leave that out, or "
                "give another --out",
                code="run-changed",
            )
    for name in ("given", "overrides"):
        if settings[name] and settings[name] != saved["settings"][name]:
            raise EtymonError(
                f"the comparison in {folder} began with other settings of the runs: leave them out, or give "
                "another --out",
                code="run-changed",
            )
    return saved


# --- budgets


def read_budget(text: str) -> Budget:
    """The budget of a run of the final, in something that costs all arms the same."""
    budget = parse_budget(text)
    # An epoch of another tokenizer has other tokens, and a step of another batch other rows.
    if budget.unit not in AXES:
        raise EtymonError(
            f"{budget.unit} do not cost all arms the same: give the budget as a time (20m) or as an amount "
            "of operations (20Tflops), words (10Mwords) or tokens (20Mtokens)"
        )
    return budget


def budget_text(budget: Budget, share: float) -> str:
    """A share of a budget, as run files write it."""
    amount = budget.amount * share
    if budget.unit == "seconds":
        return f"{amount:g}s"
    # As people write it where that is exact: 250Gflops, and not 250000000000flops.
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if round(amount) >= size and round(amount) * 1000 % size == 0:
            return f"{round(amount) / size:g}{letter}{budget.unit}"
    return f"{max(1, round(amount))}{budget.unit}"


def round_shares(arms: int, finalists: int) -> list[float]:
    """The budgets of the rounds before the final, as shares of the final's: each twice that of the one
    before."""
    rounds = max(FEWEST_ROUNDS, math.ceil(math.log2(max(1.0, arms / finalists))))
    return [0.5 ** (rounds - number) for number in range(rounds)]


def count_kept(arms: int, finalists: int) -> int:
    """How many of so many arms go on to the next round."""
    return min(arms, max(finalists, math.ceil(arms / 2)))
