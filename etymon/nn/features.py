"""Task heads that read features: states of a model's layers beside, or instead of, word vectors of their
own (Peters et al. 2018).

The layers are mixed, joined, or the last is taken. The result enters a BiLSTM, stands beside its output, or
both.

Legend: N tokens, R rows, n positions, D width of a layer, F of features, E of word vectors, H of all that
is read out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from etymon.nn.batch import Batch, Layout
from etymon.nn.initialise import Filler, constant, open_forget_gates, orthogonal, xavier
from etymon.nn.layers import Dropout, Embedding, Linear
from etymon.nn.padded import PaddedLayout
from etymon.nn.padded_recurrent import make_packing
from etymon.nn.precision import widen
from etymon.nn.recurrent import recurrent
from etymon.settings.adapters import FeatureSettings

JOINED = 4
"""Layers that `last-four` joins."""


class Gate(nn.Module):
    """`g f + (1 - g) w` with `g = sigmoid(W w + b)`, one for every dimension (Yang et al. 2017)."""

    def __init__(self, features: int, words: int) -> None:
        super().__init__()
        self.project = None if features == words else Linear(features, words)
        self.weigh = Linear(words, words)

    def forward(self, features_NF: Tensor, words_NE: Tensor) -> Tensor:
        features_NE = features_NF if self.project is None else self.project(features_NF)
        return torch.lerp(words_NE, features_NE, self.weigh(words_NE).sigmoid())


class FeatureHead(nn.Module):
    """Outputs of every token, or, if `pooled`, of every row: then of the largest values among its tokens.

    `layers` and `width` are those of the states it is given, `vocabulary` the number of ids.
    """

    def __init__(
        self,
        settings: FeatureSettings,
        layers: int,
        width: int,
        vocabulary: int,
        outputs: int,
        *,
        pooled: bool,
    ) -> None:
        super().__init__()
        self.settings, self.pooled = settings, pooled
        features = width * (min(JOINED, layers) if settings.source == "last-four" else 1)
        entries = (2 if settings.place == "both" else 1) if settings.source == "mix" else 0
        # Names are not those of a body's parts: as a head it trains at the full rate, wherever layers have
        # their own.
        self.mixes = nn.ModuleList(ScalarMix(layers, settings.layer_norm) for _ in range(entries))
        self.dropout = Dropout(settings.dropout)
        self.vectors = Embedding(vocabulary, settings.words) if settings.words else None
        self.gate = Gate(features, settings.words) if settings.gate else None
        extra = 0 if settings.gate or settings.place == "output" else features
        widths = [settings.words + extra] + [2 * settings.cells] * (settings.layers - 1)
        self.lstms = nn.ModuleList(
            recurrent("lstm", inputs, settings.cells, bidirectional=True) for inputs in widths
        )
        beside = 0 if settings.place == "input" else features
        self.output = Linear(2 * settings.cells + beside, outputs)

    def forward(self, layers_ND: Sequence[Tensor], batch: Batch, at: Tensor | None = None) -> Tensor:
        """`[R, outputs]` if pooled, else `[N, outputs]`, or `[n, outputs]` at the flat positions `at`. The
        input of the first layer is the first of the layers."""
        if batch.hidden_keys is not None and not batch.layout.is_padded:
            raise ValueError("recurrent layers read ragged rows, not a rectangle with padding")
        layers_ND = [widen(x_ND) for x_ND in layers_ND]  # the LSTMs compute in float32
        # Packed rows: the LSTMs compute no padding.
        packing = make_packing(batch.layout)
        x_NH = packing.pack(self._inputs(layers_ND, batch))
        for lstm in self.lstms:
            x_NH, _ = packing.run(lstm, x_NH)
        x_NH = packing.flat(x_NH)
        if self.settings.place != "input":
            x_NH = torch.cat([x_NH, self._features(layers_ND, -1)], -1)
        if self.pooled:
            return self.output(_largest(x_NH, batch.layout))
        return self.output(x_NH if at is None else x_NH.index_select(0, at))

    def penalty(self) -> Tensor:
        """What is to be added to the mean loss of a step."""
        # Squares of the scalars draw the softmax towards equal shares (Peters et al. 2018, section 3.3).
        squares = [mix.penalty() for mix in self.mixes]  # type: ignore[operator]
        return self.settings.penalty * torch.stack(squares).sum() if squares else torch.zeros(())

    def _inputs(self, layers_ND: Sequence[Tensor], batch: Batch) -> Tensor:
        words_NE = None if self.vectors is None else self.vectors(batch.ids)
        if words_NE is not None and self.settings.place == "output":
            return words_NE
        features_NF = self._features(layers_ND, 0)
        if words_NE is None:
            return features_NF
        if self.gate is not None:
            return self.gate(features_NF, words_NE)
        return torch.cat([words_NE, features_NF], -1)

    def _features(self, layers_ND: Sequence[Tensor], entry: int) -> Tensor:
        if self.settings.source == "mix":
            return self.dropout(self.mixes[entry](layers_ND))
        # BERT's best features without fine-tuning were its last four layers side by side (Devlin et al. 2018,
        # section 5.3).
        taken = layers_ND[-JOINED:] if self.settings.source == "last-four" else layers_ND[-1:]
        return self.dropout(torch.cat(list(taken), -1))


def _largest(x_NH: Tensor, layout: Layout) -> Tensor:
    """The largest value of every dimension in every row; of an empty one, 0."""
    if isinstance(layout, PaddedLayout):
        padding_RT1 = ~layout.visible_RT[..., None]
        return layout.pad(x_NH).masked_fill(padding_RT1, torch.finfo(x_NH.dtype).min).amax(1)
    row_NH = layout.row[:, None].expand_as(x_NH)
    # A scatter over flat tokens: rows of any length, no padding.
    blank_RH = x_NH.new_zeros(layout.rows, x_NH.shape[1])
    return blank_RH.scatter_reduce(0, row_NH, x_NH, "amax", include_self=False)


def _by_width(tensor: Tensor, generator: torch.Generator) -> object:
    """Vectors of length 1, about."""
    return tensor.normal_(0.0, tensor.shape[1] ** -0.5, generator=generator)


INITIAL: list[tuple[str, Filler]] = [
    ("heads.*.mixes.*.gamma", constant(1.0)),
    ("heads.*.mixes.*.scalars.*", constant(0.0)),
    ("heads.*.vectors.weight", _by_width),
    ("heads.*.lstms.*.weight_ih*", xavier),
    ("heads.*.lstms.*.weight_hh*", orthogonal),
    ("heads.*.lstms.*.bias_ih*", open_forget_gates),
    ("heads.*.lstms.*.bias_hh*", constant(0.0)),
    ("heads.*.gate.*.weight", xavier),
    ("heads.*.gate.*.bias", constant(0.0)),
    ("heads.*.output.weight", xavier),
    ("heads.*.output.bias", constant(0.0)),
]


EPSILON = 1e-13


class ScalarMix(nn.Module):
    """`gamma * sum of softmax(s)_l * h_l` over layers l, as AllenNLP's class of that name.

    With `layer_norm`, every layer is first brought to mean 0 and variance 1 over all tokens and dimensions
    together.
    """

    def __init__(self, layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))
        self.scalars = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(layers))
        self.layer_norm = layer_norm

    @property
    def weights(self) -> Tensor:
        """The share of every layer, which sum to 1."""
        return torch.cat(list(self.scalars)).softmax(0)

    def forward(self, layers_ND: Sequence[Tensor]) -> Tensor:
        if len(layers_ND) != len(self.scalars):
            raise ValueError(f"a mix of {len(self.scalars)} layers was given {len(layers_ND)}")
        parts = [_standardise(x_ND) for x_ND in layers_ND] if self.layer_norm else layers_ND
        return self.gamma * torch.stack([w * x_ND for w, x_ND in zip(self.weights, parts)]).sum(0)

    def penalty(self) -> Tensor:
        """The squared norm of the scalars, to be added to a loss: a strong one keeps the mix near the
        mean."""
        return torch.cat(list(self.scalars)).square().sum()


def _standardise(x_ND: Tensor) -> Tensor:
    centred_ND = x_ND - x_ND.mean()
    return centred_ND / (centred_ND.square().mean() + EPSILON).sqrt()
