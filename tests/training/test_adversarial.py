"""Adversarial training: the published formulas, row by row; nothing but lookups is moved; nothing changes without noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.surgery import generator_for
from etymon.objectives.objective import Term
from etymon.settings.adversarial import AdversarialSettings
from etymon.training.adversarial import LookupNoise
from etymon.training.feeding import Feed, Phase, Position, Step, StepStream
from etymon.training.loop import Trainer
from etymon.training.progress import make_progress
from etymon.training.settings import TrainingSettings
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit
from tests import tiny

CASES = [("gpt2", "causal"), ("bert", "masked"), ("t5", "span-corruption"), ("rnn", "denoising")]
NAMES = ["fgm", "pgd", "freelb"]
Maker = Callable[..., Trainer]


@pytest.fixture
def trainer(stores: dict[str, Any], tmp_path: Path) -> Maker:
    def make(
        family: str,
        name: str,
        adversarial: Any,
        *,
        dropout: float = 0.0,
        rows: int = 4,
        slices: int = 1,
        seed: int = 0,
    ) -> Trainer:
        objective = tiny.objective(family, name)
        model = tiny.model(family, objective, dropout)
        companions = {}
        if objective.companions:
            companions["generator"] = generator_for(model, tiny.generator_shape(family), 0)
        unit = TrainingUnit(model, objective, companions)
        feed = Feed(objective, stores[family].train, 0, slices=slices, rows=rows)
        chosen = AdversarialSettings.of(adversarial)
        return Trainer(
            unit, StepStream([Phase(0, feed)]),
            TrainingSettings(steps=10, clip=None, adversarial=chosen, seed=seed),
            RunFolder(tmp_path), validate=lambda *arguments: {}, save_members=lambda folder: None, progress=make_progress("silent"),
        )  # fmt: skip

    return make


def first_step(trainer: Trainer) -> Step:
    (step,) = trainer.stream.steps(0, Position(), 1)
    return step


def taken(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradients that the optimiser sees in the first step, and what is reported."""
    seen: dict[str, Tensor] = {}

    def look(*_: Any) -> None:
        for name, parameter in trainer.unit.named_parameters():
            assert parameter.grad is not None, name
            seen[name] = parameter.grad.clone()

    trainer.optimiser.register_step_pre_hook(look)
    return seen, trainer.train_step(first_step(trainer), learning_rate=0.0)


