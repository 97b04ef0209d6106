"""Rows of similar length side by side: which of them attention computes together."""

from __future__ import annotations

import numpy as np

# The cost of one more group of rows, and of copying a token into a padded rectangle, in units of one score
# (a query-key pair of one row, all heads). Measured on two cores; only speed depends on them.
GROUP_COST = 2500.0
COPY_COST = 100.0


def group_rows(
    query_lengths: tuple[int, ...], key_lengths: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, tuple[tuple[int, int], ...]]:
    """An order of the rows (None: as they are) and the spans of neighbours to compute side by side.

    Rows are sorted by length and cut where padding would cost more than another call: the cheapest cut is
    found by dynamic programming over the distinct lengths.
    """
    rows = len(key_lengths)
    keys, queries = np.asarray(key_lengths), np.asarray(query_lengths)
    if rows == 0 or (np.all(keys == keys[0]) and np.all(queries == queries[0])):
        return None, ((0, rows),)
    # By the length of keys, then of queries: neighbours are then padded least.
    order = np.lexsort((queries, keys))
    # Rows that are sorted already need no permutation of their tokens.
    if np.all(np.diff(keys) >= 0):
        order = np.arange(rows)
    keys, queries = keys[order], queries[order]
    cuts = np.flatnonzero(np.diff(keys, prepend=-1))
    # The search is quadratic in the number of distinct lengths: 64 candidates lose little.
    if len(cuts) > 64:
        cuts = cuts[np.linspace(0, len(cuts) - 1, 64).astype(int)]
    ends = np.append(cuts[1:], rows)
    best = np.zeros(len(cuts) + 1)
    choice = np.zeros(len(cuts) + 1, dtype=int)
    for last in range(len(cuts)):
        begins, end = cuts[: last + 1], ends[last]
        # All groups that end here at once, one for each place to begin.
        count = end - begins
        widest = np.maximum.accumulate(np.maximum.reduceat(queries[:end], begins)[::-1])[::-1]
        narrowest = np.minimum.accumulate(np.minimum.reduceat(queries[:end], begins)[::-1])[::-1]
        longest = keys[end - 1]
        # Rows of one length are a view of the flat tokens; others are copied into a rectangle.
        padded = (keys[begins] != longest) | (widest != narrowest)
        costs = best[: last + 1] + count * widest * longest + GROUP_COST
        costs = costs + padded * COPY_COST * count * (widest + longest)
        choice[last + 1] = int(np.argmin(costs))
        best[last + 1] = costs[choice[last + 1]]
    spans, last = [], len(cuts)
    while last > 0:
        first = choice[last]
        spans.append((int(cuts[first]), int(ends[last - 1])))
        last = first
    unmoved = bool(np.all(order == np.arange(rows)))
    return None if unmoved else tuple(order.tolist()), tuple(reversed(spans))
