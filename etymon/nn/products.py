"""The products of a model's linear maps, for inference on a processor: the fastest of several, by measuring.

PyTorch's own product is not the fastest everywhere: on an AMD EPYC of family 26 with two threads it took
461 µs for one row and a matrix of 3072x768, oneDNN 214 with the same matrix and 135 with a copy in its own
layout (docs/lab-notes.md). What is fastest depends on the processor, the sizes and the number of rows, so it
is measured once for each (`etymon/nn/machine.py`), and the answer is kept: a machine computes the same from
run to run. Two products differ in rounding, as those of other numbers of rows do.

Copies are caches of a model that is only read from. One is made when its matrix is first used, made anew when
the matrix has changed, and dropped when training begins.

Legend: N rows, D inputs, F outputs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.footprint import available_memory
from etymon.nn.machine import measured_once
from etymon.nn.precision import follow

VARIABLE = "ETYMON_PRODUCTS"
"""Of the environment: the name of a product to use everywhere, or `measured`, which is the default."""
ROWS = (1, 8, 64)
"""The numbers of rows that are measured. Others go with the largest of these that is at most twice theirs."""
SMALLEST = 1 << 16
"""Matrices with fewer entries are left to PyTorch: a call costs as much as their product."""
LARGEST = 3072 * 768
"""Larger matrices are measured by so many of their entries: a vocabulary would take a second."""
STREAMED, MOST_MATRICES = 64 << 20, 16
"""Bytes of matrices that are read in turn while a product is measured, so that no cache holds them (with
three matrices of 9 MB, oneDNN seemed to need no copy), and how many of them at most."""
PASSES, SECONDS = 4, 0.05
"""How often each product is measured at most; after these seconds no other pass begins."""
STEADY = 1.25
"""The second shortest time of a product over the shortest, usually: where it is more, others use the
processor, and nothing can be told."""
UNMEASURED = ["onednn-packed", "onednn", "plain"]
"""What is taken where nothing could be told; the next process measures again."""
WORTH_A_COPY = 1.1
"""How many times as fast a product with a copy of the matrix has to be."""
SHARE_OF_MEMORY = 0.5
"""Copies are made only if they take less than this share of what is free."""


@dataclass(frozen=True)
class Product:
    """A way to compute x W^T + b; in half precision, b may be float32."""

    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    pack: Callable[[Tensor], Tensor] | None = None
    """Makes the copy of the matrix that is multiplied with; None if that is the matrix itself."""


def _transpose(weight_FD: Tensor) -> Tensor:
    return weight_FD.T.contiguous()


def _multiply_plain(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    return F.linear(x_ND, weight_FD, None if bias_F is None else follow(bias_F, x_ND))


def _multiply_transposed(x_ND: Tensor, weight_DF: Tensor, bias_F: Tensor | None) -> Tensor:
    return _multiply_plain(x_ND, weight_DF.T, bias_F)


def _onednn() -> dict[str, Product]:
    """The products of oneDNN, where PyTorch was built with it."""
    try:
        # Resolved once: to find an operator anew takes longer than a small product.
        pointwise = torch.ops.mkldnn._linear_pointwise.default
        reorder = torch.ops.mkldnn._reorder_linear_weight.default
    except (AttributeError, RuntimeError):
        return {}

    def multiply(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        product_NF: Tensor = pointwise(x_ND, weight_FD, bias_F, "none", [], "")
        return product_NF

    return {"onednn": Product(multiply), "onednn-packed": Product(multiply, reorder)}


@cache
def products(dtype: torch.dtype) -> dict[str, Product]:
    """By name, those that work on this machine; PyTorch's own first."""
    candidates = {
        "plain": Product(_multiply_plain),
        "transposed": Product(_multiply_transposed, _transpose),
        **_onednn(),
    }
    x_ND, weight_FD = (torch.ones(size, dtype=dtype) for size in ((2, 32), (16, 32)))
    bias_F = torch.ones(16, dtype=torch.promote_types(dtype, torch.float32))
    working = {}
    for name, product in candidates.items():
        try:
            packed = weight_FD if product.pack is None else product.pack(weight_FD)
            is_right = bool((product.multiply(x_ND, packed, bias_F) == 33).all())
        except (RuntimeError, NotImplementedError):  # not for this type, or not on this processor
            is_right = False
        if is_right:
            working[name] = product
    return working


Preferences = dict[str, list[str]]
"""For each of `ROWS`, the names of products, the best first; only the first of them may need a copy."""


_busy: list[str] = []
"""The sizes that could not be measured: one is enough, others are not tried in this process."""


