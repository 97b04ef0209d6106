"""What the history of a model says of its last pretraining: objective, options, how words were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from etymon.objectives import REGISTRY
from etymon.text.segmenters import TOKENS, way_for


class Pretraining(NamedTuple):
    options: dict[str, dict[str, Any]]
    """Those that were given, by the objective's name; of a mixture, of each of its members."""
    words: str | None
    """How words were found, where that was said, and alike in all languages where it was."""

    @property
    def objective(self) -> str | None:
        """None of a mixture, whose members stand side by side."""
        return next(iter(self.options)) if len(self.options) == 1 else None

    def word_way(self, given: Sequence[str], on_note: Callable[[str], None] | None) -> str | None:
        """The way to find words that is `given`, or else the segmenter of the training. A function of
        somebody's module is run only by those who name it, and nobody knows whether a text is cut by a
        tool."""
        if given or self.words in (None, "jieba", TOKENS):
            return way_for(given) if given else self.words
        if on_note is not None:
            way = self.words
            on_note(f"the model's words were found by {way}: say --words {way} to have the same ones here")
        return None


def last_pretraining(history: Sequence[Mapping[str, Any]]) -> Pretraining:
    """The last run with an objective of ours, of several phases the last one; tasks are passed over."""
    for entry in reversed(history):
        objective = str(entry.get("objective", "")).rpartition(", then ")[2]
        names = [member.partition("=")[0].strip() for member in objective.split(",")]
        if all(name in REGISTRY for name in names):
            given = entry.get("options") or {}
            options = {name: given.get(name, {}) for name in names} if "=" in objective else {names[0]: given}
            words = entry.get("words") or {}
            ways = {each["way"] for each in ([words] if "way" in words else words.values())}
            return Pretraining(options, ways.pop() if len(ways) == 1 else None)
    return Pretraining({}, None)
