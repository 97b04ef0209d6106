"""Training a tokenizer on a user's text, and the pipeline of each kind. The same text always gives the same
tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers

from etymon.errors import EtymonError
from etymon.registry import TOKENIZERS as KINDS
from etymon.text.alphabets import (
    MANY_STRIPPED,
    MOST_LETTERS,
    CharacterCounts,
    can_continue,
    choose_letters,
    is_ideograph,
    is_of_thousands,
    is_spaceless,
    loses_by_stripping,
    normalise_letter,
    normalised_counts,
)
from etymon.text.framing import Framing
from etymon.text.normalising import Normalisation, NormalisedTexts
from etymon.text.sentences import cut_texts
from etymon.text.tokenizer import BYTE_OF, BYTE_PIECE, ROLE_KEYS, Tokenizer
from etymon.text.tokenizer_pipelines import (
    LONGEST_RUN,
    SPACELESS_LETTERS,
    WORD_END,
    add_sentinels,
    byte_bpe_backend,
    character_backend,
    merge_pairs,
    metaspace_backend,
    parse_normalise,
    word_backend,
    word_bpe_backend,
    wordpiece_backend,
)

LOSSLESS = ("byte-bpe", "byte")
SEEDS = 2.5
"""Pieces that unigrams of a script without spaces are chosen from, for every one that is kept."""
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
ROOM_FOR_BYTES = 8 * len(BYTE_PIECES)
"""The smallest vocabulary, special tokens aside, in which bytes spell the characters that have no token."""
MANY_SPACELESS, MOSTLY_SPACELESS = 0.01, 0.1
"""Shares of a text's characters from which on words of scripts without spaces are cut,
and unigrams hurried."""


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = False,
    strip_accents: bool | None = False,
    normalise: str | Sequence[str] | None = None,
    specials: Mapping[str, str],
    sentinels: int = 0,
    framing: Framing | None = None,
    min_frequency: int = 2,
) -> Tokenizer:
    """Learn at most `size` tokens, special tokens and sentinels included, from `texts`.

    `specials` maps roles to tokens; they get the first ids in the given order. Bytes and byte-level BPE give
    them the last, as in GPT-2; but where BPE has a mask, only that is last, as in RoBERTa. Sentinels are the
    very last ids, <extra_id_0> the highest. A small corpus may not hold `size` different pieces: the result
    is then smaller, and its `.size` says so; but no place stays empty while a character has none. With
    `strip_accents` None they go unless that would spoil letters of other scripts. `normalise` is a Unicode
    form, "nfc", "nfkc" or "none" (default: NFKC for unigram and bpe, as in sentencepiece), steps of
    `normalising.STEPS`, or both. `texts` may be read twice; bytes learn nothing from them.
    """
    if kind not in KINDS:
        raise EtymonError(f"unknown tokenizer kind {kind!r}; known are {', '.join(KINDS)}")
    form, normalisation = parse_normalise(normalise)
    # A lossless tokenizer may have steps, too: they are asked for, and it spells what they leave exactly.
    if normalisation:
        texts = NormalisedTexts(texts, normalisation)
    if kind not in TRAINERS:
        return _train_by_plugin(kind, texts, size - sentinels, specials, sentinels, framing, normalisation)
    if unknown_roles := [role for role in specials if role not in ROLE_KEYS]:
        raise EtymonError(f"unknown role {unknown_roles[0]!r}; roles are {', '.join(ROLE_KEYS)}")
    if kind not in LOSSLESS and "unknown" not in specials:
        raise EtymonError(f"a {kind} tokenizer needs an 'unknown' special token, e.g. [UNK] or <unk>")
    if kind in LOSSLESS and (lowercase or strip_accents or form not in (None, "none")):
        raise EtymonError(
            f"a {kind} tokenizer is lossless: it takes neither lowercase nor strip_accents nor nfc nor nfkc"
        )
    build_backend, train, smallest, needs = TRAINERS[kind]
    # One token may have several roles: GPT-2's ends a text, begins it and pads.
    leading = list(dict.fromkeys(specials.values()))
    unknown, mask = (specials.get(role, "") for role in ("unknown", "mask"))
    room = size - sentinels - len(leading)
    if room < smallest:
        raise EtymonError(
            f"a vocabulary of {size:,} is too small: beside special tokens it has room for {max(room, 0)} "
            f"tokens but {needs} need {smallest}; the smallest has {size - room + smallest:,}",
            code="small-vocabulary",
        )
    if kind != "byte" and not any(text.strip() for text in texts):
        raise EtymonError("cannot train a tokenizer: there is no text", code="too-little-text")
    job = _Job(texts, room, leading, unknown, mask, min_frequency, build_backend)
    if kind not in LOSSLESS:
        form = form or ("nfkc" if kind in ("unigram", "bpe") else "none")
        if strip_accents is None:
            strip_accents = job.counts.share(loses_by_stripping) < MANY_STRIPPED
        settings = {"lowercase": lowercase, "strip_accents": strip_accents, "normalise": form}
        if kind in ("wordpiece", "word-bpe"):
            is_in_run = re.compile(SPACELESS_LETTERS).match
            settings["cut_runs"] = job.counts.share(lambda letter: bool(is_in_run(letter))) >= MANY_SPACELESS
        job.pipeline = partial(build_backend, **settings)
    # Trained with limits of a word's length, used without them: the pipeline is put around the model anew.
    backend = job.pipeline(train(job))
    # In byte-level BPE a space belongs to the token behind it, and so to the mask.
    spaced = mask if kind == "byte-bpe" else None
    backend.add_special_tokens([AddedToken(token, lstrip=token == spaced, special=True) for token in leading])
    add_sentinels(backend, sentinels)
    tokenizer = Tokenizer(backend, specials, framing=framing, normalise=normalisation)
    # An adaptive softmax cuts the vocabulary by frequency, and needs the counts.
    if kind == "word":
        counts, rest = np.zeros(tokenizer.size, np.int64), job.texts
        while block := list(islice(rest, 1024)):
            counts += np.bincount(np.concatenate(tokenizer.encode_batch(block)), minlength=tokenizer.size)
        tokenizer.counts = counts
    return tokenizer


def _train_by_plugin(
    kind: str,
    texts: Iterable[str],
    size: int,
    specials: Mapping[str, str],
    sentinels: int,
    framing: Framing | None,
    normalise: Normalisation,
) -> Tokenizer:
    """The same by a plugin's function of texts, size and special tokens, which get the first ids."""
    leading = list(dict.fromkeys(specials.values()))
    backend = KINDS.find(kind)(texts, size, leading)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise EtymonError(
            f"the tokenizer {kind!r} gives {type(backend).__name__}: it has to be a Tokenizer of the "
            "tokenizers library"
        )
    backend.add_special_tokens([AddedToken(token, special=True) for token in leading])
    add_sentinels(backend, sentinels)
    return Tokenizer(backend, specials, framing=framing, normalise=normalise)


