"""The one exception that means "the user can fix this", and text made safe to show to people."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, change the direction of the text behind them, or are no characters
(surrogates)."""
ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


class EtymonError(Exception):
    """A user's mistake or a machine's limit: one line saying what, where and what to do.

    The command line prints the message without a traceback and leaves with a non-zero exit code. A common one
    has a `code`, the name of its section in docs/errors.md, which `etymon help CODE` shows.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def visible(text: str, breaks: str = "\n\t") -> str:
    """The text with its control characters spelled out, those of `breaks` excepted: ESC is shown as \\u001b,
    as in JSON."""

    def spell(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in breaks else ESCAPES.get(character, f"\\u{ord(character):04x}")

    return CONTROLS.sub(spell, text)
