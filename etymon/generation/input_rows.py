"""What a model reads at once, and what is read of its distributions: log-probabilities of targets, or more.

Legend: N tokens, D width, n scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.generation.text import tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.vocabulary import Context

BATCH_TOKENS = 8192
"""Tokens that are computed together."""
Item = TypeVar("Item")
Scored = tuple[int, np.ndarray, list[Any]]
"""The number of a text, some of its tokens and their log-probabilities (or what a `Reader` gives)."""
Reader = Callable[[Any, Tensor, Tensor | None, Tensor, Context], Tensor]
"""A vocabulary head, hidden states, the flat places to read, targets and context to a row a target."""


def read_log_probs(
    head: Any, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Context
) -> Tensor:
    return head.target_log_probs(hidden_ND, at, targets_n, context)


@dataclass(frozen=True)
class InputRow:
    """What a model reads at once, and the tokens to score at position `first` and those after it."""

    text: int
    """The number of the text that it is a part of."""
    ids: np.ndarray
    first: int
    targets: np.ndarray
    source: np.ndarray | None = None
    prefix: int = 0
    """How many ids are the given text of a target, which some models read in both directions."""

    @property
    def size(self) -> int:
        """The tokens that are read."""
        return len(self.ids) + (0 if self.source is None else len(self.source))


@torch.inference_mode()
def score_rows(model: Model, rows: Iterable[InputRow], read: Reader = read_log_probs) -> Iterator[Scored]:
    """The log-probabilities of every row's targets, in the order of the rows, or what else is `read`."""
    head: Any = model.heads["vocabulary"]
    framing = tokenizer_of(model).framing
    with eval_mode(model):
        # Batches of about as many tokens, and not rows: a long text does not take more memory.
        for part in in_batches(rows, lambda row: row.size):
            ids = [row.ids for row in part]
            prefix = [row.prefix for row in part] if model.reads_prefix else None
            batch = Batch.of(ids, segments=framing.segments(ids), prefix=prefix, device=model.device)
            # Targets of a row stand side by side, from its `first` place on.
            places = [np.arange(row.first, row.first + len(row.targets)) for row in part]
            at = batch.layout.flat(places)
            if model.encoder_decoder:
                sources = [row.source for row in part if row.source is not None]
                hidden_ND, _ = model.decode(batch, model.encode(Batch.of(sources, device=model.device)))
            elif "causal" in model.capabilities:
                hidden_ND, _ = model.hidden(batch)
            else:
                hidden_ND = model.hidden_behind_masks(batch, at)
                at = torch.arange(len(at), device=model.device)
            targets = np.concatenate([row.targets for row in part]).astype(np.int64)
            targets_n = torch.from_numpy(targets).to(model.device)
            log_probs_n = read(head, hidden_ND, at, targets_n, Context(batch))
            for row, log_probs in zip(
                part, log_probs_n.split([len(row.targets) for row in part]), strict=True
            ):
                yield row.text, row.targets, log_probs.tolist()


def in_batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items of about `BATCH_TOKENS` tokens together."""
    part: list[Item] = []
    tokens = 0
    for item in items:
        if part and tokens + size(item) > BATCH_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(item)
        tokens += size(item)
    if part:
        yield part
