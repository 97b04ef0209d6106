"""Attention maps: the attention weights of a text, or of a text and what is made of it, with their tokens.

Legend: L layers, H heads, Q queries, T keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import decode, start_token
from etymon.generation.text import encode_prompts, source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.trace import trace
from etymon.report.plots import AttentionMap
from etymon.settings.decoding import DecodingSettings
from etymon.text.readable import readable_tokens


def attention_maps(model: Model, source: str, target: str | None = None) -> list[AttentionMap]:
    """The attention of a text, a map for every kind (self; cross, encoder, decoder).

    A target is what an encoder-decoder writes (unless given, what it writes greedily), the second text of a
    pair for an encoder, and a continuation for a decoder.
    """
    with torch.inference_mode(), eval_mode(model):
        maps = (_encoder_decoder_maps if model.encoder_decoder else _self_maps)(model, source, target)
    if not maps:
        raise EtymonError(
            f"{model.family.title} has no attention to look at: it is recurrent", code="wrong-family"
        )
    return maps


def _self_maps(model: Model, source: str, target: str | None) -> list[AttentionMap]:
    tokenizer = tokenizer_of(model)
    # An encoder frames two texts as a pair; a decoder reads the second as more of the first.
    if "bidirectional" in model.capabilities and "causal" not in model.capabilities:
        first, second = tokenizer.encode(source), None if target is None else tokenizer.encode(target)
        framed = tokenizer.framing.frame(first, second)
        ids, segments = framed.ids, framed.segments
    else:
        ids = tokenizer.encode(source if target is None else source + target)
        segments = np.zeros(len(ids), np.int64)
    _check_length(model, len(ids))
    with trace(model) as traces:
        model.hidden(Batch.of([ids], segments=[segments], device=model.device))
    tokens = readable_tokens(tokenizer, ids)
    layers = [each.attention for each in traces.values() if each.attention]
    return [AttentionMap("self", tokens, tokens, _stack(attention)) for attention in layers]


def _encoder_decoder_maps(model: Model, source: str, target: str | None) -> list[AttentionMap]:
    tokenizer = tokenizer_of(model)
    (source_ids,) = encode_prompts(model, [source])
    _check_length(model, len(source_ids))
    if target is None:
        output_ids = decode(model, [source_ids], DecodingSettings())[0][0].ids
    else:
        output_ids = tokenizer.framing.frame(tokenizer.encode(target)).ids.tolist()
    # Teacher forcing: the decoder reads what it writes, a place later; row i attends while i is written.
    start = start_token(model, generating=target is None)
    assert start is not None
    input_ids = [start, *output_ids[:-1]]
    with trace(model) as traces:
        memory = model.encode(Batch.of([source_ids], device=model.device))
        model.decode(Batch.of([input_ids], device=model.device), memory)
    sources = readable_tokens(source_tokenizer_of(model), source_ids)
    outputs, inputs = (readable_tokens(tokenizer, ids) for ids in (output_ids, input_ids))
    maps = []
    for name, each in traces.items():
        if each.cross:  # a row is named by what the step writes, not by what it was fed
            maps.append(AttentionMap("cross", outputs, sources, _stack(each.cross)))
        if each.attention:
            kind, tokens = ("encoder", sources) if "encoder" in name else ("decoder", inputs)
            maps.append(AttentionMap(kind, tokens, tokens, _stack(each.attention)))
    # Cross-attention first: it is what people open the page of a translation for.
    return sorted(maps, key=lambda attention: attention.kind != "cross")


def _stack(layers: Iterable[Tensor]) -> np.ndarray:
    """`[L, H, Q, T]` of the only row."""
    return torch.stack([weights_RHQT[0] for weights_RHQT in layers]).float().cpu().numpy()


def _check_length(model: Model, length: int) -> None:
    if not length:
        raise EtymonError("the text has no tokens: there is nothing to attend to")
    if model.positions is not None and length > model.positions:
        raise EtymonError(
            f"the text has {length} tokens, but the model reads {model.positions}: shorten it",
            code="too-long",
        )
