"""A model's weights under the names that llama.cpp gives them, in both directions, and why some have none.

llama.cpp knows architectures and not parts: what differs from GPT-2, BERT or T5 in any layer has no place
there, but for factors, which are folded into the weights beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.exports.target import STATES
from etymon.families.saving import BRANCH_ENDS
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, Body, EncoderDecoder, FeedForward, Stack
from etymon.nn.embeddings import BucketedBias, Rotary
from etymon.nn.heads import DeepProjection, Pooler, Projection
from etymon.nn.layers import ACTIVATIONS, Embedding, LayerNorm, RootMeanSquareNorm, identity
from etymon.nn.visibility import CausalRule, FullRule
from etymon.nn.vocabulary import DenseVocabulary

if TYPE_CHECKING:
    from etymon.families.model import Model

LONGEST_DISTANCE = 128
"""The distance from which on llama.cpp has one bucket: a constant of its code."""
NO_ARCHITECTURE = "llama.cpp has no architecture of its layers"

# --- names

_BLOCK, _LAYER = "blk.{}.", "body.stack.layers.{}."
_PROJECTIONS = {"query": "attn_q", "key": "attn_k", "value": "attn_v"}
GPT2 = NameMap(
    [
        Row(tuple(_LAYER + f"attention.{part}.*" for part in _PROJECTIONS), _BLOCK + "attn_qkv.*"),
        *rows(
            {
                "body.embeddings.words.weight": "token_embd.weight",
                "body.embeddings.positions.weight": "position_embd.weight",
                _LAYER + "attention_norm.*": _BLOCK + "attn_norm.*",
                _LAYER + "attention.output.*": _BLOCK + "attn_output.*",
                _LAYER + "feed_forward_norm.*": _BLOCK + "ffn_norm.*",
                _LAYER + "feed_forward.inner.*": _BLOCK + "ffn_up.*",
                _LAYER + "feed_forward.outer.*": _BLOCK + "ffn_down.*",
                "body.stack.norm.*": "output_norm.*",
                "heads.vocabulary.weight": "output.weight",
            }
        ),
    ]
)
BERT = NameMap(
    rows(
        {
            "body.embeddings.words.weight": "token_embd.weight",
            "body.embeddings.positions.weight": "position_embd.weight",
            "body.embeddings.segments.weight": "token_types.weight",
            "body.embeddings.norm.*": "token_embd_norm.*",
            **{
                _LAYER + f"attention.{ours}.*": f"{_BLOCK}{theirs}.*" for ours, theirs in _PROJECTIONS.items()
            },
            _LAYER + "attention.output.*": _BLOCK + "attn_output.*",
            _LAYER + "attention_norm.*": _BLOCK + "attn_output_norm.*",
            _LAYER + "feed_forward.inner.*": _BLOCK + "ffn_up.*",
            _LAYER + "feed_forward.outer.*": _BLOCK + "ffn_down.*",
            _LAYER + "feed_forward_norm.*": _BLOCK + "layer_output_norm.*",
            # A dense map with tanh: BERT's pooler, and the first map of RoBERTa's classification.
            "heads.pooler.dense.*": "cls.*",
            "heads.classification.dense.*": "cls.*",
            "heads.classification.linear.*": "cls.output.*",
        }
    )
)


def _t5_table() -> dict[str, str]:
    table = {"body.words.weight": "token_embd.weight", "heads.vocabulary.weight": "output.weight"}
    for side, short in (("encoder", "enc"), ("decoder", "dec")):
        ours, theirs = f"body.{side}.stack.", f"{short}.blk.{{}}."
        table |= {
            ours + "position_bias.table.weight": theirs.format(0) + "attn_rel_b.weight",
            ours + "norm.weight": f"{short}.output_norm.weight",
            ours + "layers.{}.attention_norm.weight": theirs + "attn_norm.weight",
            ours + "layers.{}.cross_norm.weight": theirs + "cross_attn_norm.weight",
            ours + "layers.{}.feed_forward_norm.weight": theirs + "ffn_norm.weight",
            ours + "layers.{}.feed_forward.gate.weight": theirs + "ffn_gate.weight",
            ours + "layers.{}.feed_forward.inner.weight": theirs + "ffn_up.weight",
            ours + "layers.{}.feed_forward.outer.weight": theirs + "ffn_down.weight",
        }
        for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            table[ours + f"layers.{{}}.attention.{part}.weight"] = theirs + f"attn_{letter}.weight"
            table[ours + f"layers.{{}}.cross.{part}.weight"] = theirs + f"cross_attn_{letter}.weight"
    return table


T5 = NameMap(rows(_t5_table()))
ROTARY_BERT = "jina-bert-v3"
"""BERT's layers with rotary positions, by the name of the model that llama.cpp has them for."""
ENCODERS = ("bert", ROTARY_BERT)
NAMES = {"gpt2": GPT2, "bert": BERT, ROTARY_BERT: BERT, "t5": T5}

# --- what fits


