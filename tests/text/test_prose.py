from __future__ import annotations

import re

import pytest

from etymon.text.prose import clean_paragraphs, stdlib_documents
from etymon.text.reading import Document


@pytest.fixture(scope="module")
def prose() -> list[Document]:
    return stdlib_documents()


def test_amount_and_order(prose: list[Document]) -> None:
    size = sum(len(document.text) for document in prose)
    assert 600_000 < size < 3_000_000  # differs from Python to Python
    assert len(prose) > 200


def test_nothing_twice(prose: list[Document]) -> None:
    paragraphs = [line.casefold() for document in prose for line in document.text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))


def test_it_is_prose(prose: list[Document]) -> None:
    text = "\n".join(document.text for document in prose)
    assert ">>>" not in text and "``" not in text and ":class:" not in text
    letters = sum(character.isalpha() or character.isspace() for character in text)
    assert letters > 0.94 * len(text)
    assert re.search(r"[ \t]{2}|\n\n", text) is None


def test_cleaning() -> None:
    text = """Return the *largest* item of :class:`list`, as ``max`` would do it.

        >>> largest([1, 2])
        2

        The arguments are compared one after the other, from left
        to right. For example::

            code = that_is(left, out)

        =====  =====
        A      B
        =====  =====

        - the first reason is that nobody has ever asked for more.
        - short one.
        x = y + z
    """
    assert list(clean_paragraphs(text)) == [
        "Return the largest item of list, as max would do it.",
        "the first reason is that nobody has ever asked for more.",
    ]
