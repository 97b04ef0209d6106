"""Optimisers over named parameters, built from one choice, with state that is saved and restored by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.training.optimisers.adafactor import Adafactor
from etymon.training.optimisers.adagrad import Adagrad
from etymon.training.optimisers.adam import BertAdam
from etymon.training.optimisers.groups import freeze, matches, named, parameter_groups, section
from etymon.training.optimisers.lamb import Lamb
from etymon.training.optimisers.muon import Muon

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "adam-bert": BertAdam,
    "adafactor": Adafactor,
    "lamb": Lamb,
    "muon": Muon,
    "adagrad": Adagrad,
}


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class OptimiserChoice:
    """Which optimiser, and how it treats which parameters.

    Patterns are those of file names over the parameters' names, e.g. `*bias` or `body.stack.layers.[0-3].*`.
    """

    name: str = "adamw"
    """`adamw`; `adam-bert`, without bias correction; `adafactor`, whose rates are relative to the parameters and which
    has neither `betas` nor `epsilon`; `lamb`, whose steps are in proportion to every tensor's norm; `muon`, with
    AdamW for all but the matrices inside layers; or `adagrad`, with neither `betas` nor `epsilon`."""
    learning_rate: float = 1e-3
    """The peak, which the schedule scales at every step."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    undecayed: tuple[str, ...] = ("*bias", "*bias_?h_l*", "*norm.weight", "*.gamma", "*.scalars.*")
    layer_decay: float | None = None
    """Every section trains at this share of the rate of the one above it."""
    frozen: tuple[str, ...] = ()
    matrix_share: float = 1.0
    """Muon's rate for matrices as a multiple of the rate for the rest. At 1, matrices move as far as AdamW would move
    them; they bear more: at a rate of 0.002, 3 gives 256 wide layers the 0.02 that is usual in Muon's own measure."""

    def __post_init__(self) -> None:
        if self.name not in OPTIMISERS:
            raise EtymonError(f"there is no optimiser {self.name!r}: {did_you_mean(self.name, OPTIMISERS)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise EtymonError(f"betas are from 0 to below 1, not {self.betas}")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise EtymonError(f"layer_decay is above 0 and at most 1, not {self.layer_decay:g}")
        for field in ("learning_rate", "epsilon", "weight_decay", "matrix_share"):
            if getattr(self, field) < 0:
                raise EtymonError(f"{field} cannot be below 0, and it is {getattr(self, field):g}")


def build_optimiser(module: nn.Module, choice: OptimiserChoice) -> torch.optim.Optimizer:
    """The optimiser over the module's trainable parameters, after freezing those the choice names.

    Every group has a `rate_share`: `set_rate` gives each its share of a step's learning rate.
    """
    freeze(module, choice.frozen)
    marks: dict[str, Callable[[str, Tensor], bool]] = {}
    if choice.name == "muon":
        marks["matrices"] = _is_inner_matrix
    if choice.name == "lamb":  # what is not decayed is not adapted either, not even where nothing is decayed
        marks["adapted"] = lambda name, parameter: not matches(name, choice.undecayed)
    groups = parameter_groups(
        module,
        weight_decay=choice.weight_decay,
        undecayed=choice.undecayed,
        layer_decay=choice.layer_decay,
        marks=marks,
    )
    for group in groups:
        group["rate_share"] *= choice.matrix_share if group.get("matrices") else 1.0
    optimiser = OPTIMISERS[choice.name](groups, betas=choice.betas, eps=choice.epsilon)
    set_rate(optimiser, choice.learning_rate)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Gives every group its share of a step's learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["rate_share"]


def optimiser_tensors(optimiser: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<quantity>/<parameter>`."""
    return {
        f"{quantity}/{name}": value
        for name, parameter in named(module).items()
        for quantity, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what `optimiser_tensors` gave."""
    held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    parameters = {name: value for name, value in named(module).items() if id(value) in held}
    for key, value in tensors.items():
        quantity, name = key.split("/", 1)
        if name not in parameters:
            raise EtymonError(
                f"the optimiser's saved state has {quantity} of {name}, which is not trained here: "
                "resume with the settings that it was saved with"
            )
        # Fused kernels want the step counter, too, where the parameter is.
        optimiser.state[parameters[name]][quantity] = value.to(parameters[name].device).clone()


def _is_inner_matrix(name: str, parameter: Tensor) -> bool:
    # Biases by head have two axes and are no matrices.
    return "layers." in section(name) and parameter.dim() == 2 and not name.endswith("bias")