def find_misfit(model: Model, head: str) -> str | None:
    """Why llama.cpp cannot compute this head of a model; None where it can."""
    body = model.body
    if isinstance(body, EncoderDecoder):
        return _t5_misfit(body) or _words_misfit(model, head)
    if type(body) is not Body or type(body.stack) is not Stack:
        return NO_ARCHITECTURE
    if all(isinstance(rule, FullRule) for rule in body.stack.rules):
        return _bert_misfit(body) or _states_misfit(model, head)
    return _gpt2_misfit(body) or _words_misfit(model, head)


def architecture_of(model: Model) -> str:
    """llama.cpp's name for what `find_misfit` found to fit."""
    if isinstance(model.body, EncoderDecoder):
        return "t5"
    if not all(isinstance(rule, FullRule) for rule in model.body.stack.rules):
        return "gpt2"
    return "bert" if model.body.stack.layers[0].attention.rotary is None else ROTARY_BERT


def _words_misfit(model: Model, head: str) -> str | None:
    if head != "vocabulary":
        return "llama.cpp computes the words that a decoder writes, and nothing else of it"
    if model.reads_prefix:
        return "it reads prompts in both directions, and llama.cpp does not"
    vocabulary = model.heads["vocabulary"]
    if type(vocabulary) is not DenseVocabulary or vocabulary.bias is not None:
        return "llama.cpp scores its words by one product with a matrix"
    return None


def _states_misfit(model: Model, head: str) -> str | None:
    if head not in (STATES, "classification"):
        return (
            "llama.cpp computes states of an encoder and classes of texts, not this head: take --head states"
        )
    if head == "classification" and architecture_of(model) == ROTARY_BERT:
        return "llama.cpp has no classes of encoders with rotary positions: take --head states"
    if head == "classification" and _tanh_head(model) is None:
        return "llama.cpp classifies by a dense map with tanh and a linear one: take --head states"
    return None


def _gpt2_misfit(body: Body) -> str | None:
    if body.stack.norm is None or not all(type(rule) is CausalRule for rule in body.stack.rules):
        return NO_ARCHITECTURE
    return _stack_misfit(body, norm_first=True, activations=("gelu_tanh",))


def _bert_misfit(body: Body) -> str | None:
    if body.embeddings.norm is None or body.stack.norm is not None:
        return NO_ARCHITECTURE
    # llama.cpp approximates GELU by tanh in every BERT: to about 1e-3 that is the exact one.
    return _stack_misfit(body, norm_first=False, activations=("gelu", "gelu_tanh"), rotary=True)


def _tanh_head(model: Model) -> nn.Module | None:
    """The part of a classification head that is a dense map with tanh of the first token."""
    part, settings = model.heads["classification"], model.family.heads["classification"]
    if isinstance(part, DeepProjection):
        return part if settings.at == "first" and part.activation is torch.tanh else None
    pooler = model.heads[settings.after] if settings.after is not None else None
    # BERT's reads the pooler, which is a part of the file then.
    is_plain = type(part) is Projection and part.activation is identity
    return pooler if is_plain and isinstance(pooler, Pooler) and pooler.activation is torch.tanh else None


def _stack_misfit(
    body: Body, *, norm_first: bool, activations: tuple[str, ...], rotary: bool = False
) -> str | None:
    embeddings, stack = body.embeddings, body.stack
    if not isinstance(embeddings.words, Embedding) or embeddings.projection is not None:
        return "its word vectors are not as wide as its layers"
    turned = [layer.attention.rotary for layer in stack.layers if isinstance(layer.attention, Attention)]
    is_turned = rotary and embeddings.positions is None and all(isinstance(part, Rotary) for part in turned)
    if not (isinstance(embeddings.positions, Embedding) or is_turned) or embeddings.scale != 1.0:
        return "llama.cpp adds a learned table of positions to word vectors, and nothing else"
    # Several names may stand for one function.
    functions = [ACTIVATIONS[name] for name in activations]
    for layer in stack.layers:
        if (
            not isinstance(layer, Block)
            or layer.norm_first != norm_first
            or len(stack.schedule) != len(stack.layers)
        ):
            return NO_ARCHITECTURE
        attention, feed_forward = layer.attention, layer.feed_forward
        if (
            type(attention) is not Attention
            or attention.relative is not None
            or (attention.rotary is not None and not is_turned)
        ):
            return "llama.cpp adds a learned table of positions to word vectors, and nothing else"
        if (
            type(feed_forward) is not FeedForward
            or feed_forward.gate is not None
            or attention.query.bias is None
        ):
            return NO_ARCHITECTURE
        if feed_forward.activation not in functions:
            return f"llama.cpp has the activation {' or '.join(activations)} there, and no other"
        if attention.heads * attention.head_dim != attention.query.in_features:
            return "its heads together are not as wide as its layers"
        if not isinstance(layer.attention_norm, LayerNorm):
            return NO_ARCHITECTURE
    return None


