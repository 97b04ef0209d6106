"""Training a tokenizer on a user's text. The same text always gives the same tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from etymon.errors import EtymonError
from etymon.text import tokenizer_kinds as kinds
from etymon.text.cutting import pieces
from etymon.text.framing import Framing
from etymon.text.token_bytes import BYTE_OF
from etymon.text.tokenizer import ROLE_KEYS, Tokenizer

LOSSLESS = ("byte-bpe", "byte")
LONGEST_RUN = 48  # characters of a run without spaces that a trainer sees as one word


@dataclass(frozen=True)
class _Plan:
    """What a trainer has to know: `room` is for everything but special tokens and sentinels."""

    room: int
    leading: list[str]
    unknown: str
    mask: str
    min_frequency: int
    pipeline: Callable[[Any], tokenizers.Tokenizer]
    """What is around a model."""

    def learner(self, model: Any) -> tokenizers.Tokenizer:
        """The pipeline around a model that is to be trained: it never sees words of thousands of characters."""
        return kinds.cutting_long_runs(self.pipeline(model), LONGEST_RUN)

    @property
    def options(self) -> dict[str, Any]:
        """What the library's trainers are told."""
        size = len(self.leading) + self.room
        return {"vocab_size": size, "special_tokens": self.leading, "show_progress": False}

    def merging(self, alphabet: list[str]) -> dict[str, Any]:
        """What those are told that merge letters."""
        letters = {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
        return {**self.options, **letters, "min_frequency": self.min_frequency}


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalise: str | None = None,
    specials: Mapping[str, str],
    sentinels: int = 0,
    framing: Framing | None = None,
    min_frequency: int = 2,
) -> Tokenizer:
    """Learn at most `size` tokens, special tokens and sentinels included, from `texts`.

    `specials` maps roles to tokens; they get the first ids in the given order. Bytes and byte-level BPE give them the
    last, as in GPT-2; but where BPE has a mask, only that is last, as in RoBERTa. Sentinels are the very last ids,
    <extra_id_0> the highest. A small corpus may not hold `size` different pieces: the result is then smaller, and its
    `.size` says so. `normalise` is "nfc", "nfkc" or "none" (default: NFKC for unigram and bpe, as in sentencepiece, else
    none). `texts` may be read twice; bytes learn nothing from them.
    """
    if kind not in KINDS:
        raise EtymonError(f"unknown tokenizer kind {kind!r}; known are {', '.join(KINDS)}")
    unknown_roles = [role for role in specials if role not in ROLE_KEYS]
    if unknown_roles:
        raise EtymonError(f"unknown role {unknown_roles[0]!r}; roles are {', '.join(ROLE_KEYS)}")
    if kind not in LOSSLESS and "unknown" not in specials:
        raise EtymonError(f"a {kind} tokenizer needs an 'unknown' special token, e.g. [UNK] or <unk>")
    if normalise is not None and normalise not in kinds.FORMS:
        raise EtymonError(f"normalise must be one of {', '.join(kinds.FORMS)}, not {normalise!r}")
    if kind in LOSSLESS and (lowercase or strip_accents or normalise not in (None, "none")):
        raise EtymonError(
            f"a {kind} tokenizer is lossless: it takes neither lowercase nor strip_accents nor normalise"
        )
    form = normalise or ("nfkc" if kind in ("unigram", "bpe") else "none")
    settings = {"lowercase": lowercase, "strip_accents": strip_accents, "normalise": form}
    leading = list(dict.fromkeys(specials.values()))
    backend_of, train, needed, what = KINDS[kind]
    plan = _Plan(
        size - sentinels - len(leading),
        leading,
        specials.get("unknown", ""),
        specials.get("mask", ""),
        min_frequency,
        partial(backend_of, **({} if kind in LOSSLESS else settings)),
    )
    if plan.room < needed:
        raise EtymonError(
            f"a vocabulary of {size:,} is too small: beside special tokens it has room for {max(plan.room, 0)} tokens but "
            f"{what} need {needed}; the smallest has {size - plan.room + needed:,}"
        )
    if kind != "byte" and not any(text.strip() for text in texts):
        raise EtymonError("cannot train a tokenizer: there is no text")
    backend = plan.pipeline(train(_Pieces(texts), plan))
    # In byte-level BPE a space belongs to the token behind it, and so to the mask.
    spaced = plan.mask if kind == "byte-bpe" else None
    backend.add_special_tokens([AddedToken(token, lstrip=token == spaced, special=True) for token in leading])
    kinds.add_sentinels(backend, sentinels)
    tokenizer = Tokenizer(backend, specials, framing=framing)
    if kind == "word":
        tokenizer.counts = _token_counts(tokenizer, _Pieces(texts))
    return tokenizer


