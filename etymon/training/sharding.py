"""Where a unit computes: on one device, or in parts of which every process holds one (FSDP2).

A block is gathered while it computes, forward and backward, and let go again. Everything else (embeddings,
heads, a position bias, layers that are used several times or share a parameter) is the root group, which is
gathered for a whole pass: code outside the blocks reads its weights like any others.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from etymon.errors import EtymonError
from etymon.nn.blocks import FeedForward, Stack
from etymon.training.distributed import World
from etymon.training.optimisers import parameters_by_name, section
from etymon.training.shards import block_entry, blocks_of, fully_gathered, local
from etymon.training.unit import TrainingUnit


def place(unit: TrainingUnit, world: World, *, recompute: bool = False, compile: bool = False) -> None:
    """Moves the unit to the process's device, or only this process's part of it."""
    if compile:
        compile_parts(unit)
    if recompute:
        recompute_blocks(unit)
    if world.is_sharded:
        shard(unit, world)
    else:
        unit.to(world.device)


def recompute_blocks(unit: nn.Module) -> None:
    """From now on a block keeps its inputs alone, and computes its insides again on the way back."""
    for block in blocks_of(unit):
        entry = block_entry(block)
        # Without the random state of the first time, dropout would draw anew.
        once_more = partial(checkpoint, getattr(block, entry), use_reentrant=False, preserve_rng_state=True)
        setattr(block, entry, once_more)


def require_compiler() -> None:
    """Refuses `--compile` where there is nothing to compile with."""
    if not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
        raise EtymonError("--compile needs a C++ compiler, and there is no g++ or clang++ here: leave it out")


def compile_parts(unit: nn.Module) -> None:
    """From now on feed-forward parts run as one compiled graph for rows of any number.

    Not whole blocks: attention groups ragged rows anew in every batch, and a graph would be compiled for each
    grouping (969 ms a step against 163 without, docs/lab-notes.md).
    """
    import torch._inductor.config

    # Dropout draws the numbers that it draws without.
    torch._inductor.config.fallback_random = True
    for part in unit.modules():
        if isinstance(part, FeedForward):
            part.compile(dynamic=True)


# ------------------------------------------------------------ sharding


def shard(unit: TrainingUnit, world: World) -> None:
    """Cuts the unit's parameters over the processes: the model then holds DTensors, moved to the device."""
    try:
        from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
    except ImportError as error:
        raise EtymonError("--shard needs FSDP2: install PyTorch 2.6 or newer") from error
    for block in own_blocks(unit):
        fully_shard(block, mesh=world.mesh, reshard_after_forward=True)
        if (entry := block_entry(block)) != "forward":
            register_fsdp_forward_method(block, entry)
    fully_shard(unit, mesh=world.mesh, reshard_after_forward=False)
    for module in unit.modules():
        module._buffers = {  # which FSDP leaves where they are
            name: None if buffer is None else buffer.to(world.device)
            for name, buffer in module._buffers.items()
        }
        if isinstance(module, FSDPModule):
            # The counts of a step are those of all processes, so gradients are added up, not averaged.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    # The first module that is called becomes the root of all below it: a block, where a model is asked to
    # generate before it has trained.
    root: Any = unit
    root._get_fsdp_state()._lazy_init()
    # What is gathered for the first time in `inference_mode` could never be trained.
    with fully_gathered(unit):
        pass


def own_blocks(unit: TrainingUnit) -> list[nn.Module]:
    """The blocks that can be gathered by themselves: used once a pass, with parameters of their own."""
    uses: Counter[nn.Module] = Counter()
    holders: Counter[Tensor] = Counter()
    for module in unit.modules():
        if isinstance(module, Stack):
            uses.update(module.layers[number] for number in module.schedule)
        holders.update(value for value in module._parameters.values() if value is not None)
    blocks = [
        block
        for block in blocks_of(unit)
        if uses[block] == 1 and all(holders[parameter] == 1 for parameter in block.parameters())
    ]
    if unit.teacher is not None and (stack := _last_stack(unit)) is not None:
        # A student's last layer is read by the objective, too (value relations).
        blocks = [block for block in blocks if block is not stack.layers[stack.schedule[-1]]]
    return blocks


def group_bytes(unit: TrainingUnit) -> tuple[float, float]:
    """Bytes of the root group, and of the largest block."""
    blocks = [_bytes(block) for block in own_blocks(unit)]
    return _bytes(unit) - sum(blocks), max(blocks, default=0.0)


def _bytes(module: nn.Module) -> float:
    return float(sum(value.numel() * value.element_size() for value in module.parameters()))


def _last_stack(unit: TrainingUnit) -> Stack | None:
    stacks = [part for part in unit.model.modules() if isinstance(part, Stack)]
    return stacks[-1] if stacks else None


@torch.no_grad()
def drop_unused_gradients(unit: TrainingUnit) -> None:
    """Takes the gradients of heads away that no process has used in a step.

    Processes must agree on what they add up, so FSDP fills in zeros: by them, an optimiser would decay the
    weights of a head that rests.
    """
    heads = [
        parameter
        for name, parameter in parameters_by_name(unit).items()
        if parameter.grad is not None and section(name) == "heads"
    ]
    if not heads:
        return
    uses = torch.stack([local(parameter.grad).any() for parameter in heads]).float()
    dist.all_reduce(uses)
    for parameter, is_used in zip(heads, uses.tolist(), strict=True):
        if not is_used:
            parameter.grad = None
