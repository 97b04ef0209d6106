"""What pages tell a reader to type: the command lines of their blocks and those inside a sentence, and the Python of a page.

`python -m tests.pages` lists every command with its place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SHELLS = ("sh", "bash", "console")
BLOCK = re.compile(
    r"^(?P<mark><!-- [^>]*-->\n+)?[ ]*```(?P<language>\w*)\n(?P<text>.*?)^[ ]*```", re.DOTALL | re.MULTILINE
)
INLINE = re.compile(r"(?<!`)`(etymon [^`]+)`(?!`)")
MARK = re.compile(r"<!-- (\w+): (.+?) -->")
TORCHRUN = re.compile(r"^(?:[A-Z_]+=\S+ )*torchrun .*? -m (?=etymon )")
PIPED = re.compile(r"^cat \S+ \| (?=etymon )")


@dataclass(frozen=True)
class Block:
    """A block of code. `mark` is what a comment before it says: ("run", its name), ("file", its name) or nothing."""

    page: str
    line: int
    language: str
    mark: tuple[str, str] | None
    text: str


def names() -> list[str]:
    """All pages with commands, by their place in the repository. A log of measurements keeps what was typed then."""
    found = [
        *sorted(DOCS.rglob("*.md")),
        *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")),
    ]
    return [str(path.relative_to(ROOT)) for path in found if path.name != "lab-notes.md"]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    text = read(page)
    for found in BLOCK.finditer(text):
        mark = MARK.search(found["mark"] or "")
        line = text.count("\n", 0, found.start("text"))
        yield Block(page, line, found["language"], (mark[1], mark[2]) if mark else None, found["text"])


def typed(text: str, launched: bool = True) -> Iterator[str]:
    """The lines of a shell's block that call etymon, whole, from `etymon` on; also those that torchrun launches, unless
    these are not wanted."""
    for line in text.replace("\\\n", " ").splitlines():
        line = PIPED.sub("", line.strip().removeprefix("$ "))
        line = TORCHRUN.sub("", line) if launched else line
        if line.startswith("etymon "):
            yield line


def words_of(line: str) -> list[str]:
    """The arguments of a command, without its comment and what a pipe does with its result."""
    words = shlex.split(line, comments=True)[1:]
    return words[: words.index("|")] if "|" in words else words


def all_commands() -> Iterator[tuple[str, int, str]]:
    """(page, line number, command) of everything that pages tell to type."""
    for page in names():
        for block in blocks(page):
            if block.language in SHELLS:
                for line in typed(block.text):
                    yield page, block.line, line
        text = read(page)
        for found in INLINE.finditer(text):
            yield page, text.count("\n", 0, found.start()) + 1, found[1]


if __name__ == "__main__":
    for page, number, line in all_commands():
        print(f"{page}:{number}: {line}")
