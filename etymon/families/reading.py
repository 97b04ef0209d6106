"""How a model reads texts, for the files of its tokenizer: so that other libraries read them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from etymon.families.family import TASK_HEADS
from etymon.families.model import Model
from etymon.families.special_tokens import token_ids
from etymon.text.framing import ReadingSettings


def reading_settings(model: Model, heads: Set[str], history: Sequence[Mapping[str, Any]]) -> ReadingSettings:
    """How a model with these heads reads the texts of the last task in its history, or any text if it has no task."""
    heads = heads & TASK_HEADS
    # Without a task's head, what counts is what it was trained for last.
    past = history if heads else history[-1:]
    tasks: list[Mapping[str, Any]] = next(filter(None, map(_tasks, reversed(past))), [])
    lengths = [task.get("limits", {}).get("length") for task in tasks]
    # An encoder reads all of a task's text, also where the answer is written; a decoder's row holds both.
    known = [length for length in lengths if length] if heads or model.encoder_decoder else []
    return ReadingSettings(
        positions=model.positions,
        for_task=bool(heads),
        pad_token=_pad_token(model) if heads else None,
        task_length=max(known, default=None),
        # A question's end is what choices follow on.
        truncation_side="left" if heads == {"choice"} else "right",
    )


def _pad_token(model: Model) -> str | None:
    """The token for padding that the folder or the tokenizer names, or else the end of a text."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    ids = (number for role in ("pad", "end", "begin", "unknown") for number in token_ids(model, role))
    return next((tokenizer.tokens[number] for number in ids if number < tokenizer.size), None)


def _tasks(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a run's entry says of its task, or of each in a mixture."""
    return [entry["task"]] if entry.get("task") else list((entry.get("tasks") or {}).values())