def measure_products(outputs: int, inputs: int, dtype: torch.dtype) -> Preferences | None:
    """What is fastest for matrices of `outputs` rows and `inputs` columns; None on a machine that is too busy
    to tell."""
    if _busy:
        return None
    count = max(1, min(MOST_MATRICES, STREAMED // (outputs * inputs * dtype.itemsize)))
    # Ones: numbers that nobody has written may be denormal, and slow.
    weights = [torch.ones(outputs, inputs, dtype=dtype) for _ in range(count)]
    bias = torch.ones(outputs)
    inputs_by_rows = [torch.ones(rows, inputs, dtype=dtype) for rows in ROWS]
    matrices = {
        name: weights if product.pack is None else [product.pack(weight) for weight in weights]
        for name, product in products(dtype).items()
    }
    passes: dict[str, list[list[float]]] = {name: [[] for _ in ROWS] for name in matrices}
    end = time.perf_counter() + SECONDS
    for number in range(PASSES):
        if number and time.perf_counter() > end:
            break
        for name, product in products(dtype).items():
            for x, times in zip(inputs_by_rows, passes[name], strict=True):
                # The more rows, the less it is a question of memory, and the longer it takes.
                read = matrices[name][: max(1, count // (1 + len(x) // 8))]
                times.append(_time_pass(product, x, read, bias))
    spreads = [sorted(times)[1] / min(times) for of in passes.values() for times in of if len(times) > 1]
    if not spreads or statistics.median(spreads) > STEADY:
        _busy.append(f"{outputs}x{inputs}")
        return None
    return prefer({name: [min(times) for times in of] for name, of in passes.items()})


def _time_pass(product: Product, x: Tensor, matrices: Sequence[Tensor], bias: Tensor) -> float:
    """The seconds of a product, by one pass over all matrices."""
    begin = time.perf_counter()
    for matrix in matrices:
        product.multiply(x, matrix, bias)
    return (time.perf_counter() - begin) / len(matrices)


def prefer(times: dict[str, list[float]]) -> Preferences:
    """The products to take, by their times for each of `ROWS`. All rows share one kind of copy."""
    # Float32 has every product that any type has.
    copying = {name for name, product in products(torch.float32).items() if product.pack is not None}
    fastest = [min(each) for each in zip(*times.values(), strict=True)]
    packed = min(
        copying & times.keys(),
        key=lambda name: sum(mine / best for mine, best in zip(times[name], fastest, strict=True)),
        default=None,
    )
    preferences = {}
    for place, rows in enumerate(ROWS):
        reading = min(times.keys() - copying, key=lambda name: times[name][place])
        # A tenth faster at least: a copy costs the memory of the matrix, and measurements scatter by less.
        wins = packed is not None and times[packed][place] * WORTH_A_COPY < times[reading][place]
        preferences[str(rows)] = [packed, reading] if packed is not None and wins else [reading]
    return preferences


def choose_product(outputs: int, inputs: int, rows: int, dtype: torch.dtype, copies: bool) -> str:
    """The name of the product for a matrix and a number of rows; without `copies`, of one that needs none."""
    wanted = os.environ.get(VARIABLE, "measured")
    available = products(dtype)
    if wanted != "measured":
        if wanted not in products(torch.float32):
            names = ", ".join(("measured", *products(torch.float32)))
            raise EtymonError(f"{VARIABLE} is {wanted!r}, and this machine has only {names}")
        return wanted if wanted in available and (copies or available[wanted].pack is None) else "plain"
    if outputs * inputs < SMALLEST:
        return "plain"
    outputs = min(outputs, max(1, LARGEST // inputs))
    kind = str(dtype).removeprefix("torch.")
    preferences: Preferences | None = measured_once(
        f"product of {outputs}x{inputs} {kind}",
        torch.device("cpu"),
        partial(measure_products, outputs, inputs, dtype),
    )
    # Four rows go with eight: what is best changes with the logarithm of the rows.
    point = next(point for point in reversed(ROWS) if point <= max(1, 2 * rows))
    ranking = UNMEASURED if preferences is None else preferences[str(point)]
    usable = (name for name in ranking if name in available and (copies or available[name].pack is None))
    return next(usable, "plain")


class WeightProducts:
    """The products of one matrix, and a copy of it where the best of them needs one."""

    def __init__(self, copies: bool) -> None:
        self.copies = copies
        self.stamp: tuple[int, int, int] | None = None
        """Tells whether the matrix is still the one that was copied."""
        self.packed: Tensor | None = None
        self.by_rows: dict[int, Product] = {}

    def multiply(self, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        """x W^T + b, without gradients."""
        rows = x.numel() // weight_FD.shape[1]
        # Every change in place counts the version up; other memory is another matrix.
        stamp = weight_FD._version, weight_FD.data_ptr(), torch.get_num_threads()
        if stamp != self.stamp:
            self.packed, self.by_rows, self.stamp = None, {}, stamp
        product = self.by_rows.get(rows := min(rows, ROWS[-1]))
        if product is None:
            product = self.by_rows[rows] = self.choose(rows, weight_FD)
        if product.pack is None:
            return product.multiply(x, weight_FD, bias_F)
        if self.packed is None:
            self.packed = product.pack(weight_FD.detach())
        return product.multiply(x, self.packed, bias_F)

    def choose(self, rows: int, weight_FD: Tensor) -> Product:
        if weight_FD.device.type != "cpu" or not rows:
            return Product(_multiply_plain)
        outputs, inputs = weight_FD.shape
        return products(weight_FD.dtype)[choose_product(outputs, inputs, rows, weight_FD.dtype, self.copies)]

    # A copy of a model, or a model in another process, makes its own copies.
    def __deepcopy__(self, memo: dict[int, Any]) -> WeightProducts:
        return WeightProducts(self.copies)

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightProducts, (self.copies,)


class JoinedProducts:
    """One product for several maps of the same rows, where copies of their matrices are made: a copy of all
    of them, one below the other. Fewer and larger products take less time (docs/lab-notes.md)."""

    def __init__(self) -> None:
        self.stamp: tuple[int, ...] | None = None
        self.packed: Tensor | None = None
        self.bias: Tensor | None = None
        self.by_rows: dict[int, Product] = {}

    def multiply(self, x: Tensor, maps: Sequence[Any]) -> Tensor | None:
        """What `Multiplied` maps of equal sizes give, side by side; None if each has to be asked."""
        chosen: WeightProducts | None = maps[0].products
        if chosen is None or torch.is_grad_enabled() or x.dtype != maps[0].weight.dtype:
            return None
        tensors = [tensor for part in maps for tensor in (part.weight, part.bias) if tensor is not None]
        numbers = (number for each in tensors for number in (each._version, each.data_ptr()))
        stamp = torch.get_num_threads(), *numbers
        if stamp != self.stamp:
            self.packed, self.bias, self.by_rows, self.stamp = None, None, {}, stamp
        rows = min(len(x), ROWS[-1])
        if rows not in self.by_rows:
            # By one of them: the sizes of all together would have to be measured as well.
            self.by_rows[rows] = chosen.choose(rows, maps[0].weight)
        product = self.by_rows[rows]
        if product.pack is None:
            return None
        if self.packed is None:
            biases = [part.bias.detach() for part in maps if part.bias is not None]
            self.bias = torch.cat(biases) if biases else None
            self.packed = product.pack(torch.cat([part.weight.detach() for part in maps]))
        return product.multiply(x, self.packed, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> JoinedProducts:
        return JoinedProducts()

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedProducts, ()


class Multiplied:
    """Mixed into modules with a `weight` that is multiplied with; a copy of it ends when training begins."""

    products: WeightProducts | None = None

    def multiply(self, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        """x W^T + b in the type of x, by the product that was chosen where no gradient is wanted."""
        if self.products is None or torch.is_grad_enabled() or x.dtype != weight_FD.dtype:
            return _multiply_plain(x, follow(weight_FD, x), bias_F)
        return self.products.multiply(x, weight_FD, bias_F)

    def train(self, mode: bool = True) -> Any:
        # Training changes matrices at every step: a copy would be packed anew each time.
        if mode:
            self.products = None
        return super().train(mode)  # type: ignore[misc]


def choose_products(model: nn.Module) -> None:
    """From now on, until it trains again, the matrices of a model are multiplied by the fastest product where
    no gradient is wanted. Nothing changes on other devices."""
    # What was chosen before stays: its copies are a part of the memory that is in use now.
    parts: list[Any] = [
        part
        for part in model.modules()
        if isinstance(part, Multiplied) and part.products is None and _is_usable(part)
    ]
    if not parts:
        return
    bytes_needed = sum(part.weight.numel() * part.weight.element_size() for part in parts)
    copies = bytes_needed < SHARE_OF_MEMORY * available_memory()
    for part in parts:
        part.products = WeightProducts(copies)


def _is_usable(part: Any) -> bool:
    """Whether there is a matrix on the processor (eight-bit heads have none) that tells when it changes."""
    weight: Tensor | None = getattr(part, "weight", None)
    if weight is None or part.training:
        return False
    return weight.device.type == "cpu" and not weight.is_inference()
