"""Training a tokenizer on a user's text. The same text always gives the same tokenizer."""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from etymon.data.framing import Framing
from etymon.data.tokenizer import ROLE_KEYS, Tokenizer
from etymon.data.tokenizer_files import (
    add_sentinels,
    byte_bpe_backend,
    post_processor,
    unigram_backend,
    wordpiece_backend,
)
from etymon.errors import EtymonError

KINDS = ("byte-bpe", "wordpiece", "unigram")
Progress = Callable[[int], None]


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    specials: Mapping[str, str],
    sentinels: int = 0,
    framing: Framing | None = None,
    min_frequency: int = 2,
    progress: Progress | None = None,
) -> Tokenizer:
    """Learn at most `size` tokens, special tokens and sentinels included, from `texts`.

    `specials` maps roles to tokens; they get the first ids in the given order (byte-level BPE: the last,
    as in GPT-2). Sentinels are the very last ids, <extra_id_0> the highest. A small corpus may not hold
    `size` different pieces: the result is then smaller, and its `.size` says so. `progress` is called with
    the number of UTF-8 bytes read so far.
    """
    if kind not in KINDS:
        raise EtymonError(f"unknown tokenizer kind {kind!r}; known are {', '.join(KINDS)}")
    unknown_roles = [role for role in specials if role not in ROLE_KEYS]
    if unknown_roles:
        raise EtymonError(f"unknown role {unknown_roles[0]!r}; roles are {', '.join(ROLE_KEYS)}")
    if kind != "byte-bpe" and "unknown" not in specials:
        raise EtymonError(f"a {kind} tokenizer needs an 'unknown' special token, e.g. [UNK] or <unk>")
    if kind == "byte-bpe" and (lowercase or strip_accents):
        raise EtymonError("byte-level BPE is lossless: it takes neither lowercase nor strip_accents")
    leading = list(dict.fromkeys(specials.values()))
    room = size - sentinels - len(leading)
    counted = _counted(texts, progress)
    if kind == "byte-bpe":
        backend = _train_byte_bpe(counted, room, min_frequency)
        backend.add_special_tokens(leading)
    elif kind == "wordpiece":
        unknown = specials["unknown"]
        backend = _train_wordpiece(counted, room, leading, unknown, lowercase, strip_accents, min_frequency)
    else:
        backend = _train_unigram(counted, room, leading, specials["unknown"], lowercase, strip_accents)
    add_sentinels(backend, sentinels)
    tokenizer = Tokenizer(backend, specials, framing=framing)
    processor = post_processor(tokenizer.framing, tokenizer)
    if processor is None:
        return tokenizer
    backend.post_processor = processor
    return Tokenizer(backend, specials, framing=framing)


def _counted(texts: Iterable[str], progress: Progress | None) -> Iterator[str]:
    done = 0
    for text in texts:
        if text.strip():
            yield text
            done += len(text.encode())
            if progress is not None:
                progress(done)
    if not done:
        raise EtymonError("cannot train a tokenizer: there is no text")


