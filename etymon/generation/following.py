"""Greedy decoding and sampling: one text a row, each token settled when it is chosen.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etymon.generation.processors import Processing, draw, likeliest, warp
from etymon.generation.sequences import Sequence, Writing
from etymon.generation.stepper import Stepper


def follow(
    stepper: Stepper, processing: Processing, scores_RV: Tensor, writing: Writing
) -> list[list[Sequence]]:
    """The texts of all rows. `scores_RV` are those of the first token."""
    settings, device = writing.settings, scores_RV.device
    longest = max(writing.limits)
    scores_RV = forked(scores_RV, writing, processing, stepper)
    uniforms = writing.uniforms(longest)[:, :, 0] if settings.sample else np.empty((0, 0))
    rows = list(range(len(writing.texts)))
    for step in range(longest):
        allowed_RV = processing(scores_RV)
        if settings.sample:
            uniforms_R = torch.from_numpy(uniforms[rows, step]).to(device)
            chosen_R = draw(warp(allowed_RV, settings), uniforms_R)
        else:
            chosen_R = likeliest(allowed_RV)
        going_on = writing.add_all(rows, chosen_R, own_log_probs(scores_RV, chosen_R))
        if not going_on:
            break
        processing.append(chosen_R)
        if len(going_on) < len(rows):
            kept = torch.tensor(going_on, device=device)
            rows = [rows[place] for place in going_on]
            chosen_R = chosen_R[kept]
            processing.select(kept)
            stepper.select(kept)
        scores_RV = stepper.step(chosen_R)
    return writing.results()


def forked(scores_RV: Tensor, writing: Writing, processing: Processing, *steppers: Stepper) -> Tensor:
    """Every prompt becomes as many rows as it gets texts."""
    if writing.copies == 1:
        return scores_RV
    places = torch.arange(len(scores_RV), device=scores_RV.device).repeat_interleave(writing.copies)
    processing.select(places)
    for stepper in steppers:
        stepper.fork(writing.copies)
    return scores_RV[places]


def own_log_probs(scores: Tensor, chosen: Tensor) -> Tensor:
    """What the model itself gives the tokens, `[...]` of scores `[..., V]`."""
    return scores.gather(-1, chosen[..., None])[..., 0] - scores.logsumexp(-1)
