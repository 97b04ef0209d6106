"""Paragraphs and sentences of the documents that are longer than people like to read: `python -m tests.prose_limits` lists them.

A paragraph is what stands between blank lines: an item of a list is one, a cell of a table, too. Code is none. A sentence ends
at a full stop, a question mark, an exclamation mark or a colon at the end of a line. Words of Chinese pages are counted by characters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
MOST_WORDS, MOST_SENTENCE_WORDS, MOST_CHARACTERS = 90, 35, 180
LOGS = {"lab-notes.md"}
"""A log of measurements is read by date, a line at a time."""

FENCE = re.compile(r"^(\s*)(```+|:::+|~~~+)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
# A full stop ends a sentence where white space and something other than a small letter follow.
SENTENCE_END = re.compile(r"(?<=[.!?。！？])[)\"'”*`]*(?:\s+(?![a-z])|(?<=[。！？]))")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of every paragraph, without marks of the markup."""
    lines, begin = list[str](), 0
    fence: str | None = None

    def flush() -> Iterator[tuple[int, str]]:
        if lines:
            yield begin, plain(" ".join(lines))
        lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        if opened := FENCE.match(line):
            yield from flush()
            # Directives of the site hold prose like any other page; code does not.
            if fence is None and opened[2].startswith(("```", "~~~")):
                fence = opened[2]
            elif fence is not None and line.strip().startswith(fence):
                fence = None
            continue
        if fence is not None:
            continue
        stripped = line.strip()
        if stripped.startswith("|"):
            yield from flush()
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if cell.strip(" -:"):
                    yield number, plain(cell)
            continue
        if not stripped or stripped.startswith(("#", "<!--", ":", "![")):
            yield from flush()
            continue
        if ITEM.match(line):
            yield from flush()
            line = ITEM.sub("", line)
        if not lines:
            begin = number
        lines.append(line.strip())
    yield from flush()


def plain(text: str) -> str:
    """The text as it is read: links without addresses, code as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`+[^`]*`+", "CODE", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text).strip()


def words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def too_long(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    is_chinese = len(HAN.findall(text)) > 0.05 * len(text)
    name = path.relative_to(DOCS)
    for line, paragraph in paragraphs(text):
        if is_chinese:
            count = len(HAN.findall(paragraph))
            if count > MOST_CHARACTERS:
                yield f"{name}:{line}: a paragraph of {count} characters: {paragraph[:60]}"
            continue
        if (count := words(paragraph)) > MOST_WORDS:
            yield f"{name}:{line}: a paragraph of {count} words: {paragraph[:60]}"
        for sentence in SENTENCE_END.split(paragraph):
            if (count := words(sentence or "")) > MOST_SENTENCE_WORDS:
                yield f"{name}:{line}: a sentence of {count} words: {(sentence or '')[:80]}"


def pages() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if path.name not in LOGS]


if __name__ == "__main__":
    found = [line for path in pages() for line in too_long(path)]
    print(*found, f"{len(found)} places", sep="\n")
    sys.exit(bool(found))
