"""A time budget is spent, whatever else the machine has to do. The clock is the test's own: a step takes as long as it says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from etymon.runs.result import Pretrained
from etymon.training.loop import Trainer
from tests.verbs.small_runs import crash, metrics, pretrain, resume

BUDGET = 40.0
LOADS: dict[str, tuple[float, Callable[[float], float]]] = {
    "as measured": (1.0, lambda seconds: 1.0),
    "busy while it is measured": (3.0, lambda seconds: 1.0),
    "busy from the middle on": (1.0, lambda seconds: 1.0 if seconds < BUDGET / 2 else 3.0),
    "busy near the end": (1.0, lambda seconds: 1.0 if seconds < 0.8 * BUDGET else 3.0),
    "busy at first": (1.0, lambda seconds: 3.0 if seconds < BUDGET / 4 else 1.0),
    "four times as busy": (1.0, lambda seconds: 4.0),
}
"""How many times as long steps take, while they are measured and later, by the seconds since then."""


class Machine:
    """A clock that stands still but for steps, which take half a second of it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, measured: float, load: Callable[[float], float]
    ) -> None:
        self.now, self.begin = 0.0, 0.0
        self.rates: list[float] = []
        step, train = Trainer.train_step, Trainer.train

        def timed_step(trainer: Trainer, *arguments: Any, **options: Any) -> dict[str, float]:
            probing = "learning_rate" in options
            self.now += 0.5 * (measured if probing else load(self.now - self.begin))
            record = step(trainer, *arguments, **options)
            if not probing:
                self.rates.append(record["learning_rate"])
            return record

        def timed_train(trainer: Trainer, title: str) -> Any:
            self.begin = self.now - trainer.state.seconds
            return train(trainer, title)

        monkeypatch.setattr(Trainer, "train_step", timed_step)
        monkeypatch.setattr(Trainer, "train", timed_train)
        monkeypatch.setattr("etymon.runs.run.clock", lambda: self.now)


def run(out: Path, **changes: Any) -> Pretrained:
    asked = {"steps": None, "budget": f"{BUDGET:g}s", "batch": 2, "slices": 1, "length": 8, "save_every": 40}
    return pretrain("gpt2", out, **{**asked, "validation": 0.0, "schedule": "linear", **changes})


def training(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["training"]
    return found


@pytest.mark.parametrize("name", LOADS)
def test_a_time_budget_is_spent_on_a_busy_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, *LOADS[name])
    result = run(tmp_path / "run")
    assert machine.now == pytest.approx(BUDGET, rel=0.1)
    assert result.steps == len(machine.rates) and not result.stopped
    peak = training(result.folder)["optimiser"]["learning_rate"]
    assert max(machine.rates) == pytest.approx(peak)
    assert machine.rates[-1] < 0.2 * peak  # the next one would be 0
    falling = machine.rates[machine.rates.index(max(machine.rates)) :]
    assert all(after <= before for before, after in pairwise(falling))
    assert bool(training(result.folder)["revisions"]) == (name != "as measured")


def test_phases_keep_their_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2.0, lambda seconds: 1.0)
    phases = [{"share": 0.75, "length": 8}, {"share": 0.25, "length": 16}]
    result = run(tmp_path / "run", set=[f"phases={phases}"], batch=2)
    assert machine.now == pytest.approx(BUDGET, rel=0.1)
    tokens = [record["tokens"] for record in metrics(result.folder) if "tokens" in record]
    each = [after - before for before, after in zip([0, *tokens], tokens)]
    long = sum(count > 16 for count in each)
    assert long / len(each) == pytest.approx(0.25, abs=0.05)


def test_a_resumed_run_repeats_what_the_clock_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its last checkpoint, it takes the same steps at the same rates again, although it is faster now."""
    with monkeypatch.context() as patch:
        machine = Machine(patch, 1.0, lambda seconds: 1.0 if seconds < 13 else 3.0)
        step = Trainer.train_step

        def dies(trainer: Trainer, *arguments: Any, **options: Any) -> dict[str, float]:
            if trainer.state.step == 32:
                crash()
            return step(trainer, *arguments, **options)

        patch.setattr(Trainer, "train_step", dies)
        with pytest.raises(ConnectionAbortedError):
            run(tmp_path / "run", save_every=20)
        decided, rates = training(tmp_path / "run")["revisions"], machine.rates
        assert decided[-1]["step"] > 20, "it proves nothing unless something was decided after the checkpoint"
    with monkeypatch.context() as patch:
        machine = Machine(patch, 1.0, lambda seconds: 1.0)
        resumed = resume("gpt2", tmp_path / "run")
    assert machine.rates[:12] == rates[20:32]
    assert training(resumed.folder)["revisions"][: len(decided)] == decided


def test_the_file_of_a_timed_run_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        Machine(patch, 1.0, LOADS["busy from the middle on"][1])
        first = run(tmp_path / "first")
    again = pretrain(
        "gpt2", tmp_path / "again", config=first.folder / "run.yaml",
        **dict.fromkeys(("size", "steps", "batch", "slices", "length", "learning_rate", "validation", "validate_every", "save_every")),
    )  # fmt: skip
    assert again.steps == first.steps and metrics(again.folder) == metrics(first.folder)
    assert training(again.folder)["time"] is None
