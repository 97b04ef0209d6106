"""What decoding returns, and how it grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from etymon.generation.settings import DecodingSettings

OnToken = Callable[[int, int, int], None]
"""Called with the row, the number of the text among the row's texts, and the new token."""


@dataclass(frozen=True)
class Sequence:
    """New tokens, without the prompt and with the end token if there was one."""

    ids: list[int]
    log_prob: float
    """What the model itself gives these tokens, whatever penalties and filters were on."""
    score: float
    """What decides between texts: with beams the length-penalised score, among choices the logarithm of a choice's share,
    otherwise `log_prob`."""
    finished: bool
    """An end token or a stop string was reached, and not just the limit."""
    token_log_probs: list[float] | None = None
    """Token by token, if it was asked for."""


class Writing:
    """The texts of one decode while they grow: `returns` for every prompt, side by side."""

    def __init__(
        self,
        settings: DecodingSettings,
        limits: list[int],
        keys: list[int],
        end_ids: tuple[int, ...],
        stopped: Callable[[list[int]], bool] | None,
        on_token: OnToken | None,
    ) -> None:
        self.settings, self.limits, self.keys = settings, limits, keys
        self.end_ids, self.stopped, self.on_token = end_ids, stopped, on_token
        self.copies = settings.returns
        self.texts: list[list[int]] = [[] for _ in range(len(limits) * self.copies)]
        self.log_probs: list[list[float]] = [[] for _ in self.texts]
        self.finished = [False] * len(self.texts)

    def uniforms(self, tokens: int, draws: int = 1) -> np.ndarray:
        """For every text its own numbers, `draws` a token: `[texts, tokens, draws]`. The first ones do not depend on how many
        are asked for."""
        generators = (
            np.random.default_rng((self.settings.seed, key, copy))
            for key in self.keys
            for copy in range(self.copies)
        )
        return np.stack([generator.random((tokens, draws)) for generator in generators])

    def add(self, row: int, token: int, log_prob: float) -> bool:
        """One more token of a text; whether it goes on."""
        text = self.texts[row]
        text.append(token)
        self.log_probs[row].append(log_prob)
        if self.on_token is not None:
            self.on_token(row // self.copies, row % self.copies, token)
        self.finished[row] = token in self.end_ids or (self.stopped is not None and self.stopped(text))
        return not self.finished[row] and len(text) < self.limits[row // self.copies]

    def add_all(self, rows: list[int], tokens_R: Tensor, log_probs_R: Tensor) -> list[int]:
        """One more token of each of these texts; the places among them of those that go on."""
        given = zip(rows, tokens_R.tolist(), log_probs_R.tolist(), strict=True)
        return [place for place, one in enumerate(given) if self.add(*one)]

    def results(self) -> list[list[Sequence]]:
        made = []
        for ids, own, done in zip(self.texts, self.log_probs, self.finished, strict=True):
            total = sum(own)
            made.append(Sequence(ids, total, total, done, own if self.settings.log_probs else None))
        return [made[first : first + self.copies] for first in range(0, len(made), self.copies)]
