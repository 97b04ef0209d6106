"""The Transformer of 2017 against PyTorch's own layers, and what must hold of it exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import etymon
from etymon.families import get_family
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode, generate_texts
from etymon.nn.batch import Batch
from etymon.nn.embeddings import sinusoids
from tests.families.folders import assert_same, tiny
from tests.generation.conftest import tiny_tokenizer

SOURCES, TARGETS = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [8, 3, 11, 10, 2]], [[1, 4, 6], [1, 9, 2, 7, 5], [1]]


def torch_stacks(model: Model) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's stacks with the model's weights; their attention biases, which the paper has not, are zero."""
    shape = model.shape
    options: dict[str, Any] = {
        "d_model": shape.dim, "nhead": shape.heads, "dim_feedforward": shape.inner_dim, "dropout": 0.0,
        "batch_first": True, "norm_first": shape.norm == "before", "layer_norm_eps": shape.norm_epsilon,
        "activation": shape.activation, "dtype": torch.float64,
    }  # fmt: skip

    def norm() -> nn.LayerNorm | None:
        return (
            nn.LayerNorm(shape.dim, shape.norm_epsilon, dtype=torch.float64)
            if shape.norm == "before"
            else None
        )

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**options), shape.layers, norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), shape.layers, norm())
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        for ours, theirs in pairs(model, side, stack):
            with torch.no_grad():
                theirs.copy_(ours)
    return encoder, decoder


def pairs(model: Model, side: str, stack: Any) -> list[tuple[Tensor, Tensor]]:
    found = []
    ours_stack = getattr(model.body, side).stack
    for ours, theirs in zip(ours_stack.layers, stack.layers, strict=True):
        parts = {
            "linear1": ours.feed_forward.inner,
            "linear2": ours.feed_forward.outer,
            "norm1": ours.attention_norm,
        }
        attentions = {"self_attn": ours.attention}
        if side == "decoder":
            attentions["multihead_attn"] = ours.cross
            parts |= {"norm2": ours.cross_norm, "norm3": ours.feed_forward_norm}
        else:
            parts["norm2"] = ours.feed_forward_norm
        for name, part in parts.items():
            other = getattr(theirs, name)
            found += [(part.weight, other.weight), (part.bias, other.bias)]
        for name, attention in attentions.items():
            other = getattr(theirs, name)
            rows = [attention.query, attention.key, attention.value]
            found += [(torch.cat([row.weight for row in rows]), other.in_proj_weight)]
            found += [(attention.output.weight, other.out_proj.weight)]
            biases = torch.cat(
                [torch.zeros(len(row.weight)) if row.bias is None else row.bias for row in rows]
            )
            found += [(biases, other.in_proj_bias)]
            out = attention.output.bias
            found += [(torch.zeros_like(other.out_proj.bias) if out is None else out, other.out_proj.bias)]
    if stack.norm is not None:
        found += [(ours_stack.norm.weight, stack.norm.weight), (ours_stack.norm.bias, stack.norm.bias)]
    return found


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, torch.arange(longest) >= torch.tensor([len(row) for row in rows])[:, None]


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "before"}, {"attention_bias": True, "activation": "gelu"}], ids=str
)
def test_stacks_are_those_of_pytorch(changes: dict[str, Any]) -> None:
    model = tiny("transformer", {"vocabulary"}, dropout=0.0, **changes).double()
    encoder, decoder = torch_stacks(model)
    words, dim = model.body.words.weight, model.shape.dim
    hidden, _ = model.decode(Batch.of(TARGETS), model.encode(Batch.of(SOURCES)))

    def embedded(ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1])[:, None] / 10000 ** (
            torch.arange(0, dim, 2, dtype=torch.float64) / dim
        )
        positions = torch.zeros(ids.shape[1], dim, dtype=torch.float64)
        positions[:, 0::2], positions[:, 1::2] = angles.sin(), angles.cos()
        return words.detach()[ids] * math.sqrt(dim) + positions.float()

    (source, no_source), (target, no_target) = padded(SOURCES), padded(TARGETS)
    memory = encoder(embedded(source), src_key_padding_mask=no_source)
    causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
    expected = decoder(embedded(target), memory, tgt_mask=causal, memory_key_padding_mask=no_source)[
        ~no_target
    ]
    torch.testing.assert_close(hidden, expected, atol=1e-10, rtol=1e-9)
    weights = torch.linspace(-1, 1, hidden.numel(), dtype=torch.float64).view(hidden.shape)
    (hidden * weights).sum().backward()
    (expected * weights).sum().backward()
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        for ours, theirs in zip(gradients(model, side), pairs(model, side, stack), strict=True):
            if ours is not None:
                torch.testing.assert_close(ours, theirs[1].grad, atol=1e-9, rtol=1e-8)


