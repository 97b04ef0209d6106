"""Tokenizer folders: the Hugging Face files we write, and the older ones we also read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from etymon.errors import EtymonError
from etymon.files import atomic_write, read_any_json, read_json
from etymon.text.framing import ReadingSettings
from etymon.text.normalising import Normalisation
from etymon.text.tokenizer import ROLE_KEYS, Tokenizer
from etymon.text.tokenizer_formats import (
    FAIRSEQ_MODEL,
    SENTENCEPIECE,
    USUAL_TOKENS,
    from_merges,
    from_sentencepiece,
    from_vocab_txt,
)

COUNTS = "token_counts.json"
NORMALISE = "etymon_normalise"
"""The key of tokenizer_config.json for what is done to a text first; Transformers keeps it, no more."""
NO_LIMIT = int(1e30)
"""The `model_max_length` with which Transformers says that there is none."""


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Read tokenizer.json, or vocab.txt, or vocab.json + merges.txt, or a sentencepiece model."""
    folder = Path(folder)
    config, special = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    models = [folder / name for name in SENTENCEPIECE if (folder / name).is_file()]
    if (folder / "tokenizer.json").is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise EtymonError(f"{folder / 'tokenizer.json'} is damaged or unknown: {error}") from error
    elif (folder / "vocab.txt").is_file():
        backend = from_vocab_txt(folder / "vocab.txt", config)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = from_merges(folder, config)
    elif models:
        backend = from_sentencepiece(models[0], config)
    else:
        raise EtymonError(
            f"no tokenizer in {folder}: it needs tokenizer.json, vocab.txt, vocab.json with merges.txt, "
            f"spiece.model, tokenizer.model or {FAIRSEQ_MODEL}"
        )
    normalise = None
    if NORMALISE in config:
        normalise = Normalisation.read(config.pop(NORMALISE), str(folder / "tokenizer_config.json"))
    roles = _find_roles(backend, {**special, **config})
    tokenizer = Tokenizer(backend, roles, config=config, normalise=normalise)
    if (folder / COUNTS).is_file():
        try:
            counts = np.array(read_any_json(folder / COUNTS), np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise EtymonError(f"{folder / COUNTS} is damaged: remove it, or bring it back") from error
        tokenizer.counts = counts if counts.shape == (tokenizer.size,) else None  # those of another tokenizer
    return tokenizer


def _find_roles(backend: tokenizers.Tokenizer, declared: Mapping[str, Any]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for role, key in ROLE_KEYS.items():
        entry = declared.get(key)
        token = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(token, str) and backend.token_to_id(token) is not None:
            roles[role] = token
    if not roles:
        for role, names in USUAL_TOKENS.items():
            if present := [name for name in names if backend.token_to_id(name) is not None]:
                roles[role] = present[0]
        if "class" not in roles and {"begin", "end", "mask"} <= set(roles):  # which then do for these as well
            roles |= {"class": roles["begin"], "separator": roles["end"]}
    # Rows that are filled up with the end of a text: a token of another role, and none for that alone.
    if roles.get("pad") in [token for role, token in roles.items() if role != "pad"]:
        del roles["pad"]
    return roles


# ---------------------------------------------------------------- the files that we write


def save_tokenizer(
    tokenizer: Tokenizer, folder: str | os.PathLike[str], reading: ReadingSettings | None = None
) -> None:
    """Write tokenizer.json, tokenizer_config.json and, of word tokenizers, how often each token occurred."""
    folder = Path(folder)
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(_framed_json(tokenizer, reading))
    with atomic_write(folder / "tokenizer_config.json") as file:
        json.dump(_hub_config(tokenizer, reading), file, indent=2, ensure_ascii=False)
    if tokenizer.counts is None:
        (folder / COUNTS).unlink(missing_ok=True)  # of another tokenizer that was there
    else:
        with atomic_write(folder / COUNTS) as file:
            json.dump(tokenizer.counts.tolist(), file)


def reading_config(tokenizer: Tokenizer, reading: ReadingSettings) -> dict[str, Any]:
    """The keys of tokenizer_config.json that say how a model reads texts."""
    return {
        "model_max_length": reading.task_length or reading.positions or NO_LIMIT,
        "padding_side": tokenizer.framing.padding_side,
        "truncation_side": reading.truncation_side,
    }


def _hub_config(tokenizer: Tokenizer, reading: ReadingSettings | None) -> dict[str, Any]:
    """What tokenizer_config.json says, so that Transformers builds the same tokenizer and, with `reading`,
    reads texts as the model does. What a foreign file said of itself stays, as far as the model has room for
    it."""
    # Transformers 5 rebuilds the pipeline of a named class from the vocabulary and forgets tokenizer.json's.
    # These classes come out the same; others would lose their normaliser and are saved as the generic class.
    tokens, roles = set(tokenizer.roles.values()), set(tokenizer.roles)
    normalizer = tokenizer.description["normalizer"] or {}
    # Made for WordPiece, whose decoder puts spaces before punctuation; others spell their spaces.
    config: dict[str, Any] = {"clean_up_tokenization_spaces": tokenizer.kind == "wordpiece"}
    types = [(tokenizer.description[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
    is_bert = tokenizer.kind == "wordpiece" and types == ["BertNormalizer", "BertPreTokenizer"]
    if tokenizer.kind == "byte-bpe" and roles <= {"pad", "unknown", "begin", "end"}:
        config |= {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": False}
    elif tokenizer.kind == "byte-bpe" and tokens == {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}:
        config |= {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": False}
    elif is_bert and {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} <= tokens:  # which the class would add
        config |= {
            "tokenizer_class": "BertTokenizerFast",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if tokenizer.sentinels:
        config["additional_special_tokens"] = [tokenizer.tokens[number] for number in tokenizer.sentinels]
    # Not in tokenizer.json: its normalisers know no words, and OpenCC goes by words.
    if tokenizer.normalise:
        config[NORMALISE] = tokenizer.normalise.describe()
    config |= tokenizer.config
    framing = tokenizer.framing
    segments = ["token_type_ids"] if any(framing.pair_segments) else []
    config.setdefault("model_input_names", ["input_ids", *segments, "attention_mask"])
    if reading is not None:
        config = {**reading_config(tokenizer, reading), **config}
        limit = config["model_max_length"] if isinstance(config["model_max_length"], int) else NO_LIMIT
        config["model_max_length"] = reading.task_length or min(limit, reading.positions or NO_LIMIT)
        if reading.pad_token is not None and config.get("pad_token") is None:
            config["pad_token"] = reading.pad_token
    elif framing.padding_side != "right":  # which goes without saying
        config.setdefault("padding_side", framing.padding_side)
    return {**config, **{ROLE_KEYS[role]: token for role, token in tokenizer.roles.items()}}


def _framed_json(tokenizer: Tokenizer, reading: ReadingSettings | None) -> str:
    """What tokenizer.json says, with a post-processor by which Transformers frames one text and two as they
    are read here."""
    backend, framing = tokenizer.backend, tokenizer.task_framing
    # Whether the tokenizer's post-processor frames one text and two like this already.
    first, second = (backend.encode(text, add_special_tokens=False) for text in ("a", "b"))
    has_framing = bool(framing.roles)
    for theirs, ours in (
        (backend.post_process(first, None), framing.frame(first.ids)),
        (backend.post_process(first, second), framing.frame(first.ids, second.ids)),
    ):
        has_framing &= theirs.ids == ours.ids.tolist()
        has_framing &= not any(framing.pair_segments) or theirs.type_ids == ours.segments.tolist()
    processor = None
    if framing.for_tasks_only and not (reading and reading.for_task):
        stays = not has_framing  # a language model's: a foreign processor stays, that of a task goes
    elif not (stays := has_framing or not framing.roles):
        names: dict[Any, str] = {0: "$A", 1: "$B", **tokenizer.roles}
        single, pair = (
            [f"{names[item]}:{segment}" for item, segment in zip(template, segments, strict=True)]
            for template, segments in (
                (framing.single, framing.single_segments),
                (framing.pair, framing.pair_segments),
            )
        )
        special = [(tokenizer.roles[role], tokenizer.id(role)) for role in framing.roles]
        template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
        processor = json.loads(template.__getstate__())
    if stays:
        return backend.to_str(pretty=True)
    description = {**tokenizer.description, "post_processor": processor}
    return json.dumps(description, indent=2, ensure_ascii=False)
