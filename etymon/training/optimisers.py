"""Optimisers over named parameters, built from one choice, with state that is saved and restored by name.

A parameter belongs to a section of the model (embeddings, a layer, the heads), which says how deep it lies
and so at which rate it trains, and when gradual unfreezing reaches it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.precision import Precision
from etymon.registry import OPTIMISERS
from etymon.settings.training import Hyperparameters, OptimiserSettings
from etymon.training.shards import cut, norms, parts
from etymon.training.update_rules import Adafactor, Adagrad, BertAdam, Lamb, Muon

PUBLISHED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "adam-bert": BertAdam,
    "adafactor": Adafactor,
    "lamb": Lamb,
    "muon": Muon,
    "adagrad": Adagrad,
}


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class OptimiserChoice(Hyperparameters):
    """Which optimiser, and how it treats which parameters.

    Patterns are those of file names over the parameters' names, e.g. `*bias` or `body.stack.layers.[0-3].*`.
    """

    name: str = "adamw"
    """`adamw`; `adam-bert`, without bias correction; `adafactor`, whose rates are relative to the
    parameters and which has neither `betas` nor `epsilon`; `lamb`, whose steps are in proportion to every
    tensor's norm; `muon`, with AdamW for all but the matrices inside layers; or `adagrad`, with neither
    `betas` nor `epsilon`."""
    learning_rate: float = field(default=1e-3, kw_only=True)  # a recipe has to name one, a test need not
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Names and ranges are declared there.
        names = ("weight_decay", "layer_decay", "ema")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        OptimiserSettings(optimiser=self.name, **shared)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise EtymonError(f"betas are from 0 to below 1, not {self.betas}")
        for name in ("learning_rate", "epsilon", "matrix_share"):
            if getattr(self, name) < 0:
                raise EtymonError(f"{name} cannot be below 0, and it is {getattr(self, name):g}")


def build_optimiser(
    module: nn.Module, choice: OptimiserChoice, precision: Precision = "float32"
) -> torch.optim.Optimizer:
    """The optimiser over the module's trainable parameters, after freezing those the choice names. Parameters
    and state are float32 in every `precision`; Muon's iterations are not.

    Every group has a `rate_share`: `set_rate` gives each its share of a step's learning rate.
    """
    parameters = parameters_by_name(module)
    for pattern in choice.frozen:
        matching = [parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise EtymonError(
                f"no parameter matches the frozen pattern {pattern!r}: they are named like "
                f"{next(iter(parameters))!r}"
            )
        for parameter in matching:
            parameter.requires_grad_(False)
    # By name from the run's file, which checked it before any work.
    make = OPTIMISERS.find(choice.name)
    options: dict[str, Any] = {"betas": choice.betas, "eps": choice.epsilon}
    if choice.name not in PUBLISHED:  # a plugin's need not have betas, but may ask for the rate
        options |= {"lr": choice.learning_rate}
        options = {name: options[name] for name in inspect.signature(make).parameters if name in options}
    if choice.name == "muon":
        options["precision"] = precision
    optimiser = make(parameter_groups(module, choice), **options)
    set_rate(optimiser, choice.learning_rate)
    return optimiser


def parameter_groups(module: nn.Module, choice: OptimiserChoice) -> list[dict[str, Any]]:
    """Trainable parameters, tied ones once, in one group for every share of the rate, weight decay and
    treatment.

    The share of the learning rate is `layer_decay^depth`: the top trains at the full rate and every section
    below it at so much of the one above, as ELECTRA's paper says (XLNet's formula gives the last layer the
    full rate, too). `names` beside `params` says which they are.
    """
    parameters = parameters_by_name(module)
    # Of all parameters: freezing the upper layers does not change how deep the lower ones lie.
    depth_of = depths(parameters)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            continue
        is_decayed = not any(fnmatchcase(name, pattern) for pattern in choice.undecayed)
        treatment: dict[str, Any] = {
            "weight_decay": choice.weight_decay if is_decayed else 0.0,
            "rate_share": (choice.layer_decay or 1.0) ** depth_of[name],
        }
        if choice.name == "muon":
            # Biases by head have two axes and are no matrices.
            is_matrix = parameter.dim() == 2 and not name.endswith("bias")
            treatment["matrices"] = is_matrix and "layers." in section(name)
            treatment["rate_share"] *= choice.matrix_share if treatment["matrices"] else 1.0
        if choice.name == "lamb":  # what is not decayed is not adapted either, even where nothing is decayed
            treatment["adapted"] = is_decayed
        group = groups.setdefault(tuple(treatment.values()), {"params": [], "names": [], **treatment})
        group["params"].append(parameter)
        group["names"].append(name)
    if not groups:
        raise EtymonError("nothing is left to train: freeze less")
    return list(groups.values())


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Gives every group its share of a step's learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["rate_share"]


def optimiser_tensors(optimiser: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<quantity>/<parameter>`. What is no tensor would be lost."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters_by_name(module).items():
        for quantity, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{quantity}/{name}"] = value
            elif value is not None:
                raise EtymonError(
                    f"{type(optimiser).__name__} keeps {quantity} as {type(value).__name__}, which no "
                    "checkpoint can hold: keep it as a tensor (torch.tensor(0.0) for a counter)"
                )
    return tensors


def restore_optimiser(
    optimiser: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what `optimiser_tensors` gave."""
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    parameters = {name: value for name, value in parameters_by_name(module).items() if id(value) in trained}
    for key, value in tensors.items():
        quantity, name = key.split("/", 1)
        if name not in parameters:
            raise EtymonError(
                f"the optimiser's saved state has {quantity} of {name}, which is not trained here: "
                "resume with the settings that it was saved with"
            )
        # Fused kernels want the step counter, too, where the parameter is. A clone is aligned memory.
        placed = value.to(parameters[name].device).clone()
        optimiser.state[parameters[name]][quantity] = cut(placed, parameters[name])


