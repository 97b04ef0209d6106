"""What was read of recent prompts, for prompts that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from etymon.generation.stepper import SHARED, common_prefix

# Prompts of fewer tokens are not worth keeping.
SHORTEST = 2 * SHARED


@dataclass(eq=False)
class Prefix:
    """A prompt and the state of a decode that has read it, of one row."""

    ids: list[int]
    state: Any


class Prefixes:
    """The states of the prompts that were used last, of at most `tokens` tokens in all."""

    def __init__(self, tokens: int) -> None:
        self.room = tokens
        self.kept: OrderedDict[int, Prefix] = OrderedDict()
        self.by_beginning: dict[tuple[int, ...], list[Prefix]] = {}
        self.tokens = 0

    def find(self, prompt: list[int]) -> tuple[Prefix, int] | None:
        """The prompt that has most first tokens in common with this one, and how many."""
        # Most prompts share nothing: one look into a table tells.
        same = self.by_beginning.get(tuple(prompt[:SHARED]), [])
        # A kept prompt may be shared whole; of the new one the last token has to be read.
        lengths = [common_prefix([[*each.ids, -1], prompt]) for each in same]
        shared = max(lengths, default=0)
        if shared < SHARED:
            return None
        best = same[lengths.index(shared)]
        # Whoever is used stays.
        self.kept.move_to_end(id(best))
        return best, shared

    def add(self, prompt: list[int], state: Any) -> None:
        """Keeps a state of one row that has read the prompt; the oldest ones make room."""
        if not self.takes(prompt):
            return
        prefix = Prefix(prompt, state)
        self.kept[id(prefix)] = prefix
        self.by_beginning.setdefault(tuple(prompt[:SHARED]), []).append(prefix)
        self.tokens += len(prompt)
        # States are arrays on the processor: dropping the last reference frees them.
        while self.tokens > self.room:
            _, oldest = self.kept.popitem(last=False)
            self.tokens -= len(oldest.ids)
            beginning = tuple(oldest.ids[:SHARED])
            self.by_beginning[beginning].remove(oldest)
            if not self.by_beginning[beginning]:
                del self.by_beginning[beginning]

    def takes(self, prompt: list[int]) -> bool:
        """Whether a prompt is worth keeping: neither short, nor too long, nor there already."""
        if not SHORTEST <= len(prompt) <= self.room:
            return False
        match = self.find(prompt)
        return match is None or match[1] < len(prompt) - 1
