"""The next token of every row of a batch, each by the settings of its own request.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.families.special_tokens import forced_ids
from etymon.generation.decoding import absent_ids, score_processor
from etymon.generation.processors import NEVER, draw, likeliest, warp
from etymon.generation.sequences import Continuations
from etymon.generation.text import StopFilter
from etymon.server.jobs import ScoredToken, TextJob


class WrittenRow:
    """One text that is being written: a copy among those of a job."""

    def __init__(
        self, job: TextJob, copy: int, texts: Continuations, history: list[int], model: Model
    ) -> None:
        self.job, self.copy, self.texts = job, copy, texts
        settings = job.settings
        # All at once, as `decode` draws them: the numbers of a text depend on its seed, key and copy alone.
        self.uniforms = texts.uniforms(max(1, job.limit))[copy, :, 0] if settings.sample else None
        self.sampling: tuple[float, ...] | None = None
        if settings.sample:
            filters = settings.top_k, settings.top_p, settings.min_p, settings.typical_p
            self.sampling = (settings.temperature, *filters)
        # Few rows have rules beside how they are sampled; the others are computed together.
        has_rules = (
            settings.repetition_penalty != 1
            or settings.no_repeat_ngram
            or settings.min_new_tokens
            or settings.presence_penalty
            or settings.frequency_penalty
            or any(forced_ids(model, name) for name in ("forced_bos_token_id", "forced_eos_token_id"))
        )
        self.processor = None
        if has_rules:
            self.processor = score_processor(model, settings, [history], [job.limit], texts.end_ids)
        # Whole answers are decoded at the end, by the same function as those of `etymon generate`.
        self.stream = None if job.on_token is None or texts.tokenizer is None else texts.tokenizer.stream()
        self.stop_filter = StopFilter(settings.stop)

    def next_uniform(self) -> float:
        """The number that decides the next token of a sampled text."""
        assert self.uniforms is not None
        return float(self.uniforms[len(self.ids)])

    @property
    def ids(self) -> list[int]:
        return self.texts.ids[self.copy]


class Chooser:
    """Chooses tokens for the rows of one model, as `decode` does for a batch of equal settings."""

    def __init__(self, model: Model) -> None:
        self.absent = absent_ids(model, int(model.heads["vocabulary"].size))  # type: ignore[arg-type]

    def choose(self, scores_RV: Tensor, rows: Sequence[WrittenRow]) -> list[ScoredToken]:
        """A token for every row; log-probabilities are the model's own, whatever penalties and filters are
        on."""
        allowed_RV = scores_RV if self.absent is None else scores_RV.index_fill(1, self.absent, NEVER)
        ruled = [place for place, row in enumerate(rows) if row.processor is not None]
        if ruled:
            # The log-probabilities below are those before any rule.
            allowed_RV = allowed_RV.clone()
            for place in ruled:
                processor = rows[place].processor
                assert processor is not None
                allowed_RV[place : place + 1] = processor(allowed_RV[place : place + 1])
        # Rows of equal filters are filtered together: sorting a vocabulary is the dearest part of a step with
        # top-p.
        groups: dict[tuple[float, ...] | None, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(row.sampling, []).append(place)
        chosen = [0] * len(rows)
        for sampling, places in groups.items():
            # Usually all rows are alike, and nothing is copied.
            part_RV = allowed_RV if len(groups) == 1 else allowed_RV[places]
            if sampling is None:
                tokens_R = likeliest(part_RV)
            else:
                uniforms = [rows[place].next_uniform() for place in places]
                warped_RV = warp(part_RV, rows[places[0]].job.settings)
                tokens_R = draw(warped_RV, torch.tensor(uniforms, dtype=torch.float64, device=part_RV.device))
            for place, token in zip(places, tokens_R.tolist(), strict=True):
                chosen[place] = token
        for place in ruled:
            rows[place].processor.append(torch.tensor([chosen[place]]))  # type: ignore[union-attr]
        return self._score(scores_RV, rows, chosen)

    def _score(self, scores_RV: Tensor, rows: Sequence[WrittenRow], chosen: list[int]) -> list[ScoredToken]:
        scored_places = [place for place, row in enumerate(rows) if row.job.top is not None]
        scored = [ScoredToken(token, None) for token in chosen]
        if scored_places:
            part_RV = scores_RV if len(scored_places) == len(rows) else scores_RV[scored_places]
            most = max(rows[place].job.top or 0 for place in scored_places)
            for place, score in zip(
                scored_places, score_tokens(part_RV, [chosen[place] for place in scored_places], most)
            ):
                scored[place] = ScoredToken(score.id, score.log_prob, score.top[: rows[place].job.top])
        return scored


def score_tokens(scores_RV: Tensor, tokens: Sequence[int], top: int) -> list[ScoredToken]:
    """The log-probability of a token for every row of scores, and the `top` likeliest with theirs."""
    # Also of scores that are log-probabilities already (an adaptive softmax): those do not change.
    log_probs_RV = scores_RV.log_softmax(-1)
    places_R1 = torch.tensor(tokens, device=log_probs_RV.device)[:, None]
    log_probs = log_probs_RV.gather(1, places_R1)[:, 0].tolist()
    if not top:
        return [ScoredToken(token, value) for token, value in zip(tokens, log_probs, strict=True)]
    best = log_probs_RV.topk(min(top, log_probs_RV.shape[1]))
    columns = zip(tokens, log_probs, best.indices.tolist(), best.values.tolist(), strict=True)
    return [ScoredToken(token, value, tuple(zip(ids, values))) for token, value, ids, values in columns]
