"""First values with which attention begins at neighbours, and cross-attention at equal words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.families.model import Model
from etymon.nn.batch import Batch

LENGTH, WORDS = 48, 300
# Wide enough for waves to tell neighbours apart.
SMALL = {"vocabulary": WORDS, "dim": 128, "layers": 2, "heads": 4, "inner_dim": 64}
BOTH_WAYS: dict[str, dict[str, Any]] = {
    "bert": {**SMALL, "position_kind": "rotary", "deviation": 0.06, "dropout": 0.0},
    "distilbert": {**SMALL, "position_kind": "relative_bias"},
    "albert": {**SMALL, "position_kind": "rotary", "embedding_dim": 32},
    "t5": {**SMALL, "head_dim": 32},
    "bart": {**SMALL, "position_kind": "rotary"},
    "transformer": {**SMALL, "position_kind": "relative_bias"},
    "xlnet": {**SMALL, "deviation": 0.06, "memory": None},
}
CAUSAL: dict[str, dict[str, Any]] = {
    "transformer-xl": {
        **SMALL,
        "head_dim": 32,
        "cutoffs": (),
        "divisor": 1,
        "memory": 0,
        "same_length": False,
    },
}


def rows() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    # Every word once: an equal word is the same place.
    return [torch.randperm(WORDS - 10, generator=generator)[:LENGTH].numpy() + 10 for _ in range(4)]


@torch.inference_mode()
def attention(model: Model) -> list[Tensor]:
    """Of the first stack, layer by layer: `[heads, queries, keys]`, the mean over rows."""
    batch = Batch.of(rows())
    with etymon.trace(model.eval()) as seen:
        if model.encoder_decoder:
            model.decode(batch, model.encode(batch))
        else:
            model.hidden(batch)
    return [weights.mean(0) for weights in next(iter(seen.values())).attention]


def share(weights_HQT: Tensor, head: int, distance: int) -> float:
    return float(weights_HQT[head].diagonal(distance, -2, -1).mean())


@pytest.mark.parametrize("family", [*BOTH_WAYS, *CAUSAL])
def test_heads_begin_at_the_neighbour_that_is_theirs(family: str) -> None:
    shape = (BOTH_WAYS | CAUSAL)[family]
    before = attention(etymon.build(family, shape=shape))
    for plain, near in zip(
        before, attention(etymon.build(family, shape={**shape, "neighbours": 1.0})), strict=True
    ):
        behind = 1 if family in BOTH_WAYS else -2
        for head, distance in ((0, -1), (1, behind)):
            assert share(near, head, distance) > 2 * share(plain, head, distance)
            assert share(near, head, distance) > 2 * share(near, 3, distance), (
                "the fourth head sees everything"
            )
        if family in BOTH_WAYS:
            assert share(near, 0, -1) > share(near, 0, 1) and share(near, 1, 1) > share(near, 1, -1)
        assert share(near, 2, -1) > 1.5 * share(near, 2, -12), "the third has a window"


def test_a_single_head_begins_with_a_window() -> None:
    model = etymon.build("electra", shape={**BOTH_WAYS["bert"], "heads": 1, "neighbours": 1.0})
    for weights in attention(model):
        near, far = (share(weights, 0, -place) + share(weights, 0, place) for place in (1, 12))
        assert near > 1.5 * far


@pytest.mark.parametrize("family", ["t5", "bart", "transformer"])
@torch.inference_mode()
def test_cross_attention_begins_at_equal_words(family: str) -> None:
    model = etymon.build(family, shape={**BOTH_WAYS[family], "matches": 8.0}).eval()
    cross = model.body.decoder.stack.layers[0].cross  # type: ignore[union-attr]
    cross.seen = found = []
    batch = Batch.of(rows())
    model.decode(batch, model.encode(batch))
    (weights,) = found
    assert float(weights.diagonal(0, -2, -1).mean()) > 5 / LENGTH


@pytest.mark.parametrize("family", [*BOTH_WAYS, *CAUSAL])
def test_without_them_no_first_value_changes(family: str) -> None:
    shape = (BOTH_WAYS | CAUSAL)[family]
    plain, near = (etymon.build(family, shape={**shape, **given}) for given in ({}, {"neighbours": 1.0}))
    ours, theirs = (dict(model.named_parameters()) for model in (plain, near))
    changed = {name.rsplit(".", 2)[-2] for name in ours if not torch.equal(ours[name], theirs[name])}
    assert changed and changed <= {"query", "key", "table", "position", "attention"}


@pytest.mark.parametrize("family", ["bert", "t5", "xlnet"])
def test_folders_say_how_weights_began_and_transformers_opens_them(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {**BOTH_WAYS[family], "neighbours": 1.0}
    if family == "t5":
        shape["matches"] = 8.0
    model = etymon.build(family, shape=shape, heads=("vocabulary",)).eval()
    etymon.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["etymon_neighbours"] == 1.0
    assert etymon.load(tmp_path).shape == model.shape
    kind = {"t5": "AutoModelForSeq2SeqLM", "xlnet": "XLNetLMHeadModel"}.get(family, "AutoModelForMaskedLM")
    theirs = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    ids = torch.tensor(rows()[0])[None]
    with torch.inference_mode():
        given = {"decoder_input_ids": ids} if family == "t5" else {}
        expected = theirs(input_ids=ids, **given).logits[0]
        batch = Batch.of(rows()[:1])
        hidden, _ = model.decode(batch, model.encode(batch)) if family == "t5" else model.hidden(batch)
        found = model.heads["vocabulary"].logits(hidden)  # type: ignore[operator]
    assert torch.allclose(found, expected, atol=2e-4)
