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
TIE = 2e-4
"""Of the largest answer: outputs that are closer are one, since rounding alone may turn them round."""
FEW_PLACES = 100
"""A model that answers once a row, as classifiers do, has fewer. There one choice is more than a limit of
agreement allows, even one between outputs that are almost the same: what is lost holds them."""
TINY = 1e-30
# Both scripts, so that a tokenizer of either has words and pieces of them to show.
TEXTS = (
    "A model that was trained here is to say the same there: every word, every number, every 2nd decimal. ",
    "在这里训练的模型，到了那里也要说同样的话：每一个字、每一个数、第二位小数。",
)


@dataclass(frozen=True)
class CheckFigures:
    """Of all inputs together."""

    worst: float
    """The largest difference of an answer, as a share of the largest answer of its row (or of 1)."""
    agreement: float
    """The share of places where both have the same best output, or one that the model cannot tell from it."""
    rows: int
    places: int
    noise: float = 0.0
    """All differences by all answers, root mean squares; of logits, whose sum means nothing, what deviates
    from the mean of a place."""
    lost: float = 0.0
    """Probability that the model's own best outputs have more than those that the runtime prefers, on
    average over all places. States have none."""


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
    worst, same, places, rows, lost = 0.0, 0, 0, 0, 0.0
    squares = np.zeros(2)
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
                return CheckFigures(float("inf"), 0.0, rows, places, float("inf"), 1.0)
            scale = max(1.0, float(np.abs(ours).max()))
            worst = max(worst, float(np.abs(theirs - ours).max()) / scale)
            theirs_PV, ours_PV = (_by_place(head, part) for part in (theirs, ours))
            # Of what the model itself says: its best output, and the one that the runtime prefers.
            chosen_P1 = theirs_PV.argmax(-1)[:, None]
            gap_P = ours_PV.max(-1) - np.take_along_axis(ours_PV, chosen_P1, -1)[:, 0]
            same, places = same + int((gap_P <= TIE * scale).sum()), places + len(gap_P)
            if head != STATES and ours_PV.shape[1] > 1:
                theirs_PV, ours_PV = (part - part.mean(-1, keepdims=True) for part in (theirs_PV, ours_PV))
                best_P = 1 / np.exp(ours_PV - ours_PV.max(-1, keepdims=True)).sum(-1)
                lost += float((best_P * -np.expm1(-gap_P)).sum())
            squares += [np.square(theirs_PV - ours_PV).sum(), np.square(ours_PV).sum()]
    noise = float(np.sqrt(squares[0] / max(squares[1], TINY)))
    return CheckFigures(worst, same / places, rows, places, noise, lost / places)


def _by_place(head: str, answer: np.ndarray) -> np.ndarray:
    """What is chosen between on the last axis, `[places, outputs]`: of spans the tokens of a row, of two
    directions the words of each."""
    whole = np.atleast_2d(answer).astype(np.float64)
    if head == "span":
        return whole.T
    return np.moveaxis(whole, -1, 0).reshape(-1, whole.shape[1]) if whole.ndim == 3 else whole


def require_close(figures: CheckFigures, tolerance: Tolerance, target: str) -> None:
    """Refuses an export that says something else than its model."""
    exceeded = [
        name for name in ("worst", "noise", "lost") if getattr(figures, name) > getattr(tolerance, name)
    ]
    # Of a new XLNet's spans in int8, 7 of 24 choices were others, and 8e-7 of probability was lost.
    if exceeded or (figures.places >= FEW_PLACES and figures.agreement < tolerance.agreement):
        raise EtymonError(
            f"the {target} runtime says something else than the model: the worst difference is "
            f"{figures.worst:.2g} (at most {tolerance.worst:g}), the noise {figures.noise:.2g} (at most "
            f"{tolerance.noise:g}), {figures.agreement:.1%} of the best outputs agree (at least "
            f"{tolerance.agreement:.1%}), and {figures.lost:.2g} of probability is lost (at most "
            f"{tolerance.lost:g}); nothing was written"
        )
