"""Contrastive search (Su et al. 2022): likely tokens that do not repeat what the hidden states say already.

Of the `top_k` likeliest tokens v the one with the largest

    (1 - alpha) p(v) - alpha max_j cos(h_v, h_j)

is taken, where h_v is the last hidden state behind v, and h_j those of all tokens before, the prompt's among
them. All candidates of all rows are read in one step; then every row goes on `top_k` times from the one that
was chosen.

Legend: R rows, K candidates, N tokens, V vocabulary, D width, C cells of the past.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.generation.processors import NEVER, ScoreProcessor, token_log_probs
from etymon.generation.sequences import Continuations, Sequence
from etymon.generation.stepper import Stepper
from etymon.nn.batch import Layout


class PastStates:
    """Directions of the hidden states of every row's tokens, with room for more."""

    def __init__(self, hidden_ND: Tensor, layout: Layout, room: int) -> None:
        self.lengths_R = torch.tensor(layout.lengths, device=hidden_ND.device)
        self.longest = layout.longest
        self.unit_RCD = F.pad(F.normalize(layout.pad(hidden_ND), dim=-1), (0, 0, 0, room))

    def similarity(self, unit_RKD: Tensor) -> Tensor:
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
    stepper: Stepper, processor: ScoreProcessor, scores_RV: Tensor, texts: Continuations
) -> list[list[Sequence]]:
    """A text for every row. `scores_RV` are those of the first token."""
    alpha, longest, device = texts.settings.penalty_alpha, max(texts.limits), scores_RV.device
    width = min(texts.settings.top_k, scores_RV.shape[1])
    past = PastStates(stepper.hidden_ND, stepper.context.batch.layout, longest)
    stepper.fork(width)
    rows = list(range(len(texts.ids)))
    for step in range(longest):
        # The degeneration penalty: a token whose state is like an earlier one says again what that said.
        p_RK, candidates_RK = processor(scores_RV).softmax(-1).topk(width)
        stepper.feed(candidates_RK.flatten())
        last, layout = stepper.last, stepper.context.batch.layout
        if last is None:
            last = torch.arange(layout.tokens, device=device)
        else:
            # The window has moved, and everything in it was read again: the past is what the rows of the
            # first candidates hold, without the candidates themselves.
            spans = [
                (int(layout.host_starts[row]), layout.lengths[row] - 1)
                for row in range(0, layout.rows, width)
            ]
            hidden_ND = torch.cat([stepper.hidden_ND[start : start + length] for start, length in spans])
            past = PastStates(hidden_ND, Layout([length for _, length in spans], device), longest - step)
        unit_RKD = F.normalize(stepper.hidden_ND[last], dim=-1).view(len(rows), width, -1)
        worth_RK = (1 - alpha) * p_RK - alpha * past.similarity(unit_RKD)
        # Among fewer than `width` allowed tokens, `topk` returns forbidden ones: p = 0.
        best_R1 = worth_RK.masked_fill(p_RK == 0, NEVER).argmax(-1, keepdim=True)
        chosen_R = candidates_RK.gather(1, best_R1)[:, 0]
        going_on = texts.add_all(rows, chosen_R, token_log_probs(scores_RV, chosen_R))
        if not going_on:
            break
        kept = torch.tensor(going_on, device=device)
        places_R = kept * width + best_R1[kept, 0]
        # The chosen candidate was read already: its scores are those of the next token, without another step.
        scores_RV = stepper.scores(last[places_R])
        stepper.select(places_R.repeat_interleave(width))
        processor.append(chosen_R)
        past.append(unit_RKD.take_along_dim(best_R1[:, :, None], 1)[:, 0])
        if len(going_on) < len(rows):
            rows = [rows[place] for place in going_on]
            processor.select(kept)
            past.select(kept)
    return texts.results()
