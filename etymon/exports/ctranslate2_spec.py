"""A model's layers as CTranslate2 specifies them, and why some cannot be.

Nothing here asks for a family: embeddings, blocks and heads are read as they are, so that whatever is made of
the same parts can be exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.exports.target import STATES
from etymon.nn.attention import Attention, RelativeKeys
from etymon.nn.blocks import Block, Body, EncoderDecoder, FeedForward, ParallelBlock, Stack
from etymon.nn.embeddings import Embeddings, Rotary, Sinusoids
from etymon.nn.heads import DeepProjection, Pooler, Projection
from etymon.nn.layers import (
    Activation,
    Embedding,
    LayerNorm,
    RootMeanSquareNorm,
    gelu_tanh,
    identity,
    quick_gelu,
)
from etymon.nn.visibility import CausalRule, FullRule
from etymon.nn.vocabulary import DenseVocabulary

if TYPE_CHECKING:
    from etymon.families.model import Model

# Our functions -> members of `ctranslate2.specs.common_spec.Activation`.
ACTIVATION_NAMES: dict[Activation, str] = {
    F.relu: "RELU",
    torch.relu: "RELU",
    gelu_tanh: "GELUTanh",
    F.silu: "SWISH",
    F.gelu: "GELU",
    quick_gelu: "GELUSigmoid",
    torch.tanh: "Tanh",
    torch.sigmoid: "Sigmoid",
}
WAVES = 1024
"""Rows of a table of sinusoids: ours goes on for ever, and CTranslate2's own begins elsewhere."""
NO_LAYERS = "CTranslate2 has no layers like its"
LEFT_OUT = "CTranslate2 computes {}, not this head: export it with --head states"


@dataclass(frozen=True)
class TaskHead:
    """A task head in two parts: what CTranslate2 has a place for (`pooler`: a dense map and an activation of
    the first token), and a linear map that its users apply."""

    linear: nn.Linear
    pooler: tuple[nn.Linear, Activation] | None
    reads: str
    """What the linear map reads: `pooled`, the states of the `first` token, or those of `every` token."""


# --- what fits


def find_misfit(model: Model, head: str) -> str | None:
    """Why CTranslate2 cannot compute this head of a model; None where it can."""
    body = model.body
    if model.features is not None and head in model.family.feature_heads:
        return "its head reads features of every layer, of which CTranslate2 gives the last"
    sides = [body.encoder, body.decoder] if isinstance(body, EncoderDecoder) else [body]
    if not all(side is None or (type(side) is Body and type(side.stack) is Stack) for side in sides):
        return NO_LAYERS
    # What a head reads decides which sides are looked at.
    if head == "vocabulary":
        if is_encoder(model):
            return LEFT_OUT.format("the states of an encoder")
        if model.reads_prefix:
            return "it reads prompts in both directions, and CTranslate2 does not"
        vocabulary = model.heads["vocabulary"]
        if type(vocabulary) is not DenseVocabulary or vocabulary.transform is not None:
            return "CTranslate2 scores words by one product with a matrix"
    elif isinstance(body, EncoderDecoder):
        if head != STATES and (body.decoder is not None or task_head(model, head) is None):
            return LEFT_OUT.format("the words of a decoder or the states of an encoder")
        sides = sides[:1]
    elif not is_encoder(model):
        return "CTranslate2 computes the words that a decoder writes, and nothing else of it"
    elif head != STATES and task_head(model, head) is None:
        return LEFT_OUT.format("the states of an encoder")
    return next(filter(None, map(_side_misfit, sides)), None)


def is_encoder(model: Model) -> bool:
    """Whether every token sees all of its row."""
    stack = getattr(model.body, "stack", None)
    return isinstance(stack, Stack) and all(isinstance(rule, FullRule) for rule in stack.rules)


