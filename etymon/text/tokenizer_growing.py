"""Growing a tokenizer: more tokens, learnt from other text, behind those that it has. No id changes its meaning.

The text is encoded as it is and every old token stands for a letter; whatever often stand side by side in a word are
merged, as byte-pair encoding merges letters. What is merged becomes a token. So a grown tokenizer gives the tokens of the
old one, joined where that is shorter: for BPE because new merges come last, for unigrams because a piece is worth a
little more than its parts; WordPiece takes the longest piece that fits.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from etymon.errors import EtymonError
from etymon.text.cutting import pieces
from etymon.text.token_bytes import BYTE_PIECE
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import LONGEST_RUN, _continues, _Counts, merge_pairs

FIRST_LETTER = 0x10000  # from here on no code point is white space or half a character
BATCH = 32  # texts that are encoded together: the library says much about each token
FREQUENT = 2  # times that a new token occurs at least
WORTH = 1e-3  # by which a unigram's score is above that of its parts
LETTERS = {"bpe": 2, "unigram": 2, "wordpiece": 4, "character": 1}
"""Kinds that may lack characters: at most one in so many new tokens is one, as in training."""
Texts = Callable[[], Iterable[str]]


def grow_tokenizer(tokenizer: Tokenizer, texts: Texts, size: int) -> Tokenizer:
    """The tokenizer with up to `size` tokens: as many more as `texts` are best shortened by.

    `texts()` gives the text; it may be asked twice. Little text may not hold so many new pieces: `.size` says.
    """
    require_room(tokenizer, size)
    if tokenizer.kind == "word":
        return _with_words(tokenizer, texts(), size)
    grown = tokenizer
    if share := LETTERS.get(tokenizer.kind):
        grown = _with_letters(tokenizer, texts(), -(-(size - tokenizer.size) // share))
    if tokenizer.kind == "character" or grown.size >= size:
        return grown
    return _with_merges(grown, texts(), size)


def require_room(tokenizer: Tokenizer, size: int) -> None:
    """Refuses a size that adds nothing, and tokenizers that have nothing to learn."""
    if tokenizer.kind == "byte":
        raise EtymonError("a byte tokenizer has all the bytes there are: it cannot grow")
    if tokenizer.kind not in (*LETTERS, "byte-bpe", "word"):
        raise EtymonError(f"a tokenizer of the kind {tokenizer.kind!r} cannot be grown")
    if size <= tokenizer.size:
        raise EtymonError(
            f"the tokenizer has {tokenizer.size:,} tokens already, so it cannot grow to {size:,}: ask for more"
        )


def extends(tokenizer: Tokenizer, old: Tokenizer) -> bool:
    """Whether every id of the old tokenizer means the same in this one."""
    return (
        tokenizer.kind == old.kind
        and tokenizer.roles == old.roles
        and tokenizer.tokens[: old.size] == old.tokens
    )


def with_roles(tokenizer: Tokenizer, specials: Mapping[str, str]) -> Tokenizer:
    """The tokenizer with a special token for each of these roles as well; those that it does not know yet come last."""
    known = set(tokenizer.tokens)
    larger = _with(tokenizer, [token for token in dict.fromkeys(specials.values()) if token not in known])
    backend = tokenizers.Tokenizer.from_str(larger.backend.to_str())
    backend.add_special_tokens(list(specials.values()))
    return Tokenizer(backend, {**tokenizer.roles, **specials})


def spellings(tokenizer: Tokenizer, old: Tokenizer) -> list[list[int] | None]:
    """For every id beyond the old tokenizer's, the old ids that spell its token; None for special tokens."""
    return [
        None if number in tokenizer.special_ids else _spelled(old, token)
        for number, token in enumerate(tokenizer.tokens[old.size :], old.size)
    ]


def _spelled(old: Tokenizer, token: str) -> list[int]:
    prefix = _prefix(old)
    if old.kind != "wordpiece" or not token.startswith(prefix):
        return [piece.id for piece in old.backend.model.tokenize(token)]
    # The library takes everything for the beginning of a word: inside of one, the longest pieces are found here.
    vocabulary: dict[str, int] = old._description["model"]["vocab"]
    found, rest = [], token.removeprefix(prefix)
    while rest:
        piece = next(
            (rest[:stop] for stop in range(len(rest), 0, -1) if prefix + rest[:stop] in vocabulary), ""
        )
        if not piece:
            return [vocabulary[old.roles["unknown"]]]
        found.append(vocabulary[prefix + piece])
        rest = rest.removeprefix(piece)
    return found


