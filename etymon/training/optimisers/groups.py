"""Parameters by name: which section of a model they belong to, how deep it lies, and which group trains them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from etymon.errors import EtymonError

WRAPPERS = {"model", "body", "stack"}
"""Parts of a name that only say where the module hangs."""
BOTTOM = {"embeddings", "words", "position_bias"}
LAYER = re.compile(r"(.*)layers\.(\d+)")
MEMBER = re.compile(r"^(model|companions|bridges)\.")
"""What a training unit puts before the names of its members."""


def section(name: str) -> str:
    """Where a parameter belongs: `embeddings`, `layers.3`, `norm` (the last one) or `heads`.

    The two stacks of an encoder-decoder are told apart: `encoder.layers.3`.
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if "layers" in parts:
        return ".".join(parts[: parts.index("layers") + 2])
    if "heads" in parts:  # before the embeddings: an adaptive softmax has words, too
        return "heads"
    return "embeddings" if BOTTOM & set(parts) else ".".join(parts[:-1])


def depths(names: Iterable[str]) -> dict[str, int]:
    """How many sections lie above every parameter's own.

    The last norm and the heads are the top, at 0, the last layer lies at 1, and so on. Every stack counts its own layers;
    embeddings lie below the tallest. A layer that a stack uses many times is one layer with one depth, that of its place
    in `layers`: where all are shared, there are only the top, the layer and the embeddings.
    """
    sections = {name: section(name) for name in names}
    layers = {name: match for name, where in sections.items() if (match := LAYER.fullmatch(where))}
    tops: dict[str, int] = {}
    for match in layers.values():
        tops[match[1]] = max(tops.get(match[1], 1), int(match[2]) + 2)
    tallest = max(tops.values(), default=1)
    return {
        name: tops[layers[name][1]] - int(layers[name][2]) - 1
        if name in layers
        else (tallest if where == "embeddings" else 0)
        for name, where in sections.items()
    }


def named(module: nn.Module) -> dict[str, nn.Parameter]:
    """A model's parameters by their names; a unit's alike, those of companions behind the companion's name."""
    return {MEMBER.sub("", name): parameter for name, parameter in module.named_parameters()}


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Takes the parameters whose names match out of training: they get no gradient any more."""
    parameters = named(module)
    for pattern in patterns:
        found = [parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not found:
            raise EtymonError(
                f"no parameter matches the frozen pattern {pattern!r}: they are named like {next(iter(parameters))!r}"
            )
        for parameter in found:
            parameter.requires_grad_(False)


@contextmanager
def thawed(module: nn.Module, share: float) -> Iterator[None]:
    """Inside, only the upper sections train: the highest one at a share of 0, one more after equal parts of it, all at 1.

    The others get no gradient, so that an optimiser leaves them and its own state of them alone.
    """
    trained = {name: parameter for name, parameter in named(module).items() if parameter.requires_grad}
    below = depths(named(module))
    levels = sorted({below[name] for name in trained})
    # A share is a quotient of steps, which may come out a little too small.
    lowest = levels[int(min(share + 1e-9, 1.0) * (len(levels) - 1))]
    resting = [parameter for name, parameter in trained.items() if below[name] > lowest]
    for parameter in resting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in resting:
            parameter.requires_grad_(True)


def parameter_groups(
    module: nn.Module,
    *,
    weight_decay: float,
    undecayed: Sequence[str],
    layer_decay: float | None,
    marks: Mapping[str, Callable[[str, Tensor], bool]] | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters, tied ones once, in one group for every rate share, weight decay and outcome of the tests that
    `marks` name. `names` beside `params` says which they are.

    The share of the learning rate is `layer_decay^depth`: the top trains at the full rate and every section below it at so
    much of the one above, as ELECTRA meant it (XLNet's formula gives the last layer the full rate, too).
    """
    trained = {name: parameter for name, parameter in named(module).items() if parameter.requires_grad}
    if not trained:
        raise EtymonError("nothing is left to train: freeze less")
    # Of all parameters: freezing the upper layers does not change how deep the lower ones lie.
    below = depths(named(module))
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in trained.items():
        about: dict[str, Any] = {mark: test(name, parameter) for mark, test in (marks or {}).items()}
        about["weight_decay"] = 0.0 if matches(name, undecayed) else weight_decay
        about["rate_share"] = (layer_decay or 1.0) ** below[name]
        group = groups.setdefault(tuple(about.values()), {"params": [], "names": [], **about})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


@torch.no_grad()
def gradient_norms(module: nn.Module) -> dict[str, float]:
    """The gradient's norm in every section that has one, from the bottom up; one wait for the device in all.

    The squares add up to the square of the whole norm. Ask before clipping, which rescales gradients in place.
    """
    grads: dict[str, list[Tensor]] = {}
    for name, parameter in named(module).items():
        if parameter.grad is not None:
            grads.setdefault(section(name), []).append(parameter.grad)
    norms = [torch.stack(torch._foreach_norm(each)).float().norm() for each in grads.values()]
    return dict(zip(grads, torch.stack(norms).tolist(), strict=True)) if norms else {}
