"""Beam search with the results of Transformers' vectorised one, token for token.

A prompt's search keeps `K` open texts and the `K` best finished ones. Each step extends every open text by every
token and looks at the best candidates: enough of them that `K` go on even if as many end. Only candidates among the
best `K` may enter the finished list. Prompts are searched side by side and leave as soon as theirs is over.

Legend: B prompts, K beams, W candidates, V vocabulary, T new tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from etymon.generation.processors import Processing
from etymon.generation.sequences import Sequence, Writing
from etymon.generation.settings import DecodingSettings
from etymon.generation.stepper import Stepper

OUT = -1.0e9
"""Added to a score, it takes a text out of the race."""
BLOCK = 64
"""Scores that are looked at together in the search for the best."""


@dataclass
class Beams:
    """Beams of every prompt side by side, `[B, n]` and `[B, n, T]`."""

    scores: Tensor
    lengths: Tensor
    ended: Tensor
    """They reached an end token or a stop string, and not just the limit."""
    held: Tensor
    """They are real finished texts and no placeholders."""
    tokens: Tensor
    log_probs: Tensor
    """What the model itself gives each token."""

    def at(self, places_Bn: Tensor) -> Beams:
        """Chosen texts of each prompt."""
        return Beams(**{
            name: column.take_along_dim(places_Bn if column.dim() == 2 else places_Bn[:, :, None], 1)
            for name, column in self._columns()
        })  # fmt: skip

    def of(self, prompts: Tensor) -> Beams:
        """The texts of chosen prompts."""
        return Beams(**{name: column[prompts] for name, column in self._columns()})

    def beside(self, others: Beams) -> Beams:
        return Beams(**{
            name: torch.cat([column, getattr(others, name)], 1) for name, column in self._columns()
        })  # fmt: skip

    def _columns(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    @staticmethod
    def placeholders(prompts: int, beams: int, longest: int, device: torch.device) -> Beams:
        shape = (prompts, beams)
        return Beams(
            scores=torch.full(shape, OUT, device=device),
            lengths=torch.zeros(shape, dtype=torch.long, device=device),
            ended=torch.zeros(shape, dtype=torch.bool, device=device),
            held=torch.zeros(shape, dtype=torch.bool, device=device),
            tokens=torch.zeros(*shape, longest, dtype=torch.long, device=device),
            log_probs=torch.zeros(*shape, longest, device=device),
        )


def beam_search(
    stepper: Stepper,
    processing: Processing,
    scores_BV: Tensor,
    writing: Writing,
) -> list[list[Sequence]]:
    """The `returns` best texts of every prompt. `scores_BV` are the log-probabilities of the first token."""
    settings, limits, end_ids = writing.settings, writing.limits, writing.end_ids
    stopped, on_token = writing.stopped, writing.on_token
    beams, offset, device = settings.beams, settings.length_offset, scores_BV.device
    width = beams * min(max(2, 1 + len(end_ids)), scores_BV.shape[1])
    prompts = list(range(len(limits)))
    forked = torch.arange(len(prompts), device=device).repeat_interleave(beams)
    stepper.fork(beams)
    processing.select(forked)
    scores_RV = scores_BV[forked]
    ends = torch.tensor(end_ids, dtype=torch.long, device=device)
    limits_B1 = torch.tensor(limits, device=device)[:, None]
    running = Beams.placeholders(len(prompts), beams, max(limits), device)
    running.scores[:, 0] = 0  # at first all beams are the same text: one of them counts
    finished = Beams.placeholders(len(prompts), beams, max(limits), device)
    hopeful_B1 = torch.ones(len(prompts), 1, dtype=torch.bool, device=device)
    results: list[list[Sequence]] = [[] for _ in prompts]
    for step in range(max(limits)):
        length = ((offset + step + 1) / (offset + 1)) ** settings.length_penalty
        candidates, parents_BW = _extend(running, scores_RV, processing(scores_RV), width, step)
        new_BW = candidates.tokens[:, :, step]
        candidates.ended = torch.isin(new_BW, ends)
        if stopped is not None:
            candidates.ended |= _spelled(candidates.tokens[:, :, : step + 1], stopped)
        over_BW = candidates.ended | (step + 1 >= limits_B1)
        # The open texts of the next step.
        open_scores_BW = candidates.scores + over_BW * OUT
        open_scores_BK, places_BK = open_scores_BW.topk(beams)
        running = candidates.at(places_BK)
        running.scores = open_scores_BK
        best_B1 = best_sum(running, candidates)
        # The finished texts: those so far and the new ones, unless this prompt takes no more.
        candidates.held = over_BW & (torch.arange(width, device=device) < beams)
        full_B1 = finished.held.all(1, keepdim=True) & settings.early_stopping
        candidates.scores = (
            candidates.scores / length + full_B1 * OUT + ~hopeful_B1 * OUT + ~candidates.held * OUT
        )
        merged = finished.beside(candidates)
        finished = merged.at(merged.scores.topk(beams).indices)
        # Could an open text still beat the worst finished one? It is judged by its length so far.
        reachable_B1 = best_B1 / length
        worst_BK = torch.where(finished.held, finished.scores.min(1, keepdim=True).values, OUT)
        hopeful_B1 = hopeful_B1 & (reachable_B1 > worst_BK).any(1, keepdim=True)
        full_B1 = finished.held.all(1, keepdim=True) & settings.early_stopping
        going_on = (hopeful_B1 & ~full_B1 & (step + 1 < limits_B1))[:, 0].tolist()
        for place, prompt in enumerate(prompts):
            if not going_on[place]:
                results[prompt] = _harvest(finished, place, settings)
                if on_token is not None:
                    for number, sequence in enumerate(results[prompt]):
                        for token in sequence.ids:
                            on_token(prompt, number, token)
        if not any(going_on):
            break
        # Whoever can stays in its place, so that little is copied: the last ones fill the gaps.
        count, later = sum(going_on), (place for place, on in reversed(list(enumerate(going_on))) if on)
        stayed = [place if going_on[place] else next(later) for place in range(count)]
        kept = torch.tensor(stayed, device=device)
        parents_BK = parents_BW.gather(1, places_BK)
        if len(kept) < len(prompts):
            prompts = [prompts[place] for place in stayed]
            running, finished, limits_B1, hopeful_B1 = (
                running.of(kept), finished.of(kept), limits_B1[kept], hopeful_B1[kept],
            )  # fmt: skip
        rows_R = (kept[:, None] * beams + parents_BK[kept]).reshape(-1)
        tokens_R = running.tokens[:, :, step].reshape(-1)
        processing.select(rows_R)
        processing.append(tokens_R)
        stepper.select(rows_R)
        scores_RV = stepper.step(tokens_R)
    return results


def best_sum(running: Beams, candidates: Beams) -> Tensor:
    """The greatest sum of log-probabilities that a prompt has hopes for: that of its open texts (before the vectorised
    search, Transformers took the candidates', ended ones included)."""
    return running.scores[:, :1]


def _extend(
    running: Beams, own_RV: Tensor, allowed_RV: Tensor, width: int, step: int
) -> tuple[Beams, Tensor]:
    """The `width` best continuations of every prompt, and the beams they come from."""
    prompts, beams = running.scores.shape
    vocabulary = own_RV.shape[1]
    total_BKV = allowed_RV.view(prompts, beams, vocabulary) + running.scores[:, :, None]
    scores_BW, flat_BW = _best(total_BKV.view(prompts, -1), width)
    parents_BW = flat_BW // vocabulary
    candidates = running.at(parents_BW)
    candidates.scores = scores_BW
    candidates.tokens[:, :, step] = flat_BW % vocabulary
    candidates.log_probs[:, :, step] = own_RV.view(prompts, -1).gather(1, flat_BW)
    candidates.lengths = torch.full_like(candidates.lengths, step + 1)
    return candidates, parents_BW


def _best(scores_BN: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """`topk`, several times as fast: the best scores lie in the blocks with the greatest maxima, or in what is left over."""
    prompts, size = scores_BN.shape
    whole, device = size - size % BLOCK, scores_BN.device
    maxima_BM = scores_BN[:, :whole].view(prompts, -1, BLOCK).amax(-1)
    chosen_BW = maxima_BM.topk(min(width, maxima_BM.shape[1])).indices
    inside_BI = (chosen_BW[:, :, None] * BLOCK + torch.arange(BLOCK, device=device)).flatten(1)
    rest_BI = torch.arange(whole, size, device=device).expand(prompts, -1)
    index_BI = torch.cat([inside_BI, rest_BI], 1)
    best_BW, places_BW = scores_BN.gather(1, index_BI).topk(width)
    return best_BW, index_BI.gather(1, places_BW)


def _spelled(tokens_BWT: Tensor, stopped: Callable[[list[int]], bool]) -> Tensor:
    verdicts = [[stopped(ids) for ids in candidates] for candidates in tokens_BWT.tolist()]
    return torch.tensor(verdicts, device=tokens_BWT.device)


def _harvest(finished: Beams, place: int, settings: DecodingSettings) -> list[Sequence]:
    columns = (finished.tokens, finished.log_probs, finished.lengths, finished.scores, finished.ended)
    return [
        Sequence(ids[:length], sum(own[:length]), score, ended, own[:length] if settings.log_probs else None)
        for ids, own, length, score, ended in zip(
            *(column[place, : settings.returns].tolist() for column in columns), strict=True
        )
    ]