# ---------------------------------------------------------------- what is new


def _with_words(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """With the most frequent words that were unknown."""
    backend, counts = tokenizer.backend, Counter[str]()
    known = backend.get_vocab()
    for text in _normalised(backend, texts):
        counts.update(
            word
            for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)
            if len(word) <= LONGEST_RUN and word not in known
        )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    new = [word for word in ranked if counts[word] >= FREQUENT]
    return _with(tokenizer, new[: size - tokenizer.size])


def _with_letters(tokenizer: Tokenizer, texts: Iterable[str], most: int) -> Tokenizer:
    """With the most frequent characters that were unknown."""
    counts, known = _Counts(_normalised(tokenizer.backend, texts)), tokenizer.backend.get_vocab()
    prefix = _prefix(tokenizer)
    wanted = (letter for letter in counts if tokenizer.kind == "character" or not letter.isspace())
    new: list[str] = []
    for letter in sorted(wanted, key=lambda letter: (-counts[letter], letter)):
        if counts[letter] >= FREQUENT:
            inside = [prefix + letter] if prefix and _continues(letter) else []
            new += [token for token in (letter, *inside) if token not in known]
    return _with(tokenizer, new[:most])


def _with_merges(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """With the tokens that come of merging old ones."""
    room, prefix = size - tokenizer.size, _prefix(tokenizer)
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
    known, old = set(tokenizer.tokens), set(merge_pairs(tokenizer._description["model"]))
    merges: dict[tuple[str, str], str] = {}
    new: list[str] = []
    for one, two in merge_pairs(json.loads(learner.to_str())["model"]):
        left, right = (_joined(tokenizer, letters, prefix) for letters in (one, two))
        token = left + right.removeprefix(prefix)
        if token not in known:
            if len(new) == room:
                break
            known.add(token)
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
    parts = (text[start:stop] for text in texts for start, stop in pieces(text))
    while batch := list(islice(parts, BATCH)):
        for encoding in tokenizer.backend.encode_batch(batch, add_special_tokens=False):
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


def _joined(tokenizer: Tokenizer, letters: str, prefix: str) -> str:
    first, *others = (tokenizer.tokens[ord(letter) - FIRST_LETTER] for letter in letters)
    return first + "".join(token.removeprefix(prefix) for token in others)


# ---------------------------------------------------------------- the tokenizer's own file


def _with(
    tokenizer: Tokenizer, new: list[str], merges: dict[tuple[str, str], str] | None = None
) -> Tokenizer:
    """The tokenizer with new tokens at the end."""
    merges = merges or {}
    if not new and not merges:
        return tokenizer
    description = {**tokenizer._description, "model": dict(tokenizer._description["model"])}
    model = description["model"]
    # Special tokens that were added behind the vocabulary would move with its end: they become a part of it.
    listed = [token or f"<unused-{number}>" for number, token in enumerate([*tokenizer.tokens, *new])]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: number for number, token in enumerate(listed)}
    else:
        model["vocab"] = _scored(model["vocab"], listed, tokenizer.size, merges)
    if "merges" in model:
        model["merges"] = [list(pair) for pair in (*merge_pairs(model), *merges)]
    backend = tokenizers.Tokenizer.from_str(json.dumps(description))
    return Tokenizer(backend, tokenizer.roles, framing=tokenizer.framing)


def _scored(
    old: list[tuple[str, float]], listed: list[str], size: int, merges: dict[tuple[str, str], str]
) -> list[tuple[str, float]]:
    """Unigrams with their scores: a new one's is just above that of its best parts, a letter's is the lowest."""
    scores, new = dict(old), set(listed[size:])
    lowest = min(scores.values())
    for (left, right), token in merges.items():
        if token in new:
            worth = scores[left] + scores[right] + WORTH
            scores[token] = max(worth, scores.get(token, worth))
    ends = [(token, 0.0) for token in listed[len(old) : size]]
    return [*old, *ends, *((token, scores.get(token, lowest)) for token in listed[size:])]


def _prefix(tokenizer: Tokenizer) -> str:
    """What is put before pieces inside of a word."""
    return str(tokenizer._description["model"].get("continuing_subword_prefix") or "")


def _normalised(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start, stop in pieces(text):
            part = text[start:stop]
            yield backend.normalizer.normalize_str(part) if backend.normalizer else part
