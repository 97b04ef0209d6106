"""Texts that begin alike, as rows of a batch in which every beginning stands once: a causal model reads it
once.

A row is a tree, depth first: a token sees those on its way back to the root and no other branch
(`Batch.seen_until`). Of the two sentences of a minimal pair, all tokens before the first difference are read
once; sentences of one paradigm share their first words as well.

Legend: N tokens of all rows, D width, V vocabulary, n tokens that have a following one, e tokens that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.blocks import Body, Stack
from etymon.nn.pointer import PointerVocabulary
from etymon.nn.visibility import CausalRule
from etymon.nn.vocabulary import Context, chunks

TREE = 64
"""Tokens of a row at most, but for a single longer text. Longer rows share more and attend more; the mask of
a row has the square of its length."""


@dataclass
class PrefixTree:
    """A row: its tokens, the depth of each, where its branch ends, and the place of the token before it (-1
    for the first)."""

    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    seen_until: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """The places of the text that was added last."""
    texts: list[tuple[int, list[int]]] = field(default_factory=list)
    """The number of every text and the places of its tokens."""

    def common(self, text: Sequence[int]) -> int:
        """How many first tokens a text shares with the last one."""
        alike = (self.ids[place] == token for place, token in zip(self.path, text))
        return next((number for number, same in enumerate(alike) if not same), min(len(self.path), len(text)))

    def add(self, number: int, text: Sequence[int]) -> None:
        """Adds a text; texts come in the order of a dictionary."""
        shared = self.common(text)
        # The branch of the last text ends here, but for what it shares with this one.
        for place in self.path[shared:]:
            self.seen_until[place] = len(self.ids)
        path = self.path[:shared]
        for depth, token in enumerate(text[shared:], shared):
            self.parents.append(path[-1] if path else -1)
            path.append(len(self.ids))
            self.ids.append(int(token))
            self.depths.append(depth)
            self.seen_until.append(-1)
        self.path = path
        self.texts.append((number, path))

    def close(self) -> None:
        self.seen_until = [len(self.ids) if stop < 0 else stop for stop in self.seen_until]


def plant_trees(texts: Sequence[Sequence[int]], longest: int = TREE) -> list[PrefixTree]:
    """Trees that hold every text once, by its number among the texts."""
    # In the order of a dictionary, a text shares most with its neighbour: no search is needed.
    keys = [tuple(map(int, text)) for text in texts]
    trees: list[PrefixTree] = []
    for number in sorted(range(len(keys)), key=keys.__getitem__):
        text = keys[number]
        # A full row is left, and the next one reads the shared beginning again.
        if not trees or len(trees[-1].ids) + len(text) - trees[-1].common(text) > longest:
            trees.append(PrefixTree())
        trees[-1].add(number, text)
    for tree in trees:
        tree.close()
    return trees


def reads_trees(model: Model) -> bool:
    """Whether a model computes the same for a text in a tree as for the text alone: a decoder whose layers
    see everything before a token, by positions, and whose head looks at nothing else."""
    stack = getattr(model.body, "stack", None)
    # Bands and memories count places in the row, and a pointer looks back along it: places of a tree are
    # those of other branches as well.
    return (
        type(model.body) is Body
        and type(stack) is Stack
        and all(type(rule) is CausalRule for rule in stack.rules)
        and not isinstance(model.heads["vocabulary"], PointerVocabulary)
        and not model.reads_prefix
    )


def score_trees(model: Model, trees: Sequence[PrefixTree]) -> Iterator[tuple[int, list[float]]]:
    """The number of every text and the log-probabilities of its tokens but the first, which is given."""
    rows = [np.array(tree.ids) for tree in trees]
    depths, seen_until = (
        torch.from_numpy(np.concatenate(parts)).to(model.device)
        for parts in zip(*((tree.depths, tree.seen_until) for tree in trees), strict=True)
    )
    # `counted` is false: distances and biases come from depths, and not from places.
    batch = replace(
        Batch.of(rows, device=model.device),
        positions=depths,
        seen_until=seen_until,
        last_position=max(max(tree.depths) for tree in trees),
        counted=False,
    )
    hidden_ND, _ = model.hidden(batch)
    starts = batch.layout.host_starts
    parents = np.concatenate([np.add(tree.parents, start) for tree, start in zip(trees, starts, strict=True)])
    children = np.flatnonzero(np.concatenate([np.array(tree.parents) >= 0 for tree in trees]))
    # By parent: those with several children are then neighbours, and their logits are computed once.
    children = children[np.argsort(parents[children], kind="stable")]
    # By place, so that every text can gather its own way from the shared ones.
    log_probs = np.zeros(batch.layout.tokens)
    targets_e = batch.ids[torch.from_numpy(children).to(model.device)]
    log_probs[children] = _log_probs(
        model.heads["vocabulary"], hidden_ND, parents[children], targets_e, batch
    )
    for tree, start in zip(trees, starts.tolist(), strict=True):
        for number, path in tree.texts:
            yield number, log_probs[[start + place for place in path[1:]]].tolist()


def _log_probs(
    head: Any, hidden_ND: Tensor, parents_e: np.ndarray, targets_e: Tensor, batch: Batch
) -> np.ndarray:
    """The log-probability of every target behind its parent; parents are in order."""
    if not hasattr(head, "logits"):  # an adaptive softmax computes what its targets need
        at = torch.from_numpy(parents_e).to(hidden_ND.device)
        return head.target_log_probs(hidden_ND, at, targets_e, Context(batch)).cpu().numpy()
    at_n, row_e = np.unique(parents_e, return_inverse=True)
    parts = []
    for part in chunks(len(at_n), head.size):
        logits_CV = head.logits(hidden_ND, torch.from_numpy(at_n[part]).to(hidden_ND.device), Context(batch))
        first, stop = np.searchsorted(row_e, [part.start, part.stop])
        rows_c = torch.from_numpy(row_e[first:stop] - part.start).to(hidden_ND.device)
        parts.append(logits_CV[rows_c, targets_e[first:stop]] - logits_CV.logsumexp(-1)[rows_c])
    return torch.cat(parts).cpu().numpy() if parts else np.zeros(0)