@pytest.fixture
def climbs(monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """The noise that every pass of a step had, in order."""
    seen: list[list[Tensor]] = []
    plain = LookupNoise.backward

    def back(noise: LookupNoise, share: float, loss: Tensor) -> None:
        seen.append([part.detach().clone() for part in noise.tensors])
        plain(noise, share, loss)

    monkeypatch.setattr(LookupNoise, "backward", back)
    return seen


# ------------------------------------------------------------ the formulas


def by_row(function: Callable[[Tensor], Tensor], x_ND: Tensor, lengths: tuple[int, ...]) -> Tensor:
    return torch.cat([function(row) for row in x_ND.split(list(lengths))])


class Reference:
    """The same in the plainest way: word vectors are handed to the model, and every pass is a function of noise."""

    def __init__(self, trainer: Trainer) -> None:
        self.unit, (self.prepared,) = trainer.unit, first_step(trainer).slices.values()
        self.model: Any = trainer.unit.model
        prepared: Any = self.prepared
        self.batches = (
            [prepared.source, prepared.inputs(self.model)] if self.model.encoder_decoder else [prepared.batch]
        )
        self.parameters = list(trainer.unit.parameters())

    def table(self, side: int) -> Tensor:
        body = self.model.body
        if not self.model.encoder_decoder:
            table = body.embeddings.words.weight
        elif self.model.family.name == "rnn":
            table = (body.encoder, body.decoder)[side].words.weight
        else:
            table = body.words.weight
        return table

    def zeros(self) -> list[Tensor]:
        return [
            torch.zeros(len(batch.ids), self.table(side).shape[1]) for side, batch in enumerate(self.batches)
        ]

    def gradients(self, noise: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """By the parameters, and by the noise."""
        noise = [part.clone().requires_grad_() for part in noise]
        vectors = [self.table(side)[batch.ids] + noise[side] for side, batch in enumerate(self.batches)]
        if self.model.encoder_decoder:
            memory = self.model.encode(self.batches[0], vectors[0])
            hidden, _ = self.model.decode(self.batches[1], memory, embedded=vectors[1])
        else:
            hidden, _ = self.model.hidden(self.batches[0], embedded=vectors[0])
        prepared: Any = self.prepared
        asked = hidden if getattr(prepared, "at", None) is None else hidden[prepared.at]
        log_p = self.model.heads["vocabulary"].logits(asked).log_softmax(-1)
        loss = -log_p.gather(1, prepared.targets[:, None]).mean()
        found = torch.autograd.grad(loss, [*self.parameters, *noise])
        return list(found[: len(self.parameters)]), list(found[len(self.parameters) :])

    def climbed(
        self, noise: list[Tensor], gradient: list[Tensor], step: float, epsilon: float
    ) -> list[Tensor]:
        moved = []
        for r, g, batch in zip(noise, gradient, self.batches, strict=True):
            r = r + step * by_row(lambda row: row / row.norm(), g, batch.layout.lengths)
            moved.append(
                by_row(lambda row: row * min(1.0, epsilon / float(row.norm())), r, batch.layout.lengths)
            )
        return moved


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family, objective", CASES)
def test_gradients_are_those_of_the_formula(
    family: str, objective: str, name: str, trainer: Maker, climbs: list[list[Tensor]]
) -> None:
    settings = AdversarialSettings.of(
        {"name": name, "epsilon": 0.7} | ({} if name == "fgm" else {"step_size": 0.5})
    )
    assert settings is not None
    made = trainer(family, objective, settings)
    reference = Reference(made)
    gradients, _ = taken(made)
    noise = climbs[0] if name == "freelb" else reference.zeros()
    counted = []
    passes = settings.steps + (name != "freelb")
    for number in range(passes):
        by_parameters, by_noise = reference.gradients(noise)
        if name == "freelb" or number in (0, passes - 1):
            counted.append(by_parameters)
        for own, expected in zip(climbs[number], noise, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-4)
        noise = reference.climbed(noise, by_noise, settings.step_size, 0.7)
    assert len(climbs) == passes
    for (parameter, own), *parts in zip(gradients.items(), *counted, strict=True):
        expected = torch.stack(parts).mean(0)
        torch.testing.assert_close(own, expected, rtol=2e-3, atol=2e-5, msg=lambda why: f"{parameter}: {why}")  # noqa: B023


@pytest.mark.parametrize("name", NAMES)
def test_norms_are_those_of_rows(name: str, trainer: Maker, climbs: list[list[Tensor]]) -> None:
    made = trainer("bart", "denoising", {"name": name, "epsilon": 0.25})
    (prepared,) = first_step(made).slices.values()
    taken(made)
    for number, noise in enumerate(climbs):
        for r_ND, batch in zip(noise, (prepared.source, prepared.decoder), strict=True):  # type: ignore[attr-defined]
            lengths = torch.tensor(batch.layout.lengths)
            norms = torch.stack([row.norm() for row in r_ND.split(lengths.tolist())])
            if number:
                assert (norms <= 0.25 * (1 + 1e-5)).all()
                if name != "freelb":
                    torch.testing.assert_close(norms, torch.full_like(norms, 0.25))
            elif name == "freelb":
                limit = 0.25 / (lengths * r_ND.shape[1]).sqrt()
                highest = torch.stack([row.abs().max() for row in r_ND.split(lengths.tolist())])
                assert (highest <= limit).all() and (highest > 0.9 * limit).all()
            else:
                assert not norms.any()
    encoder, decoder = climbs[0]
    size = min(len(encoder), len(decoder))
    assert name != "freelb" or not torch.equal(encoder[:size].sign(), decoder[:size].sign()), "drawn apart"


def test_a_word_has_other_noise_in_every_place(trainer: Maker, climbs: list[list[Tensor]]) -> None:
    made = trainer("gpt2", "causal", "fgm")
    (prepared,) = first_step(made).slices.values()
    taken(made)
    ids = prepared.batch.ids  # type: ignore[attr-defined]
    places = (ids == ids.mode().values).nonzero()[:, 0]
    assert len(places) > 2
    assert len(climbs[1][0][places].unique(dim=0)) == len(places)


def test_the_table_and_an_output_tied_to_it_are_never_moved(trainer: Maker) -> None:
    made = trainer("gpt2", "causal", "pgd")
    model: Any = made.unit.model
    table, head = model.body.embeddings.words.weight, model.heads["vocabulary"]
    assert head.weight is table
    before, seen = table.detach().clone(), []
    plain = head.loss

    def loss(*arguments: Any) -> Tensor:
        seen.append(bool(torch.equal(head.weight, before)) and head.weight is table)
        found: Tensor = plain(*arguments)
        return found

    head.loss = loss
    taken(made)
    assert seen == [True] * 4 and torch.equal(table, before)
    assert "look_up" not in vars(model.body.embeddings), "the model looks up as ever"


# ------------------------------------------------------------ what it leaves alone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family, objective", [*CASES, ("electra", "replaced"), ("xlnet", "permutation")])
def test_no_noise_is_plain_training_with_the_same_dropout(
    family: str, objective: str, name: str, trainer: Maker
) -> None:
    plains = []
    for seed in (0, 1):
        plain, record = taken(trainer(family, objective, None, dropout=0.2, seed=seed))
        moved, reported = taken(
            trainer(family, objective, {"name": name, "epsilon": 0.0}, dropout=0.2, seed=seed)
        )
        assert reported == pytest.approx(record, rel=1e-5)
        for parameter, gradient in plain.items():
            if name == "freelb":  # three thirds are one but for rounding
                torch.testing.assert_close(moved[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)
            else:
                assert torch.equal(moved[parameter], gradient), parameter
        plains.append(plain)
    assert any(not torch.allclose(plains[0][each], plains[1][each]) for each in plain), "dropout counts"


@pytest.mark.parametrize("name", ["fgm", "pgd"])
@pytest.mark.parametrize("family, objective", [*CASES, ("bert", "masked-next-sentence")])
def test_slices_give_the_gradients_of_one_batch(
    family: str, objective: str, name: str, trainer: Maker
) -> None:
    """Norms are those of rows, so it does not matter which rows are beside them."""
    whole, record = taken(trainer(family, objective, name, rows=8))
    parts, sliced = taken(trainer(family, objective, name, rows=2, slices=4))
    for parameter, gradient in whole.items():
        torch.testing.assert_close(parts[parameter], gradient, rtol=1e-3, atol=1e-5, msg=parameter)
    assert sliced == pytest.approx(record, rel=1e-4)


@pytest.mark.parametrize("name", ["fgm", "pgd"])
def test_figures_are_those_of_the_clean_pass(name: str, trainer: Maker) -> None:
    _, clean = taken(trainer("bert", "masked", None, dropout=0.1))
    _, record = taken(trainer("bert", "masked", name, dropout=0.1))
    assert record.pop("gradient_norm") != clean.pop("gradient_norm")
    assert record == clean


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["transformer-xl", "xlnet", "elmo"])
def test_streams_go_on_once_a_step(family: str, name: str, trainer: Maker) -> None:
    """Every pass begins with what was remembered before the step, and what is remembered is what the first pass read."""
    objective = get_family(family).objective
    memories, records = [], []
    for settings in (None, {"name": name, "epsilon": 0.0}, {"name": name, "epsilon": 3.0, "step_size": 3.0}):
        made = trainer(family, objective, settings, slices=2)
        records.append(
            [made.train_step(step, learning_rate=0.0) for step in made.stream.steps(0, Position(), 3)]
        )
        memories.append(made.unit.memories.tensors())
    for one, two in zip(records[0], records[1], strict=True):
        assert two == pytest.approx(one, rel=1e-5)
    plain, still, moved = memories
    assert plain and plain.keys() == still.keys() == moved.keys()
    for part, tensor in plain.items():
        assert torch.equal(still[part], tensor), part
        assert name == "freelb" or torch.equal(moved[part], tensor), part


def test_a_generator_reads_without_noise(trainer: Maker) -> None:
    plain, record = taken(trainer("electra", "replaced", None))
    moved, reported = taken(trainer("electra", "replaced", "fgm"))
    own = [name for name in plain if name.startswith("companions.generator.body.stack.")]
    assert own and all(torch.equal(plain[name], moved[name]) for name in own)
    inner = [name for name in plain if name.startswith("model.body.stack.")]
    assert inner and not any(torch.equal(plain[name], moved[name]) for name in inner)
    assert reported["accuracy_on_replaced"] == record["accuracy_on_replaced"]


# ------------------------------------------------------------ every family


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", REGISTRY)
def test_every_family_learns_its_own_objective_so(
    family: str, name: str, trainer: Maker, climbs: list[list[Tensor]]
) -> None:
    objective = get_family(family).objective
    plain, _ = taken(trainer(family, objective, None, rows=2))
    made = trainer(family, objective, {"name": name, "epsilon": 0.5}, rows=2)
    moved, record = taken(made)
    lookups = 2 if "encoder-decoder" in get_family(family).capabilities else 1
    assert [len(noise) for noise in climbs] == [lookups] * (
        made.settings.adversarial.steps + (name != "freelb")
    )  # type: ignore[union-attr]
    assert all(part.any() for part in climbs[-1]), "each lookup has its noise"
    assert all(gradient.isfinite().all() for gradient in moved.values()) and record["gradient_norm"] > 0
    assert any(not torch.allclose(moved[parameter], plain[parameter]) for parameter in plain)


def test_a_loss_without_word_vectors_is_refused(trainer: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer("gpt2", "causal", "fgm")
    weight = next(made.unit.parameters())
    monkeypatch.setattr(TrainingUnit, "forward", lambda unit, prepared: {"loss": Term(weight.sum())})
    with pytest.raises(EtymonError, match="the loss depends on none: leave it out"):
        made.train_step(first_step(made))


# ------------------------------------------------------------ settings


def test_what_is_usual_is_filled_in() -> None:
    assert AdversarialSettings.of(None) is None
    assert AdversarialSettings.of("fgm") == AdversarialSettings(
        name="fgm", epsilon=1.0, step_size=1.0, steps=1
    )
    assert AdversarialSettings.of({"name": "fgm", "epsilon": 2}) == AdversarialSettings(
        name="fgm", epsilon=2.0, step_size=2.0, steps=1
    )
    assert AdversarialSettings.of("pgd") == AdversarialSettings(
        name="pgd", epsilon=1.0, step_size=0.3, steps=3
    )
    assert AdversarialSettings.of({"name": "freelb", "steps": 2}) == AdversarialSettings(
        name="freelb", epsilon=0.1, step_size=0.1, steps=2
    )
    whole = strict(TrainingSettings, {"steps": 1, "adversarial": vars(AdversarialSettings.of("pgd"))}, "x")
    assert whole.adversarial == AdversarialSettings.of("pgd")
    assert AdversarialSettings(name="pgd", epsilon=1.0, step_size=0.3, steps=3).cost == pytest.approx(
        2 + 4 / 3
    )


@pytest.mark.parametrize(
    "given, reason",
    [
        ("fgn", "name is \"fgn\", expected 'fgm', 'pgd' or 'freelb'"),
        ({"epsilon": 1.0}, "missing key 'name' in adversarial"),
        ({"name": "pgd", "epsilom": 1.0}, "unknown key 'epsilom' in adversarial: did you mean 'epsilon'"),
        ({"name": "pgd", "epsilon": -1.0}, "epsilon is -1.0, expected at least 0"),
        ({"name": "freelb", "steps": 0}, "steps is 0, expected at least 1"),
        ({"name": "fgm", "steps": 2}, "fgm takes one step of epsilon"),
        (3, "adversarial must hold keys and values"),
    ],
)
def test_mistakes_are_named(given: Any, reason: str) -> None:
    with pytest.raises(EtymonError, match=reason):
        AdversarialSettings.of(given)
