"""The corpus and the tokenizers of tests/text."""

from tests.text.conftest import documents, trained  # noqa: F401
