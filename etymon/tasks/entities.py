"""Words and entities of a text: entities as a table gives them, as tags of words, and back."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from etymon.errors import EtymonError
from etymon.files import parse_json
from etymon.settings.tasks import Scheme
from etymon.text.words import Span

PREFIXES: dict[str, str] = {"IOB2": "BI", "BILOU": "BILU"}
OUTSIDE = "O"
SPAN_TAG = re.compile(r"[BIESLU](-.+)?")
UNSPACED = (
    ("\u0e00", "\u0eff"),  # Thai and Lao
    ("\u1000", "\u109f"),  # Burmese
    ("\u1780", "\u17ff"),  # Khmer
    ("\u3000", "\u30ff"),  # Chinese marks, Japanese
    ("\u3400", "\u9fff"),  # ideographs
    ("\uf900", "\ufaff"),  # those for compatibility
    ("\uff00", "\uff65"),  # wide forms
    ("\U00020000", "\U0003ffff"),  # rare ideographs
)


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) of a text."""

    start: int
    end: int
    label: str
    text: str
    confidence: float | None = None


# --- words


@cache
def unspaced(character: str) -> bool:
    """Whether it belongs to writing that puts no spaces between words."""
    return any(low <= character <= high for low, high in UNSPACED)


def words_of(text: str) -> list[Span]:
    """The words of a text: runs of letters and digits; of writing without spaces every character; and every
    other mark."""
    words: list[Span] = []
    for place, character in enumerate(text):
        start, stop = words[-1] if words else (0, 0)
        # Vowel signs of Hindi, for one, are no letters to `str.isalnum`.
        # A mark belongs to the letter before it.
        if place == stop > 0 and (_mark(character) or (_letter(character) and _letter(text[place - 1]))):
            words[-1] = (start, place + 1)
        elif not character.isspace():
            words.append((place, place + 1))
    return words


@cache
def _letter(character: str) -> bool:
    return (character.isalnum() or _mark(character)) and not unspaced(character)


@cache
def _mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


# --- entities of a table


def read_entities(value: Any, text: str, place: str, column: str, *, longest: bool = False) -> list[Entity]:
    """The entities of a text, in order: a list of {start, end, label} or [start, end, label], the same as
    JSON, or CLUENER's {label: {entity: [[start, last], ...]}}. Of entities that overlap, only the `longest`
    is kept; or they are refused."""
    where = f"{place}: column {column!r}"
    if isinstance(value, str):
        value = parse_json(value or "[]", where, "give a list of start, end and label")
    entities = []
    for start, end, label, name in _entity_fields(value or (), where):
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
        entities.append(Entity(start, end, label.strip(), text[start:end]))
    entities.sort(key=lambda entity: (entity.start, entity.end))
    clash = next((pair for pair in pairwise(entities) if pair[0].end > pair[1].start), None)
    if clash is None:
        return entities
    if not longest:
        first, second = (f"{entity.text!r} ({entity.label})" for entity in clash)
        raise EtymonError(
            f"{where}: {first} and {second} overlap: leave one out, or set overlapping to longest"
        )
    # The longest first; of two as long, the one that begins first, since the sort is stable.
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity.start - entity.end):
        if all(entity.end <= other.start or other.end <= entity.start for other in kept):
            kept.append(entity)
    return sorted(kept, key=lambda entity: entity.start)


def _entity_fields(value: Any, where: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Start, end, label and, where it is given, the text of every entity."""
    try:
        if isinstance(value, Mapping):
            for label, names in value.items():
                for name, places in names.items():
                    # CLUENER counts the last character itself; everything else here counts behind it.
                    yield from ((start, last + 1, label, name) for start, last in places)
            return
        for entity in value:
            if isinstance(entity, Mapping):
                entity = entity["start"], entity["end"], entity["label"]
            start, end, label = entity
            yield start, end, label, None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EtymonError(f"{where} is no list of start, end and label") from error


# --- entities as tags


def scheme_tags(labels: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag that a scheme has for entities of these labels."""
    return (OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in PREFIXES[scheme]))


