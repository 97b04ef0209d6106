"""Probing tasks: what is read of which text, its label and split, and the type that a control label depends
on.

Tasks come from files (`probe_files.py`), or are made of raw text: pseudo-words.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from etymon.errors import EtymonError

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]
SPLITS: tuple[Split, ...] = get_args(Split)


class Item(NamedTuple):
    """One thing to classify in a text: its label, the type for the control task, its characters (None:
    all)."""

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
class ProbeTask:
    name: str
    level: Literal["sentence", "token", "pseudo-word"]
    examples: list[Example]
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Refuses what no classifier can be trained or tested on."""
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
                f"{self.name} has {len(set(trained)):,} labels for {len(trained):,} training examples: a "
                "probe needs classes, each with several examples"
            )


def in_digest_order(texts: Sequence[str]) -> list[str]:
    """Distinct texts in an order that depends on each text alone."""
    # By a digest: neither the order of lines in a file nor a seed decides what is held out.
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "replace")).digest())


def give_splits(sentences: Sequence[Sentence], name: str) -> list[str]:
    """Gives every sentence a split; the same text is never in two of those that are made here. Returns
    notes."""
    splits = {sentence.split for sentence in sentences}
    if splits == {None}:
        _move(sentences, None, {"test": 0.1, "validation": 0.1, "train": 0.8})
        return []
    if "train" not in splits or len(splits) == 1:
        alone = f"all examples are for {splits.pop()}" if len(splits) == 1 else "no examples are for train"
        raise EtymonError(f"{name}: {alone}; a probe needs train and test, or no split at all")
    notes = []
    if "test" not in splits:
        _move(sentences, "validation", {"test": 1.0})
        notes.append(f"{name} has no test split: its validation split is used for that")
    if "test" not in splits or "validation" not in splits:
        _move(sentences, "train", {"validation": 0.1, "train": 0.9})
        notes.append(f"{name}: a tenth of its training split is held out for validation")
    return notes


def _move(sentences: Sequence[Sentence], source: Split | None, shares: dict[Split, float]) -> None:
    moved = [sentence for sentence in sentences if sentence.split == source]
    texts = in_digest_order([sentence.text for sentence in moved])
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
        total, used = sum(len(sentence.items) for sentence in here), 0
        # Whole sentences are left out: a text is read once for all its words anyway.
        room = most if split == "train" else most // 2
        if total <= room:
            continue
        rank = {
            text: number for number, text in enumerate(in_digest_order([sentence.text for sentence in here]))
        }
        for sentence in sorted(here, key=lambda sentence: rank[sentence.text]):
            if used >= room:
                sentence.items = []
            used += len(sentence.items)
        notes.append(f"{name}: {used:,} of {total:,} {split} examples are used (--examples)")
    return notes


WORD = re.compile(r"[^\W\d_]+")
# The most frequent words make no pseudo-words: they are mostly function words.
COMMON = 100
# Occurrences in training that a word needs.
FEWEST = 20


def pseudo_word_task(
    name: str, sentences: Sequence[Sentence], pairs: int, most: int, seed: int = 0
) -> ProbeTask:
    """Pseudo-words: word senses to tell apart, made out of any raw text.

    Two words of similar frequency become one, everywhere in a sentence, and a probe has to say which one
    stood there (Gale, Church and Yarowsky 1992; Schütze 1992). That needs the context alone, as telling the
    senses of a word does. There is a group of examples for every pair, with as many of either word. The
    pseudo-word is the same in all of them, so the control label depends on the word before it.
    """
    chosen, notes = _pairs(name, sentences, pairs, seed)
    pair_of = {word: pair for pair in chosen for word in pair}
    by_pair: dict[tuple[tuple[str, str], str], list[Example]] = defaultdict(list)
    for sentence in sentences:
        words = [(match[0].casefold(), match.span()) for match in WORD.finditer(sentence.text)]
        for pair in dict.fromkeys(pair_of[word] for word, _ in words if word in pair_of):
            example = _pseudo_word_example(sentence, words, pair)
            by_pair[pair, example.split].append(example)
    examples = []
    for pair in chosen:
        for split in SPLITS:
            here = by_pair[pair, split]
            rank = {
                text: place for place, text in enumerate(in_digest_order([example.text for example in here]))
            }
            here.sort(key=lambda example: rank[example.text])
            # As many of either word: chance is one half, whatever their frequencies.
            sides = [[example for example in here if example.label == word] for word in pair]
            limit = max(1, (most if split == "train" else most // 2) // (2 * len(chosen)))
            kept = min(limit, *map(len, sides))
            examples += [example for side in sides for example in side[:kept]]
    return ProbeTask(f"{name} pseudo-words", "pseudo-word", examples, notes)


def _pairs(
    name: str, sentences: Sequence[Sentence], count: int, seed: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Neighbours by frequency, drawn among all that are frequent enough."""
    counts = Counter(
        match[0].casefold()
        for sentence in sentences
        if sentence.split == "train"
        for match in WORD.finditer(sentence.text)
    )
    # Neighbours in the list of frequencies, so that neither word is the better guess.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[COMMON:]
    ranked = [word for word in ranked if counts[word] >= FEWEST and len(word) > 2]
    neighbours = list(zip(ranked[::2], ranked[1::2]))
    if not neighbours:
        raise EtymonError(
            f"{name} is too little text for pseudo-words: no two words beyond the {COMMON} most frequent "
            f"occur {FEWEST} times in {sum(counts.values()):,}; give more text"
        )
    drawn = np.random.default_rng(seed).permutation(len(neighbours))[:count]
    short = f"{name} has words for {len(neighbours)} pseudo-words only"
    return [neighbours[number] for number in sorted(drawn)], [short] if len(neighbours) < count else []


def _pseudo_word_example(
    sentence: Sentence, words: Sequence[tuple[str, Span]], pair: tuple[str, str]
) -> Example:
    """The first of the two words in a sentence, with every occurrence replaced, in whatever case it stood."""
    assert sentence.split is not None
    pseudo = "".join(pair)
    number = next(number for number, (word, _) in enumerate(words) if word in pair)
    label, (start, _) = words[number]
    text, end = "", 0
    for word, (begin, stop) in words:
        if word in pair:
            text += sentence.text[end:begin] + pseudo
            end = stop
    before = words[number - 1][0] if number else ""
    return Example(
        text + sentence.text[end:], label, before, sentence.split, (start, start + len(pseudo)), pseudo
    )
