"""The pipeline around a tokenizer's model, kind by kind: what is done to a text before its tokens are looked
up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from etymon.errors import EtymonError
from etymon.text.normalising import STEPS, Normalisation

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer

FORMS = {"none": None, "nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
WORD_END = "</w>"
LONGEST_RUN = 48
"""Characters of a run without spaces that a trainer sees as one word."""
SPACELESS_LETTERS = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf]"
"""Thai, Lao, Burmese, Khmer and their relatives: scripts without spaces whose letters are no words."""
RUN = Regex(SPACELESS_LETTERS + r"{1,64}(?!\p{M})")
"""WordPiece takes words of more than 100 letters for unknown: runs are cut before that,
and before no mark."""


def parse_normalise(names: str | Sequence[str] | None) -> tuple[str | None, Normalisation]:
    """The Unicode form among these names, None if there is none, and the steps that come before it."""
    names = [names] if isinstance(names, str) else names or []
    # A form is a part of tokenizer.json, which Transformers runs; steps come before it.
    forms = [name for name in names if name in FORMS]
    if unknown := [name for name in names if name not in (*FORMS, *STEPS)]:
        raise EtymonError(f"normalise must be one of {', '.join((*FORMS, *STEPS))}, not {unknown[0]!r}")
    if len(forms) > 1 or len(set(names)) < len(names):
        raise EtymonError(f"normalise takes one Unicode form, and every step once, not {','.join(names)}")
    return next(iter(forms), None), Normalisation.of([name for name in names if name in STEPS])


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


def character_backend(model: models.BPE, **settings: Any) -> tokenizers.Tokenizer:
    """One id a Unicode character, white space included; others are unknown. Lossless for those it has."""
    return _assemble(model, _normaliser(**settings), decoder=decoders.Fuse())


def word_backend(model: models.WordLevel, **settings: Any) -> tokenizers.Tokenizer:
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
    cut_runs: bool = False,
) -> tokenizers.Tokenizer:
    """BERT's: cleaned text, ideographs spaced, punctuation split, longest pieces first with `##`. With
    `cut_runs` no word of a script without spaces is too long."""
    normalizer: Any = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    if (form := FORMS[normalise]) is not None:
        normalizer = normalizers.Sequence([form(), normalizer])
    decoder = decoder or decoders.WordPiece(prefix="##")
    splitter: Any = pre_tokenizers.BertPreTokenizer()
    if cut_runs:
        splitter = pre_tokenizers.Sequence([splitter, pre_tokenizers.Split(RUN, "isolated")])
    return _assemble(model, normalizer, splitter, decoder)


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


# ---------------------------------------------------------------- what a tokenizer's file says


def strips_accents(tokenizer: Tokenizer) -> bool:
    """Whether accents are removed from a text before it is cut into tokens."""
    normalizer = tokenizer.description["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") == "StripAccents" or step.get("strip_accents") for step in steps)


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a tokenizer's model, if it has any: older files write them with a space between."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    return [(left, right) for left, right in pairs]
