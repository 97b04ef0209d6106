"""The library run the way a case asks: the reference's arguments in, its output fields out.

Everything is computed twice over: on a rectangle, in which every cell has to equal the reference's, and on ragged
rows, the layout that users get, which has to equal the rectangle wherever there is a token.

Legend: N cells of the rectangle, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon import trace
from etymon.families.model import Model
from etymon.families.transformer_xl.recurrence import RecurrentBody
from etymon.families.xlnet.two_stream import TwoStreamBody
from tests.oracle.heads import IGNORED_LABEL, reader
from tests.oracle.inputs import Arguments, Text


@dataclass
class Reading:
    """What a call gave: outputs by field (`attentions.0`), and pairs that must agree (name, ragged, rectangle).

    `empty` are fields that such a model has, with nothing in them.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    pairs: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)


def run(model: Model, arguments: Arguments) -> Reading:
    """One forward call of a model."""
    if isinstance(model.body, RecurrentBody):
        from tests.oracle.segments import run_segment

        return run_segment(model, arguments)
    if isinstance(model.body, TwoStreamBody):
        from tests.oracle.two_stream import run_two_stream

        return run_two_stream(model, arguments)
    runner = _run_encoder_decoder if model.encoder_decoder else _run_stack
    return runner(model, arguments)


def _run_stack(model: Model, arguments: Arguments) -> Reading:
    embeddings, positions = model.body.embeddings, arguments.take("position_ids")
    text = Text(
        *(arguments.take(name) for name in ("input_ids", "attention_mask", "token_type_ids")),
        None if positions is None else positions - embeddings.position_offset,
        count_hidden=embeddings.count_hidden,
    )
    embedded = _looked_up(model, text)
    hidden_ND, _ = model.hidden(text.rectangle, embedded=embedded)
    reading = Reading({"last_hidden_state": text.shaped(hidden_ND)}, empty={"cross_attentions"})
    real_N = text.real.reshape(-1)
    with torch.no_grad():
        ragged, _ = model.hidden(text.ragged, embedded=None if embedded is None else embedded[real_N])
        with trace(model) as seen:
            model.hidden(text.rectangle, embedded=embedded)
    reading.pairs.append(("hidden states", ragged, hidden_ND[real_N]))
    _look(reading, "", text, seen.hidden, seen.attention)
    reading.outputs |= reader(model)(model, hidden_ND, text, arguments)
    return reading


PAD_ROW_FROZEN = {"bert", "roberta", "albert", "distilbert", "electra", "bart"}
"""Families whose reference keeps the pad token's row of the word table out of the gradient. Ragged rows have no pads,
so it is a matter of rectangles only: of losses that are taken over padding as well, such as that of spans."""


def _looked_up(model: Model, text: Text) -> Tensor | None:
    """Word vectors as the reference looks them up, where that differs from ours."""
    embeddings, ids_N = (model.body if model.encoder_decoder else model.body.embeddings), text.ids.reshape(-1)
    words = embeddings.words.weight
    embedded = None
    if model.family.name in PAD_ROW_FROZEN and (pad := model.token("pad")) is not None:
        embedded = F.embedding(ids_N, words, padding_idx=pad)
    if text.segments is not None and embeddings.segments is None:
        # Segments are looked up among the words where they have no table of their own (GPT-2).
        embedded = F.embedding(ids_N, words) + F.embedding(text.segments.reshape(-1), words)
    return embedded


def _run_encoder_decoder(model: Model, arguments: Arguments) -> Reading:
    source = Text(arguments.take("input_ids"), arguments.take("attention_mask"))
    target = None if model.body.decoder is None else _target(model, source, arguments)
    reading = Reading(empty={"cross_attentions"} if target is None else set())
    memory = model.encode(source.rectangle, _looked_up(model, source))
    with torch.no_grad():
        ragged = model.encode(source.ragged)
        with trace(model) as seen:
            seen_memory = model.encode(source.rectangle)
            if target is not None:
                model.decode(target.rectangle, seen_memory)
    side = "" if target is None else "encoder_"
    reading.outputs[f"{side}last_hidden_state"] = source.shaped(memory.hidden_MD)
    reading.pairs.append(("encoder", ragged.hidden_MD, memory.hidden_MD[source.real.reshape(-1)]))
    _look(reading, side, source, seen["encoder"].hidden, seen["encoder"].attention)
    hidden_ND, text = memory.hidden_MD, source
    if target is not None:
        hidden_ND, _ = model.decode(target.rectangle, memory, embedded=_looked_up(model, target))
        with torch.no_grad():
            ragged_ND, _ = model.decode(target.ragged, ragged)
        reading.outputs["last_hidden_state"] = target.shaped(hidden_ND)
        reading.pairs.append(("decoder", ragged_ND, hidden_ND[target.real.reshape(-1)]))
        _look(reading, "decoder_", target, seen["decoder"].hidden, seen["decoder"].attention)
        reading.outputs |= {f"cross_attentions.{i}": part for i, part in enumerate(seen["decoder"].cross)}
        text = target
    if "classification" in model.head_names:
        arguments["read_at"] = source.last_where(source.ids == model.token("end"))
    reading.outputs |= reader(model)(model, hidden_ND, text, arguments)
    return reading


def _target(model: Model, source: Text, arguments: Arguments) -> Text:
    """What the decoder reads: what it is given, or the labels, or else the source, behind the start token."""
    ids = arguments.take("decoder_input_ids")
    if ids is None:
        labels = arguments.get("labels") if "vocabulary" in model.head_names else None
        following = source.ids if labels is None else labels
        start, pad = model.decoder_start, model.token("pad")
        ids = torch.cat([torch.full_like(following[:, :1], start), following[:, :-1]], dim=1)
        ids = ids.masked_fill(ids == IGNORED_LABEL, pad)
    return Text(ids, arguments.take("decoder_attention_mask"))


def _look(reading: Reading, side: str, text: Text, hidden: list[Tensor], attention: list[Tensor]) -> None:
    reading.outputs |= {
        f"{side}hidden_states.{i}": x_ND.view(*text.ids.shape, -1) for i, x_ND in enumerate(hidden)
    }
    reading.outputs |= {f"{side}attentions.{i}": weights for i, weights in enumerate(attention)}
