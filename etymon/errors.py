"""The one exception that means "the user can fix this"."""

from __future__ import annotations


class EtymonError(Exception):
    """A user's mistake or a machine's limit: one line saying what, where and what to do.

    The command line prints the message without a traceback and leaves with a non-zero exit code.
    """
