"""Pages of `--help` in the user's language, set by the width of its characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

from etymon.display import display_width, wrap
from etymon.language import language, translated
from etymon.verbs.help_contents import CHINESE_PAGES, EXAMPLES, PAGES, grouped_options


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

    def write_examples(self, examples: Iterable[tuple[str, str]]) -> None:
        """Commands below what they are for; they are never broken, so that they can be copied."""
        with self.section("Examples"):
            for command, purpose in examples:
                self.write_text(f"# {translated(purpose, 'help')}")
                self.write(f"{' ' * self.current_indent}etymon {command}\n")

    def _lines(self, text: str, width: int) -> list[str]:
        return wrap(translated(" ".join(text.split()), "help"), width)


class HelpContext(click.Context):
    formatter_class = HelpPage


class VerbCommand(click.Command):
    """A verb's page: what it does, examples, then its options, what everybody needs first."""

    context_class = HelpContext

    def format_arguments(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing here: newer releases of click would write them before the examples."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpPage)
        verb = (self.name or "").replace("-", "_")
        if verb in EXAMPLES:
            formatter.write_examples(EXAMPLES[verb])
        # click's own option has a name of its own that differs from release to release.
        parameters = {
            "help" if "--help" in each.opts else each.name or "": each for each in self.get_params(context)
        }
        places = [name for name, each in parameters.items() if isinstance(each, click.Argument)]
        options = [name for name in parameters if name not in places]
        groups = {"Positional arguments": places} | grouped_options(verb, options)
        for heading, names in groups.items():
            if rows := [parameters[name].get_help_record(context) for name in names]:
                with formatter.section(heading):
                    formatter.write_dl([row for row in rows if row is not None])
        if verb in PAGES:
            page = PAGES[verb]
            if language() == "zh":
                page = CHINESE_PAGES.get(page, page)
            formatter.write_paragraph()
            formatter.write_text(
                translated(
                    f"In (brackets): what is used if you do not say otherwise. More: docs/{page}.md",
                    "help",
                )
            )
