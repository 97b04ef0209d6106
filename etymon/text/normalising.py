"""Chinese text in one form: full-width letters, punctuation, quotation marks, Traditional and Simplified.

Every step replaces characters one for one. So a place in the text that a model reads is the same place in the
text that was given: spans, words and bytes are those of the given text, and answers that are parts of it
come back as they stand there. Steps run in the order in which they are named, before everything that
tokenizer.json describes; Transformers does not run them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from etymon.errors import EtymonError

logger = logging.getLogger("etymon.text")

# U+FF01 to U+FF5E stand in the order of ASCII.
FULL_WIDTH = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
"""The full-width form of every ASCII character, as Unicode has them."""
TABLES: dict[str, dict[str, str]] = {
    "width": {full: half for full, half in FULL_WIDTH.items() if half.isalnum()} | {"\u3000": " "},
    "punctuation": {full: half for full, half in FULL_WIDTH.items() if not half.isalnum()},
    "quotes": dict(zip("「」『』", "“”‘’", strict=True)),
}
"""Letters, digits and the ideographic space; marks that ASCII has, too; the quotation marks of Traditional
text. No two characters of a table become the same one, so each can be turned round."""
CONVERSIONS = {"t2s": "s2t", "tw2s": "s2tw", "hk2s": "s2hk", "s2t": "t2s", "s2tw": "tw2s", "s2hk": "hk2s"}
"""OpenCC's, each with the one that goes back. Those that change words as well (s2twp) are not among them:
they change the number of characters."""
STEPS = (*TABLES, *CONVERSIONS)


class RoundTrip(NamedTuple):
    """What a step does to a text."""

    changed: float
    """The share of the characters that it changes."""
    restored: float
    """The share of all characters that are what they were after it is turned round."""


@dataclass(frozen=True)
class Normalisation:
    """Steps that text goes through before a tokenizer reads it; without any, it stays as it is."""

    # Names alone, so that a tokenizer can be sent to other processes.
    steps: tuple[str, ...] = ()
    version: str = ""
    """Of the OpenCC that was there when the tokenizer was trained, where a step is one of its conversions."""

    @classmethod
    def of(cls, steps: Sequence[str]) -> Normalisation:
        """The steps of these names, in that order, with the OpenCC that is installed."""
        if unknown := [step for step in steps if step not in STEPS]:
            raise EtymonError(f"unknown step {unknown[0]!r} of normalisation; known are {', '.join(STEPS)}")
        converts = any(step in CONVERSIONS for step in steps)
        return cls(tuple(steps), opencc_version() if converts else "")

    @classmethod
    def read(cls, described: Any, place: str) -> Normalisation:
        """What `describe` wrote into a file."""
        steps = described.get("steps") if isinstance(described, Mapping) else None
        if not isinstance(steps, list) or not set(map(str, steps)) <= set(STEPS):
            raise EtymonError(
                f"{place} names a normalisation that this version does not know: {str(described)[:60]}"
            )
        return cls(tuple(steps), str(described.get("opencc", "")))

    def describe(self) -> dict[str, Any]:
        """What tokenizer folders and histories record of it."""
        return {"steps": list(self.steps)} | ({"opencc": self.version} if self.version else {})

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __call__(self, text: str) -> str:
        """The text as the tokenizer reads it, character for character."""
        # When it is used and not when a folder is opened: `etymon show` needs no OpenCC.
        if self.version:
            _compare_versions(self.version)
        for step in self.steps:
            text = _replacer(step, False)(text)
        return text

    def restore(self, text: str) -> str:
        """The text with every step turned round, last one first. What two characters became (發 and 髮 are
        发) is told apart by the words around it; and what was in the new form before is changed as well.
        `round_trips` says how much comes back."""
        for step in reversed(self.steps):
            text = _replacer(step, True)(text)
        return text

    def round_trips(self, texts: Iterable[str]) -> dict[str, RoundTrip]:
        """How much of a text every step changes, and how much comes back by turning it round."""
        characters = 0
        changed, restored = dict.fromkeys(self.steps, 0), dict.fromkeys(self.steps, 0)
        for text in texts:
            characters += len(text)
            for step in self.steps:
                read = _replacer(step, False)(text)
                changed[step] += sum(map(str.__ne__, text, read))
                restored[step] += sum(map(str.__eq__, text, _replacer(step, True)(read)))
                text = read  # the next step gets what this one made
        total = max(1, characters)
        return {step: RoundTrip(changed[step] / total, restored[step] / total) for step in self.steps}


@dataclass(frozen=True)
class NormalisedTexts:
    """Texts as the tokenizer reads them, as often as they are read."""

    texts: Iterable[str]
    normalise: Callable[[str], str]

    def __iter__(self) -> Iterator[str]:
        return map(self.normalise, self.texts)


@cache
def _replacer(step: str, reverse: bool) -> Callable[[str], str]:
    if step in TABLES:
        pairs = TABLES[step].items()
        table = str.maketrans({new: old for old, new in pairs} if reverse else dict(pairs))
        return lambda text: text.translate(table)
    converter = _opencc().OpenCC(CONVERSIONS[step] if reverse else step)

    def convert(text: str) -> str:
        # A whole text at a time: what a character becomes depends on its neighbours.
        converted: str = converter.convert(text)
        if len(converted) != len(text):  # no entry of OpenCC 1.4.2 does that; another version's might
            converted = "".join(new if len(new := converter.convert(old)) == 1 else old for old in text)
        return converted

    return convert


def _opencc() -> Any:
    try:
        import opencc
    except ImportError as error:
        raise EtymonError(
            "Traditional and Simplified characters are converted by OpenCC: pip install 'etymon[chinese]'",
            code="missing-package",
        ) from error
    return opencc


def opencc_version() -> str:
    return str(_opencc().__version__)


@cache
def _compare_versions(recorded: str) -> None:
    if recorded != (installed := opencc_version()):
        logger.warning(
            f"the tokenizer was trained on text that OpenCC {recorded} had converted, and this is OpenCC "
            f"{installed}: rare words may be read otherwise"
        )
