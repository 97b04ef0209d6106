"""A tokenizer as llama.cpp describes one in the metadata of a file, and why some have no description there.

llama.cpp has its own code for each kind: byte-level BPE as GPT-2 cuts texts (`gpt2`), WordPiece as BERT does
(`bert`) and unigrams (`t5`). Whatever a tokenizer does besides, it would not do.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etymon.exports.charsmap import build_charsmap, character_rules
from etymon.text.tokenizer import BYTE_PIECE, Tokenizer
from etymon.text.tokenizer_pipelines import merge_pairs

# Of `gguf.TokenType`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
ROLE_KEYS = {"unknown": "unknown", "pad": "padding", "mask": "mask", "end": "eos", "begin": "bos"}
"""Our roles, and theirs in `tokenizer.ggml.ROLE_token_id`."""
COLLAPSING = ({"Regex": r"\s+"}, " ")


@dataclass
class GgufTokenizer:
    """What a file says of a tokenizer: keys behind `tokenizer.ggml.` and, apart, its lists."""

    model: str
    tokens: list[str]
    types: list[int]
    pre: str = "default"
    scores: list[float] | None = None
    merges: list[str] | None = None
    charsmap: bytes = b""
    flags: dict[str, bool] = field(default_factory=dict)


def find_tokenizer_misfit(tokenizer: Tokenizer) -> str | None:
    """Why llama.cpp cannot cut texts as this tokenizer does; None where it can."""
    description, kind = tokenizer.description, tokenizer.kind
    splitter, normalizer = description["pre_tokenizer"] or {}, description["normalizer"]
    if kind == "byte-bpe":
        if splitter.get("type") != "ByteLevel" or not splitter.get("use_regex", True) or normalizer:
            return "llama.cpp cuts byte-level tokens as GPT-2 does, and this tokenizer does not"
        if splitter.get("add_prefix_space"):
            return "its tokenizer puts a space before texts, and llama.cpp's byte-level one does not"
        return None
    # A Unicode form before it, or words of Thai cut into runs, would be left out there.
    if kind == "wordpiece":
        is_plain = splitter.get("type") == "BertPreTokenizer" and tokenizer.prefix == "##"
        is_plain = is_plain and (normalizer or {}).get("type") == "BertNormalizer"
        if not is_plain or not (normalizer["clean_text"] and normalizer["handle_chinese_chars"]):
            return "llama.cpp cuts words as BERT does, and this tokenizer does not"
        return None
    if kind == "unigram":
        return _unigram_misfit(splitter)
    return f"llama.cpp has no {kind} tokenizer: only byte-bpe, wordpiece and unigram"


def _unigram_misfit(splitter: Mapping[str, Any]) -> str | None:
    parts = splitter.get("pretokenizers", [splitter])
    if [part.get("type") for part in parts] not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        return "llama.cpp cuts unigrams at spaces, and this tokenizer does not"
    if parts[-1].get("prepend_scheme", "always") == "first":
        return "its tokenizer puts a space before the first word, and llama.cpp behind special tokens, too"
    return None


def describe_tokenizer(tokenizer: Tokenizer, size: int) -> GgufTokenizer:
    """The description of a tokenizer that fits, with a name for every one of `size` ids."""
    tokens, types = _token_types(tokenizer, size)
    single = tokenizer.framing.single
    flags = {"add_bos_token": isinstance(single[0], str), "add_eos_token": isinstance(single[-1], str)}
    if tokenizer.kind == "byte-bpe":
        merges = [" ".join(pair) for pair in merge_pairs(tokenizer.description["model"])]
        # The name of RoBERTa's also says that two texts have a separator between them.
        pre = "roberta-bpe" if "separator" in tokenizer.roles else "gpt-2"
        return GgufTokenizer("gpt2", tokens, types, pre, merges=merges, flags=flags)
    if tokenizer.kind == "wordpiece":
        normalizer = tokenizer.description["normalizer"]
        accents = normalizer["strip_accents"]
        flags |= {
            "normalizer.lowercase": normalizer["lowercase"],
            "normalizer.strip_accents": normalizer["lowercase"] if accents is None else accents,
        }
        named = map(_phantom_space, tokens, types)
        return GgufTokenizer("bert", list(named), types, flags=flags)
    return _describe_unigrams(tokenizer, tokens, types, flags)


def _token_types(tokenizer: Tokenizer, size: int) -> tuple[list[str], list[int]]:
    added = tokenizer.backend.get_added_tokens_decoder()
    unknown = tokenizer.id("unknown")
    tokens, types = [], []
    for number in range(size):
        token = tokenizer.tokens[number] if number < tokenizer.size else ""
        # Two ids of one name would keep llama.cpp from opening the file.
        tokens.append(token or f"[PAD{number}]")
        if not token:
            kind = UNUSED
        elif number == unknown and tokenizer.kind == "unigram":
            kind = UNKNOWN
        elif number in tokenizer.sentinels:
            kind = USER_DEFINED
        elif number in tokenizer.special_ids:
            kind = CONTROL
        elif number in added:
            kind = USER_DEFINED
        elif tokenizer.kind == "unigram" and BYTE_PIECE.fullmatch(token):
            kind = BYTE
        else:
            kind = NORMAL
        types.append(kind)
    return tokens, types


def _phantom_space(token: str, kind: int) -> str:
    """A word begins with a space there, and what goes on with one has no `##`."""
    if kind in (CONTROL, UNUSED):
        return token
    return token.removeprefix("##") if token.startswith("##") else SPACE + token


def _describe_unigrams(
    tokenizer: Tokenizer, tokens: list[str], types: list[int], flags: dict[str, bool]
) -> GgufTokenizer:
    description = tokenizer.description
    scores = [float(score) for _, score in description["model"]["vocab"]][: len(tokens)]
    # Added tokens have no score of their own: they are found before texts are cut.
    scores += [-1000.0] * (len(tokens) - len(scores))
    splitter = description["pre_tokenizer"]
    parts = splitter.get("pretokenizers", [splitter])
    normalizer = description["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer] if normalizer else [])
    collapses = [step for step in steps if _is_collapsing(step)]
    flags |= {
        "add_space_prefix": parts[-1].get("prepend_scheme", "always") != "never",
        "remove_extra_whitespaces": bool(collapses) or len(parts) > 1,
    }
    return GgufTokenizer(
        "t5", tokens, types, scores=scores, charsmap=_charsmap(tokenizer, steps, collapses), flags=flags
    )


def _is_collapsing(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Strip" or (step.get("pattern"), step.get("content")) == COLLAPSING


def _charsmap(tokenizer: Tokenizer, steps: Sequence[Mapping[str, Any]], collapses: Sequence[Any]) -> bytes:
    """The table of a sentencepiece file where that is all there is, or else one of what the steps do."""
    # Collapsing spaces is a flag there, and no matter of characters.
    others = [step for step in steps if step not in collapses]
    if [step["type"] for step in others] == ["Precompiled"]:
        return base64.b64decode(others[0]["precompiled_charsmap"] or "")
    if not steps:
        return b""
    alphabet = {letter for token in tokenizer.tokens for letter in token}
    return build_charsmap(character_rules(tokenizer.backend.normalizer.normalize_str, alphabet))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """By llama.cpp's keys, the special tokens. What begins a text is its `bos` there, a class token or
    not."""
    ids = {key: tokenizer.id(role) for role, key in ROLE_KEYS.items()}
    single = tokenizer.framing.single
    first, last = single[0], single[-1]
    # What stands around a text is added by these two keys, whatever the roles are called here.
    if isinstance(first, str):
        ids["bos"] = tokenizer.id(first)
    if isinstance(last, str):
        ids["eos"] = tokenizer.id(last)
    if "separator" in tokenizer.roles:
        ids["seperator"] = tokenizer.id("separator")  # spelled so in every file
    return {f"{key}_token_id": number for key, number in ids.items() if number is not None}
