"""Where text comes from: something that can be read again and recognised again without reading it twice."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from etymon.data.prose import stdlib_documents
from etymon.data.text import Boundary, Document, documents_fingerprint, read_documents, source_fingerprint


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
    """Files, folders and globs."""

    paths: tuple[str, ...]
    boundary: Boundary = "file"
    column: str = "text"

    @property
    def description(self) -> str:
        return ", ".join(self.paths)

    def documents(self) -> Iterable[Document]:
        return read_documents(self.paths, documents=self.boundary, column=self.column)

    def fingerprint(self) -> str:
        return source_fingerprint(self.paths, documents=self.boundary, column=self.column)


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
        return list(
            stdlib_documents()
        )  # about a megabyte, and parsing the library takes seconds: once is enough

    def documents(self) -> Iterable[Document]:
        yield from self._documents  # only when somebody reads

    def fingerprint(self) -> str:
        # The text is a function of the interpreter: no need to read it to know it.
        return f"standard library 1, {platform.python_implementation()} {platform.python_version()}"
