"""Where text comes from: something that can be read again and recognised again without reading it twice."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from etymon.data.document import MAX_DOCUMENT, Boundary, Document, Errors, Tally
from etymon.data.inputs import STANDARD_INPUT
from etymon.data.prose import stdlib_documents
from etymon.data.text import documents_fingerprint, list_files, read_documents, source_fingerprint
from etymon.errors import EtymonError


class TextSource(Protocol):
    @property
    def description(self) -> str:
        """What the text is, in words."""

    def documents(self) -> Iterable[Document]:
        """The documents, from the beginning; may be asked for more than once."""

    def fingerprint(self) -> str:
        """Changes when the text does."""


@dataclass(frozen=True)
class TextFiles:
    """Files, folders and globs; "-" is standard input, which can be read once. Options as in `Reading`."""

    paths: tuple[str, ...]
    boundary: Boundary = "file"
    column: str = "text"
    errors: Errors = "strict"
    max_document: int = MAX_DOCUMENT
    format: str | None = None
    tally: Tally = field(default_factory=Tally, compare=False, repr=False)
    """What was seen in reading: bytes, documents left out, files as they were."""

    @property
    def description(self) -> str:
        return ", ".join(self.paths)

    def documents(self) -> Iterable[Document]:
        return read_documents(self.paths, documents=self.boundary, **self._options)

    def fingerprint(self) -> str:
        return source_fingerprint(self.paths, documents=self.boundary, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        names = ("column", "errors", "max_document", "format", "tally")
        return {name: getattr(self, name) for name in names}

    def size(self) -> int | None:
        """Bytes on the disk, as the tally counts them; None if standard input is among them."""
        paths = list_files(self.paths, self.format)
        return None if STANDARD_INPUT in paths else sum(path.stat().st_size for path in paths)

    def recall(self, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what a store wrote down about its files, so that unchanged ones need not be read."""
        self.tally.recall(inputs)

    def inputs(self) -> dict[str, dict[str, Any]]:
        """What a store should write down about the files."""
        return self.tally.inputs()


@dataclass(frozen=True)
class PreparedText:
    """A token store that `etymon prepare` made: there is no text in it, only tokens."""

    folder: Path
    text: str = ""
    """What it was made of, if one run makes it for another: that one's settings are then those it was made with."""

    @property
    def description(self) -> str:
        return self.text or f"the prepared text in {self.folder}"

    def documents(self) -> Iterable[Document]:
        raise TypeError("a prepared text holds tokens, not documents")

    def fingerprint(self) -> str:
        from etymon.data.store import TokenStore

        return str(TokenStore.open(self.folder).description["source"])


def text_source(
    paths: Sequence[str], boundary: Boundary = "file", column: str = "text", errors: Errors = "strict"
) -> TextFiles | PreparedText:
    """Files to be read, or the prepared text if that is what the path names."""
    stores = [path for path in paths if (Path(path) / "store.json").is_file()]
    if not stores:
        return TextFiles(tuple(paths), boundary, column, errors)
    if len(paths) > 1:
        raise EtymonError(
            f"{stores[0]} is a prepared text: it cannot be mixed with other data; give it alone"
        )
    return PreparedText(Path(stores[0]))


@dataclass(frozen=True)
class Texts:
    """Texts that the program already holds, one document each."""

    texts: Sequence[str]
    description: str = "texts given by the program"

    def documents(self) -> Iterable[Document]:
        return [Document(text, f"text {number}") for number, text in enumerate(self.texts)]

    def fingerprint(self) -> str:
        return documents_fingerprint(self.documents())


class StandardLibrary:
    """The English prose that ships inside CPython."""

    description = "the prose of the Python standard library (topics and docstrings)"

    @cached_property
    def _documents(self) -> list[Document]:
        # About a megabyte, and parsing the library takes seconds: once is enough.
        return list(stdlib_documents())

    def documents(self) -> Iterable[Document]:
        yield from self._documents  # only when somebody reads

    def fingerprint(self) -> str:
        # The text is a function of the interpreter: no need to read it to know it.
        return f"standard library 1, {platform.python_implementation()} {platform.python_version()}"
