"""What a family's models take in memory, told from their shape, in a moment and without building them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from etymon.checkpoints.weights import Weights
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.nn.blocks import Stack
from etymon.nn.features import FeatureSettings
from etymon.nn.footprint import Footprint, available_memory, extrapolate, no_memory

# Fields of shapes, by the last part of their names, that say how often a part is repeated, and two values
# that are small. Cost is linear in each. Both are even of layers, since two kinds may alternate, and not
# fewer than the groups that they are cut into.
DEPTHS = {"layers": (2, 4), "groups": (1, 2)}
# At most so many numbers are kept for every token of a matrix's rows and columns.
VALUES_A_TOKEN = 8
# What Python keeps of a layer that shares its weights with others.
LAYER_BYTES = 200
# So many times more numbers than a file has are no mistake of a name or a shape.
FAR = 10


def by_depth(shape: Any, measure: Callable[[Any], Footprint]) -> Footprint:
    """`measure(shape)`, extrapolated from shapes with few layers: ten million of them would take long to
    build, even without values."""
    # Equal numbers of layers change together, since some shapes ask for that (an encoder's and a decoder's);
    # groups, which multiply, change one by one.
    deep = _deep(shape)
    groups: dict[Any, list[str]] = {}
    for name, few in deep.items():
        groups.setdefault((getattr(shape, name), few) if name.endswith("layers") else name, []).append(name)

    def along(left: Sequence[Sequence[str]], chosen: dict[str, int]) -> Footprint:
        if not left:
            return measure(replace(shape, **chosen) if chosen else shape)
        names, number = left[0], getattr(shape, left[0][0])
        return extrapolate(
            number, deep[names[0]], lambda count: along(left[1:], chosen | dict.fromkeys(names, count))
        )

    return along(list(groups.values()), {})


def shallow(shape: Any) -> Any:
    """The same shape with few layers."""
    return replace(shape, **{name: few[1] for name, few in _deep(shape).items()})


def _deep(shape: Any) -> dict[str, tuple[int, int]]:
    """The fields of a shape that say how often a part is repeated, where that is often, with few repetitions
    instead."""
    few = {part.name: DEPTHS.get(part.name.rpartition("_")[2]) for part in fields(shape)}
    counts = {name: getattr(shape, name) for name in few}
    return {
        name: numbers
        for name, numbers in few.items()
        if numbers is not None and isinstance(counts[name], int) and counts[name] > numbers[1]
    }


def outline(
    family: Family,
    shape: Any,
    heads: Iterable[str] = (),
    labels: Sequence[str] = ("0", "1"),
    features: FeatureSettings | None = None,
) -> Footprint:
    """A model's weights, and as activations what a token takes at most: a bound that costs nothing, and is
    far too large."""
    head_names = frozenset(heads)

    def measure(small: Any) -> Footprint:
        with torch.device("meta"):
            model = Model(family, small, head_names, labels, features)
        lists = LAYER_BYTES * sum(len(part.schedule) for part in _stacks(model))
        weights = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(model))
        return Footprint(float(weights), activations=token_bound(model), program=float(lists))

    try:
        return by_depth(shape, measure)
    except (RuntimeError, OverflowError, TypeError) as error:  # PyTorch counts bytes in 63 bits
        raise EtymonError(
            f"{family.title} of this shape has tensors of more than 9 EB: make its dim, positions or "
            "vocabulary smaller"
        ) from error


def count_parameters(family: Family, shape: Any, heads: Iterable[str]) -> int:
    """A model's parameters, shared ones once, without building it."""
    head_names = frozenset(heads)

    def measure(small: Any) -> Footprint:
        with torch.device("meta"):
            return Footprint(float(Model(family, small, head_names).parameter_count()))

    return round(by_depth(shape, measure).weights)


def body_parameters(family: Family, shape: Any, heads: Iterable[str]) -> float:
    """A model's parameters without those that grow with its vocabulary; what layers share counts as often as
    it is used."""
    head_names = frozenset(heads)

    def measure(small: Any) -> Footprint:
        counts = []
        # Two vocabularies tell how many parameters a word has.
        for vocabulary in (small.vocabulary, 2 * small.vocabulary):
            with torch.device("meta"):
                model = Model(family, replace(small, vocabulary=vocabulary), head_names)
            counts.append(model.parameter_count())
        # ALBERT computes as many layers as BERT: by its parameters alone it would look tiny.
        shared = sum(
            (len(part.schedule) / len(part.layers) - 1)
            * sum(each.numel() for each in part.layers.parameters())
            for part in _stacks(model)
        )
        return Footprint(2 * counts[0] - counts[1] + shared)

    return by_depth(shape, measure).weights


def token_bound(model: nn.Module) -> float:
    """Bytes that a token cannot need for the way back: far too many, and found at once."""
    widths = sum(sum(tensor.shape) for tensor in _tensors(model) if tensor.dim() > 1)
    repeated = max((len(part.schedule) / len(part.layers) for part in _stacks(model)), default=1.0)
    return 4.0 * VALUES_A_TOKEN * widths * repeated


def require_weights(
    family: Family,
    shape: Any,
    heads: Iterable[str],
    labels: Sequence[str],
    features: FeatureSettings | None,
    what: str,
) -> None:
    """Refuses to build a model whose weights do not fit into memory."""
    needed = replace(outline(family, shape, heads, labels, features), activations=0.0)
    free = available_memory()
    if needed.total > free:
        size = largest_size(family, heads, free)
        smaller = "take" if size is None else f"the size {size} would fit; or take"
        raise no_memory(what, needed, free, f"{smaller} a machine with more memory")


def check_weight_count(family: Family, shape: Any, weights: Any, where: str) -> None:
    """Refuses a configuration of far more numbers than its file of weights holds, before any of them is made
    room for."""
    if not isinstance(weights, Weights):
        return
    stored = sum(_count_numbers(file) for file in weights.files)
    needed = outline(family, shape).weights / torch.float32.itemsize
    if needed > FAR * stored:  # of what is nearly right, names and shapes will tell more
        sizes = {name: getattr(shape, name, None) for name in ("layers", "dim", "vocabulary", "positions")}
        listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)
        raise EtymonError(
            f"{where} describes a model of {needed:,.0f} numbers ({listed}), and its weights have "
            f"{stored:,}: they do not "
            "belong together; copy config.json again"
        )


def largest_size(family: Family, heads: Iterable[str], room: float) -> str | None:
    """The name of the family's largest size whose weights take no more than `room` bytes, if there is one."""
    weights = {
        size: outline(family, strict(family.shape, dict(changed), f"the size {size}"), heads).weights
        for size, changed in family.sizes.items()
    }
    fitting = [size for size in weights if weights[size] <= room]
    return max(fitting, key=weights.__getitem__, default=None)


def _count_numbers(file: Path) -> int:
    """How many numbers a file of weights holds; of a pickled one, at most."""
    if file.suffix != ".safetensors":
        return file.stat().st_size
    with safe_open(str(file), framework="pt") as opened:
        return sum(prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118


def _stacks(model: nn.Module) -> list[Stack]:
    return [part for part in model.modules() if isinstance(part, Stack) and len(part.layers)]


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
