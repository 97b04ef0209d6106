"""The pipeline of each kind of tokenizer: normaliser, splitter, model, decoder."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

FORMS = {"none": None, "nfc": normalizers.NFC, "nfkc": normalizers.NFKC}


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


def byte_bpe_backend(model: models.BPE, prefix_space: bool = False) -> tokenizers.Tokenizer:
    """GPT-2: bytes as printable characters, split by its regular expression, merged. Lossless."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_backend() -> tokenizers.Tokenizer:
    """One id a byte, its own value. Lossless."""
    from etymon.data.tokenizer import BYTE_OF

    backend = tokenizers.Tokenizer(models.BPE(dict(BYTE_OF), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def character_backend(
    vocabulary: dict[str, int], *, unknown: str, normalise: str, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """One id a Unicode character, white space included; others are unknown. Lossless for those it knows."""
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=unknown))
    if (steps := normaliser(normalise, lowercase, strip_accents)) is not None:
        backend.normalizer = steps
    backend.decoder = decoders.Fuse()
    return backend


def word_backend(
    vocabulary: dict[str, int], *, unknown: str, normalise: str, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Words between white space, punctuation marks and ideographs by themselves; decoded with single spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    if (steps := normaliser(normalise, lowercase, strip_accents)) is not None:
        backend.normalizer = steps
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")]
    )
    return backend


def wordpiece_backend(
    vocabulary: dict[str, int],
    *,
    unknown: str,
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool = True,
    normalise: str = "none",
) -> tokenizers.Tokenizer:
    """BERT: cleaned text, ideographs spaced, punctuation split, longest pieces first with `##`."""
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100)
    )
    bert = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    form = FORMS[normalise]
    backend.normalizer = bert if form is None else normalizers.Sequence([form(), bert])
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


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
    backend = tokenizers.Tokenizer(model)
    steps = normaliser("none" if characters else normalise, lowercase, strip_accents, collapse)
    if characters:
        table = normalizers.Precompiled(characters)
        steps = normalizers.Sequence([table] if steps is None else [table, steps])
    if steps is not None:
        backend.normalizer = steps
    scheme = "always" if prefix_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    metaspace = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    backend.decoder = metaspace
    if json.loads(backend.to_str())["model"].get("byte_fallback"):
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
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
