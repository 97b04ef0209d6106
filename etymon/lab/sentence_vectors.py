"""One vector a text: hidden states, pooled.

Legend: N tokens, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.lab.representations import Reader
from etymon.nn.batch import Layout
from etymon.nn.layers import eval_mode

POOLING_NAMES = ("mean", "cls", "max", "last")


class SentenceEncoder:
    """Makes vectors of texts as a model's folder says, or as it is told here."""

    def __init__(
        self,
        model: Model,
        *,
        pooling: str | None = None,
        layer: int | None = None,
        mix: str | None = None,
        normalise: bool | None = None,
    ) -> None:
        sentences = model.sentences
        if pooling is None and sentences.foreign:
            raise EtymonError(
                f"this folder's vectors ask for {' and '.join(sentences.foreign)}, which is not known here: "
                f"say --pooling {', '.join(POOLING_NAMES)} for vectors without"
            )
        if mix is not None and layer is not None:
            raise EtymonError("a vector is of one layer or of a mix of all: give --layer or --mix, not both")
        self.model, self.layer = model, layer
        self.pooling = pooling or sentences.pooling
        self.is_normalised = sentences.normalise if normalise is None else normalise
        self.reader = Reader(model, sentences.length)
        self.mix = None if mix is None else _mix(model, mix)
        if self.pooling == "cls":
            self.reader.require_class_token("mean, max or last")

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts, without the framing and cut to what the model reads."""
        is_lower = self.model.sentences.lowercase
        return self.reader.encode([text.lower() for text in texts] if is_lower else texts)

    @torch.inference_mode()
    def vectors(self, encoded: Sequence[np.ndarray], batch_size: int = 32) -> np.ndarray:
        """Float32 `[texts, width]` of what `tokens` gives."""
        vectors: np.ndarray | None = None
        with eval_mode(self.model):
            for chosen, batch in self.reader.batches(encoded, batch_size):
                if self.mix is not None:
                    hidden_ND = self.mix(self.model.layers(batch))
                elif self.layer is None or self.layer == -1:
                    hidden_ND = self.model.last_layer(batch)
                else:
                    hidden_ND = _layer(self.model.layers(batch), self.layer)
                states = self.reader.text_states(hidden_ND, batch.layout)
                pooled_RD = _pool(*states, self.pooling, self.reader.class_last)
                if self.is_normalised:
                    pooled_RD = torch.nn.functional.normalize(pooled_RD, dim=-1)
                # Their width is known when the first ones are there.
                if vectors is None:
                    vectors = np.empty((len(encoded), pooled_RD.shape[1]), np.float32)
                vectors[chosen] = pooled_RD.float().cpu().numpy()
        assert vectors is not None
        return vectors


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