def _t5_misfit(body: EncoderDecoder) -> str | None:
    for side in (body.encoder, body.decoder):
        if side is None:
            continue  # heads of the encoder do without it, and are refused for themselves
        if type(side) is not Body or type(side.stack) is not Stack:
            return NO_ARCHITECTURE
        embeddings, bias = side.embeddings, side.stack.position_bias
        if embeddings.positions is not None or embeddings.norm is not None or embeddings.scale != 1.0:
            return NO_ARCHITECTURE
        if not isinstance(bias, BucketedBias):
            return NO_ARCHITECTURE
        if bias.longest != LONGEST_DISTANCE:
            return f"llama.cpp's farthest distance is {LONGEST_DISTANCE}, and its is {bias.longest}"
        for layer in side.stack.layers:
            if not isinstance(layer, Block) or not isinstance(layer.attention_norm, RootMeanSquareNorm):
                return NO_ARCHITECTURE
            attention, feed_forward = layer.attention, layer.feed_forward
            if not isinstance(attention, Attention) or not isinstance(feed_forward, FeedForward):
                return NO_ARCHITECTURE
            if any(name.endswith("bias") for name, _ in layer.named_parameters()):
                return NO_ARCHITECTURE
            name = "relu" if feed_forward.gate is None else "gelu_tanh"
            if feed_forward.activation is not ACTIVATIONS[name]:
                return "llama.cpp has relu in T5, or gated-gelu, and no other feed-forward part"
    return None


# --- weights


def export_tensors(model: Model, head: str) -> dict[str, Tensor]:
    """All weights in float32 by llama.cpp's names, with what is a factor here folded into them."""
    architecture = architecture_of(model)
    names = NAMES[architecture]
    # A file has one use: heads that it was not exported for would be unexpected tensors.
    heads = {"vocabulary": ("vocabulary",), "classification": ("pooler", "classification")}.get(head, ())
    begins = ("body.", *(f"heads.{name}." for name in heads))
    tensors = {
        name: tensor.detach().float()
        for name, tensor in model.stored_tensors().items()
        if name.startswith(begins)
    }
    # As saving does for Transformers: the last map of a part takes the factor of its sum.
    scale = getattr(model.shape, "residual_scale", 1.0)
    for name in [name for name in tensors if scale != 1.0 and any(end in name for end in BRANCH_ENDS)]:
        tensors[name] = tensors[name] * scale
    for name, part in model.body.named_modules():
        # Scores are divided by the square root of a head's width there; T5's are not.
        usual = 1.0 if architecture == "t5" else getattr(part, "head_dim", 1) ** -0.5
        if isinstance(part, Attention) and not math.isclose(part.scale, usual):
            for parameter in (f"body.{name}.query.weight", f"body.{name}.query.bias"):
                if parameter in tensors:
                    tensors[parameter] = tensors[parameter] * (part.scale / usual)
    if architecture == "t5":
        vocabulary: Any = model.heads["vocabulary"]
        # Of version 1.0: hidden states are scaled before the tied matrix, and so may their norm be.
        tensors["body.decoder.stack.norm.weight"] = (
            tensors["body.decoder.stack.norm.weight"] * vocabulary.scale
        )
    else:
        # RoBERTa's first rows are for padding; llama.cpp counts from the first real place.
        places = "body.embeddings.positions.weight"
        if places in tensors:
            tensors[places] = tensors[places][model.body.embeddings.position_offset :]
    if architecture == ROTARY_BERT:
        tensors = turn_halves(tensors, model.shape.heads)
    return names.export(tensors)


def turn_halves(tensors: Mapping[str, Tensor], heads: int, *, back: bool = False) -> dict[str, Tensor]:
    """Queries and keys whose pairs are not neighbours but stand half a head apart, as llama.cpp turns them;
    or `back`, by our names."""
    turned = dict(tensors)
    for name, tensor in tensors.items():
        if ".attention.query." in name or ".attention.key." in name:
            pairs = tensor.reshape(heads, *((2, -1) if back else (-1, 2)), *tensor.shape[1:])
            turned[name] = pairs.transpose(1, 2).reshape(tensor.shape)
    return turned


def is_kept_whole(name: str, tensor: Tensor) -> bool:
    """Whether llama.cpp wants float32 whatever the file's type is: norms, biases and small tables that it
    adds."""
    kept = ("position_embd.", "token_types.", "cls.", "attn_rel_b.")
    return tensor.dim() == 1 or any(part in name for part in kept)


def fill_model(model: Model, stored: Mapping[str, Tensor], architecture: str) -> None:
    """Copies weights by llama.cpp's names into a model of the same shape."""
    parameters = dict(model.named_parameters())
    shapes = {name: tensor.shape for name, tensor in parameters.items()}
    read: dict[str, Tensor] = {}
    result = NAMES[architecture].read(stored, shapes, read.__setitem__)
    if architecture == ROTARY_BERT:
        read = turn_halves(read, model.shape.heads, back=True)
    with torch.no_grad():
        for name, tensor in read.items():
            parameters[name].copy_(tensor)
    if problems := result.problems():
        raise ValueError(problems)
