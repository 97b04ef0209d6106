"""Loss by context length, and relative effective context length (Transformer-XL, appendix C).

Every chosen piece of text is predicted from exactly c tokens before each of its tokens, for every c. Models
with different tokenizers predict the same pieces: the shortest stretches of text at whose ends every
tokenizer ends a token, too.

Legend: C context lengths, T targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etymon.display import align_right, display_width
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.files import atomic_write, json_text
from etymon.generation.decoding import check_ids
from etymon.generation.input_rows import BATCH_TOKENS
from etymon.generation.likelihood import SEGMENT
from etymon.generation.text import tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.vocabulary import Context
from etymon.report.inline import Inline
from etymon.report.page import Cell, Curve, Paragraph, ReportTable, Section, write_report
from etymon.text.encoding import SPACES
from etymon.text.reading import Document
from etymon.text.sentences import cut_spans
from etymon.text.tokenizer import Tokenizer

# Characters that are read at most: a thousand targets are spread over them, and more text is no better.
MOST = 1 << 22
# Effective lengths are of the hardest targets, these shares of them, as published.
SHARES = (0.1, 0.5, 1.0)
# A relative gain in perplexity below it counts as none.
THRESHOLD = 0.01


@dataclass(frozen=True)
class ModelContext:
    """What one model makes of the targets."""

    name: str
    family: str
    lengths: list[int]
    """In tokens; a model that learnt fewer positions is measured up to those."""
    bits_per_byte: list[float]
    margins: list[float]
    """Half of a 95% interval."""
    bytes_a_token: float
    effective: dict[float, int] = field(default_factory=dict)
    """The relative effective context length, by the share of targets."""
    gaining: dict[float, bool] = field(default_factory=dict)
    """Whether there it gained to the last, so that the length is at least this."""


@dataclass(frozen=True)
class Contexts(Inline):
    targets: int
    bytes: int
    """Of all targets."""
    lengths: list[int]
    same_tokenizer: bool
    models: list[ModelContext]

    def inline_sections(self) -> Iterator[Section]:
        yield from _sections(self)


@dataclass(frozen=True)
class TokenizedText:
    """A text as a tokenizer has it: where every token ends, and whether nothing of it is left for the next
    one."""

    ids: np.ndarray
    ends: np.ndarray
    clean: np.ndarray


def context_lengths(longest: int, step: int | None = None) -> list[int]:
    """1, 2, 4, ... and the longest, or equal steps up to it."""
    if longest < 1 or (step is not None and not 1 <= step <= longest):
        raise EtymonError(f"contexts of up to {longest} tokens, in steps of {step or 1}, cannot be")
    if step is not None:
        return list(range(step, longest + 1, step))
    return sorted({2**power for power in range(longest.bit_length())} | {longest})


def measure(
    models: Sequence[Model],
    names: Sequence[str],
    documents: Iterable[Document],
    lengths: Sequence[int],
    *,
    targets: int = 1000,
    memory: int | None = None,
    segment: int | None = None,
    on_progress: Callable[[str], None] = lambda note: None,
) -> Contexts:
    """Every model's loss by context length, on the same targets, which are evenly spread over the text."""
    for model in models:
        check(model, memory)
    model_lengths = [[length for length in lengths if length <= (model.window or length)] for model in models]
    for model, fitting in zip(models, model_lengths, strict=True):
        if not fitting:
            raise EtymonError(
                f"{model.family.title} reads {model.window} tokens, fewer than any context here"
            )
    tokenizers = [tokenizer_of(model) for model in models]
    same = len({tokenizer.fingerprint for tokenizer in tokenizers}) == 1
    chosen = choose(documents, tokenizers, [max(fitting) for fitting in model_lengths], targets, same)
    if not chosen.sizes:
        raise EtymonError(
            f"no text there is longer than {max(lengths)} tokens: give longer files, or measure up to a "
            "shorter context"
        )
    sizes_T = np.array(chosen.sizes)
    losses, results = [], []
    for number, (model, name) in enumerate(zip(models, names, strict=True)):
        texts, spans = chosen.texts[number], chosen.spans[number]
        check_ids([[0, int(max(ids.max() for ids in texts))]], model.shape.vocabulary)
        rows = []
        for length in model_lengths[number]:
            on_progress(f"{name}: {length:,} tokens of context")
            rows.append(_losses(model, texts, spans, length, memory, segment))
        losses_CT = np.stack(rows)
        bits_CT = losses_CT / math.log(2)
        # The error of a ratio of sums: how far each target lies from what its bytes would take at the mean.
        rates_C = bits_CT.sum(1) / sizes_T.sum()
        errors_C = np.sqrt(((bits_CT - rates_C[:, None] * sizes_T) ** 2).sum(1)) / sizes_T.sum()
        # A model that cannot read more gains nothing from more: its last loss stands for longer contexts.
        losses.append(np.pad(losses_CT, ((0, len(lengths) - len(rows)), (0, 0)), mode="edge"))
        rates, margins = rates_C.tolist(), (1.96 * errors_C).tolist()
        family, bytes_a_token = model.family.name, chosen.widths[number]
        results.append(ModelContext(name, family, model_lengths[number], rates, margins, bytes_a_token))
    # The baseline is the best of the whole group: only when all are measured can the lengths be compared.
    for number, result in enumerate(results):
        for share in SHARES:
            length, gaining = effective_length(losses, number, lengths, share)
            result.effective[share], result.gaining[share] = length, gaining
    return Contexts(len(sizes_T), int(sizes_T.sum()), list(lengths), same, results)


