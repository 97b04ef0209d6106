"""Low-rank adapters (Hu et al. 2021): a matrix stays as it is, and what is learnt is the product of two
narrow ones.

    W x + alpha / rank * B A dropout(x)

B begins at zero, so that a model with new adapters computes exactly what it did without. The base's
parameters keep their names; those of an adapter stand beside them (`query.lora_a`, `query.lora_b`).

Legend: D inputs, F outputs, r rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.nn.initialise import constant, initialise
from etymon.nn.layers import Dropout, Linear
from etymon.nn.precision import follow
from etymon.settings.adapters import USUAL_TARGETS, LoraSettings

Adaptable = TypeVar("Adaptable", bound=nn.Module)
"""A model: it has `body` and `heads`, and `lora`, `lora_base` and `lora_heads`, which describe its
adapters."""


class AdaptedLinear(Linear):
    """Takes over a linear map's parameters; the adapter's are blank."""

    def __init__(self, base: Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)  # nothing is to be made that the base has
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight = base.weight
        self.register_parameter("bias", base.bias)
        self.lora_a = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_empty(base.out_features, rank))
        self.alpha = alpha
        self.dropout = Dropout(dropout)

    @property
    def scale(self) -> float:
        return self.alpha / len(self.lora_a)

    def forward(self, x: Tensor) -> Tensor:
        # Scaled while it is narrow: fewer products than behind B.
        narrow = F.linear(self.dropout(x), follow(self.lora_a, x)) * self.scale
        return super().forward(x) + F.linear(narrow, follow(self.lora_b, x))

    @torch.no_grad()
    def to_linear(self) -> Linear:
        """A plain linear map of the same parameters, with the adapter in its matrix."""
        # On the meta device: its matrix is replaced at once.
        plain = Linear(self.in_features, self.out_features, bias=False, device="meta")
        # Added in 32 bits at least, and rounded once.
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        a_rD, b_Fr = self.lora_a.to(wide), self.lora_b.to(wide)
        self.weight.copy_(self.weight.to(wide) + self.scale * (b_Fr @ a_rD))
        plain.weight = self.weight
        plain.register_parameter("bias", self.bias)
        return plain


def adapt(
    model: Adaptable, settings: LoraSettings | None = None, seed: int = 0, base: str | Path = ""
) -> Adaptable:
    """The model itself, with adapters on the linear maps of its body that the settings name; all else but
    its heads is frozen.

    `base` is the folder or hub id that the model came from, without which its adapters cannot be saved. A
    vocabulary that is tied to the word vectors is frozen with them, unless the base had none.
    """
    owner: Any = model
    settings = settings or LoraSettings()
    if owner.lora is not None or owner.int8:
        raise EtymonError(
            "a model with adapters or with weights of eight bits takes no adapters: "
            "merge it, or take its base"
        )
    names = _adaptable(model, settings)
    local = Path(base).expanduser()
    attach(
        model,
        dict.fromkeys(names, (settings.rank, settings.alpha)),
        settings,
        str(local.resolve()) if str(base) and local.is_dir() else str(base),
        trained_heads(model),
    )
    rules = [("*.lora_a", _as_drawn_by_peft), ("*.lora_b", constant(0.0))]
    initialise(model, rules, seed, lambda name: ".lora_" in name)
    return model


def _adaptable(model: nn.Module, settings: LoraSettings) -> list[str]:
    """The linear maps of a body that the settings name; refuses names that are not there, and a rank that
    no product has."""
    owner: Any = model
    maps = {name: part for name, part in _linear(model).items() if name.startswith("body.")}
    names = [name for name in maps if settings.match(name)]
    idle = [
        target
        for target in settings.targets
        if not any(LoraSettings(targets=(target,)).match(name) for name in maps)
    ]
    # Attention in recurrent models has a query and no value: what is usual need not all be there.
    if not names or (idle and settings.targets != USUAL_TARGETS):
        there = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in maps))
        raise EtymonError(
            f"no linear map of {owner.family.title} is called {' or '.join(idle)}: "
            f"adapters go on {there or 'none'}"
        )
    # Of all maps, a few are a single row (the energies of recurrent attention): the largest decides.
    most = max(min(maps[name].in_features, maps[name].out_features) for name in names)
    if settings.rank > most:
        raise EtymonError(
            f"adapters of rank {settings.rank:,} are larger than the matrices they are for, "
            f"whose rank is {most:,} at most: take a smaller one, usually 4 to 64"
        )
    return names


def _as_drawn_by_peft(tensor: Tensor, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(tensor, a=5**0.5, generator=generator)


def attach(
    model: nn.Module,
    parts: Mapping[str, tuple[int, float]],
    settings: LoraSettings,
    base: str,
    heads: Collection[str],
) -> None:
    """Puts blank adapters on linear maps, by name with rank and alpha; they and these parameters of heads
    train."""
    owner: Any = model
    maps = _linear(model)
    for name, (rank, alpha) in parts.items():
        _put(model, name, AdaptedLinear(maps[name], rank, alpha, settings.dropout))
    owner.lora, owner.lora_base, owner.lora_heads = settings, base, tuple(heads)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name or name in heads)


def trained_heads(model: nn.Module) -> list[str]:
    """The parameters of heads that train beside new adapters."""
    owner: Any = model
    body = {id(parameter) for parameter in owner.body.parameters()}
    vocabulary = dict(owner.heads.items()).get("vocabulary")
    tied = vocabulary is not None and any(id(weight) in body for weight in vocabulary.parameters())
    frozen = "heads.vocabulary." if tied and "vocabulary" not in owner.new_heads else "\0"
    named = (name for name, _ in model.named_parameters())  # tied ones once, as the body's
    return sorted(name for name in named if name.startswith("heads.") and not name.startswith(frozen))


def adapters(model: nn.Module) -> dict[str, AdaptedLinear]:
    """The linear maps with adapters, by name."""
    return {name: part for name, part in _linear(model).items() if isinstance(part, AdaptedLinear)}


def merge(model: Adaptable, under: str = "") -> Adaptable:
    """The model itself without adapters: they are added to the matrices, and everything trains again.

    `under` merges only those whose names begin with it, and the model keeps the others.
    """
    owner: Any = model
    for name, part in adapters(model).items():
        if name.startswith(under):
            _put(model, name, part.to_linear())
    if owner.lora is not None and not under:
        owner.lora, owner.lora_base, owner.lora_heads = None, "", ()
        model.requires_grad_(True)
    return model


def _linear(model: nn.Module) -> dict[str, Linear]:
    return {name: part for name, part in model.named_modules() if isinstance(part, Linear)}


def _put(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    # A new part is in training mode: it takes over the model's.
    part.train(model.training)
    setattr(model.get_submodule(parent), last, part)
