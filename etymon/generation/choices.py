"""Constrained choice: only one of a few given strings can come out, each exactly as likely as the model has it.

A choice stands for its tokens, as the tokenizer cuts the bare string; what an encoder-decoder writes also ends there. The
probabilities of a prompt's choices are those of texts that begin with one of them, divided by their sum. Where one choice
goes on from another ("yes", "yes sir"), a text counts for the longest that it begins with, so that no choice is part of another:
p(yes) - p(yes sir) is what "yes" has. Nothing is corrected for length.

The likeliest choice is therefore found by scoring all of them, and not token by token; sampling sees the choices as a
vocabulary of their own, so that temperature and filters mean what they mean for tokens.

Legend: R rows, c choices, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.generation.processors import draw, warp
from etymon.generation.sequences import Sequence, Writing
from etymon.generation.stepper import Stepper
from etymon.text.tokenizer import Tokenizer

TOGETHER = 64
"""Rows that are scored at a time: each is a copy of its prompt's state."""


def choice_ids(tokenizer: Tokenizer, choices: tuple[str, ...], *, ended: bool) -> dict[tuple[int, ...], str]:
    """The choices by their tokens, in the order given; `ended` as a decoder over an encoder writes them."""
    encoded = tokenizer.encode_batch(list(choices))
    framed = [tokenizer.framing.frame(ids).ids for ids in encoded] if ended else encoded
    found: dict[tuple[int, ...], str] = {}
    for choice, bare, ids in zip(choices, encoded, framed, strict=True):
        key = tuple(int(number) for number in ids)
        if not len(bare):
            raise EtymonError(f"the choice {choice!r} has no tokens to judge it by: leave it out")
        if key in found:
            raise EtymonError(f"the choices {found[key]!r} and {choice!r} are the same tokens: leave one out")
        found[key] = choice
    return found


def choose(
    stepper: Stepper, scores_RV: Tensor, choices: list[tuple[int, ...]], writing: Writing
) -> list[list[Sequence]]:
    """The `returns` likeliest choices of every row, or as many draws. `scores_RV` are log-probabilities of the first token."""
    settings, own = writing.settings, _scored(stepper, scores_RV, choices)
    totals_Rc = torch.tensor([[math.fsum(each) for each in row] for row in own], dtype=torch.float64)
    shares_Rc = _disjoint(totals_Rc, choices).log_softmax(-1)
    if settings.sample:
        warped_Rc = warp(shares_Rc, settings).repeat_interleave(writing.copies, 0)
        picked = draw(warped_Rc, torch.from_numpy(writing.uniforms(1)[:, 0, 0])).view(-1, writing.copies)
    else:
        picked = shares_Rc.sort(stable=True, descending=True).indices[:, : writing.copies]
    return [
        [
            Sequence(
                list(choices[each]),
                float(totals_Rc[row, each]),
                float(shares_Rc[row, each]),
                True,
                own[row][each] if settings.log_probs else None,
            )
            for each in places
        ]
        for row, places in enumerate(picked.tolist())
    ]


def _scored(stepper: Stepper, scores_RV: Tensor, choices: list[tuple[int, ...]]) -> list[list[list[float]]]:
    """The log-probability of every token of every choice, by row. The first tokens are known already."""
    firsts = scores_RV[:, [ids[0] for ids in choices]].tolist()
    own = [[[first] for first in row] for row in firsts]
    pairs = [(row, each) for row in range(len(own)) for each, ids in enumerate(choices) if len(ids) > 1]
    for begin in range(0, len(pairs), TOGETHER):
        part = pairs[begin : begin + TOGETHER]
        branch = stepper.branch(torch.tensor([row for row, _ in part], device=scores_RV.device))
        branch.extend([choices[each][:-1] for _, each in part])
        following = [token for _, each in part for token in choices[each][1:]]
        log_probs = branch.target_log_probs(torch.tensor(following, device=scores_RV.device)).tolist()
        for row, each in part:
            size = len(choices[each]) - 1
            own[row][each] += log_probs[:size]
            del log_probs[:size]
    return own


def _disjoint(totals_Rc: Tensor, choices: list[tuple[int, ...]]) -> Tensor:
    """Without the texts that go on to a longer choice."""
    out_Rc = totals_Rc.clone()
    for each, ids in enumerate(choices):
        # Every longer choice belongs to the longest one that it goes on from.
        shorter = [
            other for other, its in enumerate(choices) if len(its) < len(ids) and ids[: len(its)] == its
        ]
        if shorter:
            parent = max(shorter, key=lambda other: len(choices[other]))
            part_R = (totals_Rc[:, each] - out_Rc[:, parent]).clamp(max=0).exp()
            out_Rc[:, parent] += (-part_R).log1p()
    return out_Rc
