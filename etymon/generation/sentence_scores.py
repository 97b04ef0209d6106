"""How likely a model of any family finds sentences, one number a sentence: what minimal pairs are judged by.

- A decoder (GPT, Transformer-XL): the log-likelihood, the first token from the begin or end token, if any.
- An encoder (BERT and relatives): the pseudo-log-likelihood, each token hidden in turn (Salazar et al. 2020);
  `within-word` hides the pieces of its word behind it as well (Kauf and Ivanova 2023).
- XLNet: the log-likelihood in the order of the text, by its query stream.
- T5, BART: `infilling`, every word blanked in the source and written by the decoder; `target`, the sentence
  written from an empty source.
- ELECTRA's discriminator: the log-probability that no token was replaced.
- ELMo: the mean of its two directions' log-likelihoods.

Legend: N tokens, D width, n scored tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import check_ids, first_tokens, start_token
from etymon.generation.input_rows import InputRow, Reader, in_batches, read_log_probs, score_rows
from etymon.generation.likelihood import score_texts
from etymon.generation.prefix_trees import plant_trees, reads_trees, score_trees
from etymon.generation.text import source_tokenizer_of, tokenizer_of
from etymon.nn.batch import Batch, QueryPositions
from etymon.nn.layers import eval_mode
from etymon.nn.vocabulary import Context
from etymon.text.tokenizer import Tokenizer

PllWay = Literal["token", "within-word"]
Seq2SeqWay = Literal["infilling", "target"]
Method = Literal[
    "likelihood",
    "likelihood in its own order",
    "likelihood of both directions",
    "pseudo-likelihood",
    "pseudo-likelihood within words",
    "infilling",
    "likelihood of the target",
    "no token replaced",
]
TokenLogProbs = tuple[int, list[Any]]
"""The number of a sentence and log-probabilities of some of its tokens (or what a `Reader` gives)."""


@dataclass(frozen=True)
class SentenceScore:
    """Logarithms are natural."""

    log_prob: float
    """The sum over its tokens."""
    tokens: int
    bytes: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens

    @property
    def per_byte(self) -> float:
        return self.log_prob / self.bytes


def scoring_method(model: Model, pll: PllWay = "token", seq2seq: Seq2SeqWay | None = None) -> Method:
    """How the model is to score; refuses what it cannot do."""
    title, tokenizer = model.family.title, tokenizer_of(model)
    if "vocabulary" not in model.head_names:
        # A discriminator says something of every token, too, though no probability of it.
        if "replaced" in model.head_names:
            return "no token replaced"
        raise EtymonError(
            f"this {title} has no vocabulary head and gives no likelihood of a sentence: give a "
            "language model"
        )
    if model.encoder_decoder:
        has_blank = bool(tokenizer.sentinels) or tokenizer.id("mask") is not None
        # Where the two sides have different words, a sentence cannot be its own source.
        can_fill = has_blank and model.source_tokenizer is None
        if seq2seq == "infilling" and not can_fill:
            raise EtymonError(
                f"this {title} cannot fill a blank of its own text: score it by --seq2seq target"
            )
        return "likelihood of the target" if seq2seq == "target" or not can_fill else "infilling"
    if "causal" in model.capabilities:
        return "likelihood"
    if "two-stream" in model.capabilities:
        return "likelihood in its own order"
    if "two directions" in model.capabilities:
        return "likelihood of both directions"
    if "bidirectional" in model.capabilities and tokenizer.id("mask") is not None:
        return "pseudo-likelihood" if pll == "token" else "pseudo-likelihood within words"
    raise EtymonError(f"{title} without a mask token gives no likelihood of a sentence")


def score_sentences(
    model: Model,
    sentences: Sequence[str],
    *,
    pll: PllWay = "token",
    seq2seq: Seq2SeqWay | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> list[SentenceScore]:
    """The score of every sentence, by the way that fits the model (`scoring_method`). `on_progress` is told
    the share that is done."""
    method = scoring_method(model, pll, seq2seq)
    tokenizer = tokenizer_of(model)
    # Words beyond the vocabulary are told apart by their letters.
    by_letters = "letters" in model.capabilities
    encoded = (tokenizer.lexicon if by_letters else tokenizer).encode_batch(list(sentences))
    if not by_letters:
        check_ids([ids.tolist() for ids in encoded], model.shape.vocabulary)
    for sentence, ids in zip(sentences, encoded, strict=True):
        if not len(ids):
            raise EtymonError(f"{sentence[:40]!r} has no tokens: there is nothing to score")
    log_probs: list[list[float]] = [[] for _ in sentences]
    done, total = 0, sum(map(len, encoded))
    for number, scored in SCORERS[method](model, sentences, encoded):
        log_probs[number] += scored
        done += len(scored)
        on_progress(min(1.0, done / max(1, total)))
    if by_letters:
        tokenizer.lexicon.forget()
    # `fsum`: the order in which batches bring tokens does not change a sum.
    return [
        SentenceScore(math.fsum(scored), len(scored), len(sentence.encode()))
        for sentence, scored in zip(sentences, log_probs, strict=True)
    ]


# --- from left to right


@torch.inference_mode()
def _likelihoods(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray]
) -> Iterator[TokenLogProbs]:
    rows = [np.concatenate((np.array(first_tokens(model), np.int32), ids)) for ids in encoded]
    longest = max(map(len, rows))
    if not reads_trees(model) or longest - 1 > (model.window or longest) or min(map(len, rows)) < 2:
        # In windows, with a memory, through a pointer: as `etymon score` reads a text.
        for number, score in enumerate(score_texts(model, sentences)):
            yield number, score.log_probs
        return
    with eval_mode(model):
        for trees in in_batches(plant_trees([row.tolist() for row in rows]), lambda tree: len(tree.ids)):
            yield from score_trees(model, trees)


@torch.inference_mode()
def ordered_log_probs(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray], read: Reader = read_log_probs
) -> Iterator[TokenLogProbs]:
    """By the query stream: every token from those before it, the first from the begin token."""
    start = np.array(first_tokens(model), np.int32)
    head: Any = model.heads["vocabulary"]
    with eval_mode(model):
        for part in in_batches(_by_length(encoded), lambda number: len(encoded[number])):
            batch = Batch.of(
                [np.concatenate((start, encoded[number])) for number in part], device=model.device
            )
            # A query sees the content of smaller numbers only, so that no token sees itself or what follows.
            batch.order = batch.layout.index
            places = [np.arange(len(encoded[number])) + len(start) for number in part]
            at = batch.layout.flat(places)
            hidden_nD, _ = model.two_stream(batch, QueryPositions(at, [len(row) for row in places]))
            log_probs_n = read(head, hidden_nD, None, batch.ids[at], Context(batch))
            yield from zip(part, _split(log_probs_n, places), strict=True)


@torch.inference_mode()
def _both_directions(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray]
) -> Iterator[TokenLogProbs]:
    """A word's log-probability is the mean of that from the words before it and that from those behind it."""
    tokenizer = tokenizer_of(model)
    head: Any = model.heads["vocabulary"]
    begin, end, unknown = (tokenizer.id(role) for role in ("begin", "end", "unknown"))
    assert begin is not None and end is not None and unknown is not None
    with eval_mode(model):
        for part in in_batches(_by_length(encoded), lambda number: len(encoded[number])):
            rows = [np.concatenate(([begin], encoded[number], [end])) for number in part]
            batch = Batch.of(rows, device=model.device)
            hidden_ND, _ = model.hidden(batch)
            places = [np.arange(len(row) - 2) for row in rows]
            targets_n = batch.ids[batch.layout.flat(places) + 1]
            # The lexicon spells more words than the softmax has columns for.
            targets_n = targets_n.masked_fill(targets_n >= head.size, unknown)
            sums_n = torch.zeros(len(targets_n), device=model.device)
            # Ahead, a word is predicted one place before it; back, one behind it.
            for hidden_NP, shift in zip(hidden_ND.chunk(2, -1), (0, 2), strict=True):
                at = batch.layout.flat(places) + shift
                sums_n += head.target_log_probs(hidden_NP.contiguous(), at, targets_n)
            yield from zip(part, _split(sums_n / 2, places), strict=True)


