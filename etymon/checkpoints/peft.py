"""Adapters as PEFT keeps them: `adapter_config.json`, and their matrices under the names of the published
modules.

Where a published module is several of our matrices (GPT-2's c_attn is query, key and value), their adapters
are written as one that computes the same: A's are stacked, and B's stand on a diagonal of blocks. A foreign
adapter of such a module has one A for all; it is read as adapters that have it each.

Legend: D inputs, F outputs, r rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.checkpoints.folder import ADAPTER_CONFIG, recognise_plugins
from etymon.checkpoints.keys import AdapterKeys
from etymon.checkpoints.names import NameMap
from etymon.checkpoints.weights import ADAPTER_FILES, open_weights
from etymon.config import check_keys
from etymon.errors import EtymonError
from etymon.files import read_json

ROOT = "base_model.model."
PART = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
READ = {
    *"""
        peft_type task_type base_model_name_or_path revision r lora_alpha lora_dropout alpha_pattern
        use_rslora init_lora_weights bias
    """.split()
}
# These say where adapters are, which the names of the tensors say as well, or how they were begun and stored.
WITHOUT_EFFECT = {
    *"""
        target_modules exclude_modules modules_to_save rank_pattern fan_in_fan_out layers_to_transform
        layers_pattern inference_mode auto_mapping peft_version megatron_core loftq_config eva_config
        qalora_group_size runtime_config ensure_weight_tying
    """.split()
}
# First values of adapters that leave the base's matrices as they are.
HARMLESS = (True, False, None, "gaussian", "eva", "orthogonal")
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


def export_adapters(
    names: NameMap,
    tensors: Mapping[str, Tensor],
    adapters: Mapping[str, Adapter],
    heads: Collection[str],
    prefix: str | None,
    rank: int,
    alpha: float,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Keys of a config and tensors, out of the base's `tensors` and of adapters by the names of our linear
    maps.

    `heads` are the parameters that are stored whole. `rank` and `alpha` are those of most adapters: patterns
    name others.
    """
    prefix = names.prefix if prefix is None else prefix
    modules: dict[str, Adapter | None] = {}
    fan_in = False
    groups = names.groups(tensors)
    for theirs, (row, parts) in groups.items():
        module = names.with_prefix(theirs, prefix).removesuffix(".weight")
        matrices = [adapters.get(part.removesuffix(".weight")) for part in parts]
        modules[module] = _join(matrices) if any(matrices) else None
        # GPT-2's matrices lie `[in, out]`, and PEFT has to know that they do.
        fan_in |= row.transposed and any(matrices)
    whole = names.export({name: tensors[name] for name in heads}, prefix)
    others = {names.with_prefix(theirs, prefix) for theirs in groups} - set(whole)
    tops = {_outermost_module(name, others) for name in whole if not name.startswith("etymon_")}
    # PEFT stores a module whole or not at all: also with a matrix that is the words'.
    for copy, source in names.ties.items():
        name = names.with_prefix(copy, prefix)
        if name.startswith(tuple(f"{top}." for top in tops)) and name not in whole and source in groups:
            row, parts = groups[source]
            whole[name] = row.join([tensors[part] for part in parts]).clone()
    targets = _target_modules(modules, names)
    config = {
        "target_modules": list(targets),
        "modules_to_save": sorted(tops) or None,
        "fan_in_fan_out": fan_in,
        "rank_pattern": {name: part.rank for name, part in targets.items() if part.rank != rank},
        "alpha_pattern": {name: plain(part.alpha) for name, part in targets.items() if part.alpha != alpha},
    }
    stored = {ROOT + name: tensor for name, tensor in whole.items()}
    for module, adapter in modules.items():
        if adapter is not None:
            stored[f"{ROOT}{module}.lora_A.weight"] = adapter.a_rD
            stored[f"{ROOT}{module}.lora_B.weight"] = adapter.b_Fr
    return config, stored


def plain(alpha: float) -> int | float:
    """PEFT's own are whole numbers."""
    return int(alpha) if alpha == int(alpha) else alpha


def _join(parts: Sequence[Adapter | None]) -> Adapter:
    """One adapter of a published matrix that is several of ours: A's are stacked, B's stand on a diagonal of
    blocks."""
    present = [part for part in parts if part is not None]
    if len(parts) == 1:
        return present[0]
    assert len({part.alpha / part.rank for part in present}) == 1, "one module has one scale"
    empty = present[0].b_Fr[:, :0]
    b_Fr = torch.block_diag(*(empty if part is None else part.b_Fr for part in parts))
    return Adapter(torch.cat([part.a_rD for part in present]), b_Fr, sum(part.alpha for part in present))


