"""Stop strings. A text ends just before the first of them, wherever token borders happen to fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from etymon.text.tokenizer import Tokenizer


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def watcher(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[list[int]], bool]:
    """Tells whether new tokens have come to spell a stop string; asked after every token."""
    # A token is at least a byte, so this many last tokens hold any stop string that was just completed. A few
    # more keep its leading space, which some decoders drop at the beginning of a text.
    reach = max((len(stop.encode()) for stop in stops), default=0) + 4
    special = tokenizer.special_ids

    def stopped(ids: list[int]) -> bool:
        last = list(islice((number for number in reversed(ids) if number not in special), reach))
        text = tokenizer.decode(last[::-1])
        return any(stop in text for stop in stops)

    return stopped


class StopFilter:
    """Lets streamed text through up to the first stop string, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.stopped = False
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that is certain to stay."""
        if self.stopped:
            return ""
        held = self._held + piece
        before = cut(held, self.stops)
        if len(before) < len(held):
            self.stopped, self._held = True, ""
            return before
        keep = max((_overlap(held, stop) for stop in self.stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """What was held back in vain."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that is a beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
