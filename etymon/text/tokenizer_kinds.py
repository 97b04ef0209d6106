"""The pipeline of each kind of tokenizer: normaliser, splitter, model, decoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from etymon.errors import EtymonError

FORMS = {"none": None, "nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
WORD_END = "</w>"


def normaliser(normalise: str, lowercase: bool, strip_accents: bool, collapse: bool = False) -> Any:
    """What is done to the text first, or None: every step was asked for, or is part of the kind."""
    steps: list[Any] = []
    form = FORMS[normalise]
    if form is not None:
        steps.append(form())
    if lowercase:
        steps.append(normalizers.Lowercase())
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    if collapse:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps) if steps else None


def _assembled(
    model: Any, normalizer: Any = None, splitter: Any = None, decoder: Any = None
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", splitter), ("decoder", decoder)):
        if part is not None:
            setattr(backend, name, part)
    return backend


def byte_bpe_backend(model: models.BPE, prefix_space: bool = False) -> tokenizers.Tokenizer:
    """GPT-2: bytes as printable characters, split by its regular expression, merged. Lossless."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return _assembled(model, splitter=splitter, decoder=decoders.ByteLevel())


def byte_backend(model: models.BPE) -> tokenizers.Tokenizer:
    """One id a byte, its own value. Lossless."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _assembled(model, splitter=splitter, decoder=decoders.ByteLevel())


def character_backend(model: models.BPE, **settings: Any) -> tokenizers.Tokenizer:
    """One id a Unicode character, white space included; others are unknown. Lossless for those it knows."""
    return _assembled(model, normaliser(**settings), decoder=decoders.Fuse())


def word_backend(model: models.WordLevel, **settings: Any) -> tokenizers.Tokenizer:
    """Words between white space, punctuation marks and ideographs by themselves; decoded with single spaces."""
    ideographs = pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")
    splitter = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), ideographs])
    return _assembled(model, normaliser(**settings), splitter)


def wordpiece_backend(model: models.WordPiece, **settings: Any) -> tokenizers.Tokenizer:
    """BERT: cleaned text, ideographs spaced, punctuation split, longest pieces first with `##`."""
    return _bert(model, decoders.WordPiece(prefix="##"), **settings)


def word_bpe_backend(model: models.BPE, **settings: Any) -> tokenizers.Tokenizer:
    """GPT-1: words as BERT splits them, merged inside; the last piece of a word ends in `</w>`."""
    return _bert(model, decoders.BPEDecoder(suffix=WORD_END), **settings)


def _bert(
    model: Any,
    decoder: Any,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    chinese: bool = True,
    normalise: str = "none",
) -> tokenizers.Tokenizer:
    normalizer: Any = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    if (form := FORMS[normalise]) is not None:
        normalizer = normalizers.Sequence([form(), normalizer])
    return _assembled(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoder)


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
    """sentencepiece, unigram or BPE: normalised characters, white space collapsed, spaces as `▁`, one before
    the text. `characters` is a sentencepiece file's own table, in the place of `normalise`."""
    steps = normaliser("none" if characters else normalise, lowercase, strip_accents, collapse)
    if characters:
        table = normalizers.Precompiled(characters)
        steps = normalizers.Sequence([table] if steps is None else [table, steps])
    scheme = "always" if prefix_space else "never"
    splitter = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend = _assembled(model, steps, splitter, decoder)
    if json.loads(backend.to_str())["model"].get("byte_fallback"):
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoder])
    return backend


def cutting_long_runs(backend: tokenizers.Tokenizer, longest: int) -> tokenizers.Tokenizer:
    """The same for training alone: no word is longer than `longest` characters.

    In scripts without spaces a "word" is a whole line; trainers would take it for one and need time and memory
    by the square of its length.
    """
    kind = json.loads(backend.to_str())["pre_tokenizer"]["type"]
    split, usual = pre_tokenizers.Split, backend.pre_tokenizer
    if kind == "ByteLevel":  # afterwards it would cut through characters
        steps = [split(Regex(rf" ?\S{{{longest}}}"), "isolated"), usual]
    else:
        steps = [usual, split(Regex(rf".{{{longest}}}"), "isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def add_sentinels(backend: tokenizers.Tokenizer, count: int) -> None:
    """<extra_id_0> gets the highest id, <extra_id_1> the one below it, and so on down, as in T5."""
    backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(count))])


@contextmanager
def whole_characters() -> Iterator[None]:
    """Says what the tokenizers library means by its TypeError: the rest of what it gets are texts for sure."""
    try:
        yield
    except TypeError as error:
        raise EtymonError(
            "a text holds half of a character (a lone surrogate): convert it to UTF-8"
        ) from error
