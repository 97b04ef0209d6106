"""`etymon embed`: one vector a text.

Legend: N tokens, R rows, D width.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from etymon.families.model import Model
    from etymon.nn.batch import Batch

Pooling = Literal["mean", "cls", "max"]


def embed(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    texts: Annotated[Sequence[str] | str, "texts to embed; - reads lines from standard input"] = (),
    *,
    file: Annotated[Path | None, "a file with a text a line"] = None,
    pooling: Annotated[
        Pooling, "how token vectors become one: their mean, their maximum, or the class token's"
    ] = "mean",
    batch_size: Annotated[int, "texts that are computed together"] = 32,
    normalise: Annotated[bool, "scale every vector to length 1"] = False,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    on_note: Callable[[str], None] | None = None,
) -> np.ndarray:
    """Turn texts into vectors.

    The last hidden states of an encoder (of T5, its encoder's), special tokens included, pooled to one vector a text:
    float32 `[texts, width]`. A text beyond the model's positions is cut there, and a note says so.
    """
    import numpy as np
    import torch

    from etymon.errors import EtymonError
    from etymon.generation.decoding import evaluating
    from etymon.nn.batch import Batch
    from etymon.verbs.opening import opened, texts_of

    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    asked = texts_of(texts, file)
    loaded = opened(model, device)
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    framing = tokenizer.framing
    if pooling == "cls" and "class" not in framing.single:
        raise EtymonError(f"{loaded.family.title} has no class token to pool by: use mean or max")
    encoded = tokenizer.encode_batch(asked)
    if loaded.positions is not None:
        room = loaded.positions - framing.overhead()
        cut = sum(len(ids) > room for ids in encoded)
        if cut:
            encoded = [ids[:room] for ids in encoded]
            _say(on_note, f"{cut} of {len(asked)} texts were cut at the model's {loaded.positions} tokens")
    # A framing puts the same tokens around every text: no need to build each one by itself.
    place, ids_of = framing.single.index(0), dict(framing.role_ids)
    before, after = (
        np.array([ids_of[str(role)] for role in part], np.int32)
        for part in (framing.single[:place], framing.single[place + 1 :])
    )
    class_last = "class" in framing.single and framing.single.index("class") > place
    order = np.argsort([len(ids) for ids in encoded], kind="stable")
    vectors: np.ndarray | None = None
    with torch.inference_mode(), evaluating(loaded):
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            rows = [np.concatenate((before, encoded[number], after)) for number in chosen]
            if not all(map(len, rows)):
                raise EtymonError("an empty text has no tokens to make a vector of: leave it out")
            batch = Batch.of(rows, device=loaded.device)
            pooled_RD = _pool(_hidden(loaded, batch), batch, pooling, class_last)
            if normalise:
                pooled_RD = torch.nn.functional.normalize(pooled_RD, dim=-1)
            if vectors is None:
                vectors = np.empty((len(asked), pooled_RD.shape[1]), np.float32)
            vectors[chosen] = pooled_RD.float().cpu().numpy()
    assert vectors is not None
    return vectors


def _hidden(model: Model, batch: Batch) -> Tensor:
    return model.encode(batch).hidden_MD if model.encoder_decoder else model.hidden(batch)[0]


def _pool(hidden_ND: Tensor, batch: Batch, pooling: Pooling, class_last: bool) -> Tensor:
    """Rows are sorted, and often equal: then the pool is a plain reduction over a view."""
    import torch

    layout = batch.layout
    if pooling == "cls":
        return hidden_ND[layout.last if class_last else layout.first]
    if layout.equal:
        x_RTD = hidden_ND.view(layout.rows, layout.longest, -1)
        return x_RTD.mean(1) if pooling == "mean" else x_RTD.amax(1)
    lengths_R = torch.tensor(layout.lengths, device=hidden_ND.device)
    if pooling == "max":
        return torch.segment_reduce(hidden_ND, "max", lengths=lengths_R)
    # Eight times as fast as segment_reduce on a processor.
    sums_RD = hidden_ND.new_zeros(layout.rows, hidden_ND.shape[1]).index_add_(0, layout.row, hidden_ND)
    return sums_RD / lengths_R[:, None]


def _say(on_note: Callable[[str], None] | None, note: str) -> None:
    if on_note is not None:
        on_note(note)
    else:
        import warnings

        warnings.warn(note, stacklevel=3)


def on_note(note: str) -> None:
    print(f"etymon: note: {note}", file=sys.stderr)


def present(
    result: np.ndarray,
    out: Annotated[Path | None, "write the vectors to this .npy file instead of printing JSON lines"] = None,
) -> None:
    import json

    import numpy as np

    from etymon.files import atomic_write

    if out is None:
        for vector in result:
            print(json.dumps([round(float(value), 6) for value in vector]))
    else:
        with atomic_write(out, "wb") as file:
            np.save(file, result)
        print(f"{len(result):,} vectors of {result.shape[1]} numbers in {out}", file=sys.stderr)