@dataclass
class _Job:
    """What a trainer has to know: `room` is for everything but special tokens and sentinels."""

    whole_texts: Iterable[str]
    room: int
    leading: list[str]
    unknown: str
    mask: str
    min_frequency: int
    pipeline: Callable[[Any], tokenizers.Tokenizer]
    """Puts what is around a model around it."""

    @property
    def texts(self) -> Iterator[str]:
        """The texts, from the beginning, in pieces that no trainer chokes on."""
        return cut_texts(self.whole_texts)

    def learner(self, model: Any) -> tokenizers.Tokenizer:
        """The pipeline around a model that is to be trained: no word is longer than `LONGEST_RUN` characters.

        In scripts without spaces a "word" is a whole line; trainers would take it for one and need time and
        memory by the square of its length.
        """
        backend = self.pipeline(model)
        kind = json.loads(backend.to_str())["pre_tokenizer"]["type"]
        split, usual = pre_tokenizers.Split, backend.pre_tokenizer
        if kind == "ByteLevel":  # afterwards it would cut through characters
            steps = [split(Regex(rf" ?\S{{{LONGEST_RUN}}}"), "isolated"), usual]
        else:
            steps = [usual, split(Regex(rf".{{{LONGEST_RUN}}}"), "isolated")]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return backend

    def options(self, alphabet: list[str] | None = None, **others: Any) -> dict[str, Any]:
        """The options of the library's trainers; with an `alphabet`, of those that merge letters."""
        size = len(self.leading) + self.room
        options: dict[str, Any] = {"vocab_size": size, "special_tokens": self.leading, "show_progress": False}
        if alphabet is not None:
            options |= {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
            options["min_frequency"] = self.min_frequency
        return options | others

    @cached_property
    def counts(self) -> CharacterCounts:
        return CharacterCounts(self.texts)

    def alphabet(
        self,
        learner: tokenizers.Tokenizer,
        share: int,
        cost: Callable[[str], int] = lambda letter: 1,
        also: str = "",
    ) -> tuple[list[str], list[str]]:
        """The characters of the normalised text that get tokens before anything is merged, and those in
        `also`, in code point order; and the rest, most frequent first. See `choose_letters`: one in `share`
        tokens is usual."""
        counts = normalised_counts(self.counts, learner)
        usual, most = self.room // share - len(also), int(self.room * MOST_LETTERS) - len(also)
        letters, rest = choose_letters(counts, usual, most, cost)
        return sorted({*letters, *also}), [letter for letter in rest if letter not in also]

    def reserve_bytes(self) -> None:
        """Gives 256 places to bytes, which spell whatever has no token (sentencepiece's byte fallback)."""
        # First ids behind the special tokens, as sentencepiece gives them.
        self.leading, self.room = self.leading + BYTE_PIECES, self.room - len(BYTE_PIECES)

    def sentencepiece_alphabet(
        self, learner: tokenizers.Tokenizer, also: str = ""
    ) -> tuple[list[str], list[str]]:
        """As `alphabet`, for about half of the vocabulary. Of a text or script with more characters, bytes
        are for the others if there is room: 4 MB of Chinese left 0.15% of tokens unknown, 0.3 MB 0.63%."""
        letters, rest = self.alphabet(learner, 2, also=also)
        has_others = rest or self.counts.share(is_of_thousands) >= MOSTLY_SPACELESS
        if has_others and self.room >= ROOM_FOR_BYTES:
            self.reserve_bytes()
            letters, rest = self.alphabet(learner, 2, also=also)
        return letters, rest

    def fill(self, tokens: list[str], forms: Iterable[str]) -> list[str]:
        """The tokens, and as many of the `forms` behind them as there are empty places."""
        present = set(tokens)
        new = [form for form in dict.fromkeys(forms) if form not in present]
        return tokens + new[: max(0, len(self.leading) + self.room - len(tokens))]


# ---------------------------------------------------------------- the model of each kind


def _train_byte(job: _Job) -> models.BPE:
    return models.BPE(dict(BYTE_OF), [])


def _train_byte_bpe(job: _Job) -> models.BPE:
    learner = job.learner(models.BPE())
    # The mask comes behind all others, as in RoBERTa's files.
    first = [token for token in job.leading if token != job.mask] if job.mask else []
    options = {"vocab_size": len(first) + job.room, "special_tokens": first}
    trainer = trainers.BpeTrainer(**job.options(pre_tokenizers.ByteLevel.alphabet(), **options))
    learner.train_from_iterator(job.texts, trainer)
    return learner.model


def _train_bpe(job: _Job) -> models.BPE:
    learner = job.learner(models.BPE())
    alphabet, rest = job.sentencepiece_alphabet(learner, also="▁")
    tokens, merges = _learn_merges(job, learner, trainers.BpeTrainer(**job.options(alphabet)))
    others = {"fuse_unk": True, "byte_fallback": "<0xFF>" in tokens}
    return models.BPE(_numbered(job.fill(tokens, rest)), merges, unk_token=job.unknown, **others)


def _train_word_bpe(job: _Job) -> models.BPE:
    """Letters at the end of a word are letters of their own; they get fixed numbers, as WordPiece's get."""
    learner = job.learner(models.BPE())
    alphabet, rest = job.alphabet(learner, 4, cost=lambda letter: 2 - is_ideograph(letter))
    fixed = job.leading + [letter + WORD_END for letter in alphabet]
    # The trainer wants every letter as it is, too, but an ideograph never stands inside a word. Stray ones
    # stay, so that a text in another script gives the tokenizer that it always gave.
    has_many = job.counts.share(is_ideograph) >= MANY_SPACELESS
    alone = set(filter(is_ideograph, alphabet)) if has_many else set()
    size = len(job.leading) + job.room + len(alone)
    options = job.options(alphabet, special_tokens=fixed, end_of_word_suffix=WORD_END, vocab_size=size)
    tokens, merges = _learn_merges(job, learner, trainers.BpeTrainer(**options))
    forms = ([letter + WORD_END] + ([] if is_ideograph(letter) else [letter]) for letter in rest)
    tokens = job.fill([token for token in tokens if token not in alone], chain.from_iterable(forms))
    return models.BPE(_numbered(tokens), merges, unk_token=job.unknown, end_of_word_suffix=WORD_END)


def _learn_merges(
    job: _Job, learner: tokenizers.Tokenizer, trainer: Any
) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens by their numbers, and the merges, that are learnt from the text."""
    learner.train_from_iterator(job.texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    return sorted(learned["vocab"], key=learned["vocab"].__getitem__), merge_pairs(learned)


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _train_word(job: _Job) -> models.WordLevel:
    """The most frequent words, most frequent first."""
    learner = job.learner(models.WordLevel({job.unknown: 0}, unk_token=job.unknown))
    trainer = trainers.WordLevelTrainer(**job.options(min_frequency=job.min_frequency))
    learner.train_from_iterator(job.texts, trainer)
    return learner.model


def _train_character(job: _Job) -> models.BPE:
    """The most frequent characters, most frequent first."""
    normalizer = job.pipeline(models.BPE()).normalizer
    texts = job.texts if normalizer is None else map(normalizer.normalize_str, job.texts)
    ranked = CharacterCounts(texts).ranked()[: job.room]
    tokens = dict.fromkeys([*job.leading, *ranked])
    return models.BPE(_numbered(tokens), [], unk_token=job.unknown)


def _train_wordpiece(job: _Job) -> models.WordPiece:
    """The trainer numbers the continuing letters (`##e`) in hash order and breaks ties by number. Giving
    them fixed numbers makes it deterministic, but needs the alphabet first."""
    learner = job.learner(models.WordPiece({job.unknown: 0}, unk_token=job.unknown))
    alphabet, rest = job.alphabet(learner, 4, cost=lambda letter: 1 + can_continue(letter))
    continuing = ["##" + letter for letter in alphabet if can_continue(letter)]
    options = job.options(alphabet, special_tokens=job.leading + continuing)
    learner.train_from_iterator(job.texts, trainers.WordPieceTrainer(**options))
    learned = learner.get_vocab()
    fixed = job.leading + alphabet + continuing
    ordered = fixed + sorted(learned.keys() - set(fixed), key=learned.__getitem__)
    forms = ((letter, "##" + letter) if can_continue(letter) else (letter,) for letter in rest)
    ordered = job.fill(ordered, chain.from_iterable(forms))
    return models.WordPiece(_numbered(ordered), unk_token=job.unknown)


def _train_unigram(job: _Job) -> models.Unigram:
    """The trainer keeps every character, so that rare ideographs could fill the vocabulary: about half of it
    is given to characters at most, the rarest are left out (sentencepiece's character coverage)."""
    learner = job.learner(models.Unigram())
    letters, rest = job.sentencepiece_alphabet(learner)
    alphabet = set(letters)
    rare = {
        ord(letter): " "
        for letter in job.counts
        if not alphabet.issuperset(normalise_letter(learner, letter))
    }
    trainer = trainers.UnigramTrainer(**job.options(unk_token=job.unknown))
    if job.counts.share(is_spaceless) >= MOSTLY_SPACELESS:
        _hurry(trainer, seeds=int(SEEDS * job.room))
    learner.train_from_iterator((text.translate(rare) for text in job.texts), trainer)
    learned = json.loads(learner.to_str())["model"]["vocab"]
    pieces = [(piece, score) for piece, score in learned if piece not in job.leading]
    # Scores and order must not depend on the trainer's hash order: it sums probabilities in that order
    # (noise in the last digits) and gives the characters that it had to keep the lowest score plus a step of
    # 0.0001 each.
    lowest = min(score for _, score in pieces)
    settled = []
    for piece, score in pieces:
        steps = (score - lowest) / 1e-4
        has_step = (
            len(piece) == 1 and score - lowest < 1e-4 * len(pieces) and abs(steps - round(steps)) < 1e-6
        )
        settled.append((piece, round(lowest if has_step else score, 6)))
    # By score and then by letters: the same text gives the same numbers on every machine.
    settled.sort(key=lambda item: (-item[1], item[0]))
    tokens = job.leading + [piece for piece, _ in settled]
    settled += [(letter, round(lowest, 6)) for letter in job.fill(tokens, rest)[len(tokens) :]]
    # Bytes are no pieces of text: the lowest score, if somebody writes <0x0A>.
    scores = [(token, round(lowest, 6) if BYTE_PIECE.fullmatch(token) else 0.0) for token in job.leading]
    return models.Unigram(scores + settled, job.leading.index(job.unknown), "<0xFF>" in job.leading)


def _hurry(trainer: trainers.UnigramTrainer, seeds: int) -> None:
    """Begins with fewer pieces, drops half of them instead of a quarter at a time,
    and counts once before that.

    Words of a text with spaces are few and short. Without spaces every run is one, and the trainer, which
    walks a trie of bytes from each of its characters, needed 30 times BPE's seconds for 4 MB of Chinese and
    8,000 tokens. So it needs 2.5 times as many; held-out text has 1% fewer tokens, its likelihood is 0.3%
    lower.
    """
    # The trainer takes these only as a part of its state: its constructor does not name them.
    state = json.loads(trainer.__getstate__())
    state["UnigramTrainer"] |= {"seed_size": seeds, "shrinking_factor": 0.5, "n_sub_iterations": 1}
    trainer.__setstate__(json.dumps(state).encode())


TRAINERS: dict[str, tuple[Callable[..., tokenizers.Tokenizer], Callable[[_Job], Any], int, str]] = {
    "byte-bpe": (byte_bpe_backend, _train_byte_bpe, 256, "the 256 bytes"),
    "bpe": (metaspace_backend, _train_bpe, 8, "an alphabet"),
    "word-bpe": (word_bpe_backend, _train_word_bpe, 8, "an alphabet"),
    "wordpiece": (wordpiece_backend, _train_wordpiece, 8, "an alphabet"),
    "unigram": (metaspace_backend, _train_unigram, 8, "an alphabet"),
    "word": (word_backend, _train_word, 1, "a word"),
    "character": (character_backend, _train_character, 1, "a character"),
    "byte": (partial(byte_bpe_backend, use_regex=False), _train_byte, 256, "the 256 bytes"),
}
"""The pipeline around a model, what trains the model, and the tokens beside special ones that it cannot do
without."""