def _train_byte_bpe(texts: Iterator[str], room: int, min_frequency: int) -> tokenizers.Tokenizer:
    _require(room >= 256, room, 256, "the 256 bytes")
    backend = byte_bpe_backend(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    failure: list[Exception] = []

    def guarded() -> Iterator[str]:
        try:
            yield from texts
        except Exception as error:  # the library would swallow its type
            failure.append(error)

    backend.train_from_iterator(guarded(), trainer)
    if failure:
        raise failure[0]
    return backend


def _train_wordpiece(
    texts: Iterator[str],
    room: int,
    leading: list[str],
    unknown: str,
    lowercase: bool,
    strip_accents: bool,
    min_frequency: int,
) -> tokenizers.Tokenizer:
    """The trainer numbers the continuing letters (`##e`) in hash order and breaks ties by number. Giving
    them fixed numbers makes it deterministic, but needs the alphabet first: the text is spooled to disk."""
    _require(room >= 8, room, 8, "an alphabet")
    settings: dict[str, Any] = {"unknown": unknown, "lowercase": lowercase, "strip_accents": strip_accents}
    learner = wordpiece_backend({unknown: 0}, **settings)
    with _spooled(texts) as (spool, counts):
        alphabet = _alphabet(learner, counts, room // 4)
        continuing = ["##" + letter for letter in alphabet if _continues(letter)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=len(leading) + room,
            min_frequency=min_frequency,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=leading + continuing,
            show_progress=False,
        )
        learner.train([str(spool)], trainer)
    learned = learner.get_vocab()
    merged = sorted(learned.keys() - {*leading, *alphabet, *continuing}, key=learned.__getitem__)
    ordered = leading + alphabet + continuing + merged
    backend = wordpiece_backend({token: number for number, token in enumerate(ordered)}, **settings)
    backend.add_special_tokens(leading)
    return backend


@contextmanager
def _spooled(texts: Iterator[str]) -> Iterator[tuple[Path, Counter[str]]]:
    """All texts in one temporary file, and how often each character occurs."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="etymon-") as folder:
        spool = Path(folder, "text.txt")
        with spool.open("w", encoding="utf-8") as file:
            for text in texts:
                counts.update(text)
                file.write(text + "\n")
        yield spool, counts


def _alphabet(learner: tokenizers.Tokenizer, counts: Counter[str], limit: int) -> list[str]:
    """The most frequent characters of the normalised text, in code point order."""
    normalised: Counter[str] = Counter()
    for letter, count in counts.items():
        for result in _normalised(learner, letter):
            normalised[result] += count
    ranked = sorted(normalised, key=lambda letter: (-normalised[letter], letter))
    return sorted(ranked[:limit])


def _normalised(learner: tokenizers.Tokenizer, letter: str) -> str:
    return "".join(learner.normalizer.normalize_str(letter).split())


def _continues(letter: str) -> bool:
    """Whether a character can stand inside a word: punctuation and ideographs are words by themselves."""
    ideograph = "CJK" in unicodedata.name(letter, "")
    symbol = letter.isascii() and not letter.isalnum()
    return not (ideograph or symbol or unicodedata.category(letter).startswith("P"))


def _train_unigram(
    texts: Iterator[str], room: int, leading: list[str], unknown: str, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """The trainer keeps every character, so that rare ideographs could fill the vocabulary: at most half of
    it is given to characters, the rarest become unknown (sentencepiece's character coverage)."""
    _require(room >= 8, room, 8, "an alphabet")
    settings: dict[str, Any] = {"lowercase": lowercase, "strip_accents": strip_accents}
    learner = unigram_backend(models.Unigram(), **settings)
    trainer = trainers.UnigramTrainer(
        vocab_size=len(leading) + room, special_tokens=leading, unk_token=unknown, show_progress=False
    )
    with _spooled(texts) as (spool, counts):
        kept = set(_alphabet(learner, counts, room // 2))
        rare = {ord(letter): " " for letter in counts if not kept.issuperset(_normalised(learner, letter))}
        with spool.open(encoding="utf-8", newline="\n") as lines:
            learner.train_from_iterator((line.translate(rare) for line in lines), trainer)
    learned = json.loads(learner.to_str())["model"]["vocab"]
    pieces = [(piece, score) for piece, score in learned if piece not in leading]
    vocabulary = [(token, 0.0) for token in leading] + _canonical(pieces)
    backend = unigram_backend(models.Unigram(vocabulary, leading.index(unknown), False), **settings)
    backend.add_special_tokens(leading)
    return backend


def _canonical(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Scores and order that do not depend on the trainer's hash order.

    It sums probabilities in hash order (noise in the last digits) and gives the characters that it had to
    keep the lowest score plus a step of 0.0001 each, again in hash order.
    """
    lowest = min(score for _, score in pieces)
    reach = 1e-4 * len(pieces)

    def settled(piece: str, score: float) -> float:
        steps = (score - lowest) / 1e-4
        stepped = len(piece) == 1 and score - lowest < reach and abs(steps - round(steps)) < 1e-6
        return round(lowest if stepped else score, 6)

    settled_pieces = [(piece, settled(piece, score)) for piece, score in pieces]
    return sorted(settled_pieces, key=lambda item: (-item[1], item[0]))


def _require(fits: bool, room: int, needed: int, what: str) -> None:
    if not fits:
        raise EtymonError(
            f"the vocabulary is too small: beside special tokens it has room for {max(room, 0)} tokens but "
            f"{what} need {needed}; ask for at least {needed - room} more"
        )
