"""How to decode: one frozen value, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from etymon.errors import EtymonError

DEFAULT_NEW_TOKENS = 64


@dataclass(frozen=True)
class DecodingSettings:
    """Greedy unless told: `sample` draws, `beams` above 1 searches.

    Their meaning and order are those of Transformers: repetition penalty, repeated n-grams, minimum length, then
    (when sampling) temperature, top-k, top-p. Left at None, `max_new_tokens` is 64 or whatever room the model's
    positions leave; a number is taken at its word and refused if there is no room for it.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    beams: int = 1
    length_penalty: float = 1.0
    """A beam's score is its log-probability divided by its length to this power."""
    early_stopping: bool = False
    """Stop a beam search as soon as there are `beams` finished texts, even if a better one might follow."""
    returns: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()
    """Tokens that end a text; the model's own end token unless told."""
    seed: int = 0

    def __post_init__(self) -> None:
        stop: Any = self.stop  # one string, or a list of them, is what people write
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        object.__setattr__(self, "end_ids", tuple(self.end_ids))
        if problem := self._problem():
            raise EtymonError(problem)

    def _problem(self) -> str | None:
        """The first thing that is wrong, in a line."""
        longest = self.max_new_tokens
        if longest is not None and longest < 1:
            return f"max_new_tokens is {longest}: ask for at least 1 new token"
        if self.min_new_tokens < 0:
            return f"min_new_tokens is {self.min_new_tokens}: it must be 0 or more"
        if longest is not None and self.min_new_tokens > longest:
            return f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {longest}: lower one or raise the other"
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            return f"temperature is {self.temperature}: it must be above 0 (for greedy decoding leave it out)"
        if self.top_k < 0:
            return f"top_k is {self.top_k}: it must be 1 or more, or 0 for no limit"
        if not 0 < self.top_p <= 1:
            return f"top_p is {self.top_p}: it must be above 0 and at most 1"
        if not self.sample and (self.temperature != 1 or self.top_k or self.top_p != 1):
            return "temperature, top_k and top_p only matter when sampling: turn on sample, or leave them out"
        if self.beams < 1:
            return f"beams is {self.beams}: it must be 1 or more"
        if self.beams > 1 and self.sample:
            return f"sampling and a search with {self.beams} beams exclude each other: choose one"
        if self.beams == 1 and (self.length_penalty != 1 or self.early_stopping):
            return "length_penalty and early_stopping belong to beam search: ask for beams above 1"
        if self.returns < 1:
            return f"returns is {self.returns}: it must be 1 or more"
        if self.returns > self.beams and not self.sample:
            found = (
                f"{self.beams} beams give at most {self.beams} texts"
                if self.beams > 1
                else "greedy decoding gives 1"
            )
            return f"returns is {self.returns}, but {found}: sample, or ask for as many beams"
        if self.no_repeat_ngram < 0:
            return f"no_repeat_ngram is {self.no_repeat_ngram}: it must be 0 (off) or more"
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            return f"repetition_penalty is {self.repetition_penalty}: it must be above 0 (1 is none)"
        if not all(self.stop):
            return "an empty stop string would stop at once: leave it out"
        if self.seed < 0:
            return f"seed is {self.seed}: it must be 0 or more"
        return None