# --- from both sides


def hidden_rows(
    model: Model, sentences: Sequence[str], encoded: Sequence[np.ndarray], within_words: bool = False
) -> Iterator[InputRow]:
    """Every token hidden in turn, a row each, `within_words` with the pieces of its word that come after
    it."""
    tokenizer = tokenizer_of(model)
    mask = tokenizer.id("mask")
    words = word_numbers(tokenizer, sentences) if within_words else None
    for number, ids in enumerate(encoded):
        framed = tokenizer.framing.frame(ids)
        _check_length(model, len(framed.ids))
        places = np.flatnonzero(~framed.special)
        for index, place in enumerate(places.tolist()):
            masked = framed.ids.copy()
            masked[place] = mask
            if words is not None:
                behind = np.arange(index + 1, len(ids))
                masked[places[behind[words[number][behind] == words[number][index]]]] = mask
            yield InputRow(number, masked, place, framed.ids[place : place + 1])


def _pseudo_likelihoods(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray], within_words: bool = False
) -> Iterator[TokenLogProbs]:
    # What is read and predicted -> the sentences that have it: rows that two sentences have in common, as a
    # minimal pair of one word has, are computed once.
    wanted: dict[tuple[bytes, int, int], list[int]] = {}
    for row in hidden_rows(model, sentences, encoded, within_words):
        wanted.setdefault((row.ids.tobytes(), row.first, int(row.targets[0])), []).append(row.text)
    # Rows of one length lie side by side without a copy.
    keys = sorted(wanted, key=lambda key: len(key[0]))
    rows = (
        InputRow(number, np.frombuffer(ids, np.int32), place, np.array([target]))
        for number, (ids, place, target) in enumerate(keys)
    )
    for number, _, scored in score_rows(model, rows):
        for sentence in wanted[keys[number]]:
            yield sentence, scored