def _target_modules(modules: Mapping[str, Adapter | None], names: NameMap) -> dict[str, Adapter]:
    """The shortest ends of module names that stand for nothing but adapters of one rank and alpha, as PEFT
    matches them."""
    # A class may have modules beside ours: no short name may stand for them as well.
    others = {row.theirs.removesuffix(".*") for row in names.rows if "{}" not in row.theirs}
    targets: dict[str, Adapter] = {}
    for module, adapter in modules.items():
        if adapter is None:
            continue
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            matches = [
                modules.get(other) for other in {*modules, *others} if f".{other}".endswith(f".{name}")
            ]
            same = all(
                match is not None and (match.rank, match.alpha) == (adapter.rank, adapter.alpha)
                for match in matches
            )
            if same and not parts[-count].isdigit():
                break
        targets[name] = adapter
    return targets


def _outermost_module(name: str, others: Collection[str]) -> str:
    """The outermost module around a parameter that is stored whole: those that PEFT adds by itself must not
    lie around `others`."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        module = ".".join(parts[:count])
        if not any(other.startswith(f"{module}.") for other in others):
            return module
    return name.rpartition(".")[0]


# --- reading


def read_adapter_config(folder: str | Path) -> dict[str, Any]:
    """The `adapter_config.json` of a folder, if it is one of adapters that we can put on a model."""
    path = Path(folder) / ADAPTER_CONFIG
    recognise_plugins(Path(folder))
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise EtymonError(
            f"{path} is of the kind {config.get('peft_type')!r}, and only LORA is read: {MERGE_THERE}"
        )
    if config.get("bias", "none") != "none":
        raise EtymonError(f"{path} has bias = {config['bias']!r}, and only adapters are read: {MERGE_THERE}")
    if config.get("init_lora_weights", True) not in HARMLESS:
        raise EtymonError(
            f"{path} has init_lora_weights = {config['init_lora_weights']!r}, which changed the base: "
            f"{MERGE_THERE}"
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
    """The adapters and the heads in a folder of PEFT."""
    config, weights = read_adapter_config(folder), open_weights(folder, ADAPTER_FILES)
    adapters = Adapters(config)
    patterns = config.get("alpha_pattern") or {}
    for name in weights:
        short = name.removeprefix(ROOT)
        part = PART.fullmatch(short)
        if part is None and "lora_" in short:
            raise EtymonError(f"{folder} holds {short}, which is no matrix of a plain adapter: {MERGE_THERE}")
        if part is None:
            adapters.heads[re.sub(r"\.modules_to_save(\.default)?\b", "", short)] = weights[name]
        elif part[2] == "A":
            module, partner = part[1], name.replace(".lora_A.", ".lora_B.")
            if partner not in weights:
                raise EtymonError(f"the adapter of {module} has an A and no B: copy its folder again")
            # PEFT matches a pattern with the end of a module's name.
            pattern = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)
            alpha = float(config.get("lora_alpha", 8) if pattern is None else patterns[pattern])
            a_rD = weights[name]
            if config.get("use_rslora"):  # their scale is alpha / sqrt(r)
                alpha *= math.sqrt(len(a_rD))
            adapters.matrices[module] = Adapter(a_rD, weights[partner], alpha)
    return adapters


def our_adapters(
    names: NameMap, parameters: Iterable[str], theirs: Mapping[str, Adapter], adapted: Collection[str] = ()
) -> dict[str, Adapter]:
    """Adapters by the names of our linear maps; `adapted` are the maps that had one, if we have written the
    folder."""
    groups = names.groups(parameters)
    adapters: dict[str, Adapter] = {}
    for module, adapter in theirs.items():
        places = (names.canonical(name, set(groups)) for name in (f"{module}.weight", module))
        place = next((name for name in places if name in groups), None)
        if place is None:
            raise EtymonError(
                f"there is an adapter of {module}, and the model has no such matrix: {MERGE_THERE}"
            )
        parts = [part.removesuffix(".weight") for part in groups[place][1]]
        adapters |= _split(adapter, parts, adapted)
    return adapters


def _split(adapter: Adapter, parts: Sequence[str], adapted: Collection[str]) -> dict[str, Adapter]:
    """The adapters of our matrices `parts`, out of one of the published matrix that joins them."""
    # The published matrix has our outputs below each other: query, key, value.
    b_rows = adapter.b_Fr.chunk(len(parts))
    ours = [number for number, part in enumerate(parts) if part in adapted]
    # A folder of ours: stacked A's and a diagonal of B's come apart exactly.
    if len(parts) > 1 and ours and not adapter.rank % len(ours):
        a_parts = adapter.a_rD.chunk(len(ours))
        blocks = {
            parts[number]: Adapter(
                a_parts[place], b_rows[number].chunk(len(ours), 1)[place], adapter.alpha / len(ours)
            )
            for place, number in enumerate(ours)
        }
        # If somebody has trained it since, there is more to it than our blocks.
        if torch.equal(_join([blocks.get(part) for part in parts]).b_Fr, adapter.b_Fr):
            return blocks
    return {part: replace(adapter, b_Fr=b_Fr) for part, b_Fr in zip(parts, b_rows, strict=True)}