def _side_misfit(side: Body) -> str | None:
    embeddings, stack = side.embeddings, side.stack
    if not isinstance(embeddings.words, Embedding) or embeddings.projection is not None:
        return "its word vectors are not as wide as its layers"
    if {type(rule) for rule in stack.rules} not in ({FullRule}, {CausalRule}):
        return "some of its layers see a part of the text alone"
    layers = list(stack.layers)
    if len({type(layer) for layer in layers}) > 1 or not isinstance(layers[0], Block | ParallelBlock):
        return NO_LAYERS
    if stack.norm is not None and not layers[0].norm_first:
        return "CTranslate2 has no last norm behind layers that end in norms"
    # One specification describes all layers, but for scales, which each has for itself.
    for layer in layers:
        attention, feed_forward = layer.attention, layer.feed_forward
        if type(attention) is not Attention or type(feed_forward) is not FeedForward:
            return NO_LAYERS
        if feed_forward.activation not in ACTIVATION_NAMES:
            return "CTranslate2 does not have its activation"
        relative = attention.relative
        if relative is not None and not (isinstance(relative, RelativeKeys) and relative.scaled):
            return "CTranslate2 has no such vectors of distances"
        if isinstance(relative, RelativeKeys) and relative.meets_keys:
            return "vectors of distances meet queries in CTranslate2, and not keys"
    # It is a key of config.json, and not of a layer.
    if len(_epsilons(side)) > 1:
        return "CTranslate2 has one epsilon for all norms"
    if not _knows_places(side):
        return "CTranslate2 wants some kind of positions"
    return None


def _epsilons(side: Body) -> set[float]:
    norms = (part for part in side.modules() if isinstance(part, LayerNorm | RootMeanSquareNorm))
    return {part.eps if isinstance(part, LayerNorm) else part.epsilon for part in norms}


def _knows_places(side: Body) -> bool:
    attention: Any = side.stack.layers[0].attention
    parts = (side.embeddings.positions, side.stack.position_bias, attention.rotary, attention.relative)
    return any(part is not None for part in parts)


def task_head(model: Model, head: str) -> TaskHead | None:
    """A head as CTranslate2's users can compute it; None where more than a linear map is left for them."""
    part, settings = model.heads[head], model.family.heads[head]
    at = settings.at(model.shape) if callable(settings.at) else settings.at
    # RoBERTa's and DistilBERT's: the dense map of the first token is a pooler by another name.
    if isinstance(part, DeepProjection):
        dense, activation = part.dense, part.activation
        if at != "first" or not isinstance(dense, nn.Linear) or activation not in ACTIVATION_NAMES:
            return None
        return TaskHead(part.linear, (dense, activation), "pooled")
    if not isinstance(part, Projection) or part.activation is not identity:
        return None
    if settings.after is None:
        return TaskHead(part.linear, None, at) if at in ("every", "first") else None
    pooler = model.heads[settings.after]
    if not isinstance(pooler, Pooler) or not isinstance(pooler.dense, nn.Linear):
        return None
    return TaskHead(part.linear, (pooler.dense, pooler.activation), "pooled")


# --- specifications


def build_spec(model: Model, head: str) -> Any:
    """CTranslate2's specification of a model with all weights, without its vocabulary and special tokens."""
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerEncoderModelSpec, TransformerSpec

    body = model.body
    if head == "vocabulary":
        sides = [body.encoder, body.decoder] if isinstance(body, EncoderDecoder) else [body]
        decoder = _decoder_spec(sides[-1])
        vocabulary = model.heads["vocabulary"]
        assert isinstance(vocabulary, DenseVocabulary)
        decoder.projection.weight = _values(vocabulary.weight)
        # BART's bias is mostly zeros that nobody trained: left out, a product is faster.
        if vocabulary.bias is not None and bool(vocabulary.bias.any()):
            decoder.projection.bias = _values(vocabulary.bias)
        if vocabulary.scale != 1.0:
            decoder.scale_outputs = vocabulary.scale
        both = len(sides) == 2
        spec = (
            TransformerSpec(_encoder_spec(sides[0]), decoder)
            if both
            else TransformerDecoderModelSpec(decoder)
        )
    else:
        sides = [body.encoder if isinstance(body, EncoderDecoder) else body]
        pooler = _pooler(model, head)
        activation = {} if pooler is None else {"pooling_activation": _activation(pooler[1])}
        spec = TransformerEncoderModelSpec(
            _encoder_spec(sides[0]), pooling_layer=pooler is not None, **activation
        )
        if pooler is not None:
            _fill_linear(spec.pooler_dense, [pooler[0]])
    # Unless told, CTranslate2 takes 1e-5, and 1e-6 without a mean.
    (spec.config.layer_norm_epsilon,) = _epsilons(sides[0])
    return spec


