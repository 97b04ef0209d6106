"""Text on a terminal, measured in its cells: a Chinese character takes two, a combining mark none, an emoji
made of several characters two. Whatever pads, cuts or wraps text for people does it here."""

from __future__ import annotations

import re
from typing import Any


def display_width(text: str) -> int:
    """The cells of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # importing it takes 8 ms, and most text is ASCII

    return cell_len(text)


def align_left(text: str, width: int) -> str:
    """The text with spaces behind it, up to `width` cells."""
    return text + " " * (width - display_width(text))


def align_right(text: str, width: int) -> str:
    """The text with spaces before it, up to `width` cells."""
    return " " * (width - display_width(text)) + text


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """The text, or as much of its beginning as fits into `width` cells with an ellipsis behind it. Marks stay
    with their letters."""
    if display_width(text) <= width:
        return text
    return split_at(text, width - display_width(ellipsis))[0].rstrip() + ellipsis


FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
"""Full-width forms of ASCII, by code point."""


def half_width(argument: str) -> str:
    """A word of a command line as a keyboard without full-width characters types it: ASCII letters and marks,
    no curly quotes around it, and two hyphens where an editor made a dash of them."""
    plain = argument.translate(FULL_WIDTH).strip("“”‘’")
    return re.sub("^[‐‑‒–—―−]+-?(?=[A-Za-z])", "--", plain)


def split_at(text: str, width: int) -> tuple[str, str]:
    """As many whole characters as take at most `width` cells, and the rest."""
    if text.isascii():
        return text[: max(0, width)], text[max(0, width) :]
    from rich.cells import split_graphemes

    taken, place = 0, 0
    for _, stop, cells in split_graphemes(text)[0]:
        if taken + cells > width:
            break
        taken, place = taken + cells, stop
    return text[:place], text[place:]


# Lines break at spaces and around ideographs, kana and full-width forms, but a closing mark stays with what
# is before it and an opening one with what follows. The dot of a file's ending (".csv") begins a word.
_CLOSING, _OPENING = "，。、；：？！）】》」』”’％…,.;:?!)]}", "（【《「『“‘([{"
_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\u3000-\u303f\U00020000-\U0003ffff"
_UNIT = re.compile(
    rf"\s+|[{re.escape(_OPENING)}]*(?:[{_WIDE}]|[^\s{_WIDE}{re.escape(_OPENING)}]+|.)"
    rf"(?:(?!\.\w)[{re.escape(_CLOSING)}])*"
)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells; a word that is wider has a line of its own."""
    lines, line = [], ""
    for unit in _UNIT.findall(text.strip()):
        if line and display_width(line) + display_width(unit.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += " " if unit.isspace() and line else unit.strip()
    return [*lines, line.rstrip()] if line.strip() else lines or [""]


def terminal_of(stream: Any) -> Any:
    """The stream behind those that stand before a terminal: a live display, and what makes control characters
    visible. rich looks behind one of them only, and its own control characters would be spelled out."""
    while hasattr(stream, "rich_proxied_file"):
        stream = stream.rich_proxied_file
    return stream
