"""Adapters as PEFT keeps them: `adapter_config.json`, and their matrices under the names of the published modules.

Where a published module is several of our matrices (GPT-2's c_attn is query, key and value), their adapters are written as one
that computes the same: A's are stacked, and B's stand on a diagonal of blocks. A foreign adapter of such a module has one A for
all; it is read as adapters that have it each.

Legend: D inputs, F outputs, r rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.checkpoints.folder import ADAPTER_CONFIG
from etymon.checkpoints.keys import AdapterKeys
from etymon.checkpoints.names import NameMap
from etymon.checkpoints.weights import ADAPTER_FILES, Weights, open_weights
from etymon.config import check_keys
from etymon.errors import EtymonError
from etymon.files import read_json

ROOT = "base_model.model."
PART = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
READ = {
    "peft_type", "task_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "alpha_pattern",
    "use_rslora", "init_lora_weights", "bias",
}  # fmt: skip
# These say where adapters are, which the names of the tensors say as well, or how they were begun and stored.
WITHOUT_EFFECT = {
    "target_modules", "exclude_modules", "modules_to_save", "rank_pattern", "fan_in_fan_out", "layers_to_transform",
    "layers_pattern", "inference_mode", "auto_mapping", "peft_version", "megatron_core", "loftq_config", "eva_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying",
}  # fmt: skip
HARMLESS = (True, False, None, "gaussian", "eva", "orthogonal")
"""First values of adapters that leave the base's matrices as they are."""
MERGE_THERE = "merge it with PEFT (merge_and_unload) and load the whole model"


@dataclass(frozen=True)
class Adapter:
    """alpha / r * B A, on top of one matrix."""

    a_rD: Tensor
    b_Fr: Tensor
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.a_rD)


@dataclass
class Adapters:
    """What a folder holds, by their names without what PEFT puts before them."""

    config: dict[str, Any]
    matrices: dict[str, Adapter] = field(default_factory=dict)
    heads: dict[str, Tensor] = field(default_factory=dict)


# --- writing


