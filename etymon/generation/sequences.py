"""What decoding returns, and the new texts of a decode while they grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch import Tensor

from etymon.errors import EtymonError
from etymon.settings.decoding import DecodingSettings
from etymon.text.tokenizer import Tokenizer

OnToken = Callable[[int, int, int], None]
"""Called with the row, the number of the text among the row's texts, and the new token."""


@dataclass(frozen=True)
class Sequence:
    """New tokens, without the prompt and with the end token if there was one."""

    ids: list[int]
    log_prob: float
    """The log-probability that the model gives these tokens, whatever penalties and filters were on."""
    score: float
    """What ranks texts: with beams the length-penalised score, among choices the logarithm of a choice's
    share, otherwise `log_prob`."""
    finished: bool
    """An end token or a stop string was reached, and not just the limit."""
    token_log_probs: list[float] | None = None
    """Token by token, where the settings ask for it."""


class Continuations:
    """The new texts of one decode: `returns` for every prompt, side by side."""

    def __init__(
        self,
        settings: DecodingSettings,
        limits: list[int],
        keys: list[int],
        end_ids: tuple[int, ...],
        tokenizer: Tokenizer | None,
        on_token: OnToken | None,
    ) -> None:
        """`limits` and `keys` have an entry a prompt: its most new tokens, and what its draws are seeded
        by."""
        self.settings, self.limits, self.keys = settings, limits, keys
        self.end_ids, self.on_token, self.tokenizer = end_ids, on_token, tokenizer
        self.copies = settings.returns
        self.ids: list[list[int]] = [[] for _ in range(len(limits) * self.copies)]
        self.log_probs: list[list[float]] = [[] for _ in self.ids]
        self.finished = [False] * len(self.ids)
        if settings.stop:
            if tokenizer is None:
                raise EtymonError(
                    "stop strings need the model's tokenizer, and it has none: use end_ids instead"
                )
            # A token is at least a byte, so this many last tokens hold any stop string that was just
            # completed. Four more keep its leading space, which some decoders drop where a text begins.
            self.stop_reach = max(len(stop.encode()) for stop in settings.stop) + 4

    def uniforms(self, tokens: int, draws: int = 1) -> np.ndarray:
        """Uniform numbers `[texts, tokens, draws]`. Each text has a generator of its own, so that neither the
        other rows of a batch nor the number of tokens changes its draws."""
        seeds = [(self.settings.seed, key, copy) for key in self.keys for copy in range(self.copies)]
        return np.stack([np.random.default_rng(seed).random((tokens, draws)) for seed in seeds])

    def add(self, row: int, token: int, log_prob: float) -> bool:
        """Appends a token to a text and returns whether the text goes on."""
        ids = self.ids[row]
        ids.append(token)
        self.log_probs[row].append(log_prob)
        if self.on_token is not None:
            self.on_token(row // self.copies, row % self.copies, token)
        # After every token, since a stop string may end in the middle of one.
        self.finished[row] = token in self.end_ids or self.reaches_stop(ids)
        return not self.finished[row] and len(ids) < self.limits[row // self.copies]

    def add_all(self, rows: list[int], tokens_R: Tensor, log_probs_R: Tensor) -> list[int]:
        """Appends a token to each of these texts and returns which of them (places in `rows`) go on."""
        columns = zip(rows, tokens_R.tolist(), log_probs_R.tolist(), strict=True)
        return [place for place, column in enumerate(columns) if self.add(*column)]

    def reaches_stop(self, ids: list[int]) -> bool:
        """Whether the last of these tokens completes a stop string, wherever token borders fall."""
        if not self.settings.stop or self.tokenizer is None:
            return False
        words = (token for token in reversed(ids) if token not in self.tokenizer.special_ids)
        text = self.tokenizer.decode(list(islice(words, self.stop_reach))[::-1])
        return any(stop in text for stop in self.settings.stop)

    def results(self) -> list[list[Sequence]]:
        """The texts of every prompt."""
        sequences = []
        for ids, log_probs, finished in zip(self.ids, self.log_probs, self.finished, strict=True):
            total = sum(log_probs)
            kept = log_probs if self.settings.log_probs else None
            sequences.append(Sequence(ids, total, total, finished, kept))
        return [sequences[first : first + self.copies] for first in range(0, len(sequences), self.copies)]
