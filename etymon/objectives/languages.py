"""An objective over texts in several languages: every epoch has an exact number of samples of each.

The quotas are in proportion to n^T, with n samples of a language and the temperature T. A language goes
through its samples pass after pass, whatever the epochs are: of a small one an epoch may see several passes,
of a large one a part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etymon.objectives.objective import Objective
from etymon.sampling import plans
from etymon.text.languages import LanguageSplit, exact_quotas, language_shares


class LanguageSampling:
    """`inner` on a `LanguageSplit`. Rows of its plan are the number of a language, then a row of that
    language's own plan; all that is not about plans is the inner objective's."""

    def __init__(self, inner: Objective, temperature: float) -> None:
        self.inner, self.temperature = inner, temperature

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # it is being unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def quotas(self, split: LanguageSplit, seed: int) -> dict[str, tuple[int, int]]:
        """Of every language the samples of an epoch, and those of a pass over all of its text."""
        passes = {code: len(self.inner.plan(part, seed, 0)) for code, part in split.parts.items()}
        quotas = exact_quotas(
            sum(passes.values()),
            language_shares({code: size for code, size in passes.items() if size}, self.temperature),
        )
        return {code: (quota, passes[code]) for code, quota in quotas.items()}

    def plan(self, split: LanguageSplit, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """A function of (split, seed, epoch) alone. In order (not `shuffle`): all of every language."""
        numbers = {code: number for number, code in enumerate(split.parts)}
        tables = []
        for code, part in split.parts.items() if not shuffle else ():
            tables.append(_headed(numbers[code], self.inner.plan(part, seed, 0, shuffle=False)))
        for code, (quota, size) in self.quotas(split, seed).items() if shuffle else ():
            # Samples first up to last of all passes one after the other. A pass may be a few samples longer
            # or shorter than the first one, by which passes are counted: these are left out, or come twice.
            first, last = epoch * quota, (epoch + 1) * quota
            for turn in range(first // size, (last - 1) // size + 1):
                rows = self.inner.plan(split.parts[code], seed, turn)
                chosen = np.arange(max(first, turn * size), min(last, (turn + 1) * size)) - turn * size
                tables.append(_headed(numbers[code], rows[chosen % max(1, len(rows))]))
        table = np.concatenate([table for table in tables if len(table)] or tables[:1])
        return plans.order_rows(table, shuffle, seed, "languages", epoch)

    def prepare(self, split: LanguageSplit, row: np.ndarray, rng: np.random.Generator) -> Any:
        return self.inner.prepare(list(split.parts.values())[row[0]], row[1:], rng)

    def readings(self, split: LanguageSplit, plan: np.ndarray) -> float:
        counts = np.bincount(plan[:, 0], minlength=len(split.parts))
        read = total = 0.0
        for count, part in zip(counts.tolist(), split.parts.values(), strict=True):
            rows, words = self.inner.plan(part, 0, 0), float(part.words.sum())
            total += words
            read += words * count / max(1, len(rows)) * self.inner.readings(part, rows) if len(rows) else 0.0
        return read / max(1.0, total)


def _headed(number: int, rows: np.ndarray) -> np.ndarray:
    return np.column_stack((np.full(len(rows), number, np.int64), rows))