def exported(
    names: NameMap,
    kept: Mapping[str, Tensor],
    adapters: Mapping[str, Adapter],
    heads: Collection[str],
    prefix: str | None,
    usual: Adapter,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Keys of a config and tensors, out of the base's parameters `kept` and adapters by the names of our linear maps.

    `heads` are the parameters that are stored whole. `usual` has the rank and alpha that go without saying.
    """
    prefix = names.prefix if prefix is None else prefix
    modules: dict[str, Adapter | None] = {}
    fan_in = False
    groups = names.groups(kept)
    for theirs, (row, parts) in groups.items():
        module = names.with_prefix(theirs, prefix).removesuffix(".weight")
        found = [adapters.get(part.removesuffix(".weight")) for part in parts]
        modules[module] = _joined(found) if any(found) else None
        fan_in |= row.transposed and modules[module] is not None
    whole = names.export({name: kept[name] for name in heads}, prefix)
    every = {names.with_prefix(theirs, prefix) for theirs in groups}
    tops = {_top(name, every - set(whole)) for name in whole if not name.startswith("etymon_")}
    # PEFT stores a module whole or not at all: also with a matrix that is the words'.
    for copy, source in names.ties.items():
        name = names.with_prefix(copy, prefix)
        if name.startswith(tuple(f"{top}." for top in tops)) and name not in whole and source in groups:
            row, parts = groups[source]
            whole[name] = row.joined([kept[part] for part in parts]).clone()
    # Modules that a class may have beside ours: no short name may stand for them as well.
    others = {row.theirs.removesuffix(".*") for row in names.rows if "{}" not in row.theirs}
    named = _shortest(modules, others)
    adapted = {module: adapter for module, adapter in modules.items() if adapter is not None}
    config = {
        "target_modules": list(named),
        "modules_to_save": sorted(tops) or None,
        "fan_in_fan_out": fan_in,
        "rank_pattern": {name: one.rank for name, one in named.items() if one.rank != usual.rank},
        "alpha_pattern": {name: plain(one.alpha) for name, one in named.items() if one.alpha != usual.alpha},
    }
    tensors = {ROOT + name: tensor for name, tensor in whole.items()}
    for module, adapter in adapted.items():
        tensors[f"{ROOT}{module}.lora_A.weight"] = adapter.a_rD
        tensors[f"{ROOT}{module}.lora_B.weight"] = adapter.b_Fr
    return config, tensors


def plain(alpha: float) -> int | float:
    """PEFT's own are whole numbers."""
    return int(alpha) if alpha == int(alpha) else alpha


def _joined(parts: Sequence[Adapter | None]) -> Adapter:
    there = [part for part in parts if part is not None]
    if len(parts) == 1:
        return there[0]
    assert len({part.alpha / part.rank for part in there}) == 1, "one module has one scale"
    outputs = len(there[0].b_Fr)
    blocks = [there[0].b_Fr.new_zeros(outputs, 0) if part is None else part.b_Fr for part in parts]
    return Adapter(
        torch.cat([part.a_rD for part in there]), torch.block_diag(*blocks), sum(part.alpha for part in there)
    )


def _shortest(modules: Mapping[str, Adapter | None], others: Collection[str]) -> dict[str, Adapter]:
    """The fewest last parts of names that stand for nothing but adapters of one rank and alpha."""
    found: dict[str, Adapter] = {}
    for module, adapter in modules.items():
        if adapter is None:
            continue
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            meant = [modules.get(other) for other in {*modules, *others} if f".{other}".endswith(f".{name}")]
            same = all(one and (one.rank, one.alpha) == (adapter.rank, adapter.alpha) for one in meant)
            if same and not parts[-count].isdigit():
                break
        found[name] = adapter
    return found


def _top(name: str, left_out: Collection[str]) -> str:
    """The outermost module around a parameter that is stored whole: those that PEFT adds by itself must not lie around ours."""
    parts = name.split(".")
    around = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next(
        (one for one in around if not any(other.startswith(f"{one}.") for other in left_out)),
        name.rpartition(".")[0],
    )


# --- reading


def read_adapter_config(folder: str | Path) -> dict[str, Any]:
    """The `adapter_config.json` of a folder, if it is one of adapters that we can put on a model."""
    path = Path(folder) / ADAPTER_CONFIG
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise EtymonError(
            f"{path} is of the kind {config.get('peft_type')!r}, and only LORA is read: {MERGE_THERE}"
        )
    if config.get("bias", "none") != "none":
        raise EtymonError(f"{path} has bias = {config['bias']!r}, and only adapters are read: {MERGE_THERE}")
    if config.get("init_lora_weights", True) not in HARMLESS:
        raise EtymonError(
            f"{path} has init_lora_weights = {config['init_lora_weights']!r}, which changed the base: {MERGE_THERE}"
        )
    unknown = sorted(key for key, value in config.items() if value and key not in READ | WITHOUT_EFFECT)
    if unknown:
        raise EtymonError(
            f"{path} has {unknown[0]} = {config[unknown[0]]!r}, which is not read here: {MERGE_THERE}"
        )
    if not config.get("base_model_name_or_path"):
        raise EtymonError(f"{path} does not name its base: write it into base_model_name_or_path")
    check_keys(AdapterKeys, config, str(path))
    return config


def read_adapters(folder: str | Path) -> Adapters:
    config, weights = read_adapter_config(folder), open_weights(folder, ADAPTER_FILES)
    found = Adapters(config)
    for name in weights:
        short = name.removeprefix(ROOT)
        part = PART.fullmatch(short)
        if part is not None and part[2] == "A":
            found.matrices[part[1]] = _adapter(config, weights, name, part[1])
        elif part is None and "lora_" in short:
            raise EtymonError(f"{folder} holds {short}, which is no matrix of a plain adapter: {MERGE_THERE}")
        elif part is None:
            found.heads[re.sub(r"\.modules_to_save(\.default)?\b", "", short)] = weights[name]
    return found


def _adapter(config: Mapping[str, Any], weights: Weights, name: str, module: str) -> Adapter:
    partner = name.replace(".lora_A.", ".lora_B.")
    if partner not in weights:
        raise EtymonError(f"the adapter of {module} has an A and no B: copy its folder again")
    a_rD, b_Fr = weights[name], weights[partner]
    patterns = config.get("alpha_pattern") or {}
    own = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)
    alpha = float(config.get("lora_alpha", 8) if own is None else patterns[own])
    if config.get("use_rslora"):  # their scale is alpha / sqrt(r)
        alpha *= math.sqrt(len(a_rD))
    return Adapter(a_rD, b_Fr, alpha)


def ours(
    names: NameMap, kept: Iterable[str], theirs: Mapping[str, Adapter], own: Collection[str] = ()
) -> dict[str, Adapter]:
    """Adapters by the names of our linear maps; `own` are those that had one, if we have written them."""
    groups = names.groups(kept)
    found: dict[str, Adapter] = {}
    for module, adapter in theirs.items():
        places = (names.canonical(name, set(groups)) for name in (f"{module}.weight", module))
        place = next((name for name in places if name in groups), None)
        if place is None:
            raise EtymonError(
                f"there is an adapter of {module}, and the model has no such matrix: {MERGE_THERE}"
            )
        parts = [part.removesuffix(".weight") for part in groups[place][1]]
        found |= _split(adapter, parts, own)
    return found


def _split(adapter: Adapter, parts: Sequence[str], own: Collection[str]) -> dict[str, Adapter]:
    rows = adapter.b_Fr.chunk(len(parts))
    had = [number for number, part in enumerate(parts) if part in own]
    if len(parts) > 1 and had and not adapter.rank % len(had):
        each = [
            Adapter(a_rD, rows[number].chunk(len(had), 1)[place], adapter.alpha / len(had))
            for place, (number, a_rD) in enumerate(zip(had, adapter.a_rD.chunk(len(had)), strict=True))
        ]
        found = dict(zip((parts[number] for number in had), each, strict=True))
        # If somebody has trained it since, there is more to it than our blocks.
        if torch.equal(_joined([found.get(part) for part in parts]).b_Fr, adapter.b_Fr):
            return found
    return {part: Adapter(adapter.a_rD, b_Fr, adapter.alpha) for part, b_Fr in zip(parts, rows, strict=True)}
