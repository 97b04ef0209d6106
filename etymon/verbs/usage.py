"""What to say of a command line that cannot be read: the option or the file that was probably meant."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from etymon.verbs.help_contents import table

# What other verbs and other programs call an option of ours; the first one that a verb has is named.
OTHER_NAMES = table("""
--data: --train
--train: --data
--train-file: --train, --data
--vocabulary: --size
--vocab-size: --vocabulary, --size
--output: --out
--output-dir: --out
--lr: --learning-rate
--batch-size: --batch
--max-length: --length, --max-new-tokens
--max-tokens: --max-new-tokens
--max-steps: --steps
--num-steps: --steps
--num-beams: --beams
--steps: --budget 1000steps
--epochs: --budget 3epochs
--num-train-epochs: --epochs, --budget 3epochs
--text-column: --text
--label-column: --label
--test: --data
""")
FILE_OPTIONS = ("--data", "--train")
CLOSE = 0.7
"""How much of an option's letters have to be another's to be taken for it."""


def usage_message(error: click.UsageError) -> str:
    """The message of a mistake in a command line, with what was probably meant."""
    names = _option_names(error.ctx)
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error.option_name, names)
    message = error.format_message().rstrip(".")
    words = message.partition("extra argument")[2].partition("(")[2].removesuffix(")").split()
    files = next((name for name in FILE_OPTIONS if name in names), None)
    if words and files is not None and Path(words[0]).exists():
        return f"{message}: files are given with {files}"
    return message


def _unknown_option(given: str, names: list[str]) -> str:
    # Others write options with underscores.
    plain = given.replace("_", "-").lower()
    for other in (plain, *OTHER_NAMES.get(plain, "").split(", ")):
        if other.partition(" ")[0] in names:
            return f"No such option {given!r}: here it is {other}"
    if plain == "--model":
        return f"No such option {given!r}: the model comes first, without an option's name"
    close = get_close_matches(plain, names, n=3, cutoff=CLOSE)
    if not close:
        return f"No such option {given!r}"
    return f"No such option {given!r}. Did you mean {' or '.join(close)}?"


def _option_names(context: click.Context | None) -> list[str]:
    parameters = [] if context is None else context.command.params
    return [name for each in parameters for name in each.opts if name.startswith("--")]
