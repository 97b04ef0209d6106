"""How to decode: one frozen value, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from etymon.errors import EtymonError

DEFAULT_NEW_TOKENS = 64
COLDEST = 0.0001
"""Scores divided by less than that are no numbers any more."""
HOTTEST = 10_000
"""Scores divided by more than that are all the same."""
MOST_PENALTY = 50
"""The power of a length: beyond it, long texts have none that is a number."""
MOST_DRAFTED = 16
"""Tokens that a draft may run ahead: more are never all right, and a state need not forget more."""

RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: value is None or value >= 1, "ask for at least 1 new token"),
    "min_new_tokens": (lambda value: value >= 0, "it must be 0 or more"),
    "temperature": (lambda value: COLDEST <= value <= HOTTEST, f"it must be {COLDEST} to {HOTTEST} (for greedy decoding leave it out)"),
    "top_k": (lambda value: value >= 0, "it must be 1 or more, or 0 for no limit"),
    "top_p": (lambda value: 0 < value <= 1, "it must be above 0 and at most 1"),
    "typical_p": (lambda value: 0 < value <= 1, "it must be above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "it must be 0 (off) to 1"),
    "penalty_alpha": (lambda value: 0 <= value <= 1, "it must be 0 (off) to 1"),
    "beams": (lambda value: 1 <= value <= 10_000, "it must be from 1 to 10,000"),
    "length_penalty": (lambda value: abs(value) <= MOST_PENALTY, f"it must be {-MOST_PENALTY} to {MOST_PENALTY}"),
    "length_offset": (lambda value: 0 <= value < math.inf, "it must be 0 or more"),
    "returns": (lambda value: value >= 1, "it must be 1 or more"),
    "no_repeat_ngram": (lambda value: value >= 0, "it must be 0 (off) or more"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "it must be above 0 (1 is none)"),
    "draft_tokens": (lambda value: 1 <= value <= MOST_DRAFTED, f"it must be 1 to {MOST_DRAFTED}"),
    "seed": (lambda value: value >= 0, "it must be 0 or more"),
}  # fmt: skip
"""What numbers may be, and what to say of others."""


@dataclass(frozen=True)
class DecodingSettings:
    """Greedy unless told: `sample` draws, `beams` above 1 searches, `penalty_alpha` searches contrastively, `choices` picks.

    Their meaning and order are those of Transformers: repetition penalty, repeated n-grams, minimum length, then
    (when sampling) temperature, top-k, top-p, min-p, typical-p. Left at None, `max_new_tokens` is 64 or whatever room the
    model's positions leave; a number is taken at its word and refused if there is no room for it and no `window`.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    """0: no limit. In a contrastive search, the number of candidates."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens below this share of the likeliest one's probability are left out."""
    typical_p: float = 1.0
    """Only tokens whose surprise is nearest to the expected one, as many as hold this probability (Meister et al. 2023)."""
    penalty_alpha: float = 0.0
    """Above 0: contrastive search (Su et al. 2022), and how much likeness to what was written counts against a token."""
    beams: int = 1
    length_penalty: float = 1.0
    """A beam's score is its log-probability divided by its length to this power."""
    length_offset: float = 0.0
    """The length there is (offset + length) / (offset + 1): with 5, the penalty of Wu et al. 2016 and of the Transformer."""
    early_stopping: bool = False
    """Stop a beam search as soon as there are `beams` finished texts, even if a better one might follow."""
    choices: tuple[str, ...] = ()
    """Only one of these strings can come out."""
    returns: int = 1
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()
    """Tokens that end a text; the model's own end token unless told."""
    window: bool = False
    """A text that has filled the model's positions goes on from its last half, which is read again."""
    draft_tokens: int = 4
    """How many tokens a draft model, where there is one, runs ahead."""
    log_probs: bool = False
    """Keep the log-probability of every token."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("stop", "choices"):  # one string, or a list of them, is what people write
            given: Any = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        object.__setattr__(self, "end_ids", tuple(self.end_ids))
        for problem in chain(self._wrong_numbers(), self._misfits()):
            raise EtymonError(problem)

    @property
    def contrastive(self) -> bool:
        return self.penalty_alpha > 0

    def _wrong_numbers(self) -> Iterator[str]:
        for name, (fits, reason) in RANGES.items():
            if not fits(value := getattr(self, name)):
                yield f"{name} is {value}: {reason}"
        longest = self.max_new_tokens
        if longest is not None and self.min_new_tokens > longest:
            yield f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {longest}: lower one or raise the other"
        if not all(self.stop):
            yield "an empty stop string would stop at once: leave it out"
        if not all(self.choices):
            yield "an empty choice has no tokens to judge it by: leave it out"
        if len(set(self.choices)) < len(self.choices):
            yield "a choice is there twice: leave one out"

    def _misfits(self) -> Iterator[str]:
        filtered = self.temperature != 1 or self.top_p != 1 or self.min_p or self.typical_p != 1
        if self.contrastive and (self.sample or self.beams > 1 or filtered):
            yield "penalty_alpha asks for a contrastive search, which goes without sampling and beams: choose one"
        if self.contrastive and not self.top_k:
            yield "a contrastive search needs top_k, the number of candidates: 4 to 8 is usual"
        if not self.sample and (filtered or (self.top_k and not self.contrastive)):
            yield "temperature, top_k, top_p, min_p and typical_p only matter when sampling: turn on sample, or leave them out"
        if self.beams > 1 and self.sample:
            yield f"sampling and a search with {self.beams} beams exclude each other: choose one"
        if self.beams == 1 and (self.length_penalty != 1 or self.length_offset or self.early_stopping):
            yield "length_penalty, length_offset and early_stopping belong to beam search: ask for beams above 1"
        if self.choices:
            others = {
                "beams": self.beams > 1, "penalty_alpha": self.contrastive, "stop": self.stop, "window": self.window,
                "min_new_tokens": self.min_new_tokens, "max_new_tokens": self.max_new_tokens is not None,
                "no_repeat_ngram": self.no_repeat_ngram, "repetition_penalty": self.repetition_penalty != 1,
            }  # fmt: skip
            for name in (name for name, given in others.items() if given):
                yield f"choices are judged whole, and {name} has no say in it: leave it out"
        if self.returns > max(self.beams, len(self.choices)) and not self.sample:
            found = "greedy decoding gives 1"
            if self.contrastive:
                found = "a contrastive search gives 1"
            if self.choices:
                found = f"there are {len(self.choices)} choices"
            if self.beams > 1:
                found = f"{self.beams} beams give at most {self.beams} texts"
            yield f"returns is {self.returns}, but {found}: sample, or ask for as many beams"
