"""Pseudo-words: word senses to tell apart, made out of any raw text.

Two words of similar frequency become one, everywhere in a sentence, and a probe has to say which one stood there
(Gale, Church and Yarowsky 1992; Schütze 1992). That needs the context alone, as telling the senses of a word does.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from etymon.errors import EtymonError
from etymon.lab.probe_data import SPLITS, Example, Sentence, Span, Task, shuffled

WORD = re.compile(r"[^\W\d_]+")
COMMON = 100
"""The most frequent words are left alone: they are mostly function words."""
FEWEST = 20
"""Occurrences in training that a word needs."""


def pseudo_word_task(name: str, sentences: Sequence[Sentence], pairs: int, most: int, seed: int = 0) -> Task:
    """A group of examples a pair of words, with as many of the one as of the other.

    The word itself is the same in all of them, so the control label hangs on the word before it.
    """
    chosen, notes = _pairs(name, sentences, pairs, seed)
    pair_of = {word: pair for pair in chosen for word in pair}
    found: dict[tuple[str, str], dict[str, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for sentence in sentences:
        words = [(match[0].casefold(), match.span()) for match in WORD.finditer(sentence.text)]
        for pair in dict.fromkeys(pair_of[word] for word, _ in words if word in pair_of):
            example = _example(sentence, words, pair)
            found[pair][example.split].append(example)
    examples = []
    for pair in chosen:
        for split in SPLITS:
            here = found[pair][split]
            rank = {text: place for place, text in enumerate(shuffled([each.text for each in here]))}
            here.sort(key=lambda each: rank[each.text])
            sides = [[each for each in here if each.label == word] for word in pair]
            limit = max(1, (most if split == "train" else most // 2) // (2 * len(chosen)))
            kept = min(limit, *map(len, sides))
            examples += [each for side in sides for each in side[:kept]]
    return Task(f"{name} pseudo-words", "pseudo-word", examples, notes)


def _pairs(
    name: str, sentences: Sequence[Sentence], wanted: int, seed: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Neighbours by frequency, drawn among all that are frequent enough."""
    counts = Counter(
        match[0].casefold()
        for sentence in sentences
        if sentence.split == "train"
        for match in WORD.finditer(sentence.text)
    )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[COMMON:]
    ranked = [word for word in ranked if counts[word] >= FEWEST and len(word) > 2]
    neighbours = list(zip(ranked[::2], ranked[1::2]))
    if not neighbours:
        raise EtymonError(
            f"{name} is too little text for pseudo-words: no two words beyond the {COMMON} most frequent "
            f"occur {FEWEST} times in {sum(counts.values()):,}; give more text"
        )
    drawn = np.random.default_rng(seed).permutation(len(neighbours))[:wanted]
    short = f"{name} has words for {len(neighbours)} pseudo-words only"
    return [neighbours[number] for number in sorted(drawn)], [short] if len(neighbours) < wanted else []


def _example(sentence: Sentence, words: Sequence[tuple[str, Span]], pair: tuple[str, str]) -> Example:
    """The first of the two words in a sentence, with every one of them replaced, in whatever case it stood."""
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
