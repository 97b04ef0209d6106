"""Training a tokenizer on a user's text, and the pipeline of each kind. The same text always gives the same
tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from etymon.errors import EtymonError
from etymon.text.framing import Framing
from etymon.text.sentences import cut_texts
from etymon.text.tokenizer import BYTE_OF, ROLE_KEYS, Tokenizer

LOSSLESS = ("byte-bpe", "byte")
LONGEST_RUN = 48  # characters of a run without spaces that a trainer sees as one word
FORMS = {"none": None, "nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
WORD_END = "</w>"


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

    `specials` maps roles to tokens; they get the first ids in the given order. Bytes and byte-level BPE give
    them the last, as in GPT-2; but where BPE has a mask, only that is last, as in RoBERTa. Sentinels are the
    very last ids, <extra_id_0> the highest. A small corpus may not hold `size` different pieces: the result
    is then smaller, and its `.size` says so. `normalise` is "nfc", "nfkc" or "none" (default: NFKC for
    unigram and bpe, as in sentencepiece, else none). `texts` may be read twice; bytes learn nothing from
    them.
    """
    if kind not in KINDS:
        raise EtymonError(f"unknown tokenizer kind {kind!r}; known are {', '.join(KINDS)}")
    if unknown_roles := [role for role in specials if role not in ROLE_KEYS]:
        raise EtymonError(f"unknown role {unknown_roles[0]!r}; roles are {', '.join(ROLE_KEYS)}")
    if kind not in LOSSLESS and "unknown" not in specials:
        raise EtymonError(f"a {kind} tokenizer needs an 'unknown' special token, e.g. [UNK] or <unk>")
    if normalise is not None and normalise not in FORMS:
        raise EtymonError(f"normalise must be one of {', '.join(FORMS)}, not {normalise!r}")
    if kind in LOSSLESS and (lowercase or strip_accents or normalise not in (None, "none")):
        raise EtymonError(
            f"a {kind} tokenizer is lossless: it takes neither lowercase nor strip_accents nor normalise"
        )
    build_backend, train, smallest, needs = KINDS[kind]
    settings: dict[str, Any] = {}
    if kind not in LOSSLESS:
        form = normalise or ("nfkc" if kind in ("unigram", "bpe") else "none")
        settings = {"lowercase": lowercase, "strip_accents": strip_accents, "normalise": form}
    leading = list(dict.fromkeys(specials.values()))
    unknown, mask = (specials.get(role, "") for role in ("unknown", "mask"))
    room = size - sentinels - len(leading)
    if room < smallest:
        raise EtymonError(
            f"a vocabulary of {size:,} is too small: beside special tokens it has room for {max(room, 0)} "
            "tokens "
            f"but {needs} need {smallest}; the smallest has {size - room + smallest:,}"
        )
    if kind != "byte" and not any(text.strip() for text in texts):
        raise EtymonError("cannot train a tokenizer: there is no text")
    build = partial(build_backend, **settings)
    job = _Job(texts, room, leading, unknown, mask, min_frequency, build)
    backend = job.pipeline(train(job))
    # In byte-level BPE a space belongs to the token behind it, and so to the mask.
    spaced = mask if kind == "byte-bpe" else None
    backend.add_special_tokens([AddedToken(token, lstrip=token == spaced, special=True) for token in leading])
    add_sentinels(backend, sentinels)
    tokenizer = Tokenizer(backend, specials, framing=framing)
    if kind == "word":
        counts, rest = np.zeros(tokenizer.size, np.int64), job.texts
        while block := list(islice(rest, 1024)):
            counts += np.bincount(np.concatenate(tokenizer.encode_batch(block)), minlength=tokenizer.size)
        tokenizer.counts = counts
    return tokenizer


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

    def alphabet(self, learner: tokenizers.Tokenizer, limit: int, also: str = "") -> list[str]:
        """The most frequent characters of the normalised text, in code point order, and those in `also`."""
        sums: dict[str, int] = {}
        for letter in self.counts:
            for result in normalise_letter(learner, letter):
                sums[result] = sums.get(result, 0) + self.counts[letter]
        ranked = sorted(sums, key=lambda letter: (-sums[letter], letter))
        return sorted({*ranked[: limit - len(also)], *also})


