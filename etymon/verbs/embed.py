"""`etymon embed`: one vector a text."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from etymon.errors import EtymonError
from etymon.language import translated
from etymon.settings import ModelLike, Notify, PathText, Texts, WeightOptions, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.load_inputs import NO_TEXT, iterate_texts, load_model, require_writable
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    import numpy as np

Write = Callable[[Sequence[str], "np.ndarray"], None]
BLOCK = 10_000
"""Texts that are sorted by length and written together: what a file of any size needs in memory."""


class Written(NamedTuple):
    """Vectors that went into a file."""

    path: Path
    texts: int
    width: int


@settings
class EmbedOptions(WeightOptions, EncodingSettings):
    model: ModelLike = argument("a model's folder or hub id")
    texts: Texts = argument("texts to embed; - reads lines from standard input", ())
    file: Path | None = option(None, "a file with a text a line")
    pooling: Literal["mean", "cls", "max", "last"] | None = option(
        None,
        "how the vectors of tokens become one: their mean, their maximum, that of the class token, or "
        "the last one (the folder's own, else mean)",
    )
    layer: int | None = option(
        None, "which layer's hidden states: 0 is the input of the first layer, -1 the last (last)"
    )
    mix: str | None = option(
        None, "a mix of all layers: own (learned, saved with the model), or shares such as 0.2,0.5,0.3"
    )
    batch_size: int = option(32, "texts that are computed together", ge=1)
    normalise: bool | None = option(None, "scale every vector to length 1 (as the folder says, else not)")
    out: PathText = option(None, "write a .npy, .parquet or .jsonl file instead of printing JSON lines")
    on_note: Notify | None = option(
        None, "is told of blank lines and of texts that were cut", seen_by="python"
    )


@verb(EmbedOptions)
def embed(options: EmbedOptions) -> np.ndarray | Written:
    """A vector is made of the hidden states of an encoder or a decoder (T5: of its encoder), special tokens
    included: float32 `[texts, width]`. A sentence-transformers folder says itself how its vectors are made.
    A text longer than the model can read is cut, and a note says so. With --out, vectors are written as
    they are computed, at most 10,000 in memory; .parquet and .jsonl hold the text too.
    """
    import numpy as np

    from etymon.lab.sentence_vectors import SentenceEncoder

    out = options.out
    require_writable(out, *WRITERS)
    notify = options.on_note or warnings.warn
    texts = iterate_texts(options.texts, options.file, on_note=notify, how=options)
    # Before the model is opened: a missing file is refused at once.
    block = list(islice(texts, BLOCK))
    if not block:
        raise EtymonError(NO_TEXT)
    model = load_model(options.model, options)
    encoder = SentenceEncoder(
        model, pooling=options.pooling, layer=options.layer, mix=options.mix, normalise=options.normalise
    )
    kept: list[np.ndarray] = []
    count = width = 0
    with _writing(out, kept.append) as write:
        while block:
            vectors = encoder.vectors(encoder.tokens(block), options.batch_size)
            write(block, vectors)
            count, width = count + len(block), vectors.shape[1]
            # Only now, so that never more than one block of texts and vectors is held.
            block = list(islice(texts, BLOCK))
    if encoder.reader.cut:
        length = encoder.reader.length
        notify(f"{encoder.reader.cut} of {count} texts were cut at the model's {length} tokens")
    return np.concatenate(kept) if out is None else Written(Path(out), count, width)


# ------------------------------------------------------------ files


@contextmanager
def _writing(out: str | None, keep: Callable[[np.ndarray], None]) -> Iterator[Write]:
    """Where blocks go: into a file that appears when it is whole, or to the caller."""
    if out is None:
        yield lambda texts, vectors: keep(vectors)
        return
    from etymon.files import atomic_write

    with atomic_write(out, "wb") as file, WRITERS[Path(out).suffix.lower()](file) as write:
        yield write


@contextmanager
def _npy(file: IO[bytes]) -> Iterator[Write]:
    """The header is written again at the end: numpy leaves room in it for any number of rows."""
    from numpy.lib import format as npy

    shape = [0, 0]

    def header() -> None:
        file.seek(0)
        described = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
        npy.write_array_header_1_0(file, described)

    def write(texts: Sequence[str], vectors: np.ndarray) -> None:
        if not shape[0]:
            shape[1] = vectors.shape[1]
            header()
        shape[0] += len(vectors)
        file.write(vectors.astype("<f4", copy=False).tobytes())

    yield write
    header()


@contextmanager
def _jsonl(file: IO[bytes]) -> Iterator[Write]:
    from json import dumps
    from math import isfinite

    def write(texts: Sequence[str], vectors: np.ndarray) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            # Nine digits: float32 and back. JSON has no NaN.
            numbers = ", ".join(f"{value:.9g}" if isfinite(value) else "null" for value in vector.tolist())
            file.write(f'{{"text": {dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n'.encode())

    yield write


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[Write]:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    opened: list[Any] = []

    def write(texts: Sequence[str], vectors: np.ndarray) -> None:
        flat = pyarrow.array(vectors.reshape(-1))
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        block = pyarrow.record_batch([pyarrow.array(texts, pyarrow.string()), column], ["text", "vector"])
        if not opened:
            opened.append(ParquetWriter(file, block.schema, use_dictionary=False))  # no two are the same
        opened[0].write_batch(block)

    try:
        yield write
    finally:
        for writer in opened:
            writer.close()


WRITERS = {".npy": _npy, ".parquet": _parquet, ".jsonl": _jsonl}


def present(result: np.ndarray | Written, options: EmbedOptions) -> None:
    from etymon.files import json_text

    if isinstance(result, Written):
        plural = "" if result.texts == 1 else "s"
        line = f"{result.texts:,} vector{plural} of {result.width} numbers in {result.path}"
        print(translated(line, "result"), file=sys.stderr)
        return
    for vector in result:
        print(json_text([round(float(value), 6) for value in vector]))
