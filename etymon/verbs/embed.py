"""`etymon embed`: one vector a text.

Legend: N tokens, R rows, D width.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from etymon.errors import EtymonError
from etymon.settings import ModelLike, Notify, PathText, Texts, WeightOptions, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.load_inputs import NO_TEXT, iterate_texts, load_model, require_writable
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from etymon.families.model import Model
    from etymon.nn.batch import Layout

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
        "how token vectors become one: their mean, their maximum, the class token's or the last one's "
        "(the folder's own, else mean)",
    )
    layer: int | None = option(None, "of these states: 0 goes into the first layer, -1 is the last (last)")
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
    """The hidden states of an encoder or a decoder (of T5, its encoder's), special tokens included, pooled
    to one vector a text: float32 `[texts, width]`. A folder of sentence-transformers says itself how its
    vectors are made. A text beyond the model's positions is cut there, and a note says so. With `out`,
    vectors are written as they come, in the memory of 10,000, and what comes back says how many; .parquet
    and .jsonl hold the text too.
    """
    import numpy as np
    import torch

    from etymon.lab.representations import Reader
    from etymon.nn.layers import eval_mode

    out, layer = options.out, options.layer
    require_writable(out, *WRITERS)
    notify = options.on_note or warnings.warn
    texts = iterate_texts(options.texts, options.file, on_note=notify, how=options)
    # Before the model is opened: a missing file is refused at once.
    block = list(islice(texts, BLOCK))
    if not block:
        raise EtymonError(NO_TEXT)
    model = load_model(options.model, options)
    sentences = model.sentences
    if options.pooling is None and sentences.foreign:
        raise EtymonError(
            f"this folder's vectors ask for {' and '.join(sentences.foreign)}, which is not known here: "
            "say --pooling mean, cls, max, last for vectors without"
        )
    pooling = options.pooling or sentences.pooling
    is_normalised = sentences.normalise if options.normalise is None else options.normalise
    reader = Reader(model, sentences.length)
    if options.mix is not None and layer is not None:
        raise EtymonError("a vector is of one layer or of a mix of all: give --layer or --mix, not both")
    mix = None if options.mix is None else _mix(model, options.mix)
    if pooling == "cls":
        reader.require_class_token("mean, max or last")

    def vectors_of(block: Sequence[str]) -> np.ndarray:
        vectors: np.ndarray | None = None
        read = [text.lower() for text in block] if sentences.lowercase else block
        with torch.inference_mode(), eval_mode(model):
            for chosen, batch in reader.batches(reader.encode(read), options.batch_size):
                if mix is not None:
                    hidden_ND = mix(model.layers(batch))
                elif layer is None or layer == -1:
                    hidden_ND = model.last_layer(batch)
                else:
                    hidden_ND = _layer(model.layers(batch), layer)
                pooled_RD = _pool(*reader.text_states(hidden_ND, batch.layout), pooling, reader.class_last)
                if is_normalised:
                    pooled_RD = torch.nn.functional.normalize(pooled_RD, dim=-1)
                # Their width is known when the first ones are there.
                if vectors is None:
                    vectors = np.empty((len(block), pooled_RD.shape[1]), np.float32)
                vectors[chosen] = pooled_RD.float().cpu().numpy()
        assert vectors is not None
        return vectors

    kept: list[np.ndarray] = []
    count = width = 0
    with _writing(out, kept.append) as write:
        while block:
            vectors = vectors_of(block)
            write(block, vectors)
            count, width = count + len(block), vectors.shape[1]
            # Only now, so that never more than one block of texts and vectors is held.
            block = list(islice(texts, BLOCK))
    if reader.cut:
        notify(f"{reader.cut} of {count} texts were cut at the model's {reader.length} tokens")
    return np.concatenate(kept) if out is None else Written(Path(out), count, width)


def _layer(layers: Sequence[Tensor], layer: int) -> Tensor:
    if not -len(layers) <= layer < len(layers):
        raise EtymonError(f"there is no layer {layer}: this model has 0 (the input) to {len(layers) - 1}")
    return layers[layer]


def _mix(model: Model, mix: str) -> Callable[[Sequence[Tensor]], Tensor]:
    """The model's own mix of layers, or one of the given shares."""
    if mix == "own":
        if "mix" not in model.heads:
            raise EtymonError(
                "this model was saved without a mix of its layers: give the shares, "
                "as etymon probe reports them"
            )
        return model.heads["mix"]
    try:
        shares = [float(part) for part in mix.split(",")]
    except ValueError as error:
        raise EtymonError(f"a mix is 'own' or shares such as 0.2,0.5,0.3, not {mix!r}") from error

    def mixed(layers: Sequence[Tensor]) -> Tensor:
        if len(layers) != len(shares):
            raise EtymonError(
                f"this model has {len(layers)} layers to mix, with the input, not {len(shares)}"
            )
        return sum((share * x_ND for share, x_ND in zip(shares[1:], layers[1:])), shares[0] * layers[0])

    return mixed


def _pool(hidden_ND: Tensor, layout: Layout, pooling: str, class_last: bool) -> Tensor:
    """Rows are sorted, and often equal: then the pool is a plain reduction over a view."""
    import torch

    if pooling == "cls":
        return hidden_ND[layout.last if class_last else layout.first]
    if pooling == "last":
        return hidden_ND[layout.last]
    if layout.equal:
        x_RTD = hidden_ND.view(layout.rows, layout.longest, -1)
        return x_RTD.mean(1) if pooling == "mean" else x_RTD.amax(1)
    lengths_R = torch.tensor(layout.lengths, device=hidden_ND.device)
    if pooling == "max":
        return torch.segment_reduce(hidden_ND, "max", lengths=lengths_R)
    # Eight times as fast as segment_reduce on a processor.
    sums_RD = hidden_ND.new_zeros(layout.rows, hidden_ND.shape[1]).index_add_(0, layout.row, hidden_ND)
    return sums_RD / lengths_R[:, None]


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
        print(f"{result.texts:,} vectors of {result.width} numbers in {result.path}", file=sys.stderr)
        return
    for vector in result:
        print(json_text([round(float(value), 6) for value in vector]))
