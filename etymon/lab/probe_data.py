"""Probing tasks: what is read of which text, its label, its split, and the type that a control label hangs on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from etymon.errors import EtymonError

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]
SPLITS: tuple[Split, ...] = get_args(Split)


class Item(NamedTuple):
    """One thing to classify in a text: its label, the type for the control task, its characters (None: all)."""

    label: str
    type: str
    span: Span | None = None


@dataclass
class Sentence:
    """A text and what there is to classify in it."""

    text: str
    items: list[Item]
    split: Split | None = None


class Example(NamedTuple):
    """A classifier sees only examples of its own group: a pseudo-word is one, most tasks have but one."""

    text: str
    label: str
    type: str
    split: Split
    span: Span | None = None
    group: str = ""


@dataclass
class Task:
    name: str
    level: Literal["sentence", "token", "pseudo-word"]
    examples: list[Example]
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Refuses what no classifier can be trained or judged on."""
        for split in SPLITS:
            if not any(example.split == split for example in self.examples):
                raise EtymonError(f"{self.name} has no {split} examples: give more, or no split at all")
        trained = [example.label for example in self.examples if example.split == "train"]
        if len(set(trained)) == 1:
            raise EtymonError(
                f"{self.name} has only the label {trained[0]!r} in training: nothing to tell apart"
            )
        if 2 * len(set(trained)) > len(trained):
            raise EtymonError(
                f"{self.name} has {len(set(trained)):,} labels for {len(trained):,} training examples: a probe needs "
                "classes, each with several examples"
            )


def shuffled(texts: Sequence[str]) -> list[str]:
    """Distinct texts in an order that depends on each text alone."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "replace")).digest())


def give_splits(sentences: Sequence[Sentence], name: str) -> list[str]:
    """Gives every sentence a split; the same text is never in two of those that are made here."""
    there = {sentence.split for sentence in sentences}
    if there == {None}:
        _move(sentences, None, {"test": 0.1, "validation": 0.1, "train": 0.8})
        return []
    if "train" not in there or len(there) == 1:
        alone = f"all examples are for {there.pop()}" if len(there) == 1 else "no examples are for train"
        raise EtymonError(f"{name}: {alone}; a probe needs train and test, or no split at all")
    notes = []
    if "test" not in there:
        _move(sentences, "validation", {"test": 1.0})
        notes.append(f"{name} has no test split: its validation split is used for that")
    if "test" not in there or "validation" not in there:
        _move(sentences, "train", {"validation": 0.1, "train": 0.9})
        notes.append(f"{name}: a tenth of its training split is held out for validation")
    return notes


def _move(sentences: Sequence[Sentence], source: Split | None, shares: dict[Split, float]) -> None:
    moved = [sentence for sentence in sentences if sentence.split == source]
    texts = shuffled([sentence.text for sentence in moved])
    target: dict[str, Split] = {}
    for split, share in shares.items():  # the last one takes the rest
        begin = len(target)
        count = max(1, round(share * len(texts)))
        target |= dict.fromkeys(texts[begin : begin + count], split)
    last = list(shares)[-1]
    for sentence in moved:
        sentence.split = target.get(sentence.text, last)


def limit(sentences: list[Sentence], most: int, name: str) -> list[str]:
    """Leaves out whole sentences beyond the most examples of a split."""
    notes = []
    for split in SPLITS:
        here = [sentence for sentence in sentences if sentence.split == split]
        total, used = sum(len(one.items) for one in here), 0
        room = most if split == "train" else most // 2
        if total <= room:
            continue
        rank = {text: number for number, text in enumerate(shuffled([one.text for one in here]))}
        for sentence in sorted(here, key=lambda one: rank[one.text]):
            if used >= room:
                sentence.items = []
            used += len(sentence.items)
        notes.append(f"{name}: {used:,} of {total:,} {split} examples are used (--examples)")
    return notes
