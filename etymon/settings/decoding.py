"""How to decode."""

from __future__ import annotations

from collections.abc import Iterator

from etymon.errors import EtymonError
from etymon.settings import Words, option, settings

DEFAULT_NEW_TOKENS = 64
COLDEST = 0.0001
"""Scores divided by less than that are no numbers any more."""
HOTTEST = 10_000
"""Scores divided by more than that are all the same."""
MOST_PENALTY = 50
"""The power of a length: beyond it, long texts have none that is a number."""
MOST_DRAFTED = 16
"""Tokens that a draft may run ahead: more are never all right, and a state need not forget more."""


@settings
class DecodingSettings:
    """Greedy unless told: `sample` draws, `beams` above 1 searches, `penalty_alpha` searches contrastively,
    `choices` picks.

    Their meaning and order are those of Transformers: repetition penalty (then presence and frequency, which
    it does not have), repeated n-grams, minimum length, then (when sampling) temperature, top-k, top-p,
    min-p, typical-p. Left at None, `max_new_tokens` is 64 or whatever room the model's positions leave; a
    number is taken at its word and refused if there is no room for it and no `window`.
    """

    max_new_tokens: int | None = option(None, "most tokens to write (64, or the room that is left)", ge=1)
    min_new_tokens: int = option(0, "fewest tokens to write", ge=0)
    sample: bool = option(False, "draw tokens at random (on if a sampling option is given)")
    temperature: float = option(
        1.0,
        "sampling: below 1 is safer, above 1 wilder; leave it out for greedy decoding",
        ge=COLDEST,
        le=HOTTEST,
    )
    # In a contrastive search, the number of candidates.
    top_k: int = option(
        0, "sampling: only from the K likeliest tokens, 0 for all (contrastive: the candidates)", ge=0
    )
    top_p: float = option(
        1.0, "sampling: only from the likeliest tokens whose probabilities add up to this", gt=0, le=1
    )
    min_p: float = option(
        0.0, "sampling: only tokens with at least this share of the likeliest one's probability", ge=0, le=1
    )
    # Meister et al. 2023.
    typical_p: float = option(
        1.0,
        "sampling: only tokens about as surprising as expected, whose probabilities add up to this",
        gt=0,
        le=1,
    )
    # Su et al. 2022.
    penalty_alpha: float = option(
        0.0,
        "contrastive search: how strongly to avoid repeating what is there; try 0.6 with --top-k 4",
        ge=0,
        le=1,
    )
    choices: Words = option(
        (),
        'write only one of these strings, right behind the prompt: " yes"; may be repeated',
        name="choice",
    )
    beams: int = option(1, "number of beams to search with", ge=1, le=10_000)
    # A beam's score is its log-probability divided by (offset + length) / (offset + 1) to this power. With
    # an offset of 5, that is the penalty of Wu et al. 2016 and of the Transformer.
    length_penalty: float = option(
        1.0, "beams: above 0 favours long texts, below 0 short ones", ge=-MOST_PENALTY, le=MOST_PENALTY
    )
    length_offset: float = option(0.0, "beams: 5 makes it the penalty of the Transformer's paper", ge=0)
    early_stopping: bool = option(
        False, "beams: stop at the first finished texts, even if a better one might follow"
    )
    returns: int = option(1, "texts per prompt (with sampling, beams or choices)", ge=1)
    no_repeat_ngram: int = option(0, "never write a sequence of this many tokens twice", ge=0)
    repetition_penalty: float = option(
        1.0, "above 1: tokens that were there already become less likely", gt=0
    )
    # As OpenAI's protocol defines them: of new tokens alone.
    presence_penalty: float = option(
        0.0, "taken off the score of a token that has been written already", ge=-2, le=2
    )
    frequency_penalty: float = option(
        0.0, "taken off the score of a token for each time that it has been written", ge=-2, le=2
    )
    stop: Words = option((), "stop before this string; may be repeated")
    window: bool = option(False, "write on beyond the model's length: keep the last half of it and go on")
    draft_tokens: int = option(4, "how many tokens the draft guesses ahead", ge=1, le=MOST_DRAFTED)
    log_probs: bool = option(False, "also give every token's log-probability")
    seed: int = option(0, "random seed; the same seed gives the same text", ge=0)
    end_ids: tuple[int, ...] = ()
    """Tokens that end a text; the model's own end token unless told."""

    def __post_init__(self) -> None:
        for problem in self._contradictions():
            raise EtymonError(problem)

    @property
    def contrastive(self) -> bool:
        return self.penalty_alpha > 0

    def _contradictions(self) -> Iterator[str]:
        longest = self.max_new_tokens
        if longest is not None and self.min_new_tokens > longest:
            yield f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {longest}: lower one or raise the other"
        if not all(self.stop):
            yield "an empty stop string would stop at once: leave it out"
        if not all(self.choices):
            yield "an empty choice has no tokens to judge it by: leave it out"
        if len(set(self.choices)) < len(self.choices):
            yield "a choice is there twice: leave one out"
        filtered = self.temperature != 1 or self.top_p != 1 or self.min_p or self.typical_p != 1
        if self.contrastive and (self.sample or self.beams > 1 or filtered):
            yield "penalty_alpha asks for a contrastive search, which goes without sampling and beams: choose one"
        if self.contrastive and not self.top_k:
            yield "a contrastive search needs top_k, the number of candidates: 4 to 8 is usual"
        if not self.sample and (filtered or (self.top_k and not self.contrastive)):
            yield (
                "temperature, top_k, top_p, min_p and typical_p only matter when sampling: turn on sample, "
                "or leave them out"
            )
        if self.beams > 1 and self.sample:
            yield f"sampling and a search with {self.beams} beams exclude each other: choose one"
        if self.beams == 1 and (self.length_penalty != 1 or self.length_offset or self.early_stopping):
            yield "length_penalty, length_offset and early_stopping belong to beam search: ask for beams above 1"
        if self.choices:
            others = {
                "beams": self.beams > 1,
                "penalty_alpha": self.contrastive,
                "stop": self.stop,
                "window": self.window,
                "min_new_tokens": self.min_new_tokens,
                "max_new_tokens": self.max_new_tokens is not None,
                "no_repeat_ngram": self.no_repeat_ngram,
                "repetition_penalty": self.repetition_penalty != 1,
                "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty,
            }
            for name in (name for name, is_given in others.items() if is_given):
                yield f"choices are scored whole, and {name} has no say in it: leave it out"
        if self.returns > max(self.beams, len(self.choices)) and not self.sample:
            there_are = "greedy decoding gives 1"
            if self.contrastive:
                there_are = "a contrastive search gives 1"
            if self.choices:
                there_are = f"there are {len(self.choices)} choices"
            if self.beams > 1:
                there_are = f"{self.beams} beams give at most {self.beams} texts"
            yield f"returns is {self.returns}, but {there_are}: sample, or ask for as many beams"