def effective_length(
    losses: Sequence[np.ndarray], model: int, lengths: Sequence[int], share: float
) -> tuple[int, bool]:
    """The context length of a model beyond which the next one measured lowers its perplexity by less than
    `THRESHOLD` of it; and whether there is no such length.

    The baseline of a target is the lowest loss of any model of the group with the shorter context; counted
    are those below it, on the `share` of targets where the baseline is highest.
    """
    for short, long in pairwise(range(len(lengths))):
        baseline_T = np.min([each[short] for each in losses], axis=0)
        # A stable order: among equal losses the same targets for every model.
        hardest = np.argsort(-baseline_T, kind="stable")[: max(1, round(share * len(baseline_T)))]
        after = np.minimum(baseline_T, losses[model][long])[hardest].mean()
        if 1 - math.exp(after - baseline_T[hardest].mean()) < THRESHOLD:
            return lengths[short], False
    return lengths[-1], True


def check(model: Model, memory: int | None) -> None:
    title = model.family.title
    if model.encoder_decoder or "causal" not in model.capabilities:
        raise EtymonError(
            f"{title} does not predict a text from left to right, so there is no context length to "
            "measure: give decoders",
            code="wrong-family",
        )
    model.require_vocabulary("score")
    if memory is not None and memory < 0:
        raise EtymonError(f"a memory of {memory} tokens cannot be")


@dataclass
class Targets:
    """The pieces of text to predict: their bytes and, by model, the texts and (text, first token, stop) of
    each."""

    sizes: list[int]
    texts: list[list[np.ndarray]]
    spans: list[list[tuple[int, int, int]]]
    widths: list[float]
    """By model, bytes of text a token."""


def choose(
    documents: Iterable[Document],
    tokenizers: Sequence[Tokenizer],
    before: Sequence[int],
    count: int,
    same: bool,
) -> Targets:
    """At most `count` targets, evenly spread among all that have `before` tokens, by model, before them in
    a document."""
    if count < 1:
        raise EtymonError(f"targets is {count}: it must be 1 or more")
    texts: list[list[np.ndarray]] = [[] for _ in tokenizers]
    rows: list[np.ndarray] = []  # (bytes, text, then first and stop of every model)
    total = 0
    for number, text in enumerate(_whole(documents)):
        encoded = {each.fingerprint: tokenize(each, text, same) for each in tokenizers}
        by_model = [encoded[each.fingerprint] for each in tokenizers]
        for model_texts, tokens in zip(texts, by_model, strict=True):
            model_texts.append(tokens.ids)
        total += len(text.encode())
        rows.append(_stretches(text, number, by_model, before))
    table = np.concatenate(rows) if rows else np.zeros((0, 2))
    # Evenly spread rather than drawn: the same targets in every run, and no seed.
    picked = table[np.unique(np.linspace(0, len(table) - 1, min(count, len(table))).round().astype(int))]
    spans = [
        [(row[1], row[2 + 2 * model], row[3 + 2 * model]) for row in picked.tolist()]
        for model in range(len(tokenizers))
    ]
    widths = [total / max(1, sum(map(len, model_texts))) for model_texts in texts]
    return Targets(picked[:, 0].tolist(), texts, spans, widths)


