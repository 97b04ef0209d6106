"""Loss by context length, as a table on the terminal, as files, and as a page with curves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from etymon.files import atomic_write, json_text
from etymon.lab.context import SHARES, Contexts, ModelContext
from etymon.report.page import Cell, Curve, Paragraph, Section, Table, write_report

HOW_TO_READ = """Every target is predicted from exactly so many tokens before each of its tokens, and the targets are the same for every \
length and every model: stretches of the text, evenly spread, at whose ends every model's tokenizer ends a token. So bits per byte \
compare across tokenizers. Lengths are in tokens of each model's own.

The relative effective context length (RECL) is the length beyond which the next one measured lowers a model's perplexity by \
less than one percent, where only losses below the best of the whole group at the shorter length count. The share says on how many \
targets: 0.1 is the tenth that the group finds hardest from the shorter context. With + it gained up to the longest. It depends on the \
group, and on the steps between the lengths."""


def effective(model: ModelContext, share: float) -> str:
    return f"{model.effective[share]:,}{'+' if model.gaining[share] else ''}"


def table(found: Contexts) -> tuple[list[str], list[list[Cell]]]:
    """A row a context length."""
    rows: list[list[Cell]] = [
        [length, *(dict(zip(model.lengths, model.bits_per_byte)).get(length) for model in found.models)]
        for length in found.lengths
    ]
    return ["context", *(model.name for model in found.models)], rows


def lines(found: Contexts) -> Iterator[str]:
    """The tables, for a terminal."""
    header, rows = table(found)
    width = max(12, *(len(name) for name in header))
    yield f"bits per byte by context length, {found.targets:,} targets of {found.bytes:,} bytes"
    yield "  ".join(f"{name:>{width}}" for name in header)
    for row in rows:
        cells = [f"{row[0]:,}", *("–" if cell is None else f"{cell:.4f}" for cell in row[1:])]
        yield "  ".join(f"{cell:>{width}}" for cell in cells)
    yield ""
    yield "  ".join(
        f"{name:>{width}}" for name in ("model", *(f"RECL {share:g}" for share in SHARES), "± bits")
    )
    for model in found.models:
        cells = [model.name, *(effective(model, share) for share in SHARES), f"{model.margins[-1]:.4f}"]
        yield "  ".join(f"{cell:>{width}}" for cell in cells)
    if not found.same_tokenizer:
        yield "the tokenizers differ: RECL is in each model's own tokens, and a target is as long as all of them need"


def write(found: Contexts, folder: Path) -> None:
    """results.json and report.html."""
    with atomic_write(folder / "results.json") as file:
        file.write(json_text(found, indent=2))
    write_report(folder / "report.html", "Loss by context length", list(_sections(found)))


def _sections(found: Contexts) -> Iterator[Section]:
    yield Curve(
        {model.name: list(zip(model.lengths, model.bits_per_byte, strict=True)) for model in found.models},
        x_label="tokens of context",
        y_label="bits per byte",
        title="Bits per byte by context length",
        caption=f"{found.targets:,} targets of {found.bytes:,} bytes.",
        doubling=True,
    )
    yield Table(*table(found))
    header = [
        "model",
        "family",
        "bytes a token",
        *(f"RECL {share:g}" for share in SHARES),
        "bits per byte",
        "±",
    ]
    rows: list[list[Cell]] = [
        [
            model.name, model.family, model.bytes_a_token, *(effective(model, share) for share in SHARES),
            model.bits_per_byte[-1], model.margins[-1],
        ]
        for model in found.models
    ]  # fmt: skip
    yield Table(header, rows, title="Relative effective context length")
    yield Paragraph(HOW_TO_READ, title="How to read this")
