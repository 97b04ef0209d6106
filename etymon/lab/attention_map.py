"""Who attends to whom: the attention weights of one text, or of a text and what is made of it, with the tokens they belong to.

Legend: L layers, H heads, Q queries, T keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import decode, eval_mode, start_token
from etymon.generation.text import encode_prompts, source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.trace import trace
from etymon.report.plots import AttentionMap
from etymon.settings.decoding import DecodingSettings
from etymon.text.tokenizer import Tokenizer


def attended(model: Model, source: str, target: str | None = None) -> list[AttentionMap]:
    """The attention of a text. A target is what an encoder-decoder writes (its own greedy text if it is not told), the second
    text of a pair for an encoder, and a continuation for a decoder."""
    with torch.inference_mode(), eval_mode(model):
        found = _both(model, source, target) if model.encoder_decoder else _one(model, source, target)
    if not found:
        raise EtymonError(f"{model.family.title} has no attention to look at: it is recurrent")
    return found


def _one(model: Model, source: str, target: str | None) -> list[AttentionMap]:
    tokenizer = tokenizer_of(model)
    if "bidirectional" in model.capabilities and "causal" not in model.capabilities:
        first, second = tokenizer.encode(source), None if target is None else tokenizer.encode(target)
        framed = tokenizer.framing.frame(first, second)
        ids, segments = framed.ids, framed.segments
    else:
        ids = tokenizer.encode(source if target is None else source + target)
        segments = np.zeros(len(ids), np.int64)
    _check_room(model, len(ids))
    with trace(model) as seen:
        model.hidden(Batch.of([ids], segments=[segments], device=model.device))
    tokens = _tokens(tokenizer, ids)
    return [
        AttentionMap("self", tokens, tokens, _stacked(each.attention))
        for each in seen.values()
        if each.attention
    ]


def _both(model: Model, source: str, target: str | None) -> list[AttentionMap]:
    tokenizer, reading = tokenizer_of(model), source_tokenizer_of(model)
    (read,) = encode_prompts(model, [source])
    _check_room(model, len(read))
    if target is None:
        written = decode(model, [read], DecodingSettings())[0][0].ids
    else:
        written = tokenizer.framing.frame(tokenizer.encode(target)).ids.tolist()
    start = start_token(model, generating=target is None)
    assert start is not None
    fed = [start, *written[:-1]]
    with trace(model) as seen:
        memory = model.encode(Batch.of([read], device=model.device))
        model.decode(Batch.of([fed], device=model.device), memory)
    source_tokens = _tokens(reading, read)
    output_tokens, input_tokens = _tokens(tokenizer, written), _tokens(tokenizer, fed)
    found = []
    for name, each in seen.items():
        if each.cross:  # what stands in a row is what the step writes, not what it was fed
            found.append(AttentionMap("cross", output_tokens, source_tokens, _stacked(each.cross)))
        if each.attention:
            tokens = source_tokens if "encoder" in name else input_tokens
            kind = "encoder" if "encoder" in name else "decoder"
            found.append(AttentionMap(kind, tokens, tokens, _stacked(each.attention)))
    return sorted(found, key=lambda one: one.kind != "cross")


def _stacked(layers: Iterable[Tensor]) -> np.ndarray:
    """`[L, H, Q, T]` of the only row."""
    return torch.stack([weights_RHQT[0] for weights_RHQT in layers]).float().cpu().numpy()


def _tokens(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Tokens as a reader knows them: whole characters where a token holds any."""
    found = []
    for number in map(int, ids):
        text = tokenizer.decode([number], skip_special=False)
        found.append(text if text.strip() and "\ufffd" not in text else tokenizer.tokens[number])
    return found


def _check_room(model: Model, length: int) -> None:
    if not length:
        raise EtymonError("the text has no tokens: there is nothing to attend to")
    if model.positions is not None and length > model.positions:
        raise EtymonError(f"the text has {length} tokens, but the model reads {model.positions}: shorten it")