def _whole(documents: Iterable[Document]) -> Iterator[str]:
    """Documents, each as one text, until there is enough of them."""
    parts: list[str] = []
    read = 0
    for document in documents:
        parts.append(document.text[: MOST - read])
        read += len(parts[-1])
        if not document.more or read >= MOST:
            yield "".join(parts)
            parts = []
        if read >= MOST:
            return


def tokenize(tokenizer: Tokenizer, text: str, same: bool) -> TokenizedText:
    """The tokens of a text. Where tokenizers differ, white space behind a token is part of it: some leave
    it out, and some put it before the next one."""
    pieces = []
    for first, last in cut_spans(text):
        ids, starts, stops = tokenizer.offsets(text[first:last])
        pieces.append((ids, starts + first, stops + first))
    ids, starts, stops = (np.concatenate(column) for column in zip(*pieces, strict=True))
    # Tokens of one character share its end; ends that never go back can be searched.
    stops = np.maximum.accumulate(stops) if len(stops) else stops
    ends = stops
    if not same:
        solid = np.append(np.flatnonzero(~SPACES[np.minimum(_codes(text), len(SPACES) - 1)]), len(text))
        ends = solid[np.searchsorted(solid, stops)]
    # A character of several tokens ends with the last of them.
    clean = np.append(starts[1:] >= stops[:-1], np.ones(min(len(ids), 1), bool))
    return TokenizedText(ids, ends, clean)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _stretches(
    text: str, number: int, by_model: Sequence[TokenizedText], before: Sequence[int]
) -> np.ndarray:
    """(bytes, number of the text, then first token and stop of every model) of the shortest stretches that
    begin and end with a token of every tokenizer, and have `before` tokens before them."""
    # Ends that all tokenizers share, of tokens that leave no part of a character to the next one.
    common = reduce(np.intersect1d, [np.unique(tokens.ends[tokens.clean]) for tokens in by_model])
    codes = _codes(text)
    widths = np.append(0, np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF)))  # in UTF-8
    starts, stops = common[:-1], common[1:]
    columns = [widths[stops] - widths[starts], np.full(len(starts), number)]
    kept = columns[0] > 0
    for tokens, needed in zip(by_model, before, strict=True):
        columns += [np.searchsorted(tokens.ends, edge, side="right") for edge in (starts, stops)]
        kept &= columns[-2] >= needed
    return np.column_stack(columns)[kept]