def _pooler(model: Model, head: str) -> tuple[nn.Linear, Activation] | None:
    """What CTranslate2 computes of the first token: what a head reads or, of states, the model's own
    pooler."""
    if head != STATES:
        task = task_head(model, head)
        return None if task is None else task.pooler
    if "pooler" not in model.heads:
        return None
    pooler = model.heads["pooler"]
    if not isinstance(pooler, Pooler) or not isinstance(pooler.dense, nn.Linear):
        return None
    return pooler.dense, pooler.activation


def _activation(function: Activation) -> Any:
    from ctranslate2.specs.common_spec import Activation as Numbers

    return Numbers[ACTIVATION_NAMES[function]]


def _layer_options(side: Body) -> dict[str, Any]:
    """What the specifications of encoders and decoders are told in the same words."""
    stack = side.stack
    layer: Any = stack.layers[0]
    attention, rotary = layer.attention, layer.attention.rotary
    options: dict[str, Any] = {
        "num_layers": len(stack.schedule),
        "num_heads": attention.heads,
        "pre_norm": layer.norm_first,
        "no_final_norm": stack.norm is None,
        "activation": _activation(layer.feed_forward.activation),
        "layernorm_embedding": side.embeddings.norm is not None,
        "relative_position": attention.relative is not None,
        "relative_attention_bias": stack.position_bias is not None,
        "ffn_glu": layer.feed_forward.gate is not None,
        "rms_norm": isinstance(layer.attention_norm, RootMeanSquareNorm),
    }
    # Otherwise it divides the width by the heads.
    if attention.heads * attention.head_dim != attention.query.in_features:
        options["head_dim"] = attention.head_dim
    if isinstance(rotary, Rotary):
        # Neighbours are turned together, as in GPT-J's own code.
        # Angles are float32 there: RoFormer's, which are exact here, differ by rounding.
        options |= {"rotary_dim": rotary.width, "rotary_interleave": True, "rotary_base": rotary.base}
    return options


def _encoder_spec(side: Body) -> Any:
    from ctranslate2.specs.common_spec import EmbeddingsMerge
    from ctranslate2.specs.transformer_spec import TransformerEncoderSpec

    tables = _word_tables(side.embeddings)
    spec = TransformerEncoderSpec(
        **_layer_options(side), num_source_embeddings=len(tables), embeddings_merge=EmbeddingsMerge.ADD
    )
    for table, part in zip(spec.embeddings, tables, strict=True):
        table.weight = _values(part)
    _fill_side(spec, side)
    return spec


def _decoder_spec(side: Body) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec

    layer: Any = side.stack.layers[0]
    is_parallel = isinstance(layer, ParallelBlock)
    spec = TransformerDecoderSpec(
        **_layer_options(side),
        with_encoder_attention=not is_parallel and layer.cross is not None,
        parallel_residual=is_parallel,
        shared_layer_norm=is_parallel,
    )
    (table,) = _word_tables(side.embeddings)
    spec.embeddings.weight = _values(table)
    _fill_side(spec, side)
    return spec


def _word_tables(embeddings: Embeddings) -> list[Tensor]:
    """The tables that ids are looked up in: words, and segments where there is a choice of them."""
    words = embeddings.words.weight
    assert isinstance(words, Tensor)
    segments = embeddings.segments
    # RoBERTa's only segment is added to its positions: ids of one table are enough then.
    return [words] if segments is None or segments.num_embeddings == 1 else [words, segments.weight]


