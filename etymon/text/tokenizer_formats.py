"""Tokenizer files of earlier days: vocab.txt, vocab.json with merges.txt, sentencepiece models."""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from etymon.errors import EtymonError
from etymon.files import read_json
from etymon.text.tokenizer_pipelines import (
    WORD_END,
    add_sentinels,
    byte_bpe_backend,
    metaspace_backend,
    word_bpe_backend,
    wordpiece_backend,
)

# Read when a folder does not say which token has which role.
USUAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "begin": ("<s>", "<|endoftext|>"),
    "end": ("</s>", "<|endoftext|>"),
    "class": ("[CLS]", "<cls>"),
    "separator": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
STRAY = 0.01
"""The share of pieces with upper case or accents that may have come into a vocabulary by mistake."""
SPECIAL = re.compile(r"\[.*\]|<.*>")
FAIRSEQ_MODEL = "sentencepiece.bpe.model"
"""Models that fairseq trained: their ids are not those of the file."""
SENTENCEPIECE = ("spiece.model", "tokenizer.model", FAIRSEQ_MODEL)
PUBLISHED_SENTINELS = (
    100  # the sentencepiece file does not hold them; Transformers' tokenizer class adds them
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)
"""The kinds of pieces of a sentencepiece file."""
FAIRSEQ_PIECES = {
    "camembert": (
        {
            "<s>NOTUSED": UNUSED,
            "<pad>": CONTROL,
            "</s>NOTUSED": UNUSED,
            "<unk>": UNKNOWN,
            "<unk>NOTUSED": UNUSED,
        },
        1,
    ),
    "xlm": ({"<s>": CONTROL, "<pad>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN}, 3),
}
"""By the beginning of the tokenizer's class: the pieces that come first, and how many of the file they
replace."""


def is_cased(pieces: Iterable[str]) -> bool:
    """Whether a vocabulary tells upper case from lower case: of an uncased one, hardly a piece has upper
    case."""
    return _is_common([piece != piece.lower() for piece in _letters(pieces)])


def is_accented(pieces: Iterable[str]) -> bool:
    """Whether it tells letters with accents from those without."""
    spelled = (unicodedata.normalize("NFD", piece) for piece in _letters(pieces))
    return _is_common([any(map(unicodedata.combining, piece)) for piece in spelled])


def _letters(pieces: Iterable[str]) -> list[str]:
    """What pieces have of letters with a case, where they have some; ideographs have none."""
    plain = (piece for piece in pieces if not SPECIAL.fullmatch(piece))
    letters = ("".join(letter for letter in piece if letter.lower() != letter.upper()) for piece in plain)
    return [piece for piece in letters if piece]


def _is_common(claims: list[bool]) -> bool:
    return sum(claims) / max(1, len(claims)) > STRAY


def _add_special(backend: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    # A `<mask>` stands for the space before it as well.
    backend.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", special=True) for token in tokens]
    )


def from_vocab_txt(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        tokens = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise EtymonError(
            f"{path} is not UTF-8 at byte {error.start}: it is damaged, or no vocabulary"
        ) from error
    vocabulary = {token.rstrip("\r"): number for number, token in enumerate(tokens) if token.rstrip("\r")}
    if "[UNK]" not in vocabulary:
        raise EtymonError(f"{path} is no WordPiece vocabulary: it has no [UNK] token")
    lowercase, strip_accents = config.get("do_lower_case"), config.get("strip_accents")
    if lowercase is None:
        lowercase = not is_cased(vocabulary)
        # None: accents go where upper case does.
        strip_accents = False if strip_accents is None and is_accented(vocabulary) else strip_accents
    backend = wordpiece_backend(
        models.WordPiece(vocabulary, unk_token="[UNK]"),
        lowercase=bool(lowercase),
        strip_accents=strip_accents,
        chinese=bool(config.get("tokenize_chinese_chars", True)),
    )
    usual = {token for names in USUAL_TOKENS.values() for token in names}
    backend.add_special_tokens([token for token in vocabulary if token in usual])
    return backend


def from_merges(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:
        raise EtymonError(f"{folder}: vocab.json and merges.txt do not fit together: {error}") from error
    vocabulary = tokenizers.Tokenizer(model).get_vocab()
    if any(token.endswith(WORD_END) for token in vocabulary):
        model.end_of_word_suffix, model.unk_token = WORD_END, "<unk>"
        lowercase = bool(config.get("do_lower_case", not is_cased(vocabulary)))
        backend = word_bpe_backend(model, lowercase=lowercase)
    else:
        backend = byte_bpe_backend(model, prefix_space=bool(config.get("add_prefix_space", False)))
    usual = dict.fromkeys(token for names in USUAL_TOKENS.values() for token in names if token in vocabulary)
    _add_special(backend, usual)
    return backend


def from_sentencepiece(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A sentencepiece unigram model. Its file is a small protocol buffer, read here field by field."""
    pieces: list[tuple[str, float]] = []
    kinds: list[int] = []
    messages: dict[int, dict[int, Any]] = {2: {}, 3: {}}
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:
                piece = dict(_fields(value))
                pieces.append((piece[1].decode(), *struct.unpack("<f", piece.get(2, bytes(4)))))
                kinds.append(piece.get(3, NORMAL))
            elif field in messages:
                messages[field] = dict(_fields(value))
        if path.name == FAIRSEQ_MODEL:
            pieces, kinds = _fairseq_pieces(path, config, pieces, kinds)
        unknown = kinds.index(UNKNOWN)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise EtymonError(f"{path} is not a sentencepiece model") from error
    trainer, normalizer = messages[2], messages[3]
    if trainer.get(3, 1) != 1:
        raise EtymonError(f"{path} is not a unigram model; convert it to tokenizer.json with Transformers")
    # Transformers strips accents before models with these tokens see the text, and lowers it for those with
    # [CLS].
    names = {piece for piece, _ in pieces}
    is_lowered = "[CLS]" in names
    is_cleaned = is_lowered or {"<cls>", "<sep>"} <= names
    backend = metaspace_backend(
        models.Unigram(pieces, unknown, bool(trainer.get(35, 0))),
        characters=normalizer.get(2) or None,
        lowercase=is_cleaned and bool(config.get("do_lower_case", is_lowered and not is_cased(names))),
        strip_accents=is_cleaned and not config.get("keep_accents", False),
        prefix_space=bool(normalizer.get(3, 1)),
        collapse=bool(normalizer.get(4, 1)),
    )
    if is_cleaned:
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
        backend.normalizer = normalizers.Sequence([*quotes, backend.normalizer])
    by_kind = list(zip(kinds, names_in_order := [piece for piece, _ in pieces], strict=True))
    _add_special(backend, (piece for kind, piece in by_kind if kind in (UNKNOWN, CONTROL)))
    backend.add_tokens(
        [AddedToken(piece, normalized=False) for kind, piece in by_kind if kind == USER_DEFINED]
    )
    lacks_sentinels = names_in_order[:3] == ["<pad>", "</s>", "<unk>"]
    lacks_sentinels &= not any("<extra_id_0>" in piece for piece in names)
    add_sentinels(backend, int(config.get("extra_ids", PUBLISHED_SENTINELS if lacks_sentinels else 0)))
    return backend


def _fairseq_pieces(
    path: Path, config: Mapping[str, Any], pieces: list[tuple[str, float]], kinds: list[int]
) -> tuple[list[tuple[str, float]], list[int]]:
    """Pieces in the order of the models that fairseq trained: its special tokens first, the mask last."""
    model = path.with_name("config.json")
    name = config.get("tokenizer_class") or (read_json(model) if model.is_file() else {}).get("model_type")
    for beginning, (first, rest) in FAIRSEQ_PIECES.items():
        if str(name).lower().startswith(beginning):
            unused = -100.0  # never the better piece
            front = [(piece, unused if kind == UNUSED else 0.0) for piece, kind in first.items()]
            return [*front, *pieces[rest:], ("<mask>", 0.0)], [*first.values(), *kinds[rest:], CONTROL]
    raise EtymonError(
        f"{path} does not say whether its ids are XLM-RoBERTa's or CamemBERT's: name the tokenizer_class in "
        "tokenizer_config.json"
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The (field number, value) pairs of a protocol buffer message; numbers as int, the rest as bytes."""
    place = 0

    def number() -> int:
        nonlocal place
        result = shift = 0
        while True:
            byte = data[place]
            place += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result

    while place < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
            continue
        size = {1: 8, 5: 4}[tag & 7] if tag & 7 != 2 else number()
        if place + size > len(data):
            raise ValueError("the message is cut short")
        yield tag >> 3, data[place : place + size]
        place += size
