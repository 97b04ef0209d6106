"""Hybrid language modelling (GPT-BERT, Charpentier & Samuel 2024): one model learns to fill gaps and to go on.

Some rows are masked and read in both directions, the others are whole and read from left to right. In both, a
token is predicted from the state of the place before it, so one head and the same weights serve both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.objectives.masked import MaskedBatch, MaskedExample, MaskedLM, ShiftableOptions
from etymon.objectives.objective import Term, by_length, target_terms
from etymon.settings import option, settings
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class HybridExample(MaskedExample):
    is_causal: bool = False
    """A token sees itself and those before it; otherwise all of its row."""


@dataclass
class HybridBatch(MaskedBatch):
    is_causal: Tensor
    """For every target, whether its row is causal."""


@settings
class HybridOptions(ShiftableOptions):
    shifted: bool = option(True, "predict a masked token from the state of the place before it")
    # The paper's best models have from half to nearly all of their rows masked (section 4).
    causal: float = option(0.5, "share of the rows that are read from left to right", ge=0, le=1)


class CausalRows(MaskedLM):
    """The samples of `masked` with nothing hidden: every token of the text is a target."""

    def draw(self, ids: np.ndarray, special: np.ndarray, *source: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.flatnonzero(~special), ids


class Hybrid(MaskedLM):
    """Every sample is masked or causal by a draw. Each kind's mean loss counts as much as its share of the
    rows."""

    name = "hybrid"
    requires = frozenset({"bidirectional", "causal-rows"})
    Options = HybridOptions

    def __init__(self, tokenizer: Tokenizer, length: int, options: HybridOptions | None = None) -> None:
        super().__init__(tokenizer, length, options)
        self.causal_share: float = self.options.causal
        self.causal_rows = CausalRows(tokenizer, length, self.options)
        # There, what is predicted would be seen in its own place.
        self.causal_rows.shifted = True

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> HybridExample:
        is_causal = bool(rng.random() < self.causal_share)
        rows: MaskedLM = self.causal_rows if is_causal else super()  # type: ignore[assignment]
        return HybridExample(**vars(rows.prepare(split, row, rng)), is_causal=is_causal)

    def collate(self, examples: Sequence[HybridExample]) -> HybridBatch:  # type: ignore[override]
        examples = by_length(examples)
        micro = super().collate(examples)
        layout = micro.batch.layout
        # Every slice says who sees whom, also one of causal rows alone: without prefixes an encoder sees all.
        is_causal = torch.tensor([example.is_causal for example in examples])
        # All of a masked row is a prefix, which is read in both directions.
        micro.batch.prefix = torch.where(is_causal, 0, torch.tensor(layout.lengths))[layout.row]
        of_targets = is_causal.repeat_interleave(torch.tensor([len(each.places) for each in examples]))
        causal = int(of_targets.sum())
        masked = len(of_targets) - causal
        counts = {"masked": masked, "causal": causal}
        counts |= {f"{name}_accuracy": count for name, count in counts.items()}
        return HybridBatch(**{**vars(micro), "counts": counts}, is_causal=of_targets)

    def terms(self, model: Any, micro: MaskedBatch, hidden: Tensor) -> dict[str, Term]:
        assert isinstance(micro, HybridBatch)
        weighted: dict[str, Term] = {}
        for name, chosen, share in (
            ("masked", ~micro.is_causal, 1 - self.causal_share),
            ("causal", micro.is_causal, self.causal_share),
        ):
            terms = target_terms(name, model, hidden, micro.at[chosen], micro.targets[chosen])
            weighted |= {key: replace(term, weight=share * term.weight) for key, term in terms.items()}
        return weighted