def _within_words(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray]
) -> Iterator[TokenLogProbs]:
    return _pseudo_likelihoods(model, sentences, encoded, within_words=True)


@torch.inference_mode()
def _not_replaced(
    model: Model, sentences: Sequence[str], encoded: list[np.ndarray]
) -> Iterator[TokenLogProbs]:
    """Of every token the log-probability that it is the original, as a discriminator sees it."""
    framing = tokenizer_of(model).framing
    with eval_mode(model):
        for part in in_batches(_by_length(encoded), lambda number: len(encoded[number])):
            framed = [framing.frame(encoded[number]) for number in part]
            # Nothing is hidden: a discriminator judges the text as it stands, in one pass.
            rows = [each.ids for each in framed]
            for row in rows:
                _check_length(model, len(row))
            batch = Batch.of(rows, segments=framing.segments(rows), device=model.device)
            hidden_ND, _ = model.hidden(batch)
            places = [np.flatnonzero(~each.special) for each in framed]
            logits_n = model.read("replaced", hidden_ND, batch, batch.layout.flat(places)).view(-1)
            yield from zip(part, _split(F.logsigmoid(-logits_n.float()), places), strict=True)


# --- from an encoder to a decoder


def _targets(model: Model, sentences: Sequence[str], encoded: list[np.ndarray]) -> Iterator[TokenLogProbs]:
    """The sentence and its end as what is written from an empty source."""
    # An empty text still has the marks that its framing adds.
    source = source_tokenizer_of(model).framing.frame([]).ids
    start, framing = np.array([start_token(model)], np.int32), tokenizer_of(model).framing
    rows = []
    for number in _by_length(encoded):
        framed = framing.frame(encoded[number]).ids
        _check_length(model, len(framed))
        rows.append(InputRow(number, np.concatenate((start, framed[:-1])), 0, framed, source))
    for number, _, scored in score_rows(model, rows):
        yield number, scored


def blank_rows(model: Model, sentences: Sequence[str], encoded: Sequence[np.ndarray]) -> Iterator[InputRow]:
    """Every word in turn is a blank in the source. What a decoder with sentinels writes is the sentinel and
    the word, any other the whole sentence; of both, the word's tokens are scored."""
    tokenizer = tokenizer_of(model)
    framing, sentinels = tokenizer.framing, tokenizer.sentinels
    blank = np.array([sentinels[0] if sentinels else tokenizer.id("mask")], np.int32)
    start = np.array([start_token(model)], np.int32)
    for number, (ids, words) in enumerate(zip(encoded, word_numbers(tokenizer, sentences), strict=True)):
        for _, group in groupby(range(len(ids)), key=words.__getitem__):
            places = list(group)
            first, stop = places[0], places[-1] + 1
            source = framing.frame(np.concatenate((ids[:first], blank, ids[stop:]))).ids
            _check_length(model, len(source))
            target = ids[first:stop]
            before = blank
            if not sentinels:
                # What comes before the word is given: the decoder writes the sentence up to it.
                framed = framing.frame(ids)
                before = framed.ids[: np.flatnonzero(~framed.special)[first]]
            inputs = np.concatenate((start, before, target[:-1]))
            yield InputRow(number, inputs, len(before), target, source)


def _infillings(model: Model, sentences: Sequence[str], encoded: list[np.ndarray]) -> Iterator[TokenLogProbs]:
    # Sources of one length need no padding in the encoder's attention.
    rows = sorted(blank_rows(model, sentences, encoded), key=lambda row: row.size)
    for number, _, scored in score_rows(model, rows):
        yield number, scored


# --- what they share


def word_numbers(tokenizer: Tokenizer, sentences: Sequence[str]) -> list[np.ndarray]:
    """For every token of every sentence the number of its word, as the tokenizer parts words."""
    encodings = tokenizer.backend.encode_batch(list(sentences), add_special_tokens=False)
    # A token of no word is one by itself.
    return [
        np.array([-1 - place if word is None else word for place, word in enumerate(each.word_ids)])
        for each in encodings
    ]


def _check_length(model: Model, tokens: int) -> None:
    if model.positions is not None and tokens > model.positions:
        raise EtymonError(
            f"a sentence has {tokens} tokens, but the model reads {model.positions}: shorten it, or "
            "leave it out"
        )


def _by_length(encoded: Sequence[np.ndarray]) -> list[int]:
    return sorted(range(len(encoded)), key=lambda number: len(encoded[number]))


def _split(log_probs_n: torch.Tensor, places: Sequence[np.ndarray]) -> list[list[float]]:
    return [part.tolist() for part in log_probs_n.split([len(row) for row in places])]


SCORERS: dict[Method, Callable[[Model, Sequence[str], list[np.ndarray]], Iterator[TokenLogProbs]]] = {
    "likelihood": _likelihoods,
    "likelihood in its own order": ordered_log_probs,
    "likelihood of both directions": _both_directions,
    "pseudo-likelihood": _pseudo_likelihoods,
    "pseudo-likelihood within words": _within_words,
    "infilling": _infillings,
    "likelihood of the target": _targets,
    "no token replaced": _not_replaced,
}
