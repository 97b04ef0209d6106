"""The model's side of decoding: read the prompts once, then one token a row, over a state that rows may
leave.

Decoder-only models and encoder-decoders differ here and nowhere else in this room.

Legend: R rows, N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.generation.processors import ScoreProcessor
from etymon.nn.batch import Batch, Layout
from etymon.nn.cache import KeyValueState
from etymon.nn.vocabulary import Context

SHARED = 32
"""Prompts that have so many first tokens in common share them: they are read once."""


def common_prefix(rows: Sequence[Sequence[int]]) -> int:
    """How many first tokens all rows have in common. The last token of a row is never shared: its hidden
    state predicts what follows."""
    # All rows agree as far as the first and the last of them in the order of the dictionary do.
    first, last = min(map(list, rows)), max(map(list, rows))
    alike = next((place for place, pair in enumerate(zip(first, last)) if pair[0] != pair[1]), len(first))
    return max(0, min(alike, *(len(row) - 1 for row in rows)))


def sharable(model: Model, rows: Sequence[Sequence[int]]) -> int:
    """How many first tokens can be read once for all rows without changing any result."""
    # A prefix that is read in both directions depends on what follows it; and a model that looks back only so
    # far (Transformer-XL's memory) would have forgotten the beginning of a long row.
    reach = getattr(model.body, "reach", None)
    too_long = reach and max(map(len, rows)) > reach
    return 0 if too_long or model.reads_prefix else common_prefix(rows)


def prefix_state(model: Model, tokens: Sequence[int], rows: int, capacity: int) -> KeyValueState:
    """The state of `rows` rows that all begin with these tokens, which are read once. It has room for
    `capacity` tokens a row in all."""
    if not len(tokens):
        return model.start(rows, capacity)
    state = model.start(1, capacity)
    model.hidden(Batch.of([tokens], device=model.device), state)
    return state if rows == 1 else state.fork(rows)


class Stepper:
    """One decode in progress. `prefill` and `step` return scores `[R, V]` of the next token of every row.

    Scores are log-probabilities if `normalised`, otherwise the head's logits where it has them.
    """

    shares_prompts = True
    """Whether first tokens that prompts have in common are read once; of those there are then no hidden
    states."""
    exceeds_positions = False
    """Whether tokens may be fed beyond the model's positions (they stand on the last one) because they are
    dropped afterwards, as a draft's are."""

    def __init__(self, model: Model, *, normalised: bool) -> None:
        self.model = model
        head: Any = model.heads["vocabulary"]
        # An adaptive softmax has no logits.
        normalised = normalised or not hasattr(head, "logits")
        self.score: Callable[[Tensor, Tensor | None, Context], Tensor]
        self.score = head.log_probs if normalised else head.logits
        self.positions = model.decoder_positions

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        """Reads prompts of any lengths, with room for `new_tokens` more; in both directions, if the model was
        trained so. With a `start` token the prompts go to the encoder, and decoder rows begin with that
        token."""
        model, device = self.model, self.model.device
        self.memory = None  # of the encoder; read once, attended to at every step
        if start is not None:
            self.memory = model.encode(Batch.of(prompts, device=device))
            prompts = [[start]] * len(prompts)
        shared = sharable(model, prompts) if self.shares_prompts and len(prompts) > 1 else 0
        shared = shared if shared >= SHARED else 0
        # Reserved at once: caches that grow would be copied.
        longest = max(map(len, prompts)) + new_tokens
        self.state = prefix_state(model, prompts[0][:shared], len(prompts), longest)
        starts = [shared] * len(prompts) if shared else None
        prefix = [len(prompt) for prompt in prompts] if model.reads_prefix else None
        rests = [prompt[shared:] for prompt in prompts]
        self._read(Batch.of(rests, starts=starts, prefix=prefix, device=device))
        return self.scores(self.last)

    def step(self, tokens_R: Tensor) -> Tensor:
        """Feeds a token to every row and returns the scores of the next."""
        self.feed(tokens_R)
        return self.scores(self.last)

    def feed(self, tokens_R: Tensor) -> None:
        """The same without scores."""
        lengths = self.state.lengths
        # `Batch.of` would be slower: this runs once a token.
        batch = Batch(
            ids=tokens_R,
            layout=Layout((1,) * len(lengths), tokens_R.device),
            positions=torch.tensor(lengths, device=tokens_R.device),
            last_position=max(lengths),
            counted=False,
        )
        self._read(batch)

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Feeds one or more tokens to every row."""
        self._read(Batch.of(rows, starts=self.state.lengths, device=self.model.device))

    @property
    def last(self) -> Tensor | None:
        """The flat index of every row's last token among those that were fed last; None if each row got
        one."""
        layout = self.context.batch.layout
        return None if layout.tokens == layout.rows else layout.last

    def scores(self, at: Tensor | None) -> Tensor:
        """Scores `[n, V]` of what follows some (None: all) of the tokens that were fed last."""
        return self.score(self.hidden_ND, at, self.context)

    def target_log_probs(self, targets_N: Tensor) -> Tensor:
        """The log-probability of a target after each of the tokens that were fed last."""
        head = self.model.heads["vocabulary"]
        return head.target_log_probs(self.hidden_ND, None, targets_N, self.context)  # type: ignore[operator]

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, in that order."""
        self.state.keep(rows)

    def fork(self, copies: int) -> None:
        """Every row becomes `copies` rows, side by side."""
        if copies > 1:
            self.state = self.state.fork(copies)

    def join(self, other: Stepper, rows: int, cells: int) -> None:
        """Adds the rows of another decode of the same model (`state.can_join`) behind its own; `rows` and
        `cells` are those that will be needed."""
        self.state.join(other.state, rows, cells)

    def branch(self, rows: Tensor) -> Stepper:
        """Another decode, which goes on from copies of the given rows."""
        # Shallow: the model is shared, the state is not.
        other = copy(self)
        other.state = self.state.select(rows)
        return other

    def _read(self, batch: Batch) -> None:
        limit = self.positions
        if self.exceeds_positions and limit is not None and batch.last_position >= limit:
            batch.positions, batch.last_position = batch.positions.clamp(max=limit - 1), limit - 1
        if self.memory is None:
            self.hidden_ND, _ = self.model.hidden(batch, self.state)
        else:
            self.hidden_ND, _ = self.model.decode(batch, self.memory, self.state)
        self.context = Context(batch, self.state)


