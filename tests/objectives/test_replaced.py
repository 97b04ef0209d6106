"""Replaced-token detection against Transformers' two ELECTRA classes put together by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import etymon
from etymon.families.model import Model
from etymon.families.surgery import generator_for, share_embeddings
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.text.store import Split
from etymon.training.unit import TrainingUnit
from tests import tiny


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return tiny.store("electra", tmp_path_factory.mktemp("store") / "electra").train


def prepared(objective: Any, split: Split, rows: int = 12) -> Any:
    plan = objective.plan(split, 0, 0)[:rows]
    return objective.collate(
        [objective.prepare(split, row, key(0, "sample", 0, number)) for number, row in enumerate(plan)]
    )


def pair(family: str = "electra", seed: int = 0) -> tuple[Any, Model, Model]:
    objective = tiny.objective(family, "replaced", 48)
    model = tiny.model(family, objective, seed=seed)
    with torch.no_grad():  # nothing zero or one, so that every gradient counts
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return objective, model, generator_for(model, tiny.generator_shape(family), seed)


def test_the_joint_step_is_that_of_the_two_classes(split: Split, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    objective, model, generator = pair()
    batch = prepared(objective, split)
    assert len(set(batch.batch.layout.lengths)) > 1, (
        "rows of different lengths show that padding counts nowhere"
    )
    unit = TrainingUnit(model, objective, {"generator": generator})
    terms = unit(batch)
    weighted_loss(terms, batch.counts).backward()
    with torch.no_grad():
        hidden, _ = generator.hidden(batch.batch)
        _, guesses = generator.heads["vocabulary"].loss_and_sample(
            hidden, batch.at, batch.targets, batch.uniforms
        )

    etymon.save(model, tmp_path / "discriminator")
    etymon.save(generator, tmp_path / "generator")
    masked = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    finder = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "discriminator").eval()
    finder.electra.embeddings = masked.electra.embeddings
    layout = batch.batch.layout
    rows, longest = layout.rows, layout.longest

    def rectangle(flat: torch.Tensor) -> torch.Tensor:
        out = flat.new_zeros(rows, longest)
        out[layout.row, layout.index] = flat
        return out

    real = rectangle(torch.ones(layout.tokens, dtype=torch.long))
    common = {"attention_mask": real, "token_type_ids": rectangle(batch.batch.segments)}
    logits = masked(input_ids=rectangle(batch.batch.ids), **common).logits[layout.row, layout.index]
    guessing = F.cross_entropy(logits[batch.at], batch.targets, reduction="sum")
    original = batch.batch.ids.clone()
    original[batch.at] = batch.targets
    changed = original.clone()
    changed[batch.at] = guesses
    replaced = (changed != original).float()
    scores = finder(input_ids=rectangle(changed), **common).logits[layout.row, layout.index]
    finding = F.binary_cross_entropy_with_logits(scores, replaced, reduction="sum")
    (guessing / len(batch.at) + 50 * finding / layout.tokens).backward()

    assert replaced.sum() > 0
    torch.testing.assert_close(terms["generator"].sum, guessing, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(terms["discriminator"].sum, finding, rtol=1e-5, atol=1e-4)
    for own, theirs in ((model, finder), (generator, masked)):
        names = own.family.names(own.shape)
        gradients = names.export({name: p.grad for name, p in own.named_parameters()}, None)
        found = dict(theirs.named_parameters())
        assert set(gradients) <= set(found)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, found[name].grad, rtol=2e-4, atol=2e-5, msg=lambda why, name=name: f"{name}: {why}"
            )


def test_embeddings_are_one_and_the_same() -> None:
    _, model, generator = pair()
    words = model.body.embeddings.words.weight
    assert generator.body.embeddings.words.weight is words and generator.heads["vocabulary"].weight is words
    assert generator.body.embeddings.positions.weight is model.body.embeddings.positions.weight
    assert generator.body.embeddings.norm.bias is model.body.embeddings.norm.bias
    assert generator.body.embeddings.projection.weight is not getattr(
        model.body.embeddings.projection, "weight", None
    )
    ours = {id(parameter) for parameter in model.parameters()}
    assert any(id(parameter) not in ours for parameter in generator.parameters())


def test_a_generator_of_another_width_of_words_is_refused() -> None:
    _, model, _ = pair()
    with pytest.raises(etymon.EtymonError, match="they share them"):
        generator_for(model, {**tiny.generator_shape("electra"), "embedding_dim": 24}, 0)


def test_no_gradient_runs_from_the_discriminator_into_the_generator(split: Split) -> None:
    objective, model, generator = pair()
    batch = prepared(objective, split)
    terms = TrainingUnit(model, objective, {"generator": generator})(batch)
    shared = {id(parameter) for parameter in model.parameters()}
    own = [parameter for parameter in generator.parameters() if id(parameter) not in shared]
    found = torch.autograd.grad(terms["discriminator"].sum, own, allow_unused=True)
    assert all(gradient is None for gradient in found)


def test_a_place_drawn_twice_is_guessed_once(split: Split) -> None:
    objective, _, _ = pair()
    plan = objective.plan(split, 0, 0)
    examples = [objective.prepare(split, row, key(1, number)) for number, row in enumerate(plan)]
    twice = [example for example in examples if len(np.unique(example.places)) < len(example.places)]
    assert twice
    for example in twice:
        for place in example.places:
            assert len(set(example.uniforms[example.places == place].tolist())) == 1


def test_accuracies_have_the_denominators_that_the_guesses_gave(split: Split) -> None:
    objective, model, generator = pair()
    batch = prepared(objective, split)
    unit = TrainingUnit(model, objective, {"generator": generator}).eval()
    with torch.no_grad():
        terms = unit(batch)
    assert terms["accuracy_on_replaced"].count + terms["accuracy_on_original"].count == batch.tokens
    for name in ("accuracy_on_replaced", "accuracy_on_original"):
        assert 0 <= terms[name].sum <= terms[name].count and terms[name].weight == 0
    assert 0 <= terms["generator_accuracy"].sum <= batch.counts["generator_accuracy"]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_other_encoders_detect_replaced_tokens_too(family: str, tmp_path: Path) -> None:
    own = tiny.store(family, tmp_path / family).train
    objective, model, generator = pair(family)
    batch = prepared(objective, own)
    weighted_loss(TrainingUnit(model, objective, {"generator": generator})(batch), batch.counts).backward()
    assert all(p.grad is not None for member in (model, generator) for p in member.parameters())
    etymon.save(model, tmp_path / "discriminator")
    etymon.save(generator, tmp_path / "generator")
    again = share_embeddings(etymon.load(tmp_path / "generator"), etymon.load(tmp_path / "discriminator"))
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, generator.get_parameter(name)), name
