"""Beam search with the results of Transformers' vectorised one, token for token.

A prompt's search keeps `K` open texts and the `K` best finished ones. Each step extends every open text by
every token and looks at the best candidates: enough of them that `K` go on even if as many end. Only
candidates among the best `K` may enter the finished list. Prompts are searched side by side and leave as soon
as theirs is over.

Legend: B prompts, K beams, R = B x K rows, W candidates, V vocabulary, T new tokens, n texts, M blocks, I
indices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from etymon.generation.processors import ScoreProcessor
from etymon.generation.sequences import Continuations, Sequence
from etymon.generation.stepper import Stepper, fork_rows

OUT = -1.0e9
"""Added to a score, it takes a text out of the race."""
BLOCK = 64
"""Scores that are looked at together in the search for the best."""


class Beams(NamedTuple):
    """Texts of every prompt side by side, `[B, n]` and `[B, n, T]`."""

    scores: Tensor
    lengths: Tensor
    ended: Tensor
    """Whether they reached an end token or a stop string, and not just the limit."""
    is_real: Tensor
    """Whether they are finished texts and no placeholders."""
    tokens: Tensor
    log_probs: Tensor
    """What the model itself gives each token."""

    def at(self, places_Bn: Tensor) -> Beams:
        """Chosen texts of each prompt."""
        places_Bn1 = places_Bn[:, :, None]
        return Beams(
            *(column.take_along_dim(places_Bn if column.dim() == 2 else places_Bn1, 1) for column in self)
        )


def beam_search(
    stepper: Stepper, processor: ScoreProcessor, scores_BV: Tensor, texts: Continuations
) -> list[list[Sequence]]:
    """The `returns` best texts of every prompt. `scores_BV` are the log-probabilities of the first token."""
    settings, longest, device = texts.settings, max(texts.limits), scores_BV.device
    beams, offset = settings.beams, settings.length_offset
    # A beam loses at most one candidate to each end token: of 1 + ends a beam, at least K go on.
    width = beams * min(max(2, 1 + len(texts.end_ids)), scores_BV.shape[1])
    prompts = list(range(len(texts.limits)))
    scores_RV = fork_rows(beams, scores_BV, processor, stepper)
    ends = torch.tensor(texts.end_ids, dtype=torch.long, device=device)
    limits_B1 = torch.tensor(texts.limits, device=device)[:, None]
    # Placeholders, until there are K finished texts.
    zeros_BK = torch.zeros(len(prompts), beams, dtype=torch.long, device=device)
    zeros_BKT = zeros_BK[:, :, None].expand(-1, -1, longest).clone()
    false_BK = zeros_BK.bool()
    finished = Beams(zeros_BK + OUT, zeros_BK, false_BK, false_BK, zeros_BKT, zeros_BKT.float())
    running = finished._replace(scores=finished.scores.clone())
    running.scores[:, 0] = 0  # at first all beams are the same text: one of them counts
    hopeful_B1 = torch.ones(len(prompts), 1, dtype=torch.bool, device=device)
    results: list[list[Sequence]] = [[] for _ in prompts]
    for step in range(longest):
        # All beams of a prompt compete: a good one may have several children, a bad one none.
        candidates, parents_BW = _extend(running, scores_RV, processor(scores_RV), width, step)
        ended_BW = torch.isin(candidates.tokens[:, :, step], ends)
        if settings.stop:
            rows = candidates.tokens[:, :, : step + 1].tolist()
            stops = [[texts.reaches_stop(ids) for ids in row] for row in rows]
            ended_BW |= torch.tensor(stops, device=device)
        over_BW = ended_BW | (step + 1 >= limits_B1)
        # The open texts of the next step.
        open_scores_BK, places_BK = (candidates.scores + over_BW * OUT).topk(beams)
        running = candidates.at(places_BK)._replace(scores=open_scores_BK)
        best_B1 = best_sum(running, candidates)
        # The finished texts: those so far and the new ones, unless this prompt takes no more. The length
        # penalty divides by length^alpha; with an offset of 5 it is the ((5 + length) / 6)^alpha of Wu et al.
        # 2016.
        penalty = ((offset + step + 1) / (offset + 1)) ** settings.length_penalty
        is_real_BW = over_BW & (torch.arange(width, device=device) < beams)
        full_B1 = finished.is_real.all(1, keepdim=True) & settings.early_stopping
        final_BW = candidates.scores / penalty + full_B1 * OUT + ~hopeful_B1 * OUT + ~is_real_BW * OUT
        candidates = candidates._replace(scores=final_BW, ended=ended_BW, is_real=is_real_BW)
        merged = Beams(*(torch.cat(pair, 1) for pair in zip(finished, candidates, strict=True)))
        finished = merged.at(merged.scores.topk(beams).indices)
        # Could an open text still beat the worst finished one? As in Transformers, it is ranked by its length
        # so far, which is a guess: with a penalty above 0 a longer text of the same sum would score better.
        worst_BK = torch.where(finished.is_real, finished.scores.min(1, keepdim=True).values, OUT)
        hopeful_B1 = hopeful_B1 & (best_B1 / penalty > worst_BK).any(1, keepdim=True)
        full_B1 = finished.is_real.all(1, keepdim=True) & settings.early_stopping
        going_on = (hopeful_B1 & ~full_B1 & (step + 1 < limits_B1))[:, 0].tolist()
        for place, prompt in enumerate(prompts):
            if not going_on[place]:
                results[prompt] = _sequences(finished, place, texts)
                if texts.on_token is not None:
                    for number, sequence in enumerate(results[prompt]):
                        for token in sequence.ids:
                            texts.on_token(prompt, number, token)
        if not any(going_on):
            break
        # A prompt stays in its place where it can, so that little is copied: the last ones fill the gaps.
        later = (place for place, goes_on in reversed(list(enumerate(going_on))) if goes_on)
        places = [place if going_on[place] else next(later) for place in range(sum(going_on))]
        kept = torch.tensor(places, device=device)
        # Row of the state that every open text goes on from: its parent's.
        rows_R = (kept[:, None] * beams + parents_BW.gather(1, places_BK)[kept]).reshape(-1)
        if len(kept) < len(prompts):
            prompts = [prompts[place] for place in places]
            running, finished = (Beams(*(column[kept] for column in group)) for group in (running, finished))
            limits_B1, hopeful_B1 = limits_B1[kept], hopeful_B1[kept]
        tokens_R = running.tokens[:, :, step].reshape(-1)
        processor.select(rows_R)
        processor.append(tokens_R)
        stepper.select(rows_R)
        scores_RV = stepper.step(tokens_R)
    return results


def best_sum(running: Beams, candidates: Beams) -> Tensor:
    """The greatest sum of log-probabilities that a prompt's search may still improve: that of its open texts
    (before the vectorised search, Transformers took the candidates', ended ones included)."""
    return running.scores[:, :1]


def _extend(
    running: Beams, scores_RV: Tensor, allowed_RV: Tensor, width: int, step: int
) -> tuple[Beams, Tensor]:
    """The `width` best continuations of every prompt, and the beams they come from. `allowed_RV` are the
    scores after all rules, by which they are chosen; `scores_RV` the model's own."""
    prompts, beams = running.scores.shape
    vocabulary = scores_RV.shape[1]
    total_BKV = allowed_RV.view(prompts, beams, vocabulary) + running.scores[:, :, None]
    scores_BW, flat_BW = _best(total_BKV.view(prompts, -1), width)
    parents_BW = flat_BW // vocabulary
    candidates = running.at(parents_BW)
    candidates.tokens[:, :, step] = flat_BW % vocabulary
    candidates.log_probs[:, :, step] = scores_RV.view(prompts, -1).gather(1, flat_BW)
    lengths_BW = torch.full_like(candidates.lengths, step + 1)
    return candidates._replace(scores=scores_BW, lengths=lengths_BW), parents_BW


def _best(scores_BN: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """`topk`, several times as fast: the best scores lie in the blocks with the greatest maxima, or in what
    is left over."""
    # Were one of the `width` best in another block, that block's maximum would be smaller than `width` other
    # maxima, and so would it itself be.
    prompts, size = scores_BN.shape
    whole, device = size - size % BLOCK, scores_BN.device
    maxima_BM = scores_BN[:, :whole].view(prompts, -1, BLOCK).amax(-1)
    chosen_BW = maxima_BM.topk(min(width, maxima_BM.shape[1])).indices
    inside_BI = (chosen_BW[:, :, None] * BLOCK + torch.arange(BLOCK, device=device)).flatten(1)
    rest_BI = torch.arange(whole, size, device=device).expand(prompts, -1)
    index_BI = torch.cat([inside_BI, rest_BI], 1)
    best_BW, places_BW = scores_BN.gather(1, index_BI).topk(width)
    return best_BW, index_BI.gather(1, places_BW)


def _sequences(finished: Beams, place: int, texts: Continuations) -> list[Sequence]:
    """The best finished texts of the prompt at this place."""
    columns = [column[place, : texts.settings.returns].tolist() for column in finished]
    return [
        Sequence(
            ids[:length],
            sum(log_probs[:length]),
            score,
            ended,
            log_probs[:length] if texts.settings.log_probs else None,
        )
        for score, length, ended, _, ids, log_probs in zip(*columns, strict=True)
    ]
