"""What `etymon translate` and `etymon summarize` share: texts in, texts out, with a model that writes from a source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.files import atomic_write, json_text

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.tasks.text2text import Text2Text

PUBLISHED = "task_specific_params"
"""Where a published configuration keeps the prefixes of T5's tasks."""
TABLES = (".csv", ".tsv", ".parquet")
"""Endings that promise columns; a spreadsheet would also compute a line that begins with `=`."""
WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class Rewritten:
    """A text and what the model made of it."""

    source: str
    text: str
    parts: int = 1
    """How many parts the source was read in."""


def rewrite(asked: Mapping[str, Any], *, usual: str, lines: bool) -> list[Rewritten]:
    """The texts of a verb's options rewritten, in their order; blank ones stay blank. `usual` names the published task whose
    prefix is taken if none is known; `lines` says whether a line of a file is a text."""
    from etymon.verbs.opening import opened, texts_of, writable
    from etymon.verbs.options import decoding

    out, tell = asked["out"], asked["on_note"] or (lambda note: None)
    writable(out)
    if out is not None and Path(out).suffix.lower() in TABLES:
        raise EtymonError(
            f"cannot write {out}: texts are written a line each, or as .jsonl; name it .txt or .jsonl"
        )
    texts = texts_of(asked["texts"], asked["file"], lines=lines, blank=True)
    chosen = opened(asked["model"], asked["device"])
    task = _task(chosen, asked["prefix"], usual)
    settings = decoding(asked)
    pieces = [
        _pieces(task, text, f"text {number} of {len(texts)}", asked["chunk"], tell)
        for number, text in enumerate(texts, 1)
    ]
    flat = [task.options.prefix + piece for each in pieces for piece in each]
    written = iter(task.write(chosen, task.sources(flat), settings))
    found = [
        Rewritten(text, " ".join(next(written) for _ in each), len(each)) for text, each in zip(texts, pieces)
    ]
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(_line(one, Path(out).suffix.lower() == ".jsonl") + "\n" for one in found)
    return found


def _line(one: Rewritten, json: bool) -> str:
    return json_text(one) if json else " ".join(one.text.split())


def _task(model: Model, prefix: str | None, usual: str) -> Text2Text:
    """The task that the model was fine-tuned for, or what its published configuration says."""
    from etymon.tasks import get_task, task_of
    from etymon.tasks.text2text import Text2Text

    changes = {} if prefix is None else {"prefix": prefix}
    found = task_of(model, changes, "text2text")
    if not isinstance(found, Text2Text):
        published = (model.carried.get(PUBLISHED) or {}).get(usual) or {}
        found = get_task("text2text", {"prefix": published.get("prefix") or "", **changes}, model.family)
        assert isinstance(found, Text2Text)
        found.fit(model.family)
        found.bind(model)
    return found


def _pieces(task: Text2Text, text: str, place: str, chunk: bool, tell: Callable[[str], None]) -> list[str]:
    """The text, or its sentences in as few parts as the model can read; of a sentence that is too long, its words."""
    from etymon.text.sentences import sentence_starts

    room, prefix = task.room_for_sources, task.options.prefix

    def length(piece: str) -> int:
        return len(task.sources([prefix + piece])[0])

    if not text.strip():
        return []
    if (tokens := length(text)) <= room:
        return [text]
    if not chunk:
        raise EtymonError(
            f"{place} has {tokens:,} tokens, and the model reads {room:,}: shorten it, or have it read in parts (--chunk)"
        )
    starts = [*sentence_starts(text), len(text)]
    sentences = [text[start:stop] for start, stop in pairwise(starts)]
    parts: list[str] = []
    for piece in (
        piece for one in sentences for piece in ([one] if length(one) <= room else WORD.findall(one))
    ):
        if parts and length(parts[-1] + piece) <= room:
            parts[-1] += piece
        elif length(piece) <= room:
            parts.append(piece)
        else:
            raise EtymonError(f"{place} has a word of {length(piece):,} tokens, and the model reads {room:,}")
    tell(f"{place} has {tokens:,} tokens and is read in {len(parts)} parts of up to {room:,}")
    return [part.strip() for part in parts]


def present(
    result: list[Rewritten], out: Path | None, json: Annotated[bool, "a JSON record a text"] = False
) -> None:
    if out is None:
        print(*(_line(one, json) for one in result), sep="\n")
    else:
        print(f"{len(result):,} texts in {out}")
