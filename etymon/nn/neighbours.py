"""First values with which attention begins at the neighbours of a token, and cross-attention at equal words.

With random first values attention begins nearly uniform, and a model is a bag of words until it has found out
which distances matter: half of a run of minutes (docs/lab-notes.md). Whatever adds a function of the distance
to scores can begin with a useful one. Heads take turns: the token before, the one behind (of a decoder the
second one before), a wide window, and everything.

    score(d) = -strength * |d - offset| * slope,        d: place of the key minus place of the query

Legend: H heads, L distances, K head width, P pairs of a head's numbers, D width, B buckets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from etymon.nn.embeddings import BucketedBias
from etymon.nn.initialise import Filler, normal

REACH = 64
"""Tokens to either side that waves are fitted to."""
DEEPEST = -6.0
"""Scores fall no further: whatever lies beyond keeps a little weight."""
RIDGE = 1e-3
"""Of the fit of waves, which would otherwise have huge amplitudes that cancel out."""
WINDOW, EVERYTHING = (0, 0.25), (0, 0.0)
BOTH_WAYS: tuple[tuple[int, float], ...] = ((-1, 1.0), (1, 1.0), WINDOW, EVERYTHING)
BACKWARD: tuple[tuple[int, float], ...] = ((-1, 1.0), (-2, 1.0), WINDOW, EVERYTHING)
"""By head, in turn: the distance that scores most, and the slope around it."""


def neighbour_scores(
    distances_L: Tensor, heads: int, strength: float, *, bidirectional: bool = True
) -> Tensor:
    """`[H, L]`: what every head adds to the scores of distances."""
    kinds = BOTH_WAYS if bidirectional else BACKWARD
    if heads == 1:  # of a small generator
        kinds = (WINDOW,)
    rows = []
    for head in range(heads):
        offset, slope = kinds[head % len(kinds)]
        rows.append((-strength * slope * (distances_L.double() - offset).abs()).clamp(min=DEEPEST))
    return torch.stack(rows)


def fit(waves_LW: Tensor, scores_HL: Tensor) -> Tensor:
    """Amplitudes `[H, W]` of waves that come near the scores, but for a constant, which attention does not
    notice."""
    centred_LW = waves_LW - waves_LW.mean(0)
    centred_HL = scores_HL - scores_HL.mean(1, keepdim=True)
    ridge = RIDGE * len(waves_LW) * torch.eye(waves_LW.shape[1], dtype=waves_LW.dtype)
    return torch.linalg.solve(centred_LW.T @ centred_LW + ridge, centred_LW.T @ centred_HL.T).T


def bucketed(strength: float, longest: int, *, bidirectional: bool) -> Filler:
    """Of T5's biases `[B, H]`: a bucket has the mean score of its distances."""

    def fill(table_BH: Tensor, generator: torch.Generator) -> None:
        buckets, heads = table_BH.shape
        bias = BucketedBias(1, buckets, longest, bidirectional=bidirectional)
        distances_L = torch.arange(-2 * longest, 2 * longest + 1 if bidirectional else 1)
        scores_HL = neighbour_scores(distances_L, heads, strength, bidirectional=bidirectional)
        places_L = bias.bucket(distances_L)
        sums_BH = torch.zeros(buckets, heads, dtype=scores_HL.dtype).index_add_(0, places_L, scores_HL.T)
        counts_B = torch.bincount(places_L, minlength=buckets).clamp(min=1)
        table_BH.copy_(sums_BH / counts_B[:, None])

    return fill


def rotary(strength: float, heads: int, *, of_keys: bool, bidirectional: bool) -> Filler:
    """Of the biases `[H K]` of queries or keys under rotation: the two, turned, make a wave of the distance a
    pair of numbers."""

    def fill(bias: Tensor, generator: torch.Generator) -> None:
        width = len(bias) // heads
        speeds_P = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        distances_L = torch.arange(-REACH, REACH + 1 if bidirectional else 1)
        angles_LP = distances_L[:, None].double() * speeds_P
        scores_HL = neighbour_scores(distances_L, heads, strength, bidirectional=bidirectional)
        waves_HW = fit(torch.cat([angles_LP.cos(), angles_LP.sin()], 1), scores_HL)
        cosines_HP, sines_HP = (waves_HW * width**0.5).chunk(2, 1)  # scores are divided by it
        # Of a query bias (c, 0) and a key bias (x, y): c x cos(d w) - c y sin(d w). Both of one size.
        sizes_HP = torch.hypot(cosines_HP, sines_HP).sqrt()
        if of_keys:
            safe_HP = sizes_HP.clamp(min=1e-9)
            pairs = torch.stack([cosines_HP / safe_HP, -sines_HP / safe_HP], -1)
        else:
            pairs = torch.stack([sizes_HP, torch.zeros_like(sizes_HP)], -1)
        bias.copy_(pairs.flatten())

    return fill


LEVEL = 8.0
"""The bias of distances that stands for all queries: so large that a query's own number changes it little."""


def relative_map(
    strength: float,
    heads: int,
    deviation: float,
    sinusoids: Callable[[Tensor], Tensor],
    *,
    bidirectional: bool,
) -> Filler:
    """Of the map of distances `[H K, D]` of Transformer-XL: the first number of a head's distance is its
    score, others are drawn. `relative_bias` lets all queries ask for it."""

    def fill(weight: Tensor, generator: torch.Generator) -> None:
        normal(deviation)(weight, generator)
        width = len(weight) // heads
        # There a distance is counted from the key to the query.
        distances_L = torch.arange(-REACH, REACH + 1 if bidirectional else 1)
        table_LD = sinusoids(-distances_L).double()
        scores_HL = neighbour_scores(distances_L, heads, strength, bidirectional=bidirectional)
        weight[::width] = (fit(table_LD, scores_HL) * width**0.5 / LEVEL).float()

    return fill


def relative_bias(deviation: float) -> Filler:
    def fill(bias_HK: Tensor, generator: torch.Generator) -> None:
        normal(deviation)(bias_HK, generator)
        bias_HK[:, 0] = LEVEL

    return fill


def matching(scale: float) -> Filler:
    """Of the queries and keys of cross-attention `[H K, D]`: every head compares its share of the numbers of
    two states, so that equal ones score most."""

    def fill(weight: Tensor, generator: torch.Generator) -> None:
        torch.nn.init.eye_(weight).mul_(scale)

    return fill
