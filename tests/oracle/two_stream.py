"""XLNet's calls: memories, factorisation orders and targets.

The reference computes the query stream's attention for every place of a row, with a query of nothing where nothing is asked;
that is done here as well, for the comparison alone.

Legend: B rows, T tokens of a row, n asked places, D width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from etymon import trace
from etymon.families.model import Model
from etymon.families.xlnet.views import build_views
from etymon.nn.batch import Batch, QueryPositions
from etymon.nn.memory import SegmentMemory
from etymon.nn.relative import prepend_memory
from tests.oracle.forward import Reading
from tests.oracle.heads import IGNORED_LABEL, reader
from tests.oracle.inputs import Arguments, Text

UNLIMITED = 1_000_000


def run_two_stream(model: Model, arguments: Arguments) -> Reading:
    """One call, of one stream or of two."""
    text = Text(*(arguments.take(name) for name in ("input_ids", "attention_mask", "token_type_ids")))
    arguments.take("use_mems")
    mems, permuted, mapped = (arguments.take(name) for name in ("mems", "perm_mask", "target_mapping"))
    state = remembering(model, len(text.ids), mems)
    before = state.select(torch.arange(len(text.ids)))
    seeing = before.select(torch.arange(len(text.ids)))
    batch = text.rectangle
    if permuted is not None:
        batch = replace(batch, order=order_of(permuted).reshape(-1))
    if mapped is not None:
        return _run_both(model, arguments, batch, mapped, state, before, seeing)
    hidden_ND, _ = model.hidden(batch, state)
    reading = Reading({"last_hidden_state": text.shaped(hidden_ND)})
    with torch.no_grad():
        with trace(model) as seen:
            model.hidden(batch, seeing)
        if permuted is None and mems is None and not model.shape.both_ways:
            ragged, _ = model.hidden(text.ragged)
            reading.pairs.append(("hidden states", ragged, hidden_ND[text.real.reshape(-1)]))
    reading.outputs |= {f"hidden_states.{i}": text.shaped(x_ND) for i, x_ND in enumerate(seen.hidden)}
    reading.outputs |= {f"attentions.{i}": weights for i, weights in enumerate(seen.attention)}
    reading.outputs |= _memories(state)
    reading.outputs |= reader(model)(model, hidden_ND, text, arguments)
    return reading


def remembering(model: Model, rows: int, mems: list[Tensor] | None) -> SegmentMemory:
    """A memory as the reference keeps it: without a limit where none is told."""
    state = model.remember(rows, model.shape.memory or UNLIMITED)
    assert isinstance(state, SegmentMemory)
    if mems and mems[0] is not None:
        parts = {f"memory.{layer}": part.transpose(0, 1) for layer, part in enumerate(mems)}
        state.load(parts, [len(mems[0])] * rows)
    return state


def order_of(permuted_BTT: Tensor) -> Tensor:
    """The order behind a mask of what may not be seen: who is hidden from more comes later."""
    order_BT = permuted_BTT.sum(1).long()
    seen = order_BT[:, None] < order_BT[:, :, None]
    asked = permuted_BTT.diagonal(0, 1, 2).bool()
    assert torch.equal(seen[asked], ~permuted_BTT.bool()[asked]), "the mask is no order of factorisation"
    return order_BT


def asked_of(mapped_BnT: Tensor) -> QueryPositions:
    rows, count, length = mapped_BnT.shape
    at_Bn = mapped_BnT.argmax(-1) + torch.arange(rows)[:, None] * length
    return QueryPositions(at_Bn.reshape(-1), [count] * rows)


def _memories(state: SegmentMemory) -> dict[str, Tensor]:
    return {f"mems.{i}": part.transpose(0, 1) for i, part in enumerate(state.layers) if part is not None}


def _run_both(
    model: Model,
    arguments: Arguments,
    batch: Batch,
    mapped_BnT: Tensor,
    state: SegmentMemory,
    before: SegmentMemory,
    seeing: SegmentMemory,
) -> Reading:
    asked = asked_of(mapped_BnT)
    rows, count, length = mapped_BnT.shape
    hidden_nD, _ = model.two_stream(batch, asked, state)
    head = model.heads["vocabulary"]
    outputs = {
        "last_hidden_state": hidden_nD.view(rows, count, -1),
        "logits": head.logits(hidden_nD).view(rows, count, -1),
    }
    labels = arguments.take("labels")
    if labels is not None:
        at = (labels.reshape(-1) != IGNORED_LABEL).nonzero()[:, 0]
        outputs["loss"] = head.loss(hidden_nD, at, labels.reshape(-1)[at]) / len(at)
    with torch.no_grad():
        with trace(model) as seen:
            traced, _ = model.two_stream(batch, asked, seeing)
        for number, x_D in enumerate(seen.hidden):
            outputs[f"hidden_states.{number}"] = x_D.view(rows, (length, count)[number % 2], -1)
        for layer, weights in enumerate(_everywhere(model, batch, asked, before, seen.hidden)):
            outputs[f"attentions.{layer}.0"] = seen.attention[2 * layer]
            outputs[f"attentions.{layer}.1"] = weights
    return Reading(outputs | _memories(state), [("eager hidden states", traced, hidden_nD.detach())])


def _everywhere(
    model: Model, batch: Batch, asked: QueryPositions, state: SegmentMemory, hidden: list[Tensor]
) -> list[Tensor]:
    """The attention of queries in every place, of which those that are not asked know nothing but their place."""
    stack, layout = model.body.stack, batch.layout
    everywhere = QueryPositions(torch.arange(batch.layout.tokens), batch.layout.lengths)
    _, view = build_views(stack, batch, state, hidden[0].dtype, everywhere)
    assert view is not None and batch.order is not None
    # Tokens that are not asked see whoever is not asked: itself, unlike what is asked.
    free_N = torch.ones_like(batch.order).index_fill_(0, asked.at, 0)
    own_order = batch.order.view(layout.rows, -1)
    reach_BT1 = (own_order + free_N.view(layout.rows, -1))[:, :, None]
    hidden_BTT = torch.zeros_like(view.hidden_RQT)
    hidden_BTT[:, :, state.width :] = own_order[:, None] >= reach_BT1
    view = replace(view, hidden_RQT=hidden_BTT)
    found = []
    for number, layer in enumerate(stack.layers):
        x_ND, g_nD = hidden[2 * number], hidden[2 * number + 1]
        spread_ND = torch.zeros_like(x_ND).index_copy_(0, asked.at, g_nD)
        k, v = layer.attention.keys(prepend_memory(state.layers[number], layout.pad(x_ND)))
        layer.attention.seen = []
        layer.attention.attend_to(spread_ND, k, v, view)
        found += layer.attention.seen
        layer.attention.seen = None
    return found
