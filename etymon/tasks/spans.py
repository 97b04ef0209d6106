"""SpanCandidates of tokens by the scores of their beginnings and their ends.

Legend: N tokens, R rows, T tokens of a row, C columns, L tokens of a span at most, S beginnings and E ends that were followed up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Layout
from etymon.nn.heads import SpanCandidates

Found = tuple[float, int, int]
"""A score, and the places of the first and the last token in their row."""


def row_log_softmax(scores_NC: Tensor, layout: Layout) -> Tensor:
    """The logarithms of probabilities over the tokens of every row, column by column."""
    row_NC = layout.row[:, None].expand_as(scores_NC)
    blank_RC = scores_NC.new_full((layout.rows, scores_NC.shape[1]), -torch.inf)
    top_RC = blank_RC.scatter_reduce(0, row_NC, scores_NC.detach(), "amax")
    shifted_NC = scores_NC - top_RC[layout.row]
    total_RC = torch.zeros_like(blank_RC).index_add(0, layout.row, shifted_NC.exp())
    return shifted_NC - total_RC.log()[layout.row]


def best_spans(
    scores_N2: Tensor, inside_N: Tensor, layout: Layout, longest: int, best: int
) -> list[list[Found]]:
    """The `best` spans `inside` every row, of up to `longest` tokens, by the sum of both scores: all pairs are looked at."""
    start_N, stop_N = scores_N2.masked_fill(~inside_N[:, None], -torch.inf).unbind(-1)
    ends_NL = F.pad(stop_N, (0, longest - 1), value=-torch.inf).unfold(0, longest, 1)
    end_NL = layout.index[:, None] + torch.arange(longest, device=layout.device)
    beyond_NL = end_NL > (layout.last - layout.first)[layout.row, None]
    pairs_NL = (start_N[:, None] + ends_NL).masked_fill(beyond_NL, -torch.inf)
    found = []
    for pairs_TL in pairs_NL.split(layout.lengths):
        top = pairs_TL.flatten().topk(min(best, pairs_TL.numel()))
        spans = zip(top.values.tolist(), top.indices.tolist())
        found.append(
            [
                (score, at // longest, at // longest + at % longest)
                for score, at in spans
                if score > -torch.inf
            ]
        )
    return found


def followed_spans(seen: SpanCandidates, inside_N: Tensor, layout: Layout, longest: int) -> list[list[Found]]:
    """The spans of a search that are spans, `inside` their rows: the sums of both log-probabilities."""
    starts_RES = seen.starts_RS[:, None].expand_as(seen.ends_RES)
    scores_RES = seen.start_probs_RS[:, None].float().log() + seen.end_probs_RES.float().log()
    columns = (part.flatten(1).tolist() for part in (scores_RES, starts_RES, seen.ends_RES))
    rows = zip(inside_N.split(layout.lengths), *columns, strict=True)
    return [
        [
            (score, first, last)
            for score, first, last in zip(*spans)
            if score > -torch.inf and 0 <= last - first < longest and inside_T[first] and inside_T[last]
        ]
        for inside_T, *spans in ((part.tolist(), *others) for part, *others in rows)
    ]