def _token_counts(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """How often every id occurs in the texts."""
    counts = np.zeros(tokenizer.size, np.int64)
    reading = iter(texts)
    while block := list(islice(reading, 1024)):
        counts += np.bincount(np.concatenate(tokenizer.encode_batch(block)), minlength=tokenizer.size)
    return counts


@dataclass(frozen=True)
class _Pieces:
    """The texts in pieces that no trainer chokes on."""

    texts: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return (text[start:stop] for text in self.texts for start, stop in pieces(text))


def _train_byte(texts: Iterable[str], plan: _Plan) -> models.BPE:
    return models.BPE(dict(BYTE_OF), [])


def _train_byte_bpe(texts: Iterable[str], plan: _Plan) -> models.BPE:
    learner = plan.learner(models.BPE())
    first = [token for token in plan.leading if token != plan.mask] if plan.mask else []
    own = {"vocab_size": len(first) + plan.room, "special_tokens": first}
    trainer = trainers.BpeTrainer(**plan.merging(pre_tokenizers.ByteLevel.alphabet()) | own)
    learner.train_from_iterator(texts, trainer)
    return learner.model


def _train_bpe(texts: Iterable[str], plan: _Plan) -> models.BPE:
    """At most half of the vocabulary is given to characters, as with unigrams; the rarest become unknown."""
    learner = plan.learner(models.BPE())
    alphabet = _alphabet(learner, _Counts(texts), plan.room // 2, also="▁")
    learner.train_from_iterator(texts, trainers.BpeTrainer(**plan.merging(alphabet)))
    learned = json.loads(learner.to_str())["model"]
    return models.BPE(learned["vocab"], merge_pairs(learned), unk_token=plan.unknown, fuse_unk=True)


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a tokenizer's model, if it has any: older files write them with a space between."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    return [(left, right) for left, right in pairs]


def _train_word_bpe(texts: Iterable[str], plan: _Plan) -> models.BPE:
    """Letters at the end of a word are letters of their own; they get fixed numbers, as WordPiece's get."""
    learner = plan.learner(models.BPE())
    alphabet = _alphabet(learner, _Counts(texts), plan.room // 4)
    last = [letter + kinds.WORD_END for letter in alphabet]
    own = {"special_tokens": plan.leading + last, "end_of_word_suffix": kinds.WORD_END}
    learner.train_from_iterator(texts, trainers.BpeTrainer(**plan.merging(alphabet) | own))
    learned = json.loads(learner.to_str())["model"]
    return models.BPE(
        learned["vocab"], merge_pairs(learned), unk_token=plan.unknown, end_of_word_suffix=kinds.WORD_END
    )


def _train_word(texts: Iterable[str], plan: _Plan) -> models.WordLevel:
    """The most frequent words, most frequent first."""
    learner = plan.learner(models.WordLevel({plan.unknown: 0}, unk_token=plan.unknown))
    trainer = trainers.WordLevelTrainer(**plan.options, min_frequency=plan.min_frequency)
    learner.train_from_iterator(texts, trainer)
    return learner.model


def _train_character(texts: Iterable[str], plan: _Plan) -> models.BPE:
    """The most frequent characters, most frequent first."""
    normalizer = plan.pipeline(models.BPE()).normalizer
    counts = _Counts(texts if normalizer is None else map(normalizer.normalize_str, texts))
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))[: plan.room]
    tokens = [*plan.leading, *(letter for letter in ranked if letter not in plan.leading)]
    return models.BPE({token: number for number, token in enumerate(tokens)}, [], unk_token=plan.unknown)


class _Counts:
    """How often each character occurs; much faster than a Counter."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._counts = np.zeros(0x110000, np.int64)
        for text in texts:
            found = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
            self._counts[: len(found)] += found

    def __iter__(self) -> Iterator[str]:
        return map(chr, np.flatnonzero(self._counts).tolist())

    def __getitem__(self, letter: str) -> int:
        return int(self._counts[ord(letter)])


def _train_wordpiece(texts: Iterable[str], plan: _Plan) -> models.WordPiece:
    """The trainer numbers the continuing letters (`##e`) in hash order and breaks ties by number. Giving
    them fixed numbers makes it deterministic, but needs the alphabet first."""
    learner = plan.learner(models.WordPiece({plan.unknown: 0}, unk_token=plan.unknown))
    alphabet = _alphabet(learner, _Counts(texts), plan.room // 4)
    continuing = ["##" + letter for letter in alphabet if _continues(letter)]
    own = {"special_tokens": plan.leading + continuing}
    learner.train_from_iterator(texts, trainers.WordPieceTrainer(**plan.merging(alphabet) | own))
    learned = learner.get_vocab()
    fixed = plan.leading + alphabet + continuing
    ordered = fixed + sorted(learned.keys() - set(fixed), key=learned.__getitem__)
    return models.WordPiece({token: number for number, token in enumerate(ordered)}, unk_token=plan.unknown)


def _alphabet(learner: tokenizers.Tokenizer, counts: _Counts, limit: int, also: str = "") -> list[str]:
    """The most frequent characters of the normalised text, in code point order, and those in `also`."""
    normalised: dict[str, int] = {}
    for letter in counts:
        for result in _normalised(learner, letter):
            normalised[result] = normalised.get(result, 0) + counts[letter]
    ranked = sorted(normalised, key=lambda letter: (-normalised[letter], letter))
    return sorted({*ranked[: limit - len(also)], *also})


def _normalised(learner: tokenizers.Tokenizer, letter: str) -> str:
    return "".join((learner.normalizer.normalize_str(letter) if learner.normalizer else letter).split())


def _continues(letter: str) -> bool:
    """Whether a character can stand inside a word: punctuation and ideographs are words by themselves."""
    ideograph = "CJK" in unicodedata.name(letter, "")
    symbol = letter.isascii() and not letter.isalnum()
    return not (ideograph or symbol or unicodedata.category(letter).startswith("P"))


def _train_unigram(texts: Iterable[str], plan: _Plan) -> models.Unigram:
    """The trainer keeps every character, so that rare ideographs could fill the vocabulary: at most half of
    it is given to characters, the rarest become unknown (sentencepiece's character coverage)."""
    learner, counts = plan.learner(models.Unigram()), _Counts(texts)
    kept = set(_alphabet(learner, counts, plan.room // 2))
    rare = {ord(letter): " " for letter in counts if not kept.issuperset(_normalised(learner, letter))}
    trainer = trainers.UnigramTrainer(**plan.options, unk_token=plan.unknown)
    learner.train_from_iterator((text.translate(rare) for text in texts), trainer)
    learned = json.loads(learner.to_str())["model"]["vocab"]
    found = [(piece, score) for piece, score in learned if piece not in plan.leading]
    vocabulary = [(token, 0.0) for token in plan.leading] + _canonical(found)
    return models.Unigram(vocabulary, plan.leading.index(plan.unknown), False)


def _canonical(found: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Scores and order that do not depend on the trainer's hash order.

    It sums probabilities in hash order (noise in the last digits) and gives the characters that it had to
    keep the lowest score plus a step of 0.0001 each, again in hash order.
    """
    lowest = min(score for _, score in found)
    reach = 1e-4 * len(found)

    def settled(piece: str, score: float) -> float:
        steps = (score - lowest) / 1e-4
        stepped = len(piece) == 1 and score - lowest < reach and abs(steps - round(steps)) < 1e-6
        return round(lowest if stepped else score, 6)

    settled_pieces = [(piece, settled(piece, score)) for piece, score in found]
    return sorted(settled_pieces, key=lambda item: (-item[1], item[0]))


KINDS: dict[
    str, tuple[Callable[..., tokenizers.Tokenizer], Callable[[Iterable[str], _Plan], Any], int, str]
] = {
    "byte-bpe": (kinds.byte_bpe_backend, _train_byte_bpe, 256, "the 256 bytes"),
    "bpe": (kinds.metaspace_backend, _train_bpe, 8, "an alphabet"),
    "word-bpe": (kinds.word_bpe_backend, _train_word_bpe, 8, "an alphabet"),
    "wordpiece": (kinds.wordpiece_backend, _train_wordpiece, 8, "an alphabet"),
    "unigram": (kinds.metaspace_backend, _train_unigram, 8, "an alphabet"),
    "word": (kinds.word_backend, _train_word, 1, "a word"),
    "character": (kinds.character_backend, _train_character, 1, "a character"),
    "byte": (kinds.byte_backend, _train_byte, 256, "the 256 bytes"),
}
"""The pipeline around a model, what trains the model, and the tokens beside special ones that it cannot do without."""
