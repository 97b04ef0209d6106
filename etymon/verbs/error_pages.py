"""The sections of docs/errors.md, from the copy inside the package, for `etymon help CODE`."""

from __future__ import annotations

import re
from functools import cache

from etymon.display import wrap
from etymon.language import LOCALE, language

PAGE = "errors.md"


@cache
def error_sections(code: str) -> dict[str, str]:
    """The texts of all sections by the codes of errors, in a language; in English where it has none."""
    # Another language may have a catalogue before it has this page.
    path = LOCALE / code / PAGE
    text = (path if path.is_file() else LOCALE / "en" / PAGE).read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ([a-z0-9-]+)$", text, flags=re.MULTILINE)
    return {name: section.strip() for name, section in zip(parts[::2], parts[1::2])}


def error_page(name: str, width: int) -> str:
    """A section for a terminal of a width: without marks of Markdown, code indented, paragraphs wrapped."""
    blocks = []
    for block in re.split(r"\n\n+", error_sections(language())[name]):
        lines = block.splitlines()
        # Code and errors are never wrapped: they are copied, and searched for.
        if block.startswith("```"):
            blocks.append("\n".join(f"    {line}" for line in lines[1:-1]))
        elif block.startswith("|"):
            rows = [line for line in lines if not re.fullmatch(r"\|[-|]+\|", line)]
            blocks.append("\n".join(_plain(line.strip("| ")) for line in rows))
        else:
            # An entry of a list, or the paragraph as a whole.
            parts = re.split(r"\n(?=- )", block)
            wrapped = [wrap(_plain(" ".join(part.split())), width) for part in parts]
            blocks.append("\n".join(line for lines in wrapped for line in lines))
    return "\n\n".join([name, *blocks])


def _plain(text: str) -> str:
    # The address of a link is where to look; its text mostly repeats that.
    return re.sub(r"\[[^\]]*\]\((\w[^)]*)\)", r"docs/\1", text.replace("**", "").replace("`", ""))


def error_list() -> list[tuple[str, str]]:
    """All codes, each with what it means in a line."""
    return [
        (name, section.splitlines()[0].strip("*").replace("`", ""))
        for name, section in error_sections(language()).items()
    ]
