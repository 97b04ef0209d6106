"""Layer-wise rates and gradient norms, by the names of parameters."""

from __future__ import annotations

import math

import pytest
import torch

from etymon.families import get_family
from etymon.families.model import Model
from etymon.training.optimisers import OptimiserChoice, build_optimiser, depths, gradient_norms, section
from tests import tiny

ENCODER_DECODER = {
    "body.words.weight": 4, "body.encoder.stack.position_bias.table.weight": 4, "body.encoder.stack.norm.weight": 0,
    "body.encoder.stack.layers.0.attention.query.weight": 2, "body.encoder.stack.layers.1.attention_norm.weight": 1,
    "body.decoder.stack.layers.0.cross.query.weight": 3, "body.decoder.stack.layers.2.cross.output.weight": 1,
    "body.decoder.stack.norm.weight": 0, "body.decoder.stack.position_bias.table.weight": 4,
}  # fmt: skip
BELOW = {
    "gpt2": {
        "body.embeddings.words.weight": 3, "body.embeddings.positions.weight": 3, "body.stack.norm.bias": 0,
        "body.stack.layers.0.attention.query.bias": 2, "body.stack.layers.1.feed_forward.outer.weight": 1,
    },
    "bert": {
        "body.embeddings.words.weight": 3, "body.embeddings.norm.weight": 3, "heads.pooler.dense.weight": 0,
        "body.stack.layers.0.attention_norm.weight": 2, "body.stack.layers.1.attention.key.weight": 1,
        "heads.vocabulary.transform.dense.weight": 0, "heads.vocabulary.bias": 0, "heads.next_sentence.linear.bias": 0,
    },
    "t5": ENCODER_DECODER,
}  # fmt: skip
"""How many sections lie above a parameter's own."""


def model_of(family: str) -> Model:
    if family != "t5":
        return tiny.model(family, tiny.objective(family, get_family(family).objective))
    known = get_family("t5")
    shape = known.shape(**{**tiny.SHAPES["t5"], "vocabulary": 40, "decoder_layers": 3})
    return Model(known, shape, {"vocabulary"}).initialise()


@pytest.mark.parametrize("name", ["adamw", "adam-bert", "adafactor", "lamb", "muon"])
@pytest.mark.parametrize("family", BELOW)
def test_every_section_has_its_share_crossed_with_decay(family: str, name: str) -> None:
    model = model_of(family)
    choice = OptimiserChoice(name, learning_rate=0.1, weight_decay=0.2, layer_decay=0.5, matrix_share=1.0)
    optimiser = build_optimiser(model, choice)
    shares, decays = {}, {}
    for group in optimiser.param_groups:
        assert group["lr"] == pytest.approx(0.1 * group["rate_share"])
        shares |= dict.fromkeys(group["names"], group["rate_share"])
        decays |= dict.fromkeys(group["names"], group["weight_decay"])
    assert set(shares) == {parameter for parameter, _ in model.named_parameters()}
    for parameter, above in BELOW[family].items():
        assert shares[parameter] == 0.5**above, parameter
    for parameter, value in model.named_parameters():
        assert decays[parameter] == (0.0 if value.dim() == 1 else 0.2), parameter
    plain = build_optimiser(model, OptimiserChoice(name, matrix_share=1.0))
    assert {group["rate_share"] for group in plain.param_groups} == {1.0}


def test_shares_move_parameters_by_so_much() -> None:
    """Under Adam a scaled gradient would change nothing; a scaled rate does."""
    model = model_of("bert")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    choice = OptimiserChoice(learning_rate=0.01, weight_decay=0.0, layer_decay=0.5)
    build_optimiser(model, choice).step()
    for name, above in BELOW["bert"].items():
        moved = (before[name] - model.get_parameter(name).detach()).mean()
        assert float(moved) == pytest.approx(0.01 * 0.5**above, rel=1e-3), name


def test_freezing_does_not_change_how_deep_the_others_lie() -> None:
    model = model_of("gpt2")
    optimiser = build_optimiser(model, OptimiserChoice(layer_decay=0.5, frozen=("*.layers.1.*",)))
    shares = {name: group["rate_share"] for group in optimiser.param_groups for name in group["names"]}
    assert shares["body.stack.layers.0.attention.query.weight"] == 0.25


def test_a_shared_layer_has_one_depth() -> None:
    names = [
        "body.embeddings.words.weight",
        "body.stack.layers.0.attention.query.weight",
        "heads.choice.linear.weight",
    ]
    assert list(depths(names).values()) == [2, 1, 0]


def test_sections() -> None:
    for name, expected in {
        "body.embeddings.positions.weight": "embeddings",
        "model.body.stack.layers.11.attention.query.bias": "layers.11",
        "body.stack.norm.weight": "norm",
        "body.encoder.stack.layers.3.feed_forward.outer.weight": "encoder.layers.3",
        "body.decoder.stack.position_bias.table.weight": "embeddings",
        "body.decoder.stack.norm.weight": "decoder.norm",
        "generator.body.stack.layers.0.attention.query.weight": "generator.layers.0",
        "heads.vocabulary.transform.norm.bias": "heads",
        "heads.vocabulary.words.0.bias": "heads",
    }.items():
        assert section(name) == expected


@pytest.mark.parametrize("family", BELOW)
def test_gradient_norms_by_section(family: str) -> None:
    model = model_of(family)
    assert gradient_norms(model) == {}
    generator = torch.Generator().manual_seed(0)
    named = dict(model.named_parameters())
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    norms = gradient_norms(model)
    whole = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(float(whole), rel=1e-5)
    stack = "encoder." if family == "t5" else ""
    chosen = [p.grad for name, p in named.items() if section(name) == f"{stack}layers.1"]
    expected = math.sqrt(sum(float(grad.square().sum()) for grad in chosen if grad is not None))
    assert norms[f"{stack}layers.1"] == pytest.approx(expected, rel=1e-5)
    assert next(iter(norms)) == "embeddings"
    for name, parameter in named.items():
        if name.startswith("heads."):
            parameter.grad = None
    assert "heads" not in gradient_norms(model)