# Parts of a name that only say where the module hangs.
WRAPPERS = {"model", "body", "stack"}
BOTTOM = {"embeddings", "words", "position_bias"}
LAYER = re.compile(r"(.*)layers\.(\d+)")
# What a training unit puts before the names of its members.
MEMBER = re.compile(r"^(model|companions|bridges)\.")


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

    The last norm and the heads are the top, at 0, the last layer lies at 1, and so on. Every stack counts its
    own layers; embeddings lie below the tallest. A layer that a stack uses many times has one depth, that of
    its place in `layers`: where all are shared, there are only the top, the layer and the embeddings.
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


def parameters_by_name(module: nn.Module) -> dict[str, nn.Parameter]:
    """A model's parameters by their names; a unit's alike, those of companions behind the companion's
    name."""
    return {MEMBER.sub("", name): parameter for name, parameter in module.named_parameters()}


@contextmanager
def gradual_unfreezing(module: nn.Module, share: float) -> Iterator[None]:
    """Inside, only the upper sections train: the highest at a share of 0, one more after equal parts of it,
    all at 1.

    The others get no gradient, so that an optimiser leaves them and its state of them alone (Howard and Ruder
    2018).
    """
    parameters = parameters_by_name(module)
    depth_of = depths(parameters)
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    levels = sorted({depth_of[name] for name in trained})
    # A share is a quotient of steps, which may come out a little too small.
    lowest = levels[int(min(share + 1e-9, 1.0) * (len(levels) - 1))]
    resting = [parameter for name, parameter in trained.items() if depth_of[name] > lowest]
    for parameter in resting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in resting:
            parameter.requires_grad_(True)


@torch.no_grad()
def gradient_norms(module: nn.Module) -> dict[str, float]:
    """The gradient's norm in every section that has one, from the bottom up; one wait for the device in all.

    The squares add up to the square of the whole norm. To be called before clipping, which rescales in place.
    """
    grads: dict[str, list[Tensor]] = {}
    for name, parameter in parameters_by_name(module).items():
        if parameter.grad is not None:
            grads.setdefault(section(name), []).append(parameter.grad)
    totals = [norms(each).float().norm() for each in grads.values()]
    return dict(zip(grads, torch.stack(totals).tolist(), strict=True)) if totals else {}


@torch.no_grad()
def clip_gradients(module: nn.Module, limit: float) -> float:
    """Scales the gradient down to a norm of at most `limit`; returns the norm that it had."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if not gradients:
        return 0.0
    total = torch.linalg.vector_norm(norms(gradients))
    # As PyTorch's `clip_grad_norm_` does it, bit for bit.
    torch._foreach_mul_(parts(gradients), torch.clamp(limit / (total + 1e-6), max=1.0))
    return float(total)