@torch.inference_mode()
def _losses(
    model: Model,
    texts: Sequence[np.ndarray],
    spans: Sequence[tuple[int, int, int]],
    length: int,
    memory: int | None,
    segment: int | None,
) -> np.ndarray:
    """Every target's negative log-likelihood, each of its tokens from exactly `length` tokens."""
    # A target of several tokens is several rows: each of its tokens is predicted from a context of its own.
    places = [
        (target, text, at) for target, (text, first, stop) in enumerate(spans) for at in range(first, stop)
    ]
    losses_T = np.zeros(len(spans))
    together = max(1, BATCH_TOKENS // length)
    head: Any = model.heads["vocabulary"]
    # A model that remembers reads its rows in segments, cut from the end: only the first may be short.
    remembers = "memory" in model.capabilities and memory != 0
    cuts = [0, *reversed(range(length, 0, -(segment or SEGMENT)))] if remembers else [0, length]
    with eval_mode(model):
        for begin in range(0, len(places), together):
            part = places[begin : begin + together]
            rows = np.stack([texts[text][at - length : at] for _, text, at in part])
            following = torch.tensor([int(texts[text][at]) for _, text, at in part], device=model.device)
            state = model.remember(len(rows), memory) if remembers else None
            for start, stop in pairwise(cuts):
                batch = Batch.of(list(rows[:, start:stop]), device=model.device)
                hidden_ND, state = model.hidden(batch, state)
            at_last = batch.layout.last
            log_probs = head.target_log_probs(hidden_ND, at_last, following, Context(batch))
            np.subtract.at(losses_T, [target for target, _, _ in part], log_probs.double().cpu().numpy())
    return losses_T


HOW_TO_READ = """\
Every target is predicted from exactly so many tokens before each of its tokens, and the targets are the \
same for every length and every model: stretches of the text, evenly spread, at whose ends every model's \
tokenizer ends a token. So bits per byte compare across tokenizers. Lengths are in tokens of each model's \
own.

The relative effective context length (RECL) is the length beyond which the next one measured lowers a \
model's perplexity by less than one percent, where only losses below the best of the whole group at the \
shorter length count. The share says on how many targets: 0.1 is the tenth that the group finds hardest \
from the shorter context. With + it gained up to the longest. It depends on the group, and on the steps \
between the lengths."""


def _effective(model: ModelContext) -> list[str]:
    """By share of the targets, the effective length, with + if the model gained to the last."""
    return [f"{model.effective[share]:,}{'+' if model.gaining[share] else ''}" for share in SHARES]


def _length_table(contexts: Contexts) -> tuple[list[str], list[list[Cell]]]:
    """Header and a row a context length."""
    columns = [dict(zip(model.lengths, model.bits_per_byte)) for model in contexts.models]
    rows: list[list[Cell]] = [
        [length, *(column.get(length) for column in columns)] for length in contexts.lengths
    ]
    return ["context", *(model.name for model in contexts.models)], rows


def report_lines(contexts: Contexts, translate: Callable[[str], str] = str) -> Iterator[str]:
    """The tables, for a terminal."""
    header, rows = _length_table(contexts)
    header = [*map(translate, header)]
    width = max(12, *map(display_width, header))

    def line(cells: Sequence[str]) -> str:
        return "  ".join(align_right(cell, width) for cell in cells)

    yield translate(
        f"bits per byte by context length, {contexts.targets:,} targets of {contexts.bytes:,} bytes"
    )
    yield line(header)
    for row in rows:
        yield line([f"{row[0]:,}", *("–" if cell is None else f"{cell:.4f}" for cell in row[1:])])
    yield ""
    yield line([translate("model"), *(f"RECL {share:g}" for share in SHARES), translate("± bits")])
    for model in contexts.models:
        yield line([model.name, *_effective(model), f"{model.margins[-1]:.4f}"])
    if not contexts.same_tokenizer:
        yield translate(
            "the tokenizers differ: RECL is in each model's own tokens, and a target is as long as all of "
            "them need"
        )


def write_results(contexts: Contexts, folder: Path) -> None:
    """Writes results.json and report.html."""
    with atomic_write(folder / "results.json") as file:
        file.write(json_text(contexts, indent=2))
    sections = [*_sections(contexts), Paragraph(HOW_TO_READ, title="How to read this")]
    write_report(folder / "report.html", "Loss by context length", sections)


def _sections(contexts: Contexts) -> Iterator[Section]:
    series = {
        model.name: list(zip(model.lengths, model.bits_per_byte, strict=True)) for model in contexts.models
    }
    lengths = [f"RECL {share:g}" for share in SHARES]
    header = ["model", "family", "bytes a token", *lengths, "bits per byte", "±"]
    rows: list[list[Cell]] = []
    for model in contexts.models:
        last = [model.bits_per_byte[-1], model.margins[-1]]
        rows.append([model.name, model.family, model.bytes_a_token, *_effective(model), *last])
    yield Curve(
        series,
        x_label="tokens of context",
        y_label="bits per byte",
        title="Bits per byte by context length",
        caption=f"{contexts.targets:,} targets of {contexts.bytes:,} bytes.",
        doubling=True,
    )
    yield ReportTable(*_length_table(contexts))
    yield ReportTable(header, rows, title="Relative effective context length")
