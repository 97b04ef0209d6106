"""Runs in phases, milestones on the way, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.runs.folder import Job
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile
from etymon.runs.text_data import TextData
from etymon.runs.training_settings import ramp_phases
from etymon.settings.training import PhaseFile
from etymon.text.sources import Texts
from etymon.training.state import RunFolder, read_state
from tests import tiny
from tests.verbs.pretraining.test_resume import same_weights
from tests.verbs.small_runs import FAMILIES, crash, metrics, pretrain, resume

PHASES = (
    "phases=[{share: 0.4, length: 16, objective: masked}, {share: 0.35, batch: 4}, "
    "{share: 0.25, objective: masked, data: [%s]}]"
)
"""Steps 1 to 5, 6 to 9 and 10 to 12 of twelve."""


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "other.txt"
    file.write_text("\n".join(tiny.texts(40, seed=5)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def phased(tmp_path_factory: pytest.TempPathFactory, other_text: Path) -> Pretrained:
    return in_phases(tmp_path_factory.mktemp("phased") / "run", other_text)


def in_phases(out: Path, text: Path) -> Pretrained:
    return pretrain("bert", out, set=[PHASES % text], documents="line", validate_every=3)


def test_each_phase_trains_and_is_judged_by_its_own(phased: Pretrained) -> None:
    records = metrics(phased.folder)
    taken = [record for record in records if "learning_rate" in record]
    assert [record["step"] for record in taken if "next_sentence" in record] == [6, 7, 8, 9]
    sizes = [
        now["tokens"] - before["tokens"] for before, now in zip([{"tokens": 0}, *taken], taken, strict=False)
    ]
    assert all(size <= 8 * 16 for size in sizes[:5]), "short samples"
    assert all(16 * 4 < size <= 32 * 4 for size in sizes[5:9]), "half the batch of long ones"
    assert all(size > 32 * 4 for size in sizes[9:])
    judged = {record["step"]: record for record in records if "validation_masked" in record}
    assert list(judged) == [0, 3, 6, 9, 12]
    assert [step for step in judged if "validation_next_sentence" in judged[step]] == [6, 9]
    assert (phased.folder / "store-2" / "store.json").is_file() and not (phased.folder / "store-1").exists()
    assert phased.model.head_names == {"vocabulary", "next_sentence"}
    (history,) = phased.model.history
    assert history["objective"] == "masked, then masked-next-sentence, then masked"
    # Figures of different phases are not compared: the best checkpoint is one of the last phase.
    state, _ = read_state(RunFolder(phased.folder).checkpoint(12))
    assert state.best_step == 12 and state.best == phased.metrics["bits_per_target"]


@pytest.mark.parametrize("step", [3, 6, 11])
def test_a_run_that_dies_in_any_phase_goes_on_bit_for_bit(
    step: int, phased: Pretrained, other_text: Path, tmp_path: Path, at_step: Callable[..., None]
) -> None:
    at_step(step, crash)
    with pytest.raises(ConnectionAbortedError):
        in_phases(tmp_path / "run", other_text)
    result = resume("bert", tmp_path / "run")
    assert metrics(result.folder) == metrics(phased.folder)
    assert same_weights(result.folder, phased.folder)


def test_a_phase_without_a_step_is_refused(tmp_path: Path) -> None:
    few = "phases=[{share: 0.95}, {share: 0.05}]"
    with pytest.raises(EtymonError, match="phase 2 gets no step of 3: give the run a larger budget"):
        pretrain("bert", tmp_path / "run", steps=3, set=[few])
    with pytest.raises(
        EtymonError, match="samples of 65 tokens do not fit BERT test, which has 64 positions"
    ):
        pretrain("bert", tmp_path / "run", set=["phases=[{share: 0.5}, {share: 0.5, length: 65}]"])
    with pytest.raises(EtymonError, match="needs a model that is causal, and BERT is not"):
        pretrain("bert", tmp_path / "run", set=["phases=[{share: 0.5}, {share: 0.5, objective: causal}]"])


def seen(folder: Path) -> dict[str, Any]:
    note = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    return dict(note["history"][-1]["seen"])


@pytest.mark.parametrize("family", FAMILIES)
def test_milestones_are_models_that_say_what_they_have_seen(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    amounts = ["2steps", "4steps", "60words", "500tokens", "0.25epochs", "9Gwords"]
    run = pretrain(
        family, tmp_path / "run", steps=6, save_at=[",".join(amounts[:3]), *amounts[3:]], progress="plain"
    )
    assert "nothing will be kept at 9Gwords: the run ends before it gets there" in capsys.readouterr().err
    folder = run.folder / "milestones"
    assert {path.name for path in folder.iterdir()} == set(amounts[:-1])
    curve = {record["step"]: record for record in metrics(run.folder) if "learning_rate" in record}
    for name in amounts[:-1]:
        told = seen(folder / name)
        here, before = curve[told["steps"]], curve.get(told["steps"] - 1, {"words": 0, "tokens": 0})
        assert (told["tokens"], told["words"]) == (here["tokens"], here["words"])
        if name.endswith(("words", "tokens")):
            unit = name.lstrip("0123456789")
            assert before[unit] < int(name.removesuffix(unit)) <= here[unit], "the first step that reached it"
    assert seen(folder / "4steps")["steps"] == 4
    store = json.loads((run.folder / "store" / "store.json").read_text(encoding="utf-8"))["splits"]["train"]
    quarter = seen(folder / "0.25epochs")
    assert curve[quarter["steps"] - 1]["words"] < store["words"] / 4 <= quarter["words"]
    early, late = (etymon.load(folder / name) for name in ("2steps", "4steps"))
    assert early.tokenizer is not None
    assert any(not one.equal(two) for one, two in zip(early.parameters(), late.parameters(), strict=True)), (
        "each as it was then"
    )


def test_a_milestone_survives_a_death_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", lambda *_: crash())
        with pytest.raises(ConnectionAbortedError):
            pretrain("gpt2", tmp_path / "run", save_every=4, save_at=["4steps"], steps=6)
    assert RunFolder(tmp_path / "run").checkpoints() == []
    again = resume("gpt2", tmp_path / "run")
    assert seen(again.folder / "milestones" / "4steps")["steps"] == 4


def test_words_and_tokens_are_in_every_checkpoint(straight: Callable[[str], Pretrained]) -> None:
    run = straight("gpt2")
    curve = {record["step"]: record for record in metrics(run.folder) if "learning_rate" in record}
    for step in RunFolder(run.folder).checkpoints():
        state, _ = read_state(RunFolder(run.folder).checkpoint(step))
        assert (state.step, state.tokens, round(state.words)) == (
            step,
            curve[step]["tokens"],
            curve[step]["words"],
        )
        told = seen(RunFolder(run.folder).checkpoint(step) / "model")
        assert told == {
            "steps": step, "tokens": state.tokens, "words": round(state.words), "words_read": round(state.words_read),
        }  # fmt: skip
    # An epoch is the whole text.
    store = json.loads((run.folder / "store" / "store.json").read_text(encoding="utf-8"))["splits"]["train"]
    assert state.words == pytest.approx(state.epochs * store["words"])
    assert state.tokens == pytest.approx(state.epochs * (store["tokens"] + store["documents"]), rel=0.02)


@pytest.mark.parametrize(
    "budget, unit", [("2epochs", "epochs"), ("900tokens", "tokens"), ("400words", "words")]
)
def test_budgets_of_text(budget: str, unit: str, tmp_path: Path) -> None:
    run = pretrain("gpt2", tmp_path / "run", steps=None, budget=budget, validate_every=50, save_every=50)
    state, _ = read_state(RunFolder(run.folder).checkpoint(run.steps))
    amount = float(budget.removesuffix(unit))
    assert getattr(state, unit) == pytest.approx(amount, abs=0.6 * amount / run.steps)


def test_a_batch_that_grows_counts_its_schedule_in_samples_and_goes_on_exactly(
    tmp_path: Path, at_step: Callable[..., None]
) -> None:
    changes: dict[str, Any] = {
        "steps": 24, "batch": 16, "slices": 1, "save_every": 7, "schedule": "linear", "warmup": 0.0, "set": ["ramp=0.5"],
    }  # fmt: skip
    result = pretrain("gpt2", tmp_path / "run", **changes)
    records = [record for record in metrics(result.folder) if "learning_rate" in record]
    sizes = [b["tokens"] - a["tokens"] for a, b in pairwise(records)]
    assert sizes[-1] > 4 * records[0]["tokens"] and sizes[:8] == sorted(sizes[:8])
    rates = [record["learning_rate"] for record in records]
    steps = [a - b for a, b in pairwise(rates)]
    assert max(rates) == rates[0] and steps[-1] > 2 * steps[7] > 0, (
        "a small batch uses up little of the schedule"
    )
    at_step(10, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "again", **changes)
    assert metrics(resume("gpt2", tmp_path / "again").folder) == metrics(result.folder)
    with pytest.raises(EtymonError, match="leave ramp out"):
        pretrain("gpt2", tmp_path / "both", set=["ramp=0.5", "phases=[{share: 1}]"])


def test_the_stages_of_a_growing_batch_take_equal_parts_of_the_samples() -> None:
    phases = ramp_phases(0.25, 256, 4)
    samples = [phase.share * phase.batch for phase in phases]
    whole = sum(samples)
    assert phases[-1].batch == 256 and all(phase.batch % 4 == 0 for phase in phases)
    assert [part / whole for part in samples[:-1]] == pytest.approx([0.25 / 8] * 8)
    assert sum(phase.share for phase in phases) == pytest.approx(1)


@pytest.mark.parametrize(
    ("run", "phase", "expected"),
    [
        ({}, {"objective": "masked"}, 0.3),
        ({}, {}, 0.3),
        ({}, {"objective": "masked", "options": {}}, 0.15),
        ({"objective": "masked"}, {"objective": "masked-next-sentence"}, 0.15),
    ],
)
def test_a_phase_of_the_same_objective_has_the_run_s_options(
    run: dict[str, str], phase: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    """As a run file has them in the end, where every phase names its objective."""
    phases = (PhaseFile(share=0.5), PhaseFile(share=0.5, **phase))
    file = RunFile(
        family="bert", size="test", options={"density": 0.3}, phases=phases, **{"objective": "masked", **run}
    )
    first, second = TextData(Job(tmp_path, file), Texts(tiny.texts())).phases
    assert {"density": 0.15, **second.options}["density"] == expected
    assert first.options["density"] == 0.3


def test_a_growing_batch_may_skip_stages_where_steps_are_few(tmp_path: Path) -> None:
    own = {"set": ["ramp=0.02"], "steps": 6, "batch": 16, "slices": 1}
    assert pretrain("gpt2", tmp_path / "run", **own).steps == 6
