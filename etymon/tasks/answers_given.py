"""The right answers of a table's questions: texts, and where they begin in their contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etymon.errors import EtymonError
from etymon.tables.table import Table, json_cell
from etymon.text.reading import SURROGATE

SHOWN = 60
"""Characters of an answer that a message repeats."""


def told_apart(table: Table, column: str) -> list[str]:
    """The places of the rows with their ids, of which each must be another."""
    seen: dict[str, str] = {}
    for place, value in zip(table.places, map(str, table.values(column)), strict=True):
        if value in seen:
            raise EtymonError(
                f"{place}: the id {value!r} is also that of {seen[value]}: give every question its own"
            )
        seen[value] = place
    return [f"{place} (id {value!r})" for value, place in seen.items()]


def given_answers(value: Any, context: str, place: str, column: str) -> list[tuple[str, int]]:
    """The answers that a cell holds, and where each begins. None for an empty list, an empty text or nothing at all."""
    try:
        pairs = _pairs(_cell(value, context))
    except (TypeError, ValueError) as error:
        raise EtymonError(
            f"{place}: column {column!r} holds no answers: give a text, a list of texts, or texts and as many answer_start"
        ) from error
    return [_placed(text, start, context, place, column) for text, start in pairs]


def _cell(value: Any, context: str) -> Any:
    """What stands in the context is a text, however it looks; other cells may be JSON."""
    literal = isinstance(value, str) and value != "[]" and value in context
    return value if literal else json_cell(value)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """Texts and, where it is told, where they begin."""
    if value is None or value == "":
        return []
    if isinstance(value, list | tuple):
        return [pair for one in value for pair in _pairs(one)]
    if not isinstance(value, Mapping):
        return [(value, None)]
    texts, starts = value.get("text"), value.get("answer_start")
    if isinstance(texts, str):
        return [(texts, starts)]
    return list(zip(texts, [None] * len(texts) if starts is None else starts, strict=True))  # type: ignore[arg-type]


def _placed(text: Any, start: Any, context: str, place: str, column: str) -> tuple[str, int]:
    """An answer without white space around it, where it stands."""
    if not isinstance(text, str) or not text.strip():
        raise EtymonError(
            f"{place}: column {column!r} holds an answer that is {'empty' if isinstance(text, str) else f'a {type(text).__name__}'}; "
            "a question without an answer has an empty list"
        )
    text = SURROGATE.sub("\ufffd", text)
    shown = repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
    found = context.find(text)
    if found < 0:
        raise EtymonError(
            f"{place}: the answer {shown} is not in its context: correct one of them, or leave the row out"
        )
    if start is not None and (not isinstance(start, int) or start < 0 or not context.startswith(text, start)):
        raise EtymonError(
            f"{place}: the answer {shown} does not begin at {start!r}, but at {found}: correct its answer_start"
        )
    begin = found if start is None else start
    return text.strip(), begin + len(text) - len(text.lstrip())
