"""Entities in a text: as they are given, as tags of words, and back."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

from etymon.errors import EtymonError
from etymon.files import parse_json
from etymon.tasks.tag_scores import OUTSIDE, spans
from etymon.text.words import Span

Scheme = Literal["IOB2", "BILOU"]
PREFIXES: dict[str, str] = {"IOB2": "BI", "BILOU": "BILU"}
UNSPACED = (
    ("\u0e00", "\u0eff"),  # Thai and Lao
    ("\u1000", "\u109f"),  # Burmese
    ("\u1780", "\u17ff"),  # Khmer
    ("\u3000", "\u30ff"),  # Chinese marks, Japanese
    ("\u3400", "\u9fff"),
    ("\uf900", "\ufaff"),
    ("\uff00", "\uff65"),  # wide forms
    ("\U00020000", "\U0003ffff"),
)


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) of a text."""

    start: int
    end: int
    label: str
    text: str
    confidence: float | None = None


@cache
def unspaced(character: str) -> bool:
    """Whether it belongs to writing that puts no spaces between words."""
    return any(low <= character <= high for low, high in UNSPACED)


def words_of(text: str) -> list[Span]:
    """The words of a text: runs of letters and digits; of writing without spaces every character; and every other mark."""
    found: list[Span] = []
    for place, character in enumerate(text):
        start, stop = found[-1] if found else (0, 0)
        # A mark belongs to the letter before it.
        if place == stop > 0 and (_mark(character) or (_letter(character) and _letter(text[place - 1]))):
            found[-1] = (start, place + 1)
        elif not character.isspace():
            found.append((place, place + 1))
    return found


@cache
def _letter(character: str) -> bool:
    return (character.isalnum() or _mark(character)) and not unspaced(character)


@cache
def _mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


# --- given


def read_entities(value: Any, text: str, place: str, column: str, *, longest: bool = False) -> list[Entity]:
    """The entities of a text, in order: a list of {start, end, label} or [start, end, label], the same as JSON, or CLUENER's
    {label: {entity: [[start, last], ...]}}. Of entities that overlap, only the `longest` is kept; or they are refused."""
    where = f"{place}: column {column!r}"
    if isinstance(value, str):
        value = parse_json(value or "[]", where, "give a list of start, end and label")
    found = sorted(_given(value or (), text, where), key=lambda one: (one.start, one.end))
    clash = next((pair for pair in pairwise(found) if pair[0].end > pair[1].start), None)
    if clash is None:
        return found
    if not longest:
        one, two = (f"{each.text!r} ({each.label})" for each in clash)
        raise EtymonError(f"{where}: {one} and {two} overlap: leave one out, or set overlapping to longest")
    kept: list[Entity] = []
    for each in sorted(found, key=lambda each: each.start - each.end):
        if all(each.end <= other.start or other.end <= each.start for other in kept):
            kept.append(each)
    return sorted(kept, key=lambda each: each.start)


def _given(value: Any, text: str, where: str) -> Iterator[Entity]:
    for start, end, label, name in _listed(value, where):
        if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label.strip():
            raise EtymonError(f"{where}: {[start, end, label]} are no start, end and label")
        if not 0 <= start < end <= len(text):
            raise EtymonError(f"{where}: an entity from {start} to {end} in a text of {len(text)} characters")
        if name not in (None, text[start:end]):
            raise EtymonError(
                f"{where}: {name!r} is not what stands at {start}, which is {text[start:end]!r}"
            )
        if not text[start:end].strip():
            raise EtymonError(f"{where}: an entity from {start} to {end}, where only spaces are")
        yield Entity(start, end, label.strip(), text[start:end])


def _listed(value: Any, where: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Start, end, label and, where it is told, the text of every entity."""
    try:
        if isinstance(value, Mapping):
            for label, names in value.items():
                yield from (
                    (start, last + 1, label, name) for name, at in names.items() for start, last in at
                )
            return
        for one in value:
            if isinstance(one, Mapping):
                yield one["start"], one["end"], one["label"], None
            else:
                start, end, label = one
                yield start, end, label, None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EtymonError(f"{where} is no list of start, end and label") from error


# --- as tags


def scheme_tags(labels: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag that a scheme has for entities of these labels."""
    return (OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in PREFIXES[scheme]))


def tags_of(entities: Sequence[Entity], words: Sequence[Span], scheme: Scheme) -> tuple[list[str], int]:
    """A tag for every word, and how many entities begin or end inside one: they are taken to have all of it."""
    tags, widened, word = [OUTSIDE] * len(words), 0, 0
    for one in entities:
        while word < len(words) and words[word][1] <= one.start:
            word += 1
        first = word
        while word < len(words) and words[word][0] < one.end:
            word += 1
        if first == word:  # it is all inside a word that another one has
            widened += 1
            continue
        widened += words[first][0] < one.start or words[word - 1][1] > one.end
        inside = [f"I-{one.label}"] * (word - first)
        inside[0] = f"B-{one.label}"
        if scheme == "BILOU":
            inside[-1] = f"{'L' if len(inside) > 1 else 'U'}-{one.label}"
        tags[first:word] = inside
    return tags, widened


def entities_of(
    tags: Sequence[str], words: Sequence[Span], text: str, confidences: Sequence[float]
) -> list[Entity]:
    """The entities that tags of any scheme say, each as sure as its words are on average. One that goes on without having
    begun begins there."""
    runs: list[tuple[str, list[int]]] = []
    inside: str | None = None  # the label of an entity that may go on
    for word, tag in enumerate(tags):
        if tag == OUTSIDE:
            inside = None
            continue
        prefix, _, label = tag.partition("-") if spans([tag]) else ("I", "", tag)
        if prefix in "BSU" or inside != label:
            runs.append((label, []))
        runs[-1][1].append(word)
        inside = None if prefix in "ELSU" else label
    return [
        Entity(
            words[run[0]][0], words[run[-1]][1], label, text[words[run[0]][0] : words[run[-1]][1]],
            sum(confidences[word] for word in run) / len(run),
        )
        for label, run in runs
    ]  # fmt: skip
