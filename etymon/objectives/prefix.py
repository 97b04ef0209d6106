"""Prefix language modelling (T5, section 3.2.1): a text's beginning is read in both directions, the rest is
predicted."""

from __future__ import annotations

import numpy as np

from etymon.objectives.causal import CausalExample, CausalLM, NextTokenOptions
from etymon.text.store import Split


class PrefixLM(CausalLM):
    """The windows of `causal`, each divided anywhere between its first token and its last: only what follows
    the prefix is predicted. So bits per byte are those of the second parts, given the first."""

    name = "prefix"
    requires = frozenset({"causal", "prefix"})
    # Without `isolated`: a prefix may end in another document than it begins.
    Options = NextTokenOptions

    def prepare(self, split: Split, row: np.ndarray, rng: np.random.Generator) -> CausalExample:
        whole = super().prepare(split, row, rng)
        # Of L tokens the first 1 to L - 1; the model reads all of them but the last.
        prefix = int(rng.integers(1, len(whole.ids), endpoint=True))
        return CausalExample(whole.ids, whole.targets[prefix - 1 :], prefix=prefix)
