"""Tokenizer folders: the Hugging Face files we write, and the older ones we also read."""

from __future__ import annotations

import json
import os
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers, processors

from etymon.errors import EtymonError
from etymon.files import read_any_json, read_json
from etymon.text.framing import Framing, ReadingSettings
from etymon.text.tokenizer import COUNTS, ROLE_KEYS, Tokenizer
from etymon.text.tokenizer_kinds import (
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
ROBERTA_TOKENS = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
NO_LIMIT = int(1e30)
"""The `model_max_length` with which Transformers says that there is none."""
STRAY = 0.01
SPECIAL = re.compile(r"\[.*\]|<.*>")
FAIRSEQ_MODEL = "sentencepiece.bpe.model"
"""XLM-RoBERTa's and CamemBERT's, whose ids are not those of the file."""
PUBLISHED_SENTINELS = 100  # T5's sentencepiece file does not hold them; its tokenizer classes add them


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Read tokenizer.json, or vocab.txt, or vocab.json + merges.txt, or a sentencepiece model."""
    folder = Path(folder)
    config, special = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    if (folder / "tokenizer.json").is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise EtymonError(f"{folder / 'tokenizer.json'} is damaged or unknown: {error}") from error
    elif (folder / "vocab.txt").is_file():
        backend = _from_vocab_txt(folder / "vocab.txt", config)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = _from_merges(folder, config)
    else:
        known = ("spiece.model", "tokenizer.model", FAIRSEQ_MODEL)
        names = [name for name in known if (folder / name).is_file()]
        if not names:
            raise EtymonError(
                f"no tokenizer in {folder}: it needs tokenizer.json, vocab.txt, vocab.json with merges.txt, "
                f"spiece.model, tokenizer.model or {FAIRSEQ_MODEL}"
            )
        backend = _from_sentencepiece(folder / names[0], config)
    roles = _roles(backend, {**special, **config})
    tokenizer = Tokenizer(backend, roles, config=config)
    if (folder / COUNTS).is_file():
        try:
            counts = np.array(read_any_json(folder / COUNTS), np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise EtymonError(f"{folder / COUNTS} is damaged: remove it, or bring it back") from error
        tokenizer.counts = counts if counts.shape == (tokenizer.size,) else None  # those of another tokenizer
    return tokenizer


def hub_config(
    tokenizer: Tokenizer, carried: Mapping[str, Any], reading: ReadingSettings | None = None
) -> dict[str, Any]:
    """What tokenizer_config.json says, so that Transformers builds the same tokenizer and, with `reading`, reads texts as the
    model does. What a foreign file said of itself stays, as far as the model has room for it."""
    config = {**_class_config(tokenizer), **carried}
    segments = ["token_type_ids"] if any(tokenizer.framing.pair_segments) else []
    config.setdefault("model_input_names", ["input_ids", *segments, "attention_mask"])
    if reading is not None:
        config = {**reading_config(tokenizer, reading), **config}
        own = config["model_max_length"] if isinstance(config["model_max_length"], int) else NO_LIMIT
        config["model_max_length"] = reading.task_length or min(own, reading.positions or NO_LIMIT)
        if reading.pad_token is not None and config.get("pad_token") is None:
            config["pad_token"] = reading.pad_token
    elif tokenizer.framing.padding_side != "right":  # which goes without saying
        config.setdefault("padding_side", tokenizer.framing.padding_side)
    config.update(
        {key: tokenizer.roles.get(role) for role, key in ROLE_KEYS.items() if role in tokenizer.roles}
    )
    return config


def reading_config(tokenizer: Tokenizer, reading: ReadingSettings) -> dict[str, Any]:
    """The keys of tokenizer_config.json that say how a model reads texts."""
    return {
        "model_max_length": reading.task_length or reading.positions or NO_LIMIT,
        "padding_side": tokenizer.framing.padding_side,
        "truncation_side": reading.truncation_side,
    }


def _class_config(tokenizer: Tokenizer) -> dict[str, Any]:
    # Transformers 5 rebuilds the pipeline of a named class from the vocabulary and forgets tokenizer.json's.
    # BERT, GPT-2 and RoBERTa come out the same; T5 would lose its normaliser, so unigrams ask for the generic class.
    # Made for WordPiece, whose decoder puts spaces before punctuation; others spell their spaces.
    config: dict[str, Any] = {"clean_up_tokenization_spaces": tokenizer.kind == "wordpiece"}
    normalizer = json.loads(tokenizer.backend.to_str())["normalizer"] or {}
    if tokenizer.kind == "byte-bpe" and set(tokenizer.roles) <= {"pad", "unknown", "begin", "end"}:
        config |= {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": False}
    elif tokenizer.kind == "byte-bpe" and set(tokenizer.roles.values()) == ROBERTA_TOKENS:
        config |= {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": False}
    elif (
        tokenizer.kind == "wordpiece"
        and normalizer.get("type") == "BertNormalizer"
        and {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} <= set(tokenizer.roles.values())  # it adds its own
    ):
        config |= {
            "tokenizer_class": "BertTokenizerFast",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    else:
        config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.sentinels:
        config["additional_special_tokens"] = [tokenizer.tokens[number] for number in tokenizer.sentinels]
    return config


def framed_json(tokenizer: Tokenizer, reading: ReadingSettings | None = None) -> str:
    """What tokenizer.json says, with a post-processor by which Transformers frames one text and two as they are read here."""
    backend, framing = tokenizer.backend, tokenizer.task_framing
    as_for_task = framing.roles and _frames(backend, framing)
    if framing.for_tasks_only and not (reading and reading.for_task):
        processor = None  # a language model's: a foreign processor stays, that of a task goes
        same = not as_for_task
    else:
        processor, same = _post_processor(framing, tokenizer), as_for_task or not framing.roles
    if same:
        return backend.to_str(pretty=True)
    description = json.loads(backend.to_str())
    description["post_processor"] = processor and json.loads(processor.__getstate__())
    return json.dumps(description, indent=2, ensure_ascii=False)


def _frames(backend: tokenizers.Tokenizer, framing: Framing) -> bool:
    """Whether a tokenizer's own post-processor puts one text and two into this framing."""
    one, two = (backend.encode(text, add_special_tokens=False) for text in ("a", "b"))
    pairs = [
        (backend.post_process(one, None), framing.frame(one.ids)),
        (backend.post_process(one, two), framing.frame(one.ids, two.ids)),
    ]
    segmented = any(framing.pair_segments)
    return all(
        theirs.ids == ours.ids.tolist() and (not segmented or theirs.type_ids == ours.segments.tolist())
        for theirs, ours in pairs
    )


def _post_processor(framing: Framing, tokenizer: Tokenizer) -> processors.TemplateProcessing:
    def spell(template: tuple[str | int, ...], segments: tuple[int, ...]) -> list[str]:
        names = ("$A", "$B")
        return [
            f"{names[item] if isinstance(item, int) else tokenizer.roles[item]}:{segment}"
            for item, segment in zip(template, segments, strict=True)
        ]

    return processors.TemplateProcessing(
        single=spell(framing.single, framing.single_segments),
        pair=spell(framing.pair, framing.pair_segments),
        special_tokens=[(tokenizer.roles[role], tokenizer.id(role)) for role in framing.roles],
    )


# ---------------------------------------------------------------- older formats


def is_cased(pieces: Iterable[str]) -> bool:
    """Whether a vocabulary tells upper case from lower case: of an uncased one, no piece has an upper-case letter. A few that
    came in by mistake do not count."""
    return _share(pieces, lambda piece: piece != piece.lower()) > STRAY


def is_accented(pieces: Iterable[str]) -> bool:
    """Whether it tells letters with accents from those without."""
    return (
        _share(pieces, lambda piece: any(map(unicodedata.combining, unicodedata.normalize("NFD", piece))))
        > STRAY
    )


def _share(pieces: Iterable[str], has: Callable[[str], bool]) -> float:
    """The share of pieces that have something, of those with letters that have a case; ideographs have none."""
    letters = [
        "".join(letter for letter in piece if letter.lower() != letter.upper())
        for piece in pieces
        if not SPECIAL.fullmatch(piece)
    ]
    spelled = [piece for piece in letters if piece]
    return sum(map(has, spelled)) / max(1, len(spelled))


def _from_vocab_txt(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        tokens = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise EtymonError(
            f"{path} is not UTF-8 at byte {error.start}: it is damaged, or no vocabulary"
        ) from error
    vocabulary = {token.rstrip("\r"): number for number, token in enumerate(tokens) if token.rstrip("\r")}
    if "[UNK]" not in vocabulary:
        raise EtymonError(f"{path} is no BERT vocabulary: it has no [UNK] token")
    lowercase = config.get("do_lower_case")
    strip_accents = config.get("strip_accents")
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


def _from_merges(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:
        raise EtymonError(f"{folder}: vocab.json and merges.txt do not fit together: {error}") from error
    vocabulary = tokenizers.Tokenizer(model).get_vocab()
    if any(token.endswith(WORD_END) for token in vocabulary):
        model.end_of_word_suffix, model.unk_token = WORD_END, "<unk>"
        backend = word_bpe_backend(
            model, lowercase=bool(config.get("do_lower_case", not is_cased(vocabulary)))
        )
    else:
        backend = byte_bpe_backend(model, prefix_space=bool(config.get("add_prefix_space", False)))
    usual = dict.fromkeys(token for names in USUAL_TOKENS.values() for token in names if token in vocabulary)
    # RoBERTa's mask stands for the space before it as well.
    backend.add_special_tokens([AddedToken(token, lstrip=token == "<mask>", special=True) for token in usual])
    return backend


def _from_sentencepiece(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A sentencepiece unigram model. Its file is a small protocol buffer, read here field by field."""
    pieces: list[tuple[str, float]] = []
    kinds: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for field, value in _fields(path.read_bytes()):
            if field == 1:
                piece = dict(_fields(value))
                pieces.append((piece[1].decode(), *struct.unpack("<f", piece.get(2, bytes(4)))))
                kinds.append(piece.get(3, 1))
            elif field == 2:
                trainer = dict(_fields(value))
            elif field == 3:
                normalizer = dict(_fields(value))
        if path.name == FAIRSEQ_MODEL:
            pieces, kinds = _fairseq_pieces(path, config, pieces, kinds)
        unknown = kinds.index(2)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise EtymonError(f"{path} is not a sentencepiece model") from error
    if trainer.get(3, 1) != 1:
        raise EtymonError(f"{path} is not a unigram model; convert it to tokenizer.json with Transformers")
    # ALBERT and XLNet strip accents before the model sees the text, and ALBERT lowers it.
    names = {piece for piece, _ in pieces}
    albert = "[CLS]" in names
    prepared = albert or {"<cls>", "<sep>"} <= names
    backend = metaspace_backend(
        models.Unigram(pieces, unknown, bool(trainer.get(35, 0))),
        characters=normalizer.get(2) or None,
        lowercase=prepared and bool(config.get("do_lower_case", albert and not is_cased(names))),
        strip_accents=prepared and not config.get("keep_accents", False),
        prefix_space=bool(normalizer.get(3, 1)),
        collapse=bool(normalizer.get(4, 1)),
    )
    if prepared:
        quotes = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
        backend.normalizer = normalizers.Sequence([*quotes, backend.normalizer])
    named = list(zip(kinds, pieces, strict=True))
    specials = [piece for kind, (piece, _) in named if kind in (2, 3)]
    # RoBERTa's mask stands for the space before it as well.
    backend.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", special=True) for token in specials]
    )
    backend.add_tokens([AddedToken(piece, normalized=False) for kind, (piece, _) in named if kind == 4])
    is_t5 = [piece for piece, _ in pieces[:3]] == ["<pad>", "</s>", "<unk>"]
    is_t5 &= not any("<extra_id_0>" in piece for piece in names)  # mT5's file has them
    add_sentinels(backend, int(config.get("extra_ids", PUBLISHED_SENTINELS if is_t5 else 0)))
    return backend


def _fairseq_pieces(
    path: Path, config: Mapping[str, Any], pieces: list[tuple[str, float]], kinds: list[int]
) -> tuple[list[tuple[str, float]], list[int]]:
    """Pieces in the order of the models that fairseq trained: its own special tokens first, the mask last."""
    model = path.with_name("config.json")
    told = config.get("tokenizer_class") or (read_json(model) if model.is_file() else {}).get("model_type")
    if str(told).lower().startswith("camembert"):
        first = {"<s>NOTUSED": 5, "<pad>": 3, "</s>NOTUSED": 5, "<unk>": 2, "<unk>NOTUSED": 5}
        rest = 1
    elif str(told).lower().startswith("xlm"):
        first, rest = {"<s>": 3, "<pad>": 3, "</s>": 3, "<unk>": 2}, 3
    else:
        raise EtymonError(
            f"{path} does not say whether its ids are XLM-RoBERTa's or CamemBERT's: name the tokenizer_class in "
            "tokenizer_config.json"
        )
    unused = -100.0  # never the better piece
    own = [(piece, unused if kind == 5 else 0.0) for piece, kind in first.items()]
    return [*own, *pieces[rest:], ("<mask>", 0.0)], [*first.values(), *kinds[rest:], 3]


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


# ---------------------------------------------------------------- roles


def _roles(backend: tokenizers.Tokenizer, declared: Mapping[str, Any]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for role, key in ROLE_KEYS.items():
        entry = declared.get(key)
        token = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(token, str) and backend.token_to_id(token) is not None:
            roles[role] = token
    if not roles:
        found = ((role, name) for role, names in USUAL_TOKENS.items() for name in names)
        for role, name in found:
            if role not in roles and backend.token_to_id(name) is not None:
                roles[role] = name
        if "class" not in roles and {"begin", "end", "mask"} <= set(roles):  # RoBERTa and BART do with those
            roles |= {"class": roles["begin"], "separator": roles["end"]}
    # Rows that are filled up with the end of a text: a token of another role, and none for that alone.
    if roles.get("pad") in [token for role, token in roles.items() if role != "pad"]:
        del roles["pad"]
    return roles
