"""Growing a tokenizer: more tokens, learnt from other text, behind those that it has; and how well it fits a
text.

No id changes its meaning. The text is encoded as it is and every old token stands for a letter; whatever
often stand side by side in a word are merged, as byte-pair encoding merges letters. What is merged becomes a
token. So a grown tokenizer gives the tokens of the old one, joined where that is shorter: for BPE because
new merges come last, for unigrams because a piece is worth a little more than its parts; WordPiece takes the
longest piece that fits.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from etymon.errors import EtymonError
from etymon.text.alphabets import (
    COVERED,
    MOST_LETTERS,
    CharacterCounts,
    can_continue,
    is_spaceless,
    normalised_counts,
)
from etymon.text.segmenters import Segmenter, count_words
from etymon.text.sentences import cut_texts
from etymon.text.tokenizer import BYTE_PIECE, Tokenizer
from etymon.text.tokenizer_pipelines import LONGEST_RUN, merge_pairs

FIRST_LETTER = 0x10000  # from here on no code point is white space or half a character
BATCH = 32  # texts that are encoded together: the library says much about each token
FREQUENT = 2  # times that a new token occurs at least
WORTH = 1e-3  # by which a unigram's score is above that of its parts
LETTERS = {"bpe": 2, "unigram": 2, "wordpiece": 4, "character": 1}
"""Kinds that may lack characters: one in so many new tokens is one at most, as in training, unless too much
of the text would stay unknown."""


def grow_tokenizer(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]], size: int) -> Tokenizer:
    """The tokenizer with up to `size` tokens: as many more as `texts` are best shortened by.

    `texts()` gives the text; it is called up to three times. Little text may not hold so many new pieces:
    `.size` says; but no place stays empty while a character has none.
    """
    require_room(tokenizer, size)
    if tokenizer.kind == "word":
        return _with_words(tokenizer, texts(), size)
    grown, share = tokenizer, LETTERS.get(tokenizer.kind)
    if share:
        room = size - tokenizer.size
        grown = _with_letters(tokenizer, texts(), -(-room // share), int(room * MOST_LETTERS), FREQUENT)
    if tokenizer.kind == "character" or grown.size >= size:
        return grown
    grown = _with_merges(grown, texts(), size)
    if share and grown.size < size:
        grown = _with_letters(grown, texts(), size - grown.size, size - grown.size, 1)
    return grown


def require_room(tokenizer: Tokenizer, size: int) -> None:
    """Refuses a size that adds nothing, and tokenizers that have nothing to learn."""
    if tokenizer.kind == "byte":
        raise EtymonError("a byte tokenizer has all the bytes there are: it cannot grow")
    if tokenizer.kind not in (*LETTERS, "byte-bpe", "word"):
        raise EtymonError(f"a tokenizer of the kind {tokenizer.kind!r} cannot be grown")
    if size <= tokenizer.size:
        raise EtymonError(
            f"the tokenizer has {tokenizer.size:,} tokens already, so it cannot grow to {size:,}: ask for "
            "more"
        )


def extends(tokenizer: Tokenizer, old: Tokenizer) -> bool:
    """Whether every id of the old tokenizer means the same in this one."""
    return (
        tokenizer.kind == old.kind
        and tokenizer.roles == old.roles
        and tokenizer.normalise == old.normalise
        and tokenizer.tokens[: old.size] == old.tokens
    )


def with_roles(tokenizer: Tokenizer, specials: Mapping[str, str]) -> Tokenizer:
    """The tokenizer with a special token for each of these roles as well; those that it does not have come
    last."""
    tokens = set(tokenizer.tokens)
    larger = _with(tokenizer, [token for token in dict.fromkeys(specials.values()) if token not in tokens])
    backend = tokenizers.Tokenizer.from_str(larger.backend.to_str())
    backend.add_special_tokens(list(specials.values()))
    return Tokenizer(backend, {**tokenizer.roles, **specials}, normalise=tokenizer.normalise)


def spellings(tokenizer: Tokenizer, old: Tokenizer) -> list[list[int] | None]:
    """For every id beyond the old tokenizer's, the old ids that spell its token; None for special tokens."""
    return [
        None if number in tokenizer.special_ids else spell_token(old, token)
        for number, token in enumerate(tokenizer.tokens[old.size :], old.size)
    ]


def spell_token(old: Tokenizer, token: str) -> list[int]:
    """The old ids that spell a token, written as the old tokenizer writes it."""
    prefix = old.prefix
    if old.kind != "wordpiece" or not token.startswith(prefix):
        return [piece.id for piece in old.backend.model.tokenize(token)]
    # The library takes everything for the beginning of a word: inside of one, the longest pieces are found
    # here.
    vocabulary: dict[str, int] = old.description["model"]["vocab"]
    ids, rest = [], token.removeprefix(prefix)
    while rest:
        fronts = (rest[:stop] for stop in range(len(rest), 0, -1))
        piece = next((front for front in fronts if prefix + front in vocabulary), "")
        if not piece:
            return [vocabulary[old.roles["unknown"]]]
        ids.append(vocabulary[prefix + piece])
        rest = rest.removeprefix(piece)
    return ids


