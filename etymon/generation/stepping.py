"""The model's side of decoding: read the prompts once, then one token a row, over a state that rows may leave.

Decoder-only models and encoder-decoders differ here and nowhere else in this room.

Legend: R rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.ragged import Layout
from etymon.nn.vocabulary import Context


class Stepper:
    """One decode in progress. `prefill` and `step` return scores `[R, V]` of the next token of every row.

    Scores are log-probabilities if `normalised`, otherwise the head's logits where it has them.
    """

    def __init__(self, model: Model, *, normalised: bool) -> None:
        self.model = model
        head = model.heads["vocabulary"]
        chosen = head.log_probs if normalised or not hasattr(head, "logits") else head.logits
        self.score: Callable[[Tensor, Tensor | None, Context], Tensor] = chosen  # type: ignore[assignment]

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int, start: int | None) -> Tensor:
        """Reads ragged prompts, with room for `new_tokens` more; in both directions, if the model was trained so.

        With a `start` token the prompts go to the encoder, and every decoder row begins with that token.
        """
        model, device = self.model, self.model.device
        self.memory = None
        if start is not None:
            self.memory = model.encode(Batch.of(prompts, device=device))
            prompts = [[start]] * len(prompts)
        self.state = model.start(len(prompts), max(map(len, prompts)) + new_tokens)
        prefix = [len(prompt) for prompt in prompts] if model.reads_prefix else None
        return self._forward(Batch.of(prompts, prefix=prefix, device=device))

    def step(self, tokens_R: Tensor) -> Tensor:
        """Every row goes on with one token."""
        lengths = self.state.lengths
        batch = Batch(
            ids=tokens_R,
            layout=Layout((1,) * len(lengths), tokens_R.device),
            positions=torch.tensor(lengths, device=tokens_R.device),
            last_position=max(lengths),
            counted=False,
        )
        return self._forward(batch)

    def select(self, rows: Tensor) -> None:
        """The given rows go on, in that order; the others leave."""
        self.state = self.state.select(rows)

    def fork(self, copies: int) -> None:
        """Every row becomes `copies` rows, side by side."""
        if copies > 1:
            self.state = self.state.fork(copies)

    def _forward(self, batch: Batch) -> Tensor:
        if self.memory is None:
            hidden_ND, _ = self.model.hidden(batch, self.state)
        else:
            hidden_ND, _ = self.model.decode(batch, self.memory, self.state)
        # A step has one token a row: all of them are asked, and nothing is gathered.
        last = None if batch.layout.tokens == batch.layout.rows else batch.layout.last
        return self.score(hidden_ND, last, Context(batch, self.state))
