"""Training a tokenizer on a user's text. The same text always gives the same tokenizer."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from etymon.data.cutting import pieces
from etymon.data.framing import Framing
from etymon.data.tokenizer import ROLE_KEYS, Tokenizer
from etymon.data.tokenizer_files import post_processor
from etymon.data.tokenizer_kinds import (
    FORMS,
    add_sentinels,
    byte_backend,
    byte_bpe_backend,
    character_backend,
    cutting_long_runs,
    metaspace_backend,
    word_backend,
    wordpiece_backend,
)
from etymon.errors import EtymonError

KINDS = ("byte-bpe", "bpe", "wordpiece", "unigram", "word", "character", "byte")
LOSSLESS = ("byte-bpe", "byte")
LONGEST_RUN = 48  # characters of a run without spaces that a trainer sees as one word
Progress = Callable[[int], None]


@dataclass(frozen=True)
class _Plan:
    """What a trainer has to know: `room` is for everything but special tokens and sentinels."""

    room: int
    leading: list[str]
    unknown: str
    mask: str
    min_frequency: int
    settings: dict[str, Any]


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
    progress: Progress | None = None,
) -> Tokenizer:
    """Learn at most `size` tokens, special tokens and sentinels included, from `texts`.

    `specials` maps roles to tokens; they get the first ids in the given order. Bytes and byte-level BPE give them the
    last, as in GPT-2; but where BPE has a mask, only that is last, as in RoBERTa. Sentinels are the very last ids,
    <extra_id_0> the highest. A small corpus may not hold `size` different pieces: the result is then smaller, and its
    `.size` says so. `normalise` is "nfc", "nfkc" or
    "none" (default: NFKC for unigram and bpe, as in sentencepiece, else none). `progress` is called with the
    number of UTF-8 bytes read so far. Bytes learn nothing, so `texts` is then not read.
    """
    if kind not in KINDS:
        raise EtymonError(f"unknown tokenizer kind {kind!r}; known are {', '.join(KINDS)}")
    unknown_roles = [role for role in specials if role not in ROLE_KEYS]
    if unknown_roles:
        raise EtymonError(f"unknown role {unknown_roles[0]!r}; roles are {', '.join(ROLE_KEYS)}")
    if kind not in LOSSLESS and "unknown" not in specials:
        raise EtymonError(f"a {kind} tokenizer needs an 'unknown' special token, e.g. [UNK] or <unk>")
    if normalise is not None and normalise not in FORMS:
        raise EtymonError(f"normalise must be one of {', '.join(FORMS)}, not {normalise!r}")
    if kind in LOSSLESS and (lowercase or strip_accents or normalise not in (None, "none")):
        raise EtymonError(
            f"a {kind} tokenizer is lossless: it takes neither lowercase nor strip_accents nor normalise"
        )
    form = normalise or ("nfkc" if kind in ("unigram", "bpe") else "none")
    leading = list(dict.fromkeys(specials.values()))
    plan = _Plan(
        size - sentinels - len(leading),
        leading,
        specials.get("unknown", ""),
        specials.get("mask", ""),
        min_frequency,
        {"lowercase": lowercase, "strip_accents": strip_accents, "normalise": form},
    )
    backend = TRAINERS[kind](_counted(texts, progress), plan)
    # In byte-level BPE a space belongs to the token behind it, and so to the mask.
    spaced = plan.mask if kind == "byte-bpe" else None
    backend.add_special_tokens([AddedToken(token, lstrip=token == spaced, special=True) for token in leading])
    add_sentinels(backend, sentinels)
    tokenizer = Tokenizer(backend, specials, framing=framing)
    processor = post_processor(tokenizer.framing, tokenizer)
    if processor is None:
        return tokenizer
    backend.post_processor = processor
    return Tokenizer(backend, specials, framing=framing)


def _counted(texts: Iterable[str], progress: Progress | None) -> Iterator[str]:
    """The texts in pieces that no trainer chokes on."""
    done = 0
    for text in texts:
        if text.strip():
            for start, stop in pieces(text):
                yield text[start:stop]
            done += len(text.encode())
            if progress is not None:
                progress(done)
    if not done:
        raise EtymonError("cannot train a tokenizer: there is no text")


def _train(learner: tokenizers.Tokenizer, texts: Iterable[str], trainer: Any) -> None:
    failure: list[Exception] = []

    def guarded() -> Iterator[str]:
        try:
            yield from texts
        except Exception as error:  # the library would swallow its type
            failure.append(error)

    learner.train_from_iterator(guarded(), trainer)
    if failure:
        raise failure[0]


def _train_byte(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    _require(plan.room >= 256, plan.room, 256, "the 256 bytes")
    return byte_backend()


def _train_byte_bpe(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    _require(plan.room >= 256, plan.room, 256, "the 256 bytes")
    learner = cutting_long_runs(byte_bpe_backend(models.BPE()), LONGEST_RUN)
    first = [token for token in plan.leading if token != plan.mask] if plan.mask else []
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + plan.room,
        min_frequency=plan.min_frequency,
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _train(learner, texts, trainer)
    return byte_bpe_backend(learner.model)


def _train_bpe(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    """At most half of the vocabulary is given to characters, as with unigrams; the rarest become unknown."""
    _require(plan.room >= 8, plan.room, 8, "an alphabet")
    learner = cutting_long_runs(metaspace_backend(models.BPE(), **plan.settings), LONGEST_RUN)
    with _spooled(texts) as (spool, counts):
        alphabet = _alphabet(learner, counts, plan.room // 2, also="▁")
        trainer = trainers.BpeTrainer(
            vocab_size=len(plan.leading) + plan.room,
            min_frequency=plan.min_frequency,
            special_tokens=plan.leading,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        learner.train([str(spool)], trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in learned["merges"]]
    model = models.BPE(learned["vocab"], merges, unk_token=plan.unknown, fuse_unk=True)
    return metaspace_backend(model, **plan.settings)


def _train_word(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    """The most frequent words, most frequent first."""
    _require(plan.room >= 1, plan.room, 1, "a word")
    known = {plan.unknown: 0}
    learner = cutting_long_runs(word_backend(known, unknown=plan.unknown, **plan.settings), LONGEST_RUN)
    trainer = trainers.WordLevelTrainer(
        vocab_size=len(plan.leading) + plan.room,
        min_frequency=plan.min_frequency,
        special_tokens=plan.leading,
        show_progress=False,
    )
    _train(learner, texts, trainer)
    return word_backend(learner.get_vocab(), unknown=plan.unknown, **plan.settings)


def _train_character(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    """The most frequent characters, most frequent first."""
    _require(plan.room >= 1, plan.room, 1, "a character")
    vocabulary = {token: number for number, token in enumerate(plan.leading)}
    learner = character_backend(vocabulary, unknown=plan.unknown, **plan.settings)
    counts = _Counts()
    for text in texts:
        counts.add(learner.normalizer.normalize_str(text) if learner.normalizer else text)
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))[: plan.room]
    vocabulary |= {letter: len(vocabulary) + number for number, letter in enumerate(ranked)}
    return character_backend(vocabulary, unknown=plan.unknown, **plan.settings)


class _Counts:
    """How often each character occurs; much faster than a Counter."""

    def __init__(self) -> None:
        self._counts = np.zeros(0x110000, np.int64)

    def add(self, text: str) -> None:
        found = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
        self._counts[: len(found)] += found

    def __iter__(self) -> Iterator[str]:
        return map(chr, np.flatnonzero(self._counts).tolist())

    def __getitem__(self, letter: str) -> int:
        return int(self._counts[ord(letter)])


def _train_wordpiece(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    """The trainer numbers the continuing letters (`##e`) in hash order and breaks ties by number. Giving
    them fixed numbers makes it deterministic, but needs the alphabet first: the text is spooled to disk."""
    room, leading = plan.room, plan.leading
    _require(room >= 8, room, 8, "an alphabet")
    settings: dict[str, Any] = {"unknown": plan.unknown, **plan.settings}
    learner = cutting_long_runs(wordpiece_backend({plan.unknown: 0}, **settings), LONGEST_RUN)
    with _spooled(texts) as (spool, counts):
        alphabet = _alphabet(learner, counts, room // 4)
        continuing = ["##" + letter for letter in alphabet if _continues(letter)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=len(leading) + room,
            min_frequency=plan.min_frequency,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=leading + continuing,
            show_progress=False,
        )
        learner.train([str(spool)], trainer)
    learned = learner.get_vocab()
    merged = sorted(learned.keys() - {*leading, *alphabet, *continuing}, key=learned.__getitem__)
    ordered = leading + alphabet + continuing + merged
    return wordpiece_backend({token: number for number, token in enumerate(ordered)}, **settings)


@contextmanager
def _spooled(texts: Iterator[str]) -> Iterator[tuple[Path, _Counts]]:
    """All texts in one temporary file, and how often each character occurs."""
    counts = _Counts()
    with tempfile.TemporaryDirectory(prefix="etymon-") as folder:
        spool = Path(folder, "text.txt")
        with spool.open("w", encoding="utf-8") as file:
            for text in texts:
                counts.add(text)
                file.write(text + "\n")
        yield spool, counts


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


def _train_unigram(texts: Iterator[str], plan: _Plan) -> tokenizers.Tokenizer:
    """The trainer keeps every character, so that rare ideographs could fill the vocabulary: at most half of
    it is given to characters, the rarest become unknown (sentencepiece's character coverage)."""
    room, leading = plan.room, plan.leading
    _require(room >= 8, room, 8, "an alphabet")
    learner = cutting_long_runs(metaspace_backend(models.Unigram(), **plan.settings), LONGEST_RUN)
    trainer = trainers.UnigramTrainer(
        vocab_size=len(leading) + room, special_tokens=leading, unk_token=plan.unknown, show_progress=False
    )
    with _spooled(texts) as (spool, counts):
        kept = set(_alphabet(learner, counts, room // 2))
        rare = {ord(letter): " " for letter in counts if not kept.issuperset(_normalised(learner, letter))}
        with spool.open(encoding="utf-8", newline="\n") as lines:
            learner.train_from_iterator((line.translate(rare) for line in lines), trainer)
    learned = json.loads(learner.to_str())["model"]["vocab"]
    found = [(piece, score) for piece, score in learned if piece not in leading]
    vocabulary = [(token, 0.0) for token in leading] + _canonical(found)
    return metaspace_backend(models.Unigram(vocabulary, leading.index(plan.unknown), False), **plan.settings)


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


def _require(fits: bool, room: int, needed: int, what: str) -> None:
    if not fits:
        raise EtymonError(
            f"the vocabulary is too small: beside special tokens it has room for {max(room, 0)} tokens but "
            f"{what} need {needed}; ask for at least {needed - room} more"
        )


TRAINERS: dict[str, Callable[[Iterator[str], _Plan], tokenizers.Tokenizer]] = {
    "byte-bpe": _train_byte_bpe,
    "bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
    "unigram": _train_unigram,
    "word": _train_word,
    "character": _train_character,
    "byte": _train_byte,
}