def gradients(model: Model, side: str) -> list[Tensor | None]:
    """The gradients in the order of `pairs`; None for what the model has not."""
    twin = Model(model.family, model.shape, model.head_names).double()
    for name, parameter in twin.named_parameters():
        parameter.data = dict(model.named_parameters())[name].grad
    stack = torch_like(model, side)
    found = [ours for ours, _ in pairs(twin, side, stack)]
    bare = not model.shape.attention_bias
    return [None if bare and not bool(ours.any()) else ours for ours in found]


def torch_like(model: Model, side: str) -> Any:
    return torch_stacks(model)[side == "decoder"]


def test_without_positions_the_encoder_does_not_know_the_order() -> None:
    rows, order = [4, 7, 9, 2, 30, 11], [3, 0, 5, 1, 4, 2]
    moved = [rows[place] for place in order]
    for placed, equal in ((False, True), (True, False)):
        model = tiny("transformer", set(), sinusoids=placed).double().eval()
        plain, other = model.encode(Batch.of([rows, moved])).hidden_MD.chunk(2)
        assert torch.allclose(plain[order], other, atol=1e-12) == equal


def test_positions_go_on_for_ever() -> None:
    table = sinusoids(torch.tensor([0, 1, 70_000]), 6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert table[1, :2].tolist() == pytest.approx([math.sin(1), math.cos(1)])
    assert table[2, 4:].tolist() == pytest.approx(
        [math.sin(70_000 / 10000 ** (4 / 6)), math.cos(70_000 / 10000 ** (4 / 6))]
    )
    model = tiny("transformer", {"vocabulary"}).eval()
    assert model.positions is None
    assert len(model.encode(Batch.of([[3] * 700])).hidden_MD) == 700


def test_one_matrix_for_everything_unless_told() -> None:
    model = tiny("transformer", {"vocabulary"})
    assert (
        model.heads["vocabulary"].weight
        is model.body.words.weight
        is model.body.encoder.embeddings.words.weight
    )
    apart = tiny("transformer", {"vocabulary"}, source_vocabulary=19, tied=False)
    tables = {
        name: len(value)
        for name, value in apart.named_parameters()
        if "words" in name or name.startswith("heads")
    }
    assert tables == {
        "body.words.weight": 31,
        "body.encoder.embeddings.words.weight": 19,
        "heads.vocabulary.weight": 31,
    }


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "before", "tied": False, "attention_bias": True, "source_vocabulary": 7}],
    ids=str,
)
def test_a_folder_comes_back(changes: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("transformer", {"vocabulary", "classification"}, **changes)
    etymon.save(model, tmp_path / "saved", fold=False)
    again = etymon.load(tmp_path / "saved")
    assert (again.shape, again.head_names) == (model.shape, model.head_names)
    assert_same(again, model)


def test_a_source_with_words_of_its_own(tmp_path: Path) -> None:
    """Two tokenizers: the source's is not the target's, and comes back with the folder."""
    source, target = tiny_tokenizer("transformer"), tiny_tokenizer("bart")
    target.framing = get_family("transformer").framing
    model = tiny("transformer", {"vocabulary"}, vocabulary=target.size, source_vocabulary=source.size)
    model.tokenizer, model.source_tokenizer = target, source
    etymon.save(model, tmp_path / "saved")
    again = etymon.load(tmp_path / "saved")
    assert (
        again.source_tokenizer.fingerprint == source.fingerprint
        and again.tokenizer.fingerprint == target.fingerprint
    )
    settings = DecodingSettings(max_new_tokens=4)
    ids = source.framing.frame(source.encode("The cat")).ids.tolist()
    assert (
        generate_texts(again, ["The cat"], settings)[0].ids == decode(model.eval(), [ids], settings)[0][0].ids
    )


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_length_penalty_of_the_paper(offset: float) -> None:
    model = tiny("transformer", {"vocabulary"}).eval()
    model.carried = {"decoder_start_token_id": 1, "eos_token_id": 2}
    settings = DecodingSettings(
        beams=4, returns=4, length_penalty=0.6, length_offset=offset, max_new_tokens=7
    )
    for row in decode(model, SOURCES, settings):
        scores = [one.score for one in row]
        assert scores == sorted(scores, reverse=True)
        for one in row:
            length = ((offset + len(one.ids)) / (offset + 1)) ** 0.6
            assert one.score == pytest.approx(one.log_prob / length, rel=1e-5)
