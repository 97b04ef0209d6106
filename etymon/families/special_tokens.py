"""The ids of a model's special tokens: one rule for training, generation, scoring, tasks and saving.

1. What the folder says: `config.json`, then `generation_config.json`; while a text is generated, the other
   way round.
2. The tokenizer's roles.
3. Without a tokenizer, what Transformers' class takes for granted (`Family.special_ids`), where it is in the
   vocabulary.

A null says nothing. Ids outside the vocabulary are left out when a folder is read (`leave_out_unusable_ids`).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.checkpoints.settings import GENERATION_KEYS
from etymon.errors import EtymonError
from etymon.families.family import TASK_HEADS
from etymon.text.framing import ReadingSettings

if TYPE_CHECKING:
    from etymon.families.model import Model

# The keys of a published configuration for the roles of special tokens.
TOKEN_KEYS = {
    "begin": "bos_token_id",
    "end": "eos_token_id",
    "pad": "pad_token_id",
    "separator": "sep_token_id",
    "class": "cls_token_id",
    "mask": "mask_token_id",
}
START_KEY = "decoder_start_token_id"

logger = logging.getLogger("etymon.families")


def token_ids(model: Model, role: str, *, generating: bool = False) -> tuple[int, ...]:
    """The ids of a special token by its role: mostly one, none if there is no such token. A folder may name
    several ends."""
    if ids := _folder_ids(model, TOKEN_KEYS.get(role, ""), generating):
        return ids
    if model.tokenizer is not None:
        number = model.tokenizer.id(role)
    else:
        number = model.family.special_ids.get(role)
        number = number if number is not None and number < model.shape.vocabulary else None
    return () if number is None else (number,)


def start_id(model: Model, *, generating: bool = False) -> int:
    """The token that a decoder over an encoder begins with."""
    for number in _start_ids(model, generating):
        return number
    role = model.family.framing.start
    raise EtymonError(
        f"nothing says what the decoder of this {model.family.title} starts with: set {START_KEY} in "
        "config.json" + (f", or give its tokenizer a {role!r} token" if role else "")
    )


def _start_ids(model: Model, generating: bool = False) -> tuple[int, ...]:
    role = model.family.framing.start
    return _folder_ids(model, START_KEY, generating) or (
        () if role is None else token_ids(model, role, generating=generating)
    )


def forced_ids(model: Model, key: str) -> tuple[int, ...]:
    """The tokens that a generated text must begin (`forced_bos_token_id`) or, at its limit, end with. As in
    Transformers, `config.json` has no say where there is a `generation_config.json`."""
    return _as_ids((model.carried if model.generation is None else model.generation).get(key))


def _folder_ids(model: Model, key: str, generating: bool) -> tuple[int, ...]:
    files = (model.carried, model.generation or {})
    return next(filter(None, (_as_ids(file.get(key)) for file in files[:: -1 if generating else 1])), ())


def _as_ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


# --- reading and writing folders


def leave_out_unusable_ids(model: Model, folder: str | Path) -> None:
    """Leaves out the ids that no token of a model just read has, and says so."""
    # Published folders have such: they were made with another vocabulary than their configuration was. What
    # the shape was made of stays (RoBERTa's positions begin behind its pad).
    fixed = model.family.settings.write(asdict(model.shape))
    model.carried, wrong = usable_ids(model.carried, model.shape.vocabulary, fixed)
    problems = [f"config.json: {', '.join(wrong)}"] if wrong else []
    if model.generation is not None:
        model.generation, wrong = usable_ids(model.generation, model.shape.vocabulary)
        problems += [f"generation_config.json: {', '.join(wrong)}"] if wrong else []
    if problems:
        logger.warning(
            "%s names special tokens outside its vocabulary of %s tokens (%s): they are left out here, "
            "and where it is "
            "saved",
            folder,
            f"{model.shape.vocabulary:,}",
            "; ".join(problems),
        )


def usable_ids(
    settings: Mapping[str, Any], vocabulary: int, fixed: Container[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Settings with null for ids that no token has, and those, such as `eos_token_id 50256`. Keys that are
    `fixed` stay."""

    def is_usable(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < vocabulary

    usable, wrong = dict(settings), []
    for key, value in settings.items():
        if not key.endswith("_token_id") or key in fixed or value is None:
            continue
        kept = [number for number in _as_ids(value) if is_usable(number)]
        if len(kept) < len(_as_ids(value)):
            wrong.append(f"{key} {str(value)[:40]}")
            usable[key] = kept or None
    return usable, wrong


def config_ids(model: Model) -> dict[str, int | None]:
    """By their keys, the ids that the folder's `config.json` does not name and the saved one does. One that
    is not known is null where Transformers' class would else take some id for granted."""
    ids_by_key = {key: token_ids(model, role) for role, key in TOKEN_KEYS.items()}
    ids_by_key[START_KEY] = _start_ids(model)
    usual = {TOKEN_KEYS[role] for role in model.family.special_ids}
    return {
        key: ids[0] if ids else None
        for key, ids in ids_by_key.items()
        if model.carried.get(key) is None and (ids or key in usual)
    }


def generation_settings(model: Model) -> dict[str, Any]:
    """What a saved `generation_config.json` says: what the folder's own does, or else what its `config.json`
    says of generation, which Transformers reads in its stead; and the ids of special tokens that neither
    names."""
    settings = _of_generation(model.carried) if model.generation is None else model.generation
    added = _of_generation(config_ids(model))
    return {**settings, **{key: value for key, value in added.items() if settings.get(key) is None}}


def _of_generation(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in GENERATION_KEYS and value is not None}


def reading_settings(model: Model, heads: Set[str], history: Sequence[Mapping[str, Any]]) -> ReadingSettings:
    """How a model with these heads reads the texts of the last task in its history, or any text if it has no
    task."""
    heads = heads & TASK_HEADS
    # Without a task's head, what counts is what it was trained for last.
    past = history if heads else history[-1:]
    tasks: list[Mapping[str, Any]] = next(filter(None, map(_tasks, reversed(past))), [])
    # An encoder reads all of a task's text, also where the answer is written; a decoder's row holds both.
    lengths = [task.get("limits", {}).get("length") or 0 for task in tasks if heads or model.encoder_decoder]
    return ReadingSettings(
        positions=model.positions,
        for_task=bool(heads),
        pad_token=_pad_token(model) if heads else None,
        task_length=max(lengths, default=0) or None,
        # A question's end is what choices follow on.
        truncation_side="left" if heads == {"choice"} else "right",
    )


def _pad_token(model: Model) -> str | None:
    """The token for padding that the folder or the tokenizer names, or else the end of a text."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    # GPT-2 has no token for padding: the end of a text then pads, as is usual.
    ids = (number for role in ("pad", "end", "begin", "unknown") for number in token_ids(model, role))
    return next((tokenizer.tokens[number] for number in ids if number < tokenizer.size), None)


def _tasks(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a run's entry says of its task, or of each in a mixture."""
    return [entry["task"]] if entry.get("task") else list((entry.get("tasks") or {}).values())
