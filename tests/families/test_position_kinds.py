"""Positions as a choice of shape: what every kind promises, in every family that has the choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

import etymon
from etymon.families import REGISTRY, get_family
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.blocks import Body
from etymon.nn.lora import adapt
from etymon.nn.precision import set_precision
from etymon.nn.visibility import FullRule, flat_view
from tests.families.folders import PRETRAINED, assert_same, tiny

ENCODERS = ("bert", "roberta", "albert", "electra", "distilbert")
DECODERS = ("gpt1", "gpt2", "gpt3")
PAIRS = ("bart", "transformer")
KINDS = ("rotary", "relative_key", "relative_key_query", "relative_bias")
CASES = [(family, kind) for family in (*ENCODERS, *DECODERS, *PAIRS) for kind in KINDS]
ROWS = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [6, 5, 9], [8, 3, 11, 10, 2]]


def made(family: str, kind: str, **changed: Any) -> Model:
    changed |= {"band": 12} if family == "gpt3" and "band" not in changed else {}
    return tiny(family, {"vocabulary"}, position_kind=kind, **changed).eval()


def read(model: Model, batch: Batch) -> Tensor:
    """Hidden states; of two sides, those of a decoder that writes what the encoder reads."""
    if not model.encoder_decoder:
        return model.hidden(batch)[0]
    return model.decode(batch, model.encode(batch))[0]


def test_every_family_with_absolute_positions_has_the_choice() -> None:
    has_choice = {name for name in REGISTRY if "position_kind" in get_type_hints(get_family(name).shape)}
    assert has_choice == {*ENCODERS, *DECODERS, *PAIRS}
    for name in has_choice:
        choices = get_args(get_type_hints(get_family(name).shape)["position_kind"])
        assert choices[1:] == KINDS
        published = {fields.get("position_kind", choices[0]) for fields in get_family(name).sizes.values()}
        assert published == {choices[0]}


@pytest.mark.parametrize(("family", "kind"), CASES)
@torch.no_grad()
def test_texts_are_read_as_if_alone_wherever_they_stand(family: str, kind: str) -> None:
    model = made(family, kind)
    assert not any("embeddings.positions" in name for name, _ in model.named_parameters())
    whole = read(model, Batch.of(ROWS))
    alone = torch.cat([read(model, Batch.of([row])) for row in ROWS])
    torch.testing.assert_close(whole, alone, atol=1e-5, rtol=1e-5)
    if not model.encoder_decoder:  # only distances count
        moved = read(model, Batch.of(ROWS, starts=[3, 5, 0, 4]))
        torch.testing.assert_close(whole, moved, atol=1e-5, rtol=1e-5)
    # A rectangle with padding gives the same.
    ids = torch.tensor([row + [0] * (7 - len(row)) for row in ROWS])
    mask = torch.arange(7) < torch.tensor([len(row) for row in ROWS])[:, None]
    padded = read(model, Batch.of_rectangle(ids, mask))
    torch.testing.assert_close(padded.view(4, 7, -1)[mask], whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "kind"), CASES)
@torch.no_grad()
def test_order_of_words_matters(family: str, kind: str) -> None:
    model = made(family, kind)
    there, back = [4, 7, 9, 11, 5], [4, 9, 7, 11, 5]
    first, second = (read(model, Batch.of([row]))[-1] for row in (there, back))
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_weights_survive_a_folder_that_says_what_it_is(family: str, kind: str, tmp_path: Path) -> None:
    model = made(family, kind)
    etymon.save(model, tmp_path)
    again = etymon.load(tmp_path)
    assert again.shape == model.shape and again.family.name == family
    assert_same(again, model)
    model_type = json.loads((tmp_path / "config.json").read_text())["model_type"]
    if (family, kind) == ("bert", "rotary"):
        assert model_type == "roformer"
        return
    assert model_type == f"etymon-{get_family(family).model_type}"
    if kind != "rotary":
        return
    transformers: Any = pytest.importorskip("transformers")
    # It never takes it for the published architecture: code that computes it has to be trusted first.
    with pytest.raises(ValueError, match="custom code"):
        transformers.AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_every_parameter_learns_and_nobody_sees_the_future(family: str, kind: str) -> None:
    heads = PRETRAINED[family] if family != "bert" else {"vocabulary"}
    model = tiny(family, heads, position_kind=kind).eval()
    batch = Batch.of([[4, 7, 9, 2, 30, 11, 5, 3]])
    embedded = torch.randn(8, getattr(model.shape, "embedding_dim", model.shape.dim), requires_grad=True)
    if model.encoder_decoder:
        memory = model.encode(batch)
        hidden, _ = model.decode(batch, memory, embedded=embedded)
    else:
        hidden, _ = model.hidden(batch, embedded=embedded)
    (reached,) = torch.autograd.grad(hidden[3].sum(), embedded, retain_graph=True)
    sees_future = family in ENCODERS
    assert bool(reached[4:].abs().sum() > 0) == sees_future
    (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum().backward()
    positional = [
        (name, part)
        for name, part in model.named_parameters()
        if "relative" in name or "position_bias" in name
    ]
    assert bool(positional) == (kind != "rotary")
    for name, part in positional:
        assert part.grad is not None and part.grad.abs().sum() > 0, name


@pytest.mark.parametrize("family", (*DECODERS, "bart"))
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_decode_with_its_cache_is_the_whole_text(family: str, kind: str) -> None:
    model = made(family, kind, **({"band": 3} if family == "gpt3" else {}))
    rows = [[4, 7, 9, 2, 30, 11], [5, 6, 9]]
    whole = read(model, Batch.of(rows))
    memory = model.encode(Batch.of(rows)) if model.encoder_decoder else None
    state = model.body.start(2, 8)

    def step(batch: Batch) -> Tensor:
        return model.hidden(batch, state)[0] if memory is None else model.decode(batch, memory, state)[0]

    first = step(Batch.of([row[:2] for row in rows]))
    then = step(Batch.of([row[2:3] for row in rows], starts=[2, 2]))
    torch.testing.assert_close(first, whole[[0, 1, 6, 7]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(then, whole[[2, 8]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "kind"), CASES)
@torch.no_grad()
def test_traced_weights_are_those_of_the_fast_path(family: str, kind: str) -> None:
    model = made(family, kind)
    plain = read(model, Batch.of(ROWS))
    with etymon.trace(model) as seen:
        traced = read(model, Batch.of(ROWS))
    torch.testing.assert_close(traced, plain, atol=1e-5, rtol=1e-5)
    assert all(stack.attention for stack in seen.values())


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_heads_that_read_one_place_compute_no_other(family: str, kind: str) -> None:
    model = tiny(family, {"classification"}, position_kind=kind).eval()
    states, _ = model.hidden(Batch.of(ROWS))
    few = model.answer("classification", Batch.of(ROWS))
    torch.testing.assert_close(
        few, model.read("classification", states, Batch.of(ROWS)), atol=1e-5, rtol=1e-5
    )


@torch.no_grad()
def test_rotation_needs_no_mask_and_its_sines_are_computed_once() -> None:
    model = made("bert", "rotary")
    assert isinstance(model.body, Body)
    batch = Batch.of([ROWS[0], ROWS[0]])
    model.hidden(batch)
    assert all(group.mask is None for group in flat_view(FullRule(), batch).groups)
    (rotary,) = {layer.attention.rotary for layer in model.body.stack.layers}
    cosines = rotary.waves(batch.positions)[0]
    assert rotary.waves(batch.positions)[0] is cosines


def test_a_batch_that_was_only_read_can_be_trained_on() -> None:
    model, batch = made("bert", "rotary"), Batch.of(ROWS[:1])
    with torch.inference_mode():
        model.hidden(batch)
    model.hidden(batch)[0].sum().backward()


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "rotary"), ("gpt2", "rotary"), ("gpt2", "relative_bias")]
)
@torch.no_grad()
def test_eight_bits_adapters_and_half_precision_work(family: str, kind: str) -> None:
    whole = read(made(family, kind), Batch.of(ROWS))
    changed = {
        "adapters": adapt(made(family, kind)),
        "int8": made(family, kind).quantize(),
        "bf16": made(family, kind),
    }
    set_precision(changed["bf16"], "bf16")
    for name, model in changed.items():
        got = read(model.eval(), Batch.of(ROWS)).float()
        bound = {"adapters": 1e-5, "int8": 0.2, "bf16": 0.15}[name]
        assert (got - whole).norm() < bound * whole.norm(), name


@torch.no_grad()
def test_biases_of_distances_are_added_to_scaled_scores() -> None:
    """The plain formula, in the first layer of a GPT-2."""
    model = made("gpt2", "relative_bias")
    with etymon.trace(model) as seen:
        model.hidden(Batch.of([ROWS[0]]))
    (stack,) = seen.values()
    layer, bias = model.body.stack.layers[0], model.body.stack.position_bias
    x = layer.attention_norm(stack.hidden[0])
    q, k = (part(x).view(7, 2, 8).transpose(0, 1) for part in (layer.attention.query, layer.attention.key))
    away = torch.arange(7)[:, None] - torch.arange(7)
    buckets = away.clamp(min=0)  # below 16 a bucket each
    scores = q @ k.transpose(1, 2) / 8**0.5 + bias.table.weight[buckets].permute(2, 0, 1)
    weights = scores.masked_fill(away < 0, float("-inf")).softmax(-1)
    torch.testing.assert_close(stack.attention[0][0], weights, atol=1e-5, rtol=1e-5)


def test_heads_of_an_odd_width_cannot_be_turned() -> None:
    with pytest.raises(etymon.EtymonError, match="turns pairs of numbers"):
        etymon.build("bert", shape={"dim": 12, "heads": 4, "position_kind": "rotary"})
    with pytest.raises(etymon.EtymonError, match="turns pairs of numbers"):
        etymon.build("bart", shape={"dim": 12, "heads": 2, "decoder_heads": 4, "position_kind": "rotary"})


# --- RoFormer


def test_pretrained_heads_of_a_rotary_bert_come_back(tmp_path: Path) -> None:
    """RoFormer has no class with next sentences: Transformers opens the words, etymon all."""
    transformers: Any = pytest.importorskip("transformers")
    model = tiny("bert", {"vocabulary", "next_sentence"}, position_kind="rotary").eval()
    etymon.save(model, tmp_path)
    again = etymon.load(tmp_path)
    assert again.head_names == model.head_names
    assert_same(again, model)
    theirs = transformers.RoFormerForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([ROWS[0]])
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of(ROWS[:1]))
        logits = model.heads["vocabulary"].logits(hidden)
        torch.testing.assert_close(theirs(ids).logits[0], logits, atol=1e-5, rtol=1e-4)


def test_other_roformers_are_refused_with_the_reason(tmp_path: Path) -> None:
    etymon.save(made("bert", "rotary"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, reason in (
        ({"rotary_value": True}, "rotary_value = True"),
        ({"embedding_size": 8}, "embedding_size = 8"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(etymon.EtymonError, match=reason):
            etymon.load(tmp_path, verify=False)


def test_a_learned_bert_stays_one() -> None:
    family = get_family("bert")
    assert family.of_shape(family.shape()) is family
    rotary = replace(family.shape(), position_kind="rotary")
    assert family.of_shape(rotary).model_type == "roformer"
    assert set(family.of_shape(rotary).heads) == set(family.heads)