def fork_rows(copies: int, scores_RV: Tensor, processor: ScoreProcessor, *steppers: Stepper) -> Tensor:
    """Makes `copies` rows of every row, side by side, and returns their scores."""
    if copies == 1:
        return scores_RV
    # The prompt was read once for all of them.
    rows = torch.arange(len(scores_RV), device=scores_RV.device).repeat_interleave(copies)
    processor.select(rows)
    for stepper in steppers:
        stepper.fork(copies)
    return scores_RV[rows]


def window_start(length: int, positions: int) -> int:
    """Where the part of a text of `length` tokens begins that a sliding window holds."""
    # A text that has outgrown the positions is cut to half of them, and again whenever they are full. So the
    # window depends on the length alone, and whoever wrote the tokens reads them in the same one.
    step = positions + 1 - max(1, positions // 2)
    return max(0, -((positions - length) // step)) * step


class SlidingStepper(Stepper):
    """Goes on beyond the model's positions: when a row has filled them, all are read again from a later token
    on."""

    positions: int

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        self.texts = [list(prompt) if start is None else [start] for prompt in prompts]
        self.given = [len(text) for text in self.texts]
        inputs = prompts if start is not None else self._windows()
        return super().prefill(inputs, min(new_tokens, self.positions), start)

    def feed(self, tokens_R: Tensor) -> None:
        for text, token in zip(self.texts, tokens_R.tolist(), strict=True):
            text.append(token)
        if max(self.state.lengths) < self.positions:
            super().feed(tokens_R)
            return
        # All rows at once: those that still have room become what they were.
        self.state.crop([0] * len(self.texts))
        windows, prefix = self._windows(), None
        if self.model.reads_prefix:
            dropped = [len(text) - len(window) for text, window in zip(self.texts, windows, strict=True)]
            prefix = [max(0, given - drop) for given, drop in zip(self.given, dropped, strict=True)]
        self._read(Batch.of(windows, prefix=prefix, device=self.model.device))

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self._choose(rows.tolist())

    def fork(self, copies: int) -> None:
        super().fork(copies)
        self._choose([row for row in range(len(self.texts)) for _ in range(copies)])

    def _choose(self, rows: list[int]) -> None:
        self.texts = [list(self.texts[row]) for row in rows]
        self.given = [self.given[row] for row in rows]

    def _windows(self) -> list[list[int]]:
        return [text[window_start(len(text), self.positions) :] for text in self.texts]
