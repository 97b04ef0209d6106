"""The model's side of decoding: read the prompts once, then one token a row, over a state that rows may leave.

Decoder-only models and encoder-decoders differ here and nowhere else in this room.

Legend: R rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.nn.batch import Batch, Layout
from etymon.nn.cache import KeyValueState
from etymon.nn.vocabulary import Context

SHARED = 32
"""Prompts that have so many tokens in common share them: they are read once."""


def common(rows: Sequence[Sequence[int]]) -> int:
    """How many first tokens all rows have in common; the last of every row is its own, since something is asked of it."""
    # All rows agree as far as the first and the last of them in the order of the dictionary do.
    first, last = min(map(list, rows)), max(map(list, rows))
    alike = next((place for place, pair in enumerate(zip(first, last)) if pair[0] != pair[1]), len(first))
    return max(0, min(alike, *(len(row) - 1 for row in rows)))


def sharable(model: Model, rows: Sequence[Sequence[int]]) -> int:
    """How many first tokens rows can share as if each were read by itself: none of those that see what follows them, or that
    the rest of their row is too long to see all of."""
    reach = getattr(model.body, "reach", None)
    far = reach and max(map(len, rows)) > reach
    return 0 if far or model.reads_prefix else common(rows)


def begin(model: Model, tokens: Sequence[int], rows: int, capacity: int) -> KeyValueState:
    """A state of rows that all begin with these tokens, which are read once, with room for `capacity` in all."""
    if not len(tokens):
        return model.start(rows, capacity)
    state = model.start(1, capacity)
    model.hidden(Batch.of([tokens], device=model.device), state)
    return state if rows == 1 else state.fork(rows)


class Stepper:
    """One decode in progress. `prefill` and `step` return scores `[R, V]` of the next token of every row.

    Scores are log-probabilities if `normalised`, otherwise the head's logits where it has them.
    """

    shares = True
    """Prompts that begin alike are read together, and of what they share there are no hidden states to be had."""
    spills = False
    """Tokens beyond the model's positions may be fed (they stand on the last one): nobody will keep them."""

    def __init__(self, model: Model, *, normalised: bool) -> None:
        self.model = model
        head = model.heads["vocabulary"]
        chosen = head.log_probs if normalised or not hasattr(head, "logits") else head.logits
        self.score: Callable[[Tensor, Tensor | None, Context], Tensor] = chosen  # type: ignore[assignment]
        self.room = model.decoder_positions

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        """Reads ragged prompts, with room for `new_tokens` more; in both directions, if the model was trained so.

        With a `start` token the prompts go to the encoder, and every decoder row begins with that token.
        """
        model, device = self.model, self.model.device
        self.memory = None
        if start is not None:
            self.memory = model.encode(Batch.of(prompts, device=device))
            prompts = [[start]] * len(prompts)
        shared = sharable(model, prompts) if self.shares and len(prompts) > 1 else 0
        shared = shared if shared >= SHARED else 0
        longest = max(map(len, prompts)) + new_tokens
        self.state = begin(model, prompts[0][:shared], len(prompts), longest)
        starts = [shared] * len(prompts) if shared else None
        prefix = [len(prompt) for prompt in prompts] if model.reads_prefix else None
        own = [prompt[shared:] for prompt in prompts]
        self._take(Batch.of(own, starts=starts, prefix=prefix, device=device))
        return self.scores(self.last)

    def step(self, tokens_R: Tensor) -> Tensor:
        """Every row goes on with one token."""
        self.feed(tokens_R)
        return self.scores(self.last)

    def feed(self, tokens_R: Tensor) -> None:
        """The same without asking for scores."""
        lengths = self.state.lengths
        batch = Batch(
            ids=tokens_R,
            layout=Layout((1,) * len(lengths), tokens_R.device),
            positions=torch.tensor(lengths, device=tokens_R.device),
            last_position=max(lengths),
            counted=False,
        )
        self._take(batch)

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Every row goes on with one or more tokens."""
        self._take(Batch.of(rows, starts=self.state.lengths, device=self.model.device))

    @property
    def last(self) -> Tensor | None:
        """The flat index of every row's last token of those that were fed; None if they are all of them."""
        layout = self.context.batch.layout
        return None if layout.tokens == layout.rows else layout.last

    def scores(self, at: Tensor | None) -> Tensor:
        """Scores `[n, V]` of what follows some of the tokens that were fed last."""
        return self.score(self.hidden_ND, at, self.context)

    def target_log_probs(self, targets_N: Tensor) -> Tensor:
        """What the model gives a token behind each of the tokens that were fed last."""
        head = self.model.heads["vocabulary"]
        return head.target_log_probs(self.hidden_ND, None, targets_N, self.context)  # type: ignore[operator]

    def select(self, rows: Tensor) -> None:
        """The given rows go on, in that order; the others leave."""
        self.state.keep(rows)

    def fork(self, copies: int) -> None:
        """Every row becomes `copies` rows, side by side."""
        if copies > 1:
            self.state = self.state.fork(copies)

    def branch(self, rows: Tensor) -> Stepper:
        """Another decode that goes on from the given rows of this one."""
        other = copy(self)
        other.state = self.state.select(rows)
        return other

    def _take(self, batch: Batch) -> None:
        if self.spills and self.room is not None and batch.last_position >= self.room:
            batch.positions, batch.last_position = batch.positions.clamp(max=self.room - 1), self.room - 1
        if self.memory is None:
            self.hidden_ND, _ = self.model.hidden(batch, self.state)
        else:
            self.hidden_ND, _ = self.model.decode(batch, self.memory, self.state)
        self.context = Context(batch, self.state)


def window_start(length: int, positions: int) -> int:
    """Where the part of a text that a sliding window holds begins: a text that has outgrown the positions is cut to half
    of them, and again whenever they are full. So it depends on the length alone, whoever wrote the tokens."""
    step = positions + 1 - max(1, positions // 2)
    return max(0, -((positions - length) // step)) * step


class SlidingStepper(Stepper):
    """Goes on beyond the model's positions: rows that have filled them are read again from a later token on."""

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        assert self.room is not None
        self.texts = [list(prompt) if start is None else [start] for prompt in prompts]
        self.given = [len(text) for text in self.texts]
        seen = prompts if start is not None else self._windows()
        return super().prefill(seen, min(new_tokens, self.room), start)

    def feed(self, tokens_R: Tensor) -> None:
        for text, token in zip(self.texts, tokens_R.tolist(), strict=True):
            text.append(token)
        assert self.room is not None
        if max(self.state.lengths) < self.room:
            super().feed(tokens_R)
            return
        # All rows at once: those that still have room become what they were.
        self.state.crop([0] * len(self.texts))
        windows, prefix = self._windows(), None
        if self.model.reads_prefix:
            dropped = [len(text) - len(window) for text, window in zip(self.texts, windows, strict=True)]
            prefix = [max(0, given - drop) for given, drop in zip(self.given, dropped, strict=True)]
        self._take(Batch.of(windows, prefix=prefix, device=self.model.device))

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
        assert self.room is not None
        return [text[window_start(len(text), self.room) :] for text in self.texts]
