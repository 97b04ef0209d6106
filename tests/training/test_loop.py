"""The loop: steps that do not depend on how they are sliced, on what ran before, or on being measured."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.training.distributed import seed_device, stop_on_signal
from etymon.training.feeding import Feed, Phase, Position, Step, StepStream, validation_slices
from etymon.training.loop import Trainer
from etymon.training.optimisers import OptimiserChoice
from etymon.training.progress import make_progress
from etymon.training.schedules import ScheduleChoice
from etymon.training.settings import TrainingSettings
from etymon.training.state import RunFolder, TrainingState
from etymon.training.unit import TrainingUnit, add_counts, averages, evaluate
from tests import tiny

Maker = Callable[..., Trainer]


@pytest.fixture
def trainer(stores: dict[str, Any], tmp_path: Path) -> Maker:
    def make(
        family: str, name: str, *, dropout: float = 0.0, rows: int = 4, slices: int = 1, **settings: Any
    ) -> Trainer:
        objective = tiny.objective(family, name)
        unit = TrainingUnit(tiny.model(family, objective, dropout), objective)
        feed = Feed(objective, stores[family].train, 0, slices=slices, rows=rows)
        optimiser = OptimiserChoice(
            **{name: settings.pop(name) for name in ("learning_rate", "weight_decay") if name in settings}
        )
        schedule = ScheduleChoice(settings.pop("schedule", "cosine"), settings.pop("warmup", 0))
        chosen = {"steps": 10, "clip": None, **settings}
        return Trainer(
            unit,
            StepStream([Phase(0, feed)]),
            TrainingSettings(optimiser=optimiser, schedule=schedule, **chosen),
            RunFolder(tmp_path),
            validate=lambda *arguments: {},
            save_members=lambda folder: None,
            progress=make_progress("silent"),
        )

    return make


def step_at(trainer: Trainer, position: Position) -> Step:
    (step,) = trainer.stream.steps(0, position, 1)
    return step


def gradients_of(
    trainer: Trainer, position: Position
) -> tuple[dict[str, torch.Tensor], dict[str, float], Any]:
    """The gradients that the optimiser gets to see in one step, the step's record, and the step."""
    step = step_at(trainer, position)
    seen: dict[str, torch.Tensor] = {}

    def look(*_: Any) -> None:
        for name, parameter in trainer.unit.named_parameters():
            assert parameter.grad is not None, name
            seen[name] = parameter.grad.clone()

    trainer.optimiser.register_step_pre_hook(look)
    return seen, trainer.train_step(step), step


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_slices_give_the_gradients_of_one_batch(trainer: Maker, family: str, name: str) -> None:
    # From near the end of an epoch on, where causal windows and chunks are short.
    plan = trainer(family, name).stream.phases[0].feed.plan(0)
    samples, lengths = len(plan), [row[1] - row[0] for row in plan]
    position = Position(0, min(max(0, int(np.argmin(lengths)) - 5), samples - 1))
    whole, record, _ = gradients_of(trainer(family, name, rows=12), position)
    parts, sliced, step = gradients_of(trainer(family, name, rows=3, slices=4), position)
    assert len({tuple(part.counts.values()) for part in step.slices.values()}) > 1, (
        "slices must differ to prove anything"
    )
    for gradient in whole:
        torch.testing.assert_close(parts[gradient], whole[gradient], rtol=1e-5, atol=1e-6, msg=gradient)
    assert sliced == pytest.approx(record, rel=1e-5)


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_the_curve_does_not_depend_on_slices(trainer: Maker, family: str, name: str) -> None:
    curves = []
    for slices in (1, 2, 4):
        made = trainer(family, name, rows=8 // slices, slices=slices, learning_rate=3e-3)
        position, curve = Position(), []
        for _ in range(5):
            step = step_at(made, position)
            curve.append(made.train_step(step))
            position, made.state.step = step.after, made.state.step + 1
        curves.append(curve)
    for other in curves[1:]:
        for one, two in zip(curves[0], other, strict=True):
            assert two == pytest.approx(one, rel=1e-3)
    first = next(key for key in curves[0][0])
    assert curves[0][-1][first] < curves[0][0][first]


def test_each_term_is_averaged_by_its_own_count(trainer: Maker) -> None:
    made = trainer("bert", "masked-next-sentence", rows=3, slices=2)
    step = step_at(made, Position())
    counts = add_counts(step.slices.values())
    assert counts["next_sentence"] == 6 and counts["masked"] == sum(
        part.counts["masked"] for part in step.slices.values()
    )
    sums = {"masked": 0.0, "next_sentence": 0.0}
    with torch.no_grad():
        for part in step.slices.values():
            for name, term in made.unit(part).items():
                if name in sums:
                    sums[name] += float(term.sum)
    record = made.train_step(step)
    assert record["masked"] == pytest.approx(sums["masked"] / counts["masked"])
    assert record["next_sentence"] == pytest.approx(sums["next_sentence"] / 6)
    assert record["bits_per_target"] == pytest.approx(record["masked"] / math.log(2))


def test_the_gradient_is_clipped_once_and_the_rate_follows_the_schedule(trainer: Maker) -> None:
    made = trainer(
        "gpt2", "causal", rows=3, slices=2, clip=0.01, warmup=4, schedule="linear", learning_rate=0.1
    )
    made.state.step = 1
    clipped, record, _ = gradients_of(made, Position())
    free, unclipped, _ = gradients_of(trainer("gpt2", "causal", rows=3, slices=2), Position())
    norm = torch.stack([gradient.norm() for gradient in free.values()]).norm().item()
    assert norm > 0.1
    assert record["gradient_norm"] == unclipped["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    for name, gradient in clipped.items():
        torch.testing.assert_close(gradient, free[name] * (0.01 / norm), rtol=1e-4, atol=1e-8)
    assert record["learning_rate"] == pytest.approx(0.05)
    assert {group["lr"] for group in made.optimiser.param_groups} == {record["learning_rate"]}


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_dropout_is_keyed_by_seed_step_and_slice(trainer: Maker, family: str, name: str) -> None:
    made = trainer(family, name, dropout=0.2, slices=2)
    step = step_at(made, Position())
    first = made.train_step(step, learning_rate=0.0)
    torch.rand(17)
    torch.manual_seed(123)
    made.train_step(step_at(made, step.after), learning_rate=0.0)
    assert made.train_step(step, learning_rate=0.0) == first, "the same step twice"
    assert trainer(family, name, dropout=0.2, slices=2).train_step(step, learning_rate=0.0) == first, (
        "in another trainer"
    )
    made.state.step = 1
    assert made.train_step(step, learning_rate=0.0) != first
    assert trainer(family, name, dropout=0.2, slices=2, seed=1).train_step(step, learning_rate=0.0) != first

    def draw(*key: int) -> list[float]:
        seed_device(*key)
        return torch.rand(4).tolist()

    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({tuple(draw(*key)) for key in keys}) == 4
    assert draw(0, 1, 0) == draw(0, 1, 0)


@pytest.mark.parametrize("family, name", tiny.CASES)
def test_measuring_leaves_no_trace(trainer: Maker, family: str, name: str) -> None:
    plain, measured = (trainer(family, name, dropout=0.1, weight_decay=0.1) for _ in range(2))
    assert measured.seconds_per_step(0.0) > 0
    assert not measured.optimiser.state
    assert measured.state == TrainingState()
    for name_, parameter in measured.unit.named_parameters():
        assert torch.equal(parameter, dict(plain.unit.named_parameters())[name_]), name_
        assert parameter.grad is None
    for number in range(3):
        step = step_at(plain, Position(0, 4 * number))
        assert plain.train_step(step) == measured.train_step(step)


def test_whole_validation_text_in_bits_per_byte(stores: dict[str, Any]) -> None:
    objective = tiny.objective("gpt2", "causal")
    model = tiny.model("gpt2", objective, dropout=0.1)
    split, tokenizer = stores["gpt2"].validation, tiny.tokenizer("gpt2")
    unit = TrainingUnit(model, objective).train()
    figures = evaluate(unit, validation_slices(objective, split, 0, rows=5))
    assert unit.training, "the mode is put back"

    # Straightforwardly: text by text as one stream, window by window, one row at a time, in double precision.
    from etymon.nn.batch import Batch

    end = tokenizer.id("end")
    texts = [tokenizer.decode(split.document(number)) for number in range(len(split))]
    stream = [end]
    for text in texts:
        stream += [*tokenizer.encode(text).tolist(), end]
    bits = 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(stream) - 1, 24):
            window = stream[start : start + 25]
            hidden, _ = model.hidden(Batch.of([window[:-1]]))
            chances = model.heads["vocabulary"].logits(hidden).double().log_softmax(-1)
            bits -= float(chances[torch.arange(len(window) - 1), torch.tensor(window[1:])].sum()) / math.log(
                2
            )
    size = sum(len(text.encode()) for text in texts)
    assert figures["bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)
    assert figures["bits_per_character"] == pytest.approx(bits / sum(map(len, texts)), rel=1e-5)
    assert figures["loss"] == pytest.approx(bits * math.log(2) / (len(stream) - 1), rel=1e-5)


def test_averages_choose_the_unit() -> None:
    totals, counts = {"first": 12.0, "second": 3.0}, {"first": 4.0, "second": 0.0, "unused": 9.0}
    assert averages(totals, counts, None) == {
        "first": 3.0, "second": 3.0, "bits_per_target": 3.0 / math.log(2),
    }  # fmt: skip
    read = averages(totals, {**counts, "/bytes": 6.0, "/characters": 3.0}, "first")
    assert read["bits_per_byte"] == pytest.approx(2.0 / math.log(2))
    assert read["bits_per_character"] == pytest.approx(4.0 / math.log(2))
    assert "bits_per_target" in averages(totals, {**counts, "/bytes": 0.0}, "first"), "a lossy tokenizer"


def test_a_gradient_that_is_not_finite_ends_the_run(trainer: Maker, tmp_path: Path) -> None:
    made = trainer("gpt2", "causal", learning_rate=2e-3, steps=4, save_every=1)
    made.state.step = 1
    with torch.no_grad():
        next(made.unit.parameters())[:] = math.inf
    with pytest.raises(EtymonError, match=r"gradient at step 2 is not finite.*\(it is 0\.002\).*untouched"):
        made.train("test")
    assert RunFolder(tmp_path).checkpoints() == []
    made = trainer("gpt2", "causal")
    made.validate = lambda *arguments: {"bits_per_byte": math.nan}
    with pytest.raises(EtymonError, match="validation loss after step 0 is not finite"):
        made.train("test")


def test_the_display_is_closed_when_training_fails(trainer: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer("gpt2", "causal")
    closed = []
    monkeypatch.setattr(made.progress, "close", lambda: closed.append(True), raising=False)
    monkeypatch.setattr(made, "train_step", lambda step: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.train("test")
    assert closed


def test_the_best_validation_is_remembered(trainer: Maker) -> None:
    made = trainer("gpt2", "causal", steps=4, validate_every=1)
    figures = iter([5.0, 3.0, 2.0, 4.0, 2.0])
    made.validate = lambda *arguments: {"bits_per_byte": next(figures)}
    result = made.train("test")
    assert (result.state.best, result.state.best_step, result.metrics) == (2.0, 2, {"bits_per_byte": 2.0})
    assert not result.stopped
    assert made.folder.last_validation() == {"bits_per_byte": 2.0}


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)
def test_signals_ask_for_a_stop_and_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signal() as asked:
        assert not asked.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(5)
        os.kill(os.getpid(), signal.SIGTERM)  # a second SIGTERM changes nothing
    with pytest.raises(KeyboardInterrupt), stop_on_signal() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_training_outside_the_main_thread(trainer: Maker) -> None:
    made = trainer("gpt2", "causal", steps=2)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(made.train("test")))
    thread.start()
    thread.join(timeout=60)
    assert results and results[0].state.step == 2