def _fill_side(spec: Any, side: Body) -> None:
    embeddings, stack = side.embeddings, side.stack
    # As a number: `True` would be the square root of the width.
    spec.scale_embeddings = float(embeddings.scale)
    if hasattr(spec, "position_encodings") and embeddings.positions is not None:
        spec.position_encodings.encodings = _values(_position_table(embeddings))
    if embeddings.norm is not None:
        _fill_norm(spec.layernorm_embedding, embeddings.norm)
    if stack.norm is not None:
        _fill_norm(spec.layer_norm, stack.norm)
    # Layers that are shared are written once: equal weights become one.
    for layer_spec, number in zip(spec.layer, stack.schedule, strict=True):
        _fill_layer(layer_spec, stack.layers[number], stack.position_bias)


def _position_table(embeddings: Embeddings) -> Tensor:
    """A row a place, from the first place of a text on. The only segment of all tokens is added to it."""
    positions = embeddings.positions
    if isinstance(positions, Sinusoids):
        return positions.waves(torch.arange(WAVES), positions.dim)
    assert positions is not None
    table = positions.weight[embeddings.position_offset :]
    segments = embeddings.segments
    return table + segments.weight[0] if segments is not None and segments.num_embeddings == 1 else table


def _fill_layer(spec: Any, layer: Any, position_bias: Any) -> None:
    scale = layer.residual_scale
    _fill_attention(spec.self_attention, layer.attention, scale, is_self=True)
    if position_bias is not None:
        spec.self_attention.relative_attention_bias = _values(position_bias.table.weight)
        spec.self_attention.relative_attention_max_distance = np.int32(position_bias.longest)
    feed_forward = layer.feed_forward
    # What has the activation comes first there: the gate, where there is one.
    _fill_linear(spec.ffn.linear_0, [feed_forward.inner if feed_forward.gate is None else feed_forward.gate])
    if feed_forward.gate is not None:
        _fill_linear(spec.ffn.linear_0_noact, [feed_forward.inner])
    _fill_linear(spec.ffn.linear_1, [feed_forward.outer], scale)
    if isinstance(layer, ParallelBlock):
        _fill_norm(spec.shared_layer_norm, layer.attention_norm)
        return
    _fill_norm(spec.self_attention.layer_norm, layer.attention_norm)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_norm)
    if layer.cross is not None:
        _fill_attention(spec.attention, layer.cross, scale, is_self=False)
        _fill_norm(spec.attention.layer_norm, layer.cross_norm)


def _fill_attention(spec: Any, attention: Attention, residual_scale: float, *, is_self: bool) -> None:
    query, memory = attention.query, [attention.key, attention.value]
    for part, linears in zip(spec.linear, [[query, *memory]] if is_self else [[query], memory], strict=False):
        _fill_linear(part, linears)
    _fill_linear(spec.linear[-1], [attention.output], residual_scale)
    if attention.scale != attention.head_dim**-0.5:
        spec.queries_scale = float(attention.scale)
    if isinstance(attention.relative, RelativeKeys):
        # Rows by key minus query, ours by query minus key; nothing is added to values.
        spec.relative_position_keys = _values(attention.relative.table.weight.flip(0))
        spec.relative_position_values = torch.zeros_like(spec.relative_position_keys)


def _fill_linear(spec: Any, linears: Sequence[nn.Linear], scale: float = 1.0) -> None:
    """Several maps of one input become one, one after the other."""
    spec.weight = _values(torch.cat([part.weight for part in linears]) * scale)
    if linears[0].bias is not None:
        spec.bias = _values(torch.cat([part.bias for part in linears]) * scale)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _values(norm.weight)
    if isinstance(norm, LayerNorm):
        spec.beta = _values(norm.bias)


def _values(tensor: Tensor) -> Tensor:
    # A copy: CTranslate2 quantizes in place.
    return tensor.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
