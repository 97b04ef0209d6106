"""SQuAD's files, versions 1.1 and 2.0, as rows: articles hold paragraphs, and those hold questions with their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etymon.errors import EtymonError
from etymon.text.reading import Record


def is_squad(document: Any) -> bool:
    """Whether a JSON document is built so."""
    articles = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(articles, list) and any(
        isinstance(one, Mapping) and "paragraphs" in one for one in articles
    )


def squad_rows(document: Mapping[str, Any], name: str) -> Iterator[Record]:
    """Every question, in order: its id, title, context, question, is_impossible and, as a list, its answers."""
    for article, inside in _listed(document, "data", name, "article"):
        for paragraph, within in _listed(article, "paragraphs", inside, "paragraph"):
            for question, place in _listed(paragraph, "qas", within, "question"):
                row = {
                    "id": _part(question, "id", place),
                    "title": article.get("title", ""),
                    "context": _part(paragraph, "context", place),
                    "question": _part(question, "question", place),
                    "is_impossible": bool(question.get("is_impossible")),
                }
                if "answers" in question:  # files of questions alone have none
                    row["answers"] = [] if row["is_impossible"] else question["answers"]
                yield place, row


def _listed(
    holder: Mapping[str, Any], key: str, place: str, what: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    listed = _part(holder, key, place)
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise EtymonError(f"{place}: {key!r} is no list of objects, as SQuAD's files have it there")
    yield from ((one, f"{place}, {what} {number}") for number, one in enumerate(listed, 1))


def _part(holder: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in holder:
        raise EtymonError(f"{place}: no {key!r}, which SQuAD's files have there")
    return holder[key]
