"""What a text is to this library, and how a user wants files to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Boundary = Literal["file", "blank", "line"]
Errors = Literal["strict", "replace", "skip"]
MAX_DOCUMENT = 32_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """One text that belongs together, and where it came from (for messages).

    A long one comes in several, cut where no tokenizer minds: `more` says that it goes on in the next.
    """

    text: str
    source: str = ""
    more: bool = False


@dataclass(frozen=True)
class Reading:
    """How files become documents.

    `documents` says what ends a document in a plain text file: the file, a blank line or every line. Records
    (.jsonl, .csv, .tsv, .parquet) are a document each, taken from `column` and held in memory whole: one of
    more than `max_document` bytes is refused. `errors` says what becomes of bytes that are no UTF-8: an error,
    U+FFFD, or a document left out (and any other record that cannot be read with it). `format` reads every
    file as if its name ended so.
    """

    documents: Boundary = "file"
    column: str = "text"
    errors: Errors = "strict"
    max_document: int = MAX_DOCUMENT
    format: str | None = None


@dataclass(frozen=True)
class Identity:
    """A file as it was when it was read."""

    bytes: int
    mtime_ns: int
    sha256: str


@dataclass
class Tally:
    """What reading has seen so far: bytes (as they are on the disk), documents left out, and whole files."""

    bytes: int = 0
    skipped: int = 0
    files: dict[str, Identity] = field(default_factory=dict)

    def recall(self, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier reading wrote down."""
        for path, entry in inputs.items():
            self.files.setdefault(path, Identity(**entry))

    def inputs(self) -> dict[str, dict[str, Any]]:
        """The files seen, to be written down."""
        return {path: asdict(identity) for path, identity in sorted(self.files.items())}