# ---------------------------------------------------------------- what is new


def _with_words(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """With the most frequent words that were unknown."""
    vocabulary, counts = tokenizer.backend.get_vocab(), Counter[str]()
    for text in _normalise(tokenizer, texts):
        words = (word for word, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(text))
        counts.update(word for word in words if len(word) <= LONGEST_RUN and word not in vocabulary)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    new = [word for word in ranked if counts[word] >= FREQUENT]
    return _with(tokenizer, new[: size - tokenizer.size])


def _with_letters(
    tokenizer: Tokenizer, texts: Iterable[str], usual: int, most: int, frequent: int
) -> Tokenizer:
    """With the most frequent characters that were unknown: the `usual` number of new tokens, or up to `most`
    where too much of the text would stay unknown (`alphabets.COVERED`)."""
    vocabulary, prefix = tokenizer.backend.get_vocab(), tokenizer.prefix
    counts = CharacterCounts(_normalise(tokenizer, texts))
    ranked = [letter for letter in counts.ranked() if tokenizer.kind == "character" or not letter.isspace()]
    missing = [letter for letter in ranked if letter not in vocabulary]
    left = sum(counts[letter] for letter in missing)
    enough = (1 - COVERED) * sum(counts[letter] for letter in ranked)
    new: list[str] = []
    for letter in ranked:
        if counts[letter] < frequent or (len(new) >= usual and (left <= enough or len(new) >= most)):
            break
        inside = [prefix + letter] if prefix and can_continue(letter) else []
        new += [token for token in (letter, *inside) if token not in vocabulary]
        left -= 0 if letter in vocabulary else counts[letter]
    return _with(tokenizer, new[: max(usual, most)])


def _with_merges(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """With the tokens that come of merging old ones."""
    room, prefix = size - tokenizer.size, tokenizer.prefix
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        # Some merges give a token that there is already: they cost no room.
        vocab_size=tokenizer.size + 2 * room,
        initial_alphabet=[chr(FIRST_LETTER + number) for number in range(tokenizer.size)],
        min_frequency=FREQUENT,
        show_progress=False,
    )
    learner.train_from_iterator(_as_letters(tokenizer, texts), trainer)

    def spell(letters: str) -> str:
        first, *others = (tokenizer.tokens[ord(letter) - FIRST_LETTER] for letter in letters)
        return first + "".join(token.removeprefix(prefix) for token in others)

    tokens, old = set(tokenizer.tokens), set(merge_pairs(tokenizer.description["model"]))
    merges: dict[tuple[str, str], str] = {}
    new: list[str] = []
    for pair in merge_pairs(json.loads(learner.to_str())["model"]):
        left, right = map(spell, pair)
        token = left + right.removeprefix(prefix)
        if token not in tokens:
            if len(new) == room:
                break
            tokens.add(token)
            new.append(token)
        if (left, right) not in old:  # one that is there already keeps its rank
            merges.setdefault((left, right), token)
    return _with(tokenizer, new, merges)


def _as_letters(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    """The text with a letter for every token and spaces between words, or where nothing may be merged."""
    added = tokenizer.special_ids | tokenizer.backend.get_added_tokens_decoder().keys()
    alone = np.array([bool(BYTE_PIECE.fullmatch(token)) for token in tokenizer.tokens])
    alone[list(added)] = True
    widths = np.array([len(token) for token in tokenizer.tokens])
    parts = cut_texts(texts)
    while batch := list(islice(parts, BATCH)):
        for encoding in tokenizer.encode_texts(tokenizer.backend.encode_batch, batch):
            ids = np.array(encoding.ids, np.int64)
            if not len(ids):
                continue
            words = np.array([-1 if word is None else word for word in encoding.word_ids])
            begins = np.diff(words, prepend=-2) != 0
            # Characters in front of a token, then those in its word.
            before = np.cumsum(widths[ids]) - widths[ids]
            before -= np.maximum.accumulate(np.where(begins, before, 0))
            begins |= np.diff(before // LONGEST_RUN, prepend=0) > 0
            ends = begins | alone[ids]
            ends[1:] |= alone[ids[:-1]]
            letters = np.where(alone[ids], 0x20, FIRST_LETTER + ids)
            mixed = np.stack([np.where(ends, 0x20, 0), letters], 1).ravel()
            yield mixed[mixed > 0].astype("<u4").tobytes().decode("utf-32-le")


def _normalise(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    normalizer, parts = tokenizer.backend.normalizer, map(tokenizer.normalise, cut_texts(texts))
    return map(normalizer.normalize_str, parts) if normalizer else parts


def _with(
    tokenizer: Tokenizer, new: list[str], merges: Mapping[tuple[str, str], str] | None = None
) -> Tokenizer:
    """The tokenizer with new tokens at the end."""
    merges = merges or {}
    if not new and not merges:
        return tokenizer
    model = dict(tokenizer.description["model"])
    # Special tokens that were added behind the vocabulary would move with its end: they become a part of it.
    tokens = [token or f"<unused-{number}>" for number, token in enumerate([*tokenizer.tokens, *new])]
    if isinstance(old := model["vocab"], dict):
        model["vocab"] = {token: number for number, token in enumerate(tokens)}
    else:  # unigrams: a new one's score is just above that of its best parts, a letter's is the lowest
        scores: dict[str, float] = dict(old)
        lowest, are_new = min(scores.values()), set(new)
        for (left, right), token in merges.items():
            if token in are_new:
                worth = scores[left] + scores[right] + WORTH
                scores[token] = max(worth, scores.get(token, worth))
        ends = [(token, 0.0) for token in tokens[len(old) : tokenizer.size]]
        model["vocab"] = [*old, *ends, *((token, scores.get(token, lowest)) for token in new)]
    if "merges" in model:
        model["merges"] = [list(pair) for pair in (*merge_pairs(model), *merges)]
    backend = tokenizers.Tokenizer.from_str(json.dumps({**tokenizer.description, "model": model}))
    return Tokenizer(backend, tokenizer.roles, framing=tokenizer.framing, normalise=tokenizer.normalise)


# ---------------------------------------------------------------- how well a tokenizer fits a text


MOSTLY = 0.5
"""The share of a text's characters from which on it is of a script without spaces:
its words are not counted."""


@dataclass(frozen=True)
class TokenizerReport:
    """How well a tokenizer fits a text: counts, and what follows from them."""

    bytes: int
    words: int
    characters: int
    """White space aside."""
    tokens: int
    unknown: int
    unknown_characters: int
    """Those that are read as unknown: a word with one of them may be lost as a whole."""
    longest: str
    """The text of the longest token of the vocabulary, special ones aside."""
    has_words: bool
    """Whether words are between spaces in most of the text, or a segmenter found them."""

    @property
    def fertility(self) -> float | None:
        """Tokens a word; None for scripts without spaces, unless a segmenter found words."""
        return self.tokens / max(1, self.words) if self.has_words else None

    @property
    def tokens_per_character(self) -> float:
        return self.tokens / max(1, self.characters)

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(1, self.tokens)

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that stand for something that the vocabulary has not."""
        return self.unknown / max(1, self.tokens)

    @property
    def unknown_character_rate(self) -> float:
        """The share of characters that are read as unknown."""
        return self.unknown_characters / max(1, self.characters)


def measure_tokenizer(
    tokenizer: Tokenizer, texts: Iterable[str], segmenter: Segmenter | None = None
) -> TokenizerReport:
    """Encode the texts and count; words are those of the segmenter."""
    unknown_id = tokenizer.id("unknown")
    size = words = tokens = unknown = unknown_characters = 0
    counts = CharacterCounts()
    pieces = cut_texts(texts)
    while batch := list(islice(pieces, 2 * BATCH)):
        batch, more = count_words(batch, segmenter)
        size += sum(len(text.encode()) for text in batch)
        words += more
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            counts.add(text)
            tokens += len(ids)
            if unknown_id is not None and unknown_id in ids:
                unknown += int((ids == unknown_id).sum())
                numbers, starts, stops = tokenizer.offsets(text, quiet=True)
                spans = zip(starts[numbers == unknown_id].tolist(), stops[numbers == unknown_id].tolist())
                unknown_characters += sum(len("".join(text[start:stop].split())) for start, stop in spans)
    plain = (number for number in range(tokenizer.size) if number not in tokenizer.special_ids)
    widest = max(plain, key=lambda number: len(tokenizer.tokens[number]), default=None)
    longest = "" if widest is None else tokenizer.decode([widest])
    characters = sum(counts[letter] for letter in counts if not letter.isspace())
    has_words = segmenter is not None or counts.share(is_spaceless) < MOSTLY
    return TokenizerReport(size, words, characters, tokens, unknown, unknown_characters, longest, has_words)


def covering_size(tokenizer: Tokenizer, counts: CharacterCounts, *, new: bool) -> int:
    """The size from which on a tokenizer of this kind that is trained on a text with these characters, or, if
    it is not a `new` one, this one when grown, knows nearly all of them (`alphabets.COVERED`)."""
    has_two_forms = tokenizer.kind in ("wordpiece", "word-bpe")
    letters = normalised_counts(counts, tokenizer.backend)
    left = (1 - COVERED) * sum(letters.values())
    tokens = 0
    for letter in sorted(letters, key=lambda letter: letters[letter]):
        left -= letters[letter]
        if left < 0 and (new or letter not in tokenizer.tokens):
            tokens += 1 + (has_two_forms and can_continue(letter))
    room = math.ceil(tokens / MOST_LETTERS / 100) * 100
    return room + len(tokenizer.special_ids) if new else room + tokenizer.size
