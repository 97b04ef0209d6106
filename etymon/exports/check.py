"""Whether an export says what the model says: the same inputs to both, and how far their answers are apart.

Legend: N tokens, V words or other outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.exports.program import LETTERS, TOKEN_HEADS, read_words
from etymon.exports.target import STATES, CheckInputs, ExportTarget, Runner, Tolerance
from etymon.nn.batch import Batch, Letters
from etymon.text.words import PADDING, letters

if TYPE_CHECKING:
    from etymon.families.model import Model

LENGTHS = (1, 7)
"""Of rows that are checked, beside the longest that a model reads."""
LONGEST = 512
"""Where a model has no limit of its own."""
# Both scripts, so that a tokenizer of either has words and pieces of them to show.
TEXTS = (
    "A model that was trained here is to say the same there: every word, every number, every 2nd decimal. ",
    "在这里训练的模型，到了那里也要说同样的话：每一个字、每一个数、第二位小数。",
)


@dataclass(frozen=True)
class CheckFigures:
    """Of all inputs: the largest difference of an answer, as a share of the largest answer (or of 1), the
    share of places where both have the same best output, and how many rows and answers were compared."""

    worst: float
    agreement: float
    rows: int
    places: int


def check_inputs(model: Model, head: str) -> list[CheckInputs]:
    """Rows of 1, of 7 and of as many tokens as the model reads, one at a time and three together (of three
    lengths), in English and in Chinese."""
    limits = [model.positions]
    if not model.encoder_decoder or model.body.decoder is not None:
        limits.append(model.decoder_positions)
    longest = min(limit or LONGEST for limit in limits)
    writes = model.encoder_decoder and head == "vocabulary"
    checked = []
    for number, text in enumerate(TEXTS):
        pool = _token_ids(model, text, longest, source=True)
        words = _token_ids(model, TEXTS[1 - number] if writes else text, longest, source=False)
        start = [model.decoder_start] if writes else []

        def rows(lengths: Sequence[int], pool: list[int] = pool) -> list[list[int]]:
            # Each row begins elsewhere, so that no two are prefixes of one another.
            return [(pool[shift:] + pool[:shift])[:length] for shift, length in enumerate(lengths)]

        for lengths in ((LENGTHS[0],), (LENGTHS[1],), (longest,), (longest, *reversed(LENGTHS))):
            targets = [[*start, *row][: len(row)] for row in rows(lengths[::-1], words)] if writes else None
            chosen = rows(lengths)
            spelled = _spell_rows(model, chosen) if "letters" in model.capabilities else None
            checked.append(CheckInputs(chosen, targets, spelled))
    return checked


def _token_ids(model: Model, text: str, count: int, *, source: bool) -> list[int]:
    """So many tokens of a text, over and over; without a tokenizer, or with one that knows none of it, of
    ids that are spread over the vocabulary."""
    tokenizer = (model.source_tokenizer if source else None) or model.tokenizer
    size = model.source_vocabulary if source else model.shape.vocabulary
    special = frozenset() if tokenizer is None else tokenizer.special_ids
    ids: list[int] = [] if tokenizer is None else tokenizer.encode(text, quiet=True).tolist()
    # Unknown words are one id: it would show nothing of the table.
    ids = [number for number in ids if number not in special and number < size]
    if len(set(ids)) < 5:
        spread = np.random.default_rng(len(text)).permutation(min(size, 10_000)).tolist()
        ids += [number for number in spread if number not in special][:count]
    return (ids * (count // len(ids) + 1))[:count]


def _spell_rows(model: Model, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The letters of every token, `[tokens, 50]` a row; without a tokenizer, ids stand for some words."""
    spelled = []
    for row in rows:
        if model.tokenizer is None:
            spelled.append(np.stack([letters(f"word{number}") for number in row]).astype(np.int64))
            continue
        letters_UC, index_T = model.tokenizer.lexicon.spell(np.asarray(row))
        missing = LETTERS - letters_UC.shape[1]
        letters_UC = np.pad(letters_UC, ((0, 0), (0, missing)), constant_values=PADDING)
        spelled.append(letters_UC[index_T].astype(np.int64))
    return spelled


def ragged_batch(inputs: CheckInputs) -> Batch:
    """The rows without padding, with their letters where they are read."""
    batch = Batch.of(inputs.rows)
    if inputs.letters is None:
        return batch
    letters_NC, index_N = torch.from_numpy(np.concatenate(inputs.letters)), torch.arange(len(batch.ids))
    return replace(batch, letters=Letters(letters_NC, index_N, index_N))


@torch.inference_mode()
def model_answers(model: Model, head: str, inputs: CheckInputs) -> list[np.ndarray]:
    """What the model itself says of every row, by its ragged path: `[outputs]` of heads that read one place
    of a row, else `[tokens, outputs]`."""
    batch = ragged_batch(inputs)
    if head == STATES:
        return _split(model.last_layer(batch), batch)
    if head == "vocabulary":
        if model.encoder_decoder:
            assert inputs.targets is not None
            memory, batch = model.encode(batch), Batch.of(inputs.targets)
            hidden_ND, _ = model.decode(batch, memory)
        else:
            hidden_ND, _ = model.hidden(batch)
        return _split(read_words(model, hidden_ND), batch)
    outputs = model.answer(head, batch)
    if head in TOKEN_HEADS:
        return _split(outputs, batch)
    return [row.numpy() for row in outputs]


def _split(flat: Tensor, batch: Batch) -> list[np.ndarray]:
    return [part.float().numpy() for part in flat.split(batch.layout.lengths)]


def compare_answers(
    target: ExportTarget, runner: Runner, model: Model, head: str, inputs: Sequence[CheckInputs]
) -> CheckFigures:
    """How far the runtime's answers to all inputs are from the model's."""
    worst, same, places, rows = 0.0, 0, 0, 0
    for each in inputs:
        expected, actual = target.answers(model, head, each), runner.answer(each)
        if [part.shape for part in expected] != [part.shape for part in actual]:
            shapes = [[part.shape for part in parts] for parts in (actual, expected)]
            raise EtymonError(
                f"the runtime's answers have the shapes {shapes[0]}, and the model's {shapes[1]}"
            )
        for theirs, ours in zip(actual, expected, strict=True):
            rows += 1
            # A maximum would pass over NaN.
            if not np.isfinite(theirs).all():
                return CheckFigures(float("inf"), 0.0, rows, places)
            worst = max(worst, float(np.abs(theirs - ours).max() / max(1.0, np.abs(ours).max())))
            best = [np.atleast_2d(part).argmax(-1) for part in (theirs, ours)]
            same, places = same + int((best[0] == best[1]).sum()), places + best[0].size
    return CheckFigures(worst, same / places, rows, places)


def require_close(figures: CheckFigures, tolerance: Tolerance, target: str) -> None:
    """Refuses an export that says something else than its model."""
    if figures.worst > tolerance.worst or figures.agreement < tolerance.agreement:
        raise EtymonError(
            f"the {target} runtime says something else than the model: the worst difference is "
            f"{figures.worst:.2g} (at most {tolerance.worst:g}), and {figures.agreement:.1%} of the best "
            f"outputs agree (at least {tolerance.agreement:.1%}); nothing was written"
        )
