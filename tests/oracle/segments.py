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
        if memories is not None:
            parts = {f"memory.{layer}": part.transpose(0, 1) for layer, part in enumerate(memories)}
            fresh.load(parts, [len(memories[0])] * rows)
        return fresh

    hidden_ND, after = model.hidden(text.rectangle, state())
    reading = Reading({"last_hidden_state": text.shaped(hidden_ND)})
    for layer, part in enumerate(after.layers):
        reading.outputs[f"mems.{layer}"] = part.transpose(0, 1)
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
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL).reshape(-1)
        at = (following != IGNORED_LABEL).nonzero()[:, 0]
        reading.outputs["loss"] = head.loss(hidden_ND, at, following[at]) / len(at)
        reading.outputs["losses"] = _by_bin(head, hidden_ND, at, following[at]).view(rows, -1)
    return reading


def _by_bin(head: torch.nn.Module, hidden_ND: Tensor, at: Tensor, targets_n: Tensor) -> Tensor:
    """Losses as the reference lines them up: those of the first bin, then those of the next."""
    order = bins_of(targets_n, head.edges).argsort(stable=True)
    return -head.target_log_probs(hidden_ND, at, targets_n)[order]
