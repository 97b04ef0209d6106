"""What a head reads: rows of one or two texts in the family's framing, cut to what the model can read;
batches of such rows; and, of a body that does not learn, the layers of rows that were read before.

Legend: L layers, N tokens of a batch, n of a row, D width, U distinct words, C letters.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.text import tokenizer_of
from etymon.nn.batch import Batch, Layout, Letters
from etymon.objectives.objective import MicroBatch
from etymon.sampling.examples import Examples, Ragged
from etymon.tables.table import Table
from etymon.tasks.task import Notify
from etymon.text.framing import Framed

Pair = tuple[str, str | None]
USUAL_LENGTH = 512
"""Tokens of a row at most, where neither the user nor the model has a limit."""
# Of memory on the host. BERT's base size has 13 layers of 768 floats, 40 kB a token: 50,000 tokens fit.
MOST_BYTES = 2 << 30


def require_one_tokenizer(model: Model) -> None:
    """Refuses a model with a tokenizer for its source alone: here encoder and decoder read the same text."""
    if model.source_tokenizer is not None:
        raise EtymonError(
            "this model has a tokenizer for the source and another for the target, and can only turn "
            "one text into another (text2text): fine-tune one that has a single tokenizer"
        )


class TextReader:
    """Texts as rows of ids. `cut` counts those of the last table that were too long."""

    def __init__(self, model: Model, length: int | None = None) -> None:
        tokenizer = tokenizer_of(model)
        require_one_tokenizer(model)
        # A model that reads letters can tell words apart that its tokenizer does not know.
        self.words = tokenizer.lexicon if "letters" in model.capabilities else tokenizer
        self.framing = tokenizer.task_framing
        length = length or USUAL_LENGTH
        self.length = length if model.positions is None else min(length, model.positions)
        if not self.room(pair=False):
            raise EtymonError(f"{self.length} tokens have no room for a text: raise --length")
        self.cut = 0

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, without the framing."""
        return self.words.encode_batch(list(texts))

    def room(self, pair: bool) -> int:
        """Tokens that are left for texts within the framing."""
        return max(0, self.length - self.framing.overhead(pair))

    def framed(
        self, first: np.ndarray, second: np.ndarray | None = None, *, keeps_end: bool = False
    ) -> Framed:
        """The row of one text or of two; of two that are too long, the longer loses its end first, and if
        both do, it keeps the odd token (as Transformers' `longest_first`). With `keeps_end`, the first text
        loses its beginning instead."""
        room = self.room(second is not None)
        lengths = [len(first), 0 if second is None else len(second)]
        if sum(lengths) > room:
            self.cut += 1
            # Where BERT's `_truncate_seq_pair` ends, which takes a token at a time from the longer text.
            shorter = min(*lengths, room // 2)
            lengths = [shorter, room - shorter] if lengths[0] <= lengths[1] else [room - shorter, shorter]
        # Not `first[-n:]`, which for n = 0 is all of it.
        first = first[len(first) - lengths[0] :] if keeps_end else first[: lengths[0]]
        return self.framing.frame(first, None if second is None else second[: lengths[1]])

    def examples(
        self, pairs: Sequence[Sequence[Pair]], table: Table, notify: Notify, *, keeps_end: bool
    ) -> Examples:
        """The rows of every example, one text or two each, as tokens. Refuses an example without any."""
        self.cut = 0
        # Tables repeat texts (a question before every choice): each is encoded once.
        texts = list(
            dict.fromkeys(text for rows in pairs for pair in rows for text in pair if text is not None)
        )
        ids = dict(zip(texts, self.encode(texts), strict=True))
        framed = [
            [
                self.framed(ids[first], None if second is None else ids[second], keeps_end=keeps_end)
                for first, second in rows
            ]
            for rows in pairs
        ]
        # A family without marks around its texts (GPT-2) would read an empty row.
        for place, rows in zip(table.places, framed, strict=True):
            if not all(len(row.ids) for row in rows):
                raise EtymonError(f"{place}: its text has no tokens; leave the row out")
        if self.cut:
            notify(
                f"cut {self.cut:,} texts of {len(table):,} rows to {self.length} tokens (finetune --length)"
            )
        words = [sum(len(text.split()) for pair in rows for text in pair if text) for rows in pairs]
        return framed_examples(framed, words)


def framed_examples(
    framed: Sequence[Sequence[Framed]], words: Sequence[int], **columns: Ragged | np.ndarray
) -> Examples:
    """Examples of framed rows, so many `words` each, with more `columns`."""
    lengths = Ragged([np.array([len(row.ids) for row in rows]) for rows in framed])
    ids, segments = (
        Ragged([np.concatenate([getattr(row, name) for row in rows]) for rows in framed])
        for name in ("ids", "segments")
    )
    rows = {"ids": ids, "segments": segments, "lengths": lengths}
    return Examples({**rows, **columns}, ids.lengths, np.array(words))


@dataclass
class HeadBatch(MicroBatch):
    """Rows of tokens. `at` are the places that the head reads, None for those of the family; `rows` how many
    rows each example has."""

    batch: Batch
    targets: Tensor
    at: Tensor | None
    rows: tuple[int, ...]
    keys: tuple[tuple[int, int, int], ...]
    """Of the rows, the same in every epoch: the split, the example, the row in it."""
    teacher_logits: Tensor | None = None
    words: Tensor | None = None
    """Targets of the language model, with their places and weights."""
    words_at: Tensor | None = None
    words_weights: Tensor | None = None

    def add_words(self, rows: Sequence[np.ndarray]) -> None:
        """Every row's next words; each row counts once, whatever its length."""
        # As in GPT-1's code: the mean over the tokens of a row, and then over rows.
        lengths = np.array([len(row) - 1 for row in rows])
        self.words_at = self.batch.layout.flat([np.arange(length) for length in lengths])
        self.words = torch.from_numpy(np.concatenate([row[1:] for row in rows]).astype(np.int64))
        self.words_weights = torch.from_numpy(np.repeat(1 / np.maximum(lengths, 1), lengths)).float()
        self.counts["language_model"] = float(len(rows))

    def by_example(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of the places that the head reads, an array for every example."""
        if self.at is None:
            return list(values[:, None])
        layout = self.batch.layout
        # Rows without such a place get an empty array.
        counts = layout.row[self.at].bincount(minlength=layout.rows)
        return np.split(values, np.cumsum(counts.cpu().numpy())[:-1])


class FeatureCache:
    """Layers of a frozen body by row: every text goes through the model once, and not once an epoch. A key
    tells rows apart (`HeadBatch.keys`). What does not fit into `MOST_BYTES` is computed every time."""

    def __init__(self, model: Model) -> None:
        assert model.frozen_body, (
            "the layers of a body that learns change with every step: set model.frozen_body"
        )
        self.model = model
        self.bytes = 0
        self.kept: dict[Hashable, np.ndarray] = {}
        """`[L, n, D]` of every row that was kept."""

    def layers(self, keys: Sequence[Hashable], batch: Batch) -> list[Tensor]:
        """As `Model.layers(batch)`; `keys` are those of its rows."""
        new = [place for place, key in enumerate(keys) if key not in self.kept]
        computed: dict[Hashable, np.ndarray] = {}
        if new:
            chosen = batch if len(new) == batch.layout.rows else _rows(batch, new)
            states_LND = torch.stack(self.model.layers(chosen)).float().cpu().numpy()
            parts = np.split(states_LND, np.cumsum(chosen.layout.lengths)[:-1], axis=1)
            # Copies: a part of a larger array would keep all of it.
            computed = {keys[place]: part.copy() for place, part in zip(new, parts, strict=True)}
        for key, states in computed.items():
            if self.bytes + states.nbytes <= MOST_BYTES:
                self.kept[key] = states
                self.bytes += states.nbytes
        # Rows that were kept and rows that are new, in the order of the batch.
        rows = [computed[key] if key in computed else self.kept[key] for key in keys]
        whole_LND = torch.from_numpy(np.concatenate(rows, 1)).to(batch.device)
        return list(whole_LND.unbind())


def _rows(batch: Batch, places: Sequence[int]) -> Batch:
    """Some rows of a batch, as a batch of their own."""
    # Views are compiled for the rows of the whole batch, so the new one begins without any.
    layout = Layout([batch.layout.lengths[place] for place in places], batch.device)
    starts = torch.from_numpy(batch.layout.host_starts[list(places)]).to(batch.device)
    at_n = starts[layout.row] + layout.index
    columns = {
        name: column[at_n]
        for name in ("ids", "positions", "segments", "prefix", "hidden_keys", "order")
        if (column := getattr(batch, name)) is not None
    }
    # The distinct words stay, whether these rows have them or not: tokens point into them by number.
    if (words := batch.letters) is not None:
        columns["letters"] = Letters(words.letters_UC, words.ahead_N[at_n], words.back_N[at_n])
    return replace(batch, layout=layout, views={}, **columns)


def split_flat(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Rows of these lengths, which stand end to end."""
    return [flat[start:stop] for start, stop in pairwise([0, *np.cumsum(lengths).tolist()])]


def column_by_example(values: np.ndarray, examples: Examples) -> Ragged | np.ndarray:
    """Values in the order of the table as a column, with an array for every example: of one value, or of one
    a place."""
    places: Any = examples.columns.get("places")
    if places is None:
        return values[:, None]
    return Ragged(np.split(values, places.stops[:-1]), values.dtype.type)
