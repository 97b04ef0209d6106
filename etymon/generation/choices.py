"""Constrained choice: only one of a few given strings can come out, each exactly as likely as the model has
it.

A choice stands for its tokens, as the tokenizer cuts the bare string; what an encoder-decoder writes also
ends there. The probabilities of a prompt's choices are those of texts that begin with one of them, divided by
their sum. Where one choice goes on from another ("yes", "yes sir"), a text counts for the longest that it
begins with, so that no choice is part of another: p(yes) - p(yes sir) is what "yes" has. Nothing is corrected
for length.

The likeliest choice is therefore searched by scoring all of them, and not token by token; sampling treats the
choices as a vocabulary of their own, so that temperature and filters mean what they mean for tokens.

Legend: R rows, c choices, N tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.processors import draw, warp
from etymon.generation.sequences import Continuations, Sequence
from etymon.generation.stepper import Stepper

TOGETHER = 64
"""Rows that are scored at a time: each is a copy of its prompt's state."""


def choices_by_ids(model: Model, choices: tuple[str, ...]) -> dict[tuple[int, ...], str]:
    """The choices by their tokens, in the order given; those of an encoder-decoder end with its end token."""
    by_ids: dict[tuple[int, ...], str] = {}
    if not choices:
        return by_ids
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise EtymonError("choices need the model's tokenizer, and it has none: put it into its folder")
    for choice, ids in zip(choices, tokenizer.encode_batch(list(choices)), strict=True):
        if not len(ids):
            raise EtymonError(f"the choice {choice!r} has no tokens to judge it by: leave it out")
        key = tuple((tokenizer.framing.frame(ids).ids if model.encoder_decoder else ids).tolist())
        if key in by_ids:
            raise EtymonError(
                f"the choices {by_ids[key]!r} and {choice!r} are the same tokens: leave one out"
            )
        by_ids[key] = choice
    return by_ids


def choose(
    stepper: Stepper, scores_RV: Tensor, choices: list[tuple[int, ...]], texts: Continuations
) -> list[list[Sequence]]:
    """The `returns` likeliest choices of every row, or as many draws. `scores_RV` are log-probabilities of
    the first token."""
    settings = texts.settings
    log_probs = choice_log_probs(stepper, scores_RV, choices)
    totals_Rc = torch.tensor(
        [[math.fsum(tokens) for tokens in row] for row in log_probs], dtype=torch.float64
    )
    # Divided by their sum without leaving logarithms, where long choices would be 0.
    shares_Rc = _disjoint(totals_Rc, choices).log_softmax(-1)
    if settings.sample:
        warped_Rc = warp(shares_Rc, settings).repeat_interleave(texts.copies, 0)
        picked = draw(warped_Rc, torch.from_numpy(texts.uniforms(1)[:, 0, 0])).view(-1, texts.copies)
    else:
        picked = shares_Rc.sort(stable=True, descending=True).indices[:, : texts.copies]
    return [
        [
            Sequence(
                list(choices[number]),
                float(totals_Rc[row, number]),
                float(shares_Rc[row, number]),
                True,
                log_probs[row][number] if settings.log_probs else None,
            )
            for number in numbers
        ]
        for row, numbers in enumerate(picked.tolist())
    ]


def choice_log_probs(
    stepper: Stepper, scores_RV: Tensor, choices: SequenceOf[tuple[int, ...]]
) -> list[list[list[float]]]:
    """The log-probability of every token of every choice, by row. `scores_RV` are those of the first
    token."""
    device = scores_RV.device
    firsts = scores_RV[:, [ids[0] for ids in choices]].tolist()
    log_probs = [[[first] for first in row] for row in firsts]
    pairs = [
        (row, number) for row in range(len(firsts)) for number, ids in enumerate(choices) if len(ids) > 1
    ]
    for begin in range(0, len(pairs), TOGETHER):
        part = pairs[begin : begin + TOGETHER]
        # Copies of the prompts' states: the prompts themselves are not read again.
        branch = stepper.branch(torch.tensor([row for row, _ in part], device=device))
        branch.extend([choices[number][:-1] for _, number in part])
        targets = [choices[number][1:] for _, number in part]
        scored_N = branch.target_log_probs(
            torch.tensor([id_ for ids in targets for id_ in ids], device=device)
        )
        for (row, number), scored in zip(part, scored_N.split(list(map(len, targets))), strict=True):
            log_probs[row][number] += scored.tolist()
    return log_probs


def _disjoint(totals_Rc: Tensor, choices: list[tuple[int, ...]]) -> Tensor:
    """The log-probabilities without the texts that go on to a longer choice."""
    out_Rc = totals_Rc.clone()
    for number, ids in enumerate(choices):
        shorter = [
            other for other, head in enumerate(choices) if len(head) < len(ids) and ids[: len(head)] == head
        ]
        if shorter:
            # Every longer choice is taken off the longest one that it goes on from.
            parent = max(shorter, key=lambda other: len(choices[other]))
            part_R = (totals_Rc[:, number] - out_Rc[:, parent]).clamp(max=0).exp()
            out_Rc[:, parent] += (-part_R).log1p()  # log(a - b) = log a + log(1 - b / a)
    return out_Rc