class CharacterCounts:
    """How often each character occurs; much faster than a Counter."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._counts = np.zeros(0x110000, np.int64)
        for text in texts:
            counts = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
            self._counts[: len(counts)] += counts

    def __iter__(self) -> Iterator[str]:
        return map(chr, np.flatnonzero(self._counts).tolist())

    def __getitem__(self, letter: str) -> int:
        return int(self._counts[ord(letter)])

    def ranked(self) -> list[str]:
        """The characters, most frequent first."""
        return sorted(self, key=lambda letter: (-self[letter], letter))


def normalise_letter(backend: tokenizers.Tokenizer, letter: str) -> str:
    """What the pipeline makes of a character, without white space."""
    return "".join((backend.normalizer.normalize_str(letter) if backend.normalizer else letter).split())


def can_continue(letter: str) -> bool:
    """Whether a character can stand inside a word: punctuation and ideographs are words by themselves."""
    is_ideograph = "CJK" in unicodedata.name(letter, "")
    is_symbol = letter.isascii() and not letter.isalnum()
    return not (is_ideograph or is_symbol or unicodedata.category(letter).startswith("P"))


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a tokenizer's model, if it has any: older files write them with a space between."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    return [(left, right) for left, right in pairs]


# ---------------------------------------------------------------- the model of each kind


def _train_byte(job: _Job) -> models.BPE:
    return models.BPE(dict(BYTE_OF), [])


def _train_byte_bpe(job: _Job) -> models.BPE:
    learner = job.learner(models.BPE())
    first = [token for token in job.leading if token != job.mask] if job.mask else []
    options = {"vocab_size": len(first) + job.room, "special_tokens": first}
    trainer = trainers.BpeTrainer(**job.options(pre_tokenizers.ByteLevel.alphabet(), **options))
    learner.train_from_iterator(job.texts, trainer)
    return learner.model


def _train_bpe(job: _Job) -> models.BPE:
    """At most half of the vocabulary is given to characters, as with unigrams; the rarest become unknown."""
    learner = job.learner(models.BPE())
    trainer = trainers.BpeTrainer(**job.options(job.alphabet(learner, job.room // 2, also="▁")))
    return _learn_merges(job, learner, trainer, fuse_unk=True)


def _train_word_bpe(job: _Job) -> models.BPE:
    """Letters at the end of a word are letters of their own; they get fixed numbers, as WordPiece's get."""
    learner = job.learner(models.BPE())
    alphabet = job.alphabet(learner, job.room // 4)
    fixed = job.leading + [letter + WORD_END for letter in alphabet]
    options = job.options(alphabet, special_tokens=fixed, end_of_word_suffix=WORD_END)
    return _learn_merges(job, learner, trainers.BpeTrainer(**options), end_of_word_suffix=WORD_END)


def _learn_merges(job: _Job, learner: tokenizers.Tokenizer, trainer: Any, **options: Any) -> models.BPE:
    learner.train_from_iterator(job.texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    return models.BPE(learned["vocab"], merge_pairs(learned), unk_token=job.unknown, **options)


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
    return models.BPE({token: number for number, token in enumerate(tokens)}, [], unk_token=job.unknown)


def _train_wordpiece(job: _Job) -> models.WordPiece:
    """The trainer numbers the continuing letters (`##e`) in hash order and breaks ties by number. Giving
    them fixed numbers makes it deterministic, but needs the alphabet first."""
    learner = job.learner(models.WordPiece({job.unknown: 0}, unk_token=job.unknown))
    alphabet = job.alphabet(learner, job.room // 4)
    continuing = ["##" + letter for letter in alphabet if can_continue(letter)]
    options = job.options(alphabet, special_tokens=job.leading + continuing)
    learner.train_from_iterator(job.texts, trainers.WordPieceTrainer(**options))
    learned = learner.get_vocab()
    fixed = job.leading + alphabet + continuing
    ordered = fixed + sorted(learned.keys() - set(fixed), key=learned.__getitem__)
    return models.WordPiece({token: number for number, token in enumerate(ordered)}, unk_token=job.unknown)


def _train_unigram(job: _Job) -> models.Unigram:
    """The trainer keeps every character, so that rare ideographs could fill the vocabulary: at most half of
    it is given to characters, the rarest become unknown (sentencepiece's character coverage)."""
    learner = job.learner(models.Unigram())
    alphabet = set(job.alphabet(learner, job.room // 2))
    rare = {
        ord(letter): " "
        for letter in job.counts
        if not alphabet.issuperset(normalise_letter(learner, letter))
    }
    trainer = trainers.UnigramTrainer(**job.options(unk_token=job.unknown))
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
    settled.sort(key=lambda item: (-item[1], item[0]))
    vocabulary = [(token, 0.0) for token in job.leading] + settled
    return models.Unigram(vocabulary, job.leading.index(job.unknown), False)


# ---------------------------------------------------------------- the pipeline of each kind


def _assemble(
    model: Any, normalizer: Any = None, splitter: Any = None, decoder: Any = None
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", splitter), ("decoder", decoder)):
        if part is not None:
            setattr(backend, name, part)
    return backend


def _normaliser(normalise: str, lowercase: bool, strip_accents: bool, collapse: bool = False) -> Any:
    """What is done to the text first, or None."""
    form = FORMS[normalise]
    steps: list[Any] = [] if form is None else [form()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    if collapse:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps) if steps else None


def byte_bpe_backend(
    model: models.BPE, prefix_space: bool = False, use_regex: bool = True
) -> tokenizers.Tokenizer:
    """GPT-2's: bytes as printable characters, split by its regular expression, merged. Lossless."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex)
    return _assemble(model, splitter=splitter, decoder=decoders.ByteLevel())


def _character_backend(model: models.BPE, **settings: Any) -> tokenizers.Tokenizer:
    """One id a Unicode character, white space included; others are unknown. Lossless for those it has."""
    return _assemble(model, _normaliser(**settings), decoder=decoders.Fuse())


def _word_backend(model: models.WordLevel, **settings: Any) -> tokenizers.Tokenizer:
    """Words between white space, punctuation marks and ideographs by themselves; decoded with single
    spaces."""
    ideographs = pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")
    splitter = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), ideographs])
    return _assemble(model, _normaliser(**settings), splitter)


def wordpiece_backend(
    model: Any,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    chinese: bool = True,
    normalise: str = "none",
    decoder: Any = None,
) -> tokenizers.Tokenizer:
    """BERT's: cleaned text, ideographs spaced, punctuation split, longest pieces first with `##`."""
    normalizer: Any = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    if (form := FORMS[normalise]) is not None:
        normalizer = normalizers.Sequence([form(), normalizer])
    decoder = decoder or decoders.WordPiece(prefix="##")
    return _assemble(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoder)


def word_bpe_backend(model: models.BPE, **settings: Any) -> tokenizers.Tokenizer:
    """GPT-1's: words as BERT splits them, merged inside; the last piece of a word ends in `</w>`."""
    return wordpiece_backend(model, decoder=decoders.BPEDecoder(suffix=WORD_END), **settings)


def metaspace_backend(
    model: models.Unigram | models.BPE,
    *,
    characters: bytes | None = None,
    normalise: str = "nfkc",
    lowercase: bool = False,
    strip_accents: bool = False,
    prefix_space: bool = True,
    collapse: bool = True,
) -> tokenizers.Tokenizer:
    """sentencepiece's, unigram or BPE: normalised characters, white space collapsed, spaces as `▁`, one
    before the text. `characters` is a sentencepiece file's own table, in the place of `normalise`."""
    steps = _normaliser("none" if characters else normalise, lowercase, strip_accents, collapse)
    if characters:
        table = normalizers.Precompiled(characters)
        steps = normalizers.Sequence([table] if steps is None else [table, steps])
    spaces: dict[str, Any] = {"replacement": "▁", "prepend_scheme": "always" if prefix_space else "never"}
    decoder = decoders.Metaspace(**spaces)
    backend = _assemble(model, steps, pre_tokenizers.Metaspace(**spaces), decoder)
    if json.loads(backend.to_str())["model"].get("byte_fallback"):
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoder])
    return backend


def add_sentinels(backend: tokenizers.Tokenizer, count: int) -> None:
    """<extra_id_0> gets the highest id, <extra_id_1> the one below it, and so on down, as in T5."""
    backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(count))])


KINDS: dict[str, tuple[Callable[..., tokenizers.Tokenizer], Callable[[_Job], Any], int, str]] = {
    "byte-bpe": (byte_bpe_backend, _train_byte_bpe, 256, "the 256 bytes"),
    "bpe": (metaspace_backend, _train_bpe, 8, "an alphabet"),
    "word-bpe": (word_bpe_backend, _train_word_bpe, 8, "an alphabet"),
    "wordpiece": (wordpiece_backend, _train_wordpiece, 8, "an alphabet"),
    "unigram": (metaspace_backend, _train_unigram, 8, "an alphabet"),
    "word": (_word_backend, _train_word, 1, "a word"),
    "character": (_character_backend, _train_character, 1, "a character"),
    "byte": (partial(byte_bpe_backend, use_regex=False), _train_byte, 256, "the 256 bytes"),
}
"""The pipeline around a model, what trains the model, and the tokens beside special ones that it cannot do
without."""
