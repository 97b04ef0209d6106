"""Contrastive search (Su et al. 2022): likely tokens that do not repeat what the hidden states say already.

Of the `top_k` likeliest tokens v the one with the largest

    (1 - alpha) p(v) - alpha max_j cos(h_v, h_j)

is taken, where h_v is the last hidden state behind v, and h_j those of all tokens before, the prompt's among them. All
candidates of all rows are read in one step; then every row goes on `top_k` times from the one that was chosen.

Legend: R rows, K candidates, V vocabulary, D width, C cells of the past.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.generation.following import own_log_probs
from etymon.generation.processors import NEVER, Processing
from etymon.generation.sequences import Sequence, Writing
from etymon.generation.stepper import Stepper
from etymon.nn.batch import Layout


class Past:
    """Directions of the hidden states of every row's tokens, with room for more."""

    def __init__(self, hidden_ND: Tensor, layout: Layout, room: int) -> None:
        self.lengths_R = torch.tensor(layout.lengths, device=hidden_ND.device)
        self.longest = layout.longest
        self.unit_RCD = F.pad(F.normalize(layout.lift(hidden_ND), dim=-1), (0, 0, 0, room))

    def likeness(self, unit_RKD: Tensor) -> Tensor:
        """The largest cosine with any token before, `[R, K]`."""
        cosines_RKC = unit_RKD @ self.unit_RCD[:, : self.longest].mT
        real_RC = torch.arange(self.longest, device=unit_RKD.device) < self.lengths_R[:, None]
        return cosines_RKC.masked_fill(~real_RC[:, None], NEVER).amax(-1)

    def append(self, unit_RD: Tensor) -> None:
        self.unit_RCD[torch.arange(len(unit_RD), device=unit_RD.device), self.lengths_R] = unit_RD
        self.lengths_R = self.lengths_R + 1
        self.longest += 1

    def select(self, rows: Tensor) -> None:
        self.unit_RCD, self.lengths_R = self.unit_RCD[rows], self.lengths_R[rows]


def contrastive_search(
    stepper: Stepper, processing: Processing, scores_RV: Tensor, writing: Writing
) -> list[list[Sequence]]:
    """One text a row. `scores_RV` are those of the first token."""
    alpha, longest, device = writing.settings.penalty_alpha, max(writing.limits), scores_RV.device
    width = min(writing.settings.top_k, scores_RV.shape[1])
    past = Past(stepper.hidden_ND, stepper.context.batch.layout, longest)
    stepper.fork(width)
    rows = list(range(len(writing.texts)))
    for step in range(longest):
        p_RK, candidates_RK = processing(scores_RV).softmax(-1).topk(width)
        stepper.feed(candidates_RK.flatten())
        ends = _ends(stepper)
        unit_RKD = F.normalize(stepper.hidden_ND[ends], dim=-1).view(len(rows), width, -1)
        if len(ends) < len(stepper.hidden_ND):  # the window has moved, and everything in it was read again
            past = _anew(stepper, width, longest - step)
        worth_RK = (1 - alpha) * p_RK - alpha * past.likeness(unit_RKD)
        best_R1 = worth_RK.masked_fill(p_RK == 0, NEVER).argmax(-1, keepdim=True)
        chosen_R = candidates_RK.gather(1, best_R1)[:, 0]
        going_on = writing.add_all(rows, chosen_R, own_log_probs(scores_RV, chosen_R))
        if not going_on:
            break
        kept = torch.tensor(going_on, device=device)
        places_R = kept * width + best_R1[kept, 0]
        scores_RV = stepper.scores(ends[places_R])
        stepper.select(places_R.repeat_interleave(width))
        processing.append(chosen_R)
        past.append(unit_RKD.take_along_dim(best_R1[:, :, None], 1)[:, 0])
        if len(going_on) < len(rows):
            rows = [rows[place] for place in going_on]
            processing.select(kept)
            past.select(kept)
    return writing.results()


def _ends(stepper: Stepper) -> Tensor:
    last = stepper.last
    return torch.arange(len(stepper.hidden_ND), device=stepper.hidden_ND.device) if last is None else last


def _anew(stepper: Stepper, width: int, room: int) -> Past:
    """The past of rows that were read again, each as its first candidate has it, without the candidate itself."""
    layout = stepper.context.batch.layout
    firsts = range(0, layout.rows, width)
    spans = [(int(layout.host_starts[row]), layout.lengths[row] - 1) for row in firsts]
    hidden_ND = torch.cat([stepper.hidden_ND[start : start + length] for start, length in spans])
    return Past(hidden_ND, Layout([length for _, length in spans], hidden_ND.device), room)
