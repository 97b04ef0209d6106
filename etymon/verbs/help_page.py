"""Pages of `--help` in the user's language, set by the width of its characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

from etymon.display import display_width, wrap
from etymon.language import language, translated


class HelpPage(click.HelpFormatter):
    """click's page; in another language than English its texts are looked up and wrapped here, since click
    counts letters and breaks lines at spaces alone."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix or f"{translated('Usage:', 'help')} ")

    def write_heading(self, heading: str) -> None:
        super().write_heading(translated(heading, "help"))

    def write_text(self, text: str) -> None:
        if language() == "en":
            return super().write_text(text)
        indent = " " * self.current_indent
        paragraphs = (self._lines(part, self.width - len(indent)) for part in re.split(r"\n\s*\n", text))
        self.write("\n\n".join("\n".join(indent + line for line in lines) for lines in paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        if language() == "en":
            return super().write_dl(rows, col_max, col_spacing)
        rows = list(rows)
        column = min(max(display_width(first) for first, _ in rows), col_max) + col_spacing
        indent = " " * self.current_indent
        for first, second in rows:
            lines = self._lines(second, max(self.width - column - 2, 10))
            if display_width(first) + col_spacing <= column:
                self.write(indent + first + " " * (column - display_width(first)) + lines.pop(0) + "\n")
            else:
                self.write(f"{indent}{first}\n")
            self.write("".join(f"{indent}{' ' * column}{line}\n" for line in lines))

    def _lines(self, text: str, width: int) -> list[str]:
        return wrap(translated(" ".join(text.split()), "help"), width)


class HelpContext(click.Context):
    formatter_class = HelpPage


class VerbCommand(click.Command):
    context_class = HelpContext
