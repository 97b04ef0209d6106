"""Weights of eight bits, for inference on a processor.

Every row of a matrix has its own scale, and activations are scaled on the fly (FBGEMM's dynamic kernels). A
quarter of the memory is read a token, which is what decoding waits for.

Legend: N tokens, D width, F outputs, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.attention import Attention
from etymon.nn.layers import Embedding, Linear
from etymon.nn.vocabulary import Context, DenseVocabulary, Score

Tensors = Callable[[str], Tensor]
"""Reads a stored tensor by its name."""


def round_to_int8(weight_FD: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest whole numbers from -127 to 127 and a scale a row."""
    # A row of zeros has the smallest scale and not 0, which could not be divided by.
    scale_F = weight_FD.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight_FD / scale_F[:, None]).round().to(torch.int8), scale_F


def _pack(weight_FD: Tensor, scale_F: Tensor, bias_F: Tensor | None) -> Any:
    torch.backends.quantized.engine = (
        "fbgemm"  # the fastest here, and it needs no instruction that may be missing
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*deprecated")
        matrix = torch._make_per_channel_quantized_tensor(
            weight_FD, scale_F.double(), torch.zeros(len(scale_F), dtype=torch.long), 0
        )
    return torch.ops.quantized.linear_prepack(matrix, bias_F)


# Without these instructions the kernel adds pairs in 16 bits, which seven bits of activation cannot overflow.
NARROW = not getattr(torch.cpu, "_is_vnni_supported", lambda: False)()


# Resolved once: to find it anew took a fifth of a small product's time. Called without the wrapper that looks
# for fake tensors among its arguments, which no model of eight bits ever has: 4 µs less, 49 times a token.
_multiply = getattr(
    torch.ops.quantized.linear_dynamic.default, "_op", torch.ops.quantized.linear_dynamic.default
)


def _product(x_ND: Tensor, packed: Any) -> Tensor:
    return _multiply(x_ND, packed, NARROW)


def _unpack(packed: Any) -> dict[str, Tensor]:
    matrix, bias_F = torch.ops.quantized.linear_unpack(packed)
    tensors = {"weight": matrix.int_repr(), "scale": matrix.q_per_channel_scales().float()}
    return tensors if bias_F is None else {**tensors, "bias": bias_F.detach()}


class Int8Linear(nn.Module):
    def __init__(self, weight_FD: Tensor, scale_F: Tensor, bias_F: Tensor | None) -> None:
        super().__init__()
        self.packed = _pack(weight_FD, scale_F, bias_F)

    def forward(self, x_ND: Tensor) -> Tensor:
        return _product(x_ND, self.packed)

    def tensors(self) -> dict[str, Tensor]:
        return _unpack(self.packed)


class Int8Fused(Int8Linear):
    """Query, key and value of a self-attention: one product takes less time than three."""

    def __init__(self, parts: dict[str, Int8Linear]) -> None:
        self.names = tuple(parts)
        each = [part.tensors() for part in parts.values()]
        weight_FD, scale_F = (torch.cat([part[name] for part in each]) for name in ("weight", "scale"))
        super().__init__(
            weight_FD, scale_F, torch.cat([part["bias"] for part in each]) if "bias" in each[0] else None
        )

    def tensors(self) -> dict[str, Tensor]:
        whole = super().tensors()
        return {
            f"{name}.{quantity}": part
            for quantity, value in whole.items()
            for name, part in zip(self.names, value.chunk(len(self.names)), strict=True)
        }


class Int8Embedding(nn.Module):
    """Word vectors."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight_VD)
        self.register_buffer("scale", scale_V)
        self.num_embeddings = len(weight_VD)

    def forward(self, ids_N: Tensor) -> Tensor:
        # Rows are looked up in eight bits and scaled after: the table is never expanded.
        vectors_ND = F.embedding(ids_N, self.weight).float()
        return vectors_ND * self.scale[ids_N, None]

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "scale": self.scale}


class Int8Vocabulary(DenseVocabulary):
    def __init__(self, head: DenseVocabulary, weight_VD: Tensor, scale_V: Tensor, tied: bool) -> None:
        nn.Module.__init__(self)
        self.tied = tied
        self.transform, self.scale = head.transform, head.scale
        bias_V = None if head.bias is None else head.bias.detach()
        # Packed for the kernel, which holds its own copy in another layout.
        self.packed = _pack(weight_VD, scale_V, bias_V)
        self.words = len(weight_VD)

    @property
    def size(self) -> int:
        return self.words

    def logits(self, hidden_ND: Tensor, at: Tensor | None = None, context: Context | None = None) -> Tensor:
        return _product(self._features(hidden_ND, at), self.packed)

    def _sum_scores(self, hidden_ND: Tensor, at: Tensor | None, score: Score) -> Tensor:
        raise EtymonError("a model of eight-bit weights cannot be trained: train the one that it was made of")

    def tensors(self) -> dict[str, Tensor]:
        """The bias, and the matrix unless it is that of the word vectors, which store it."""
        tensors = _unpack(self.packed)
        return {name: tensors[name] for name in tensors if name == "bias" or not self.tied}


def shrink(model: nn.Module, vocabulary: int, tensors: Tensors | None = None) -> nn.Module:
    """Replaces linear maps, word vectors and vocabulary heads by eight-bit ones: rounded here, or as they
    were stored."""
    modules = dict(model.named_modules())
    made: dict[int, nn.Module] = {}
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def values(name: str, weight_FD: Tensor) -> tuple[Tensor, Tensor]:
        if id(weight_FD) not in kept:  # tied weights are rounded, and stored, once
            kept[id(weight_FD)] = (
                round_to_int8(weight_FD.detach().float())
                if tensors is None
                else (tensors(f"{name}.weight"), tensors(f"{name}.scale"))
            )
        return kept[id(weight_FD)]

    for name, part in modules.items():
        if isinstance(part, Linear):
            bias_F: Tensor | None = part.bias
            if bias_F is not None:
                bias_F = (bias_F if tensors is None else tensors(f"{name}.bias")).detach()
            made[id(part)] = Int8Linear(*values(name, part.weight), bias_F)
        elif isinstance(part, Embedding) and part.num_embeddings == vocabulary:
            made[id(part)] = Int8Embedding(*values(name, part.weight))
        elif type(part) is DenseVocabulary:
            if tensors is not None and part.bias is not None:
                part.bias.data.copy_(tensors(f"{name}.bias"))
            # The word vectors came first: what is stored with them is not stored again.
            tied = id(part.weight) in kept
            made[id(part)] = Int8Vocabulary(part, *values(name, part.weight), tied)
    for part in modules.values():
        for child, old in list(part.named_children()):
            if id(old) in made:
                setattr(part, child, made[id(old)])
    for name, part in modules.items():
        if type(part) is Attention and not name.endswith("cross"):
            # Rounded one by one and then joined: a model that is read back has the same numbers.
            part.fused = Int8Fused({each: getattr(part, each) for each in ("query", "key", "value")})
            del part.query, part.key, part.value
    return model


def int8_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything to keep of a model that was shrunk, by the names of its modules."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, part in model.named_modules():
        if isinstance(part, Int8Linear | Int8Embedding | Int8Vocabulary):
            place = name.removesuffix(".fused")
            tensors |= {f"{place}.{quantity}": value for quantity, value in part.tensors().items()}
    return tensors
