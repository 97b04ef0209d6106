"""Cases of models that remember segments: memories go in and come out, and every row is also run by itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon import trace
from etymon.families.model import Model
from etymon.nn.adaptive import bins_of
from etymon.nn.memory import SegmentMemory
from tests.oracle.forward import Reading
from tests.oracle.heads import IGNORED_LABEL
from tests.oracle.inputs import Arguments, Text


def run_segment(model: Model, arguments: Arguments) -> Reading:
    """One segment of Transformer-XL."""
    text, memories = Text(arguments.take("input_ids"), None), arguments.take("mems")
    rows = len(text.ids)

    def state() -> SegmentMemory:
        fresh = model.body.remember(rows)
        if memories:
            parts = {f"memory.{layer}": part.transpose(0, 1) for layer, part in enumerate(memories)}
            fresh.load(parts, [len(memories[0])] * rows)
        return fresh

    hidden_ND, after = model.hidden(text.rectangle, state())
    reading = Reading({"last_hidden_state": text.shaped(hidden_ND)})
    known = {f"mems.{layer}": part for layer, part in enumerate(after.layers) if part is not None}
    reading.outputs |= {name: part.transpose(0, 1) for name, part in known.items()}
    if not known:
        reading.empty.add("mems")  # a model without a memory
    with torch.no_grad():
        with trace(model) as seen:
            model.hidden(text.rectangle, state())
        for row in range(rows):
            alone, _ = model.hidden(
                Text(text.ids[row : row + 1], None).ragged, state().select(torch.tensor([row]))
            )
            reading.pairs.append((f"row {row}", alone, text.shaped(hidden_ND)[row]))
    reading.outputs |= {f"hidden_states.{i}": text.shaped(x_ND) for i, x_ND in enumerate(seen.hidden)}
    reading.outputs |= {f"attentions.{i}": weights for i, weights in enumerate(seen.attention)}
    head, labels = model.heads["vocabulary"], arguments.take("labels")
    reading.outputs["prediction_scores"] = text.shaped(head.log_probs(hidden_ND))
    if labels is not None:
        if bool((labels[0, 1:] == IGNORED_LABEL).all()):  # the reference then asks for one token all the same
            labels = labels.clone()
            labels[0, 1] = model.token("end")
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
        at = (following.reshape(-1) != IGNORED_LABEL).nonzero()[:, 0]
        reading.outputs["loss"] = head.loss(hidden_ND, at, following.reshape(-1)[at]) / len(at)
        reading.outputs["losses"] = _losses(head, hidden_ND, at, following)
    return reading


def _losses(head: torch.nn.Module, hidden_ND: Tensor, at: Tensor, following_RT: Tensor) -> Tensor:
    """The losses `[R, T - 1]` as the reference lines them up. Of a plain softmax, each in its place and 0 where nothing is asked;
    of an adaptive one, those of the first bin, then those of the next, and the zeros behind them."""
    targets_n = following_RT.reshape(-1)[at]
    losses_n = -head.target_log_probs(hidden_ND, at, targets_n)
    if len(head.edges) > 2:
        losses_n = losses_n[bins_of(targets_n, head.edges).argsort(stable=True)]
        at = torch.arange(len(at))
    else:
        at = at - at // following_RT.shape[1]  # the last token of a row has none
    blank = losses_n.new_zeros(len(following_RT) * (following_RT.shape[1] - 1))
    return blank.index_copy(0, at, losses_n).view(len(following_RT), -1)
