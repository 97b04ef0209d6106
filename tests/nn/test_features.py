"""Heads that read features: what they read, where it enters, and that rows do not know of each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.nn.features import INITIAL, FeatureHead, FeatureSettings, Gate
from etymon.nn.initialise import initialise

LAYERS, WIDTH, VOCABULARY = 5, 6, 11
ROWS = [[1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 0]]
SETTINGS = [
    {},
    {"place": "both", "layers": 2},
    {"place": "output", "words": 4},
    {"words": 4},
    {"words": WIDTH, "gate": True},
    {"words": 4, "gate": True, "place": "both", "source": "last-four"},
    {"source": "last"},
]


def head(outputs: int = 3, pooled: bool = False, **settings: Any) -> FeatureHead:
    chosen = FeatureSettings(**{"cells": 4, **settings})
    made = FeatureHead(chosen, LAYERS, WIDTH, VOCABULARY, outputs, pooled=pooled)
    initialise(nn.ModuleDict({"heads": nn.ModuleDict({"task": made})}), INITIAL)
    return made.eval()


def states(tokens: int, seed: int = 0) -> list[Tensor]:
    return list(torch.randn(LAYERS, tokens, WIDTH, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("settings", SETTINGS)
def test_shapes(settings: dict[str, Any]) -> None:
    batch = Batch.of(ROWS)
    layers = states(batch.layout.tokens)
    assert head(**settings)(layers, batch).shape == (11, 3)
    assert head(**settings)(layers, batch, torch.tensor([7, 2])).shape == (2, 3)
    assert head(1, pooled=True, **settings)(layers, batch).shape == (3, 1)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_ragged_rows_equal_single_ones(settings: dict[str, Any], pooled: bool) -> None:
    made, batch = head(pooled=pooled, **settings), Batch.of(ROWS)
    layers = states(batch.layout.tokens)
    whole = made(layers, batch)
    parts = zip(*(layer.split(batch.layout.lengths) for layer in layers), strict=True)
    alone = [made(part, Batch.of([row])) for part, row in zip(parts, ROWS, strict=True)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=0, atol=1e-6)


def test_asked_positions_are_some_of_all() -> None:
    made, batch = head(), Batch.of(ROWS)
    layers, at = states(11), torch.tensor([10, 0, 4])
    torch.testing.assert_close(made(layers, batch, at), made(layers, batch)[at])


def test_a_row_is_pooled_by_its_largest_values() -> None:
    tokens, rows, batch = head(place="both"), head(place="both", pooled=True), Batch.of(ROWS)
    tokens.output = rows.output = nn.Identity()  # type: ignore[assignment]
    layers = states(11)
    largest = [part.amax(0) for part in tokens(layers, batch).split(batch.layout.lengths)]
    assert torch.equal(rows(layers, batch), torch.stack(largest))


@pytest.mark.parametrize(("bias", "taken"), [(1e4, "features"), (-1e4, "words")])
def test_a_gate_takes_one_or_the_other(bias: float, taken: str) -> None:
    gate = Gate(4, 4)
    torch.nn.init.normal_(gate.weigh.weight)
    torch.nn.init.constant_(gate.weigh.bias, bias)
    given = {"features": torch.randn(5, 4), "words": torch.randn(5, 4)}
    assert gate.project is None
    assert torch.equal(gate(given["features"], given["words"]), given[taken])


def test_a_gate_weighs_every_dimension_by_the_word() -> None:
    gate = Gate(3, 2)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter)
    features, words = torch.randn(5, 3), torch.randn(5, 2)
    assert gate.project is not None
    share = torch.sigmoid(words @ gate.weigh.weight.T + gate.weigh.bias)
    expected = share * gate.project(features) + (1 - share) * words
    torch.testing.assert_close(gate(features, words), expected)


@pytest.mark.parametrize("place", ["input", "both"])
def test_a_mix_of_one_layer_is_that_layer(place: str) -> None:
    """Two entries have two mixes: the one at the output looks elsewhere."""
    mixed, last, batch = head(place=place), head(place=place, source="last"), Batch.of(ROWS)
    last.load_state_dict(mixed.state_dict(), strict=False)
    layers = states(11)
    with torch.no_grad():
        for mix in mixed.mixes:
            mix.scalars[2].fill_(100.0)  # type: ignore[index, operator]
    expected = last([*layers[:2], *layers[3:], layers[2]], batch)
    torch.testing.assert_close(mixed(layers, batch), expected)
    assert len(mixed.mixes) == (2 if place == "both" else 1)
    with torch.no_grad():
        mixed.mixes[-1].gamma.fill_(3.0)  # type: ignore[operator, union-attr]
    assert not torch.allclose(mixed(layers, batch), expected, atol=1e-3)


def test_the_last_four_are_side_by_side() -> None:
    made, batch = head(source="last-four"), Batch.of(ROWS)
    layers = states(11)
    assert made.lstms[0].input_size == 4 * WIDTH
    assert torch.equal(made(layers, batch), made([torch.zeros(11, WIDTH), *layers[1:]], batch))
    assert not torch.allclose(
        made(layers, batch), made([layers[0], torch.zeros(11, WIDTH), *layers[2:]], batch)
    )
    short = FeatureHead(FeatureSettings(source="last-four"), 3, WIDTH, VOCABULARY, 2, pooled=False)
    assert short.lstms[0].input_size == 3 * WIDTH


@pytest.mark.parametrize(
    ("place", "moved"), [("input", {0, 1, 2, 3}), ("output", {2}), ("both", {0, 1, 2, 3})]
)
def test_features_enter_where_they_are_told(place: str, moved: set[int]) -> None:
    """Beside the output they say something of their own token alone; in the BiLSTM, of the whole row."""
    made, batch = head(place=place, words=4), Batch.of(ROWS)
    before, after = states(11), states(11)
    for layer in after:
        layer[2] += 1.0
    changed = (made(before, batch) - made(after, batch)).abs().amax(1) > 1e-6
    assert set(changed.nonzero().flatten().tolist()) == moved


def test_dropout_is_on_features_while_training() -> None:
    made, batch = head(dropout=0.5), Batch.of(ROWS)
    layers = states(11)
    assert torch.equal(made(layers, batch), made(layers, batch))
    made.train()
    assert not torch.equal(made(layers, batch), made(layers, batch))
    words = head(dropout=0.5, place="output", words=4).train()
    assert torch.equal(words._inputs(layers, batch), words._inputs(layers, batch))


def test_everything_learns() -> None:
    for settings in SETTINGS:
        made, batch = head(pooled=True, **settings), Batch.of(ROWS)
        made(states(11), batch).square().sum().backward()
        for name, parameter in made.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, (settings, name)


def test_the_penalty_is_that_of_all_mixes() -> None:
    made = head(place="both", penalty=0.5)
    with torch.no_grad():
        made.mixes[0].scalars[1].fill_(2.0)  # type: ignore[index, operator, union-attr]
        made.mixes[1].scalars[0].fill_(1.0)  # type: ignore[index, operator, union-attr]
    assert made.penalty().item() == 2.5
    assert head(source="last").penalty().item() == 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"place": "output"}, "words"),
        ({"gate": True}, "gate"),
        ({"gate": True, "words": 4, "place": "output"}, "gate"),
        ({"source": "last", "penalty": 0.1}, "mix"),
        ({"source": "last-four", "layer_norm": True}, "mix"),
        ({"dropout": 1.0}, "dropout"),
        ({"cells": 0}, "cells"),
        ({"widths": 3}, "widths"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EtymonError, match=said):
        FeatureSettings(**settings)


def test_a_rectangle_with_padding_is_refused() -> None:
    batch = Batch.of_rectangle(torch.tensor([[1, 2], [3, 0]]), torch.tensor([[1, 1], [1, 0]]))
    with pytest.raises(ValueError, match="ragged"):
        head()(states(4), batch)