def says_spans(tags: Sequence[str]) -> bool:
    """Whether tags say where spans begin, go on or end."""
    matches = [SPAN_TAG.fullmatch(tag) for tag in tags if tag != OUTSIDE]
    return bool(matches) and all(matches)


def tag_scheme(labels: Sequence[str], sentences: Sequence[Sequence[str]]) -> str | None:
    """How tags write spans, in seqeval's names; None if the sentences keep to no scheme, or to one that it
    cannot read strictly.

    Some schemes have the same tags: in IOB2 every span begins with B, in IOB1 only one right behind another
    of its type.
    """
    # L and U are BILOU's alone, S and both B and E are IOBES's: those need no look at the sentences.
    prefixes = {label[0] for label in labels} - {OUTSIDE}
    if prefixes & {"L", "U"}:
        return "BILOU" if prefixes <= set("BILU") else None
    if "S" in prefixes or {"B", "E"} <= prefixes:
        return "IOBES"
    # Every two neighbours, a sentence's edges being outside.
    steps = [step for tags in sentences for step in pairwise([OUTSIDE, *tags, OUTSIDE])]
    if "E" in prefixes:
        # seqeval's IOE1 misses spans of one word.
        return "IOE2" if all(_same_type(tag, after) for tag, after in steps if tag[0] == "I") else None
    if "B" in prefixes and all(_same_type(before, tag) for before, tag in steps if tag[0] == "I"):
        return "IOB2"
    return "IOB1" if all(_same_type(before, tag) for before, tag in steps if tag[0] == "B") else None


def _same_type(before: str, after: str) -> bool:
    """Whether both are in spans of one type."""
    return OUTSIDE not in (before, after) and before[1:] == after[1:]


def tags_of(entities: Sequence[Entity], words: Sequence[Span], scheme: Scheme) -> tuple[list[str], int]:
    """A tag for every word, and how many entities begin or end inside one: they are taken to have all of
    it."""
    tags, widened, word = [OUTSIDE] * len(words), 0, 0
    for entity in entities:
        # Entities are in order and do not overlap, so words are walked through once.
        while word < len(words) and words[word][1] <= entity.start:
            word += 1
        first = word
        while word < len(words) and words[word][0] < entity.end:
            word += 1
        if first == word:  # it is all inside a word that another one has
            widened += 1
            continue
        widened += words[first][0] < entity.start or words[word - 1][1] > entity.end
        inside = [f"I-{entity.label}"] * (word - first)
        inside[0] = f"B-{entity.label}"
        # Ratinov and Roth (2009): the last word and a single one have tags of their own.
        if scheme == "BILOU":
            inside[-1] = f"{'L' if len(inside) > 1 else 'U'}-{entity.label}"
        tags[first:word] = inside
    return tags, widened


def entities_of(
    tags: Sequence[str], words: Sequence[Span], text: str, confidences: Sequence[float]
) -> list[Entity]:
    """The entities that tags of any scheme say, each as sure as its words are on average. One that goes on
    without having begun begins there."""
    runs: list[tuple[str, list[int]]] = []
    inside: str | None = None  # the label of an entity that may go on
    for word, tag in enumerate(tags):
        if tag == OUTSIDE:
            inside = None
            continue
        # As conlleval reads tags: an I of another type, or behind nothing, begins an entity.
        prefix, _, label = tag.partition("-") if says_spans([tag]) else ("I", "", tag)
        if prefix in "BSU" or inside != label:
            runs.append((label, []))
        runs[-1][1].append(word)
        inside = None if prefix in "ELSU" else label
    entities = []
    for label, run in runs:
        start, end = words[run[0]][0], words[run[-1]][1]
        confidence = sum(confidences[word] for word in run) / len(run)
        entities.append(Entity(start, end, label, text[start:end], confidence))
    return entities
