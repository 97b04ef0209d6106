"""Tensors of which every process holds a part (DTensors, cut along their first axis), beside ordinary ones.

Elementwise rules work on parts alone; these functions are for what needs a whole: norms, means, matrices. Of
ordinary tensors they give what PyTorch gives, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from etymon.nn.blocks import Stack


def is_cut(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh")


def local(tensor: Any) -> Tensor:
    """This process's part, in the same memory; an ordinary tensor as it is."""
    # `to_local` would be an operation of its own that autograd records.
    return tensor._local_tensor if is_cut(tensor) else tensor


def parts(tensors: Sequence[Any]) -> list[Tensor]:
    return [local(tensor) for tensor in tensors]


def add_over_parts(values: Tensor, like: Any) -> Tensor:
    """Sums over the processes that hold the parts of `like`, in place."""
    if is_cut(like):
        # In a hybrid mesh, the other axis has copies of the same parts, which do not count.
        axis = next(number for number, placement in enumerate(like.placements) if placement.is_shard())
        dist.all_reduce(values, group=like.device_mesh.get_group(axis))
    return values


def norms(tensors: Sequence[Any], like: Any = None) -> Tensor:
    """The norm of each tensor `[n]`; `like` says how they are cut if they are given as parts."""
    like = tensors[0] if like is None else like
    norms_n = torch.stack(torch._foreach_norm(parts(tensors)))
    if not is_cut(like):
        return norms_n
    return add_over_parts(norms_n.double().square(), like).sqrt().to(norms_n.dtype)


def mean(part: Tensor, axis: int, like: Any) -> Tensor:
    """The mean over an axis, which is kept with one entry, of a tensor that is cut as `like` is."""
    if not is_cut(like) or axis != 0:
        return part.mean(axis, keepdim=True)
    return add_over_parts(part.sum(axis, keepdim=True), like).div_(like.shape[axis])


def gather_whole(part: Any, like: Any = None) -> Tensor:
    """The whole tensor of which this is a part (all processes ask at once), cut as `like` or as itself."""
    like = part if like is None else like
    if not is_cut(like):
        return part
    return as_cut(local(part), like, like.shape).full_tensor()


def as_cut(part: Tensor, like: Any, shape: Sequence[int]) -> Any:
    """A part of a tensor of this shape as a DTensor that is cut as `like` is."""
    from torch.distributed.tensor import DTensor

    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def cut(tensor: Tensor, like: Any) -> Any:
    """A whole tensor, cut as the parameter `like` is if it has an entry for each of its rows;
    else as it is."""
    if not is_cut(like) or tensor.dim() != like.dim() or not tensor.dim() or len(tensor) != len(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole: none is sent.
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def copy_values(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copies whole tensors into the parameters and buffers of those names, or this process's part of them."""
    for name, target in module.state_dict().items():
        local(target).copy_(local(cut(values[name].to(target.device), target)))


# ------------------------------------------------------------ modules whose parameters are cut


def blocks_of(unit: nn.Module) -> list[nn.Module]:
    """The layers of all stacks, each once."""
    stacks = (part for part in unit.modules() if isinstance(part, Stack))
    return list(dict.fromkeys(itertools.chain.from_iterable(stack.layers for stack in stacks)))


def block_entry(block: nn.Module) -> str:
    """The method that a stack calls: `forward`, but for blocks that say otherwise."""
    return str(getattr(block, "entry", "forward"))


@contextmanager
def root_gathered(unit: nn.Module, *, decoding: bool = False) -> Iterator[None]:
    """Inside, all processes may call the model in step, by any of its methods; `decoding`, generate with it.

    Without effect where nothing is sharded.
    """
    stacks = [part for part in unit.modules() if isinstance(part, Stack) and part.decodes_by_parts]
    with _unsharded([unit, *(layer for stack in stacks if decoding for layer in stack.layers)]):
        yield


@contextmanager
def fully_gathered(unit: nn.Module) -> Iterator[None]:
    """Inside, every process has all parameters, as if unsharded: it may do with them whatever it likes."""
    with _unsharded([unit, *blocks_of(unit)]):
        yield


@contextmanager
def _unsharded(modules: list[nn.Module]) -> Iterator[None]:
    # Those that are gathered already stay so, for whoever has gathered them.
    sharded: list[Any] = [
        module
        for module in modules
        if hasattr(module, "unshard") and not getattr(module, "is_kept_gathered", False)
    ]
    for module in sharded:
        module.is_kept_gathered = True
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        root: Any = modules[0]
        for module in sharded:
            module.is_kept_gathered = False
            module.reshard()
            # The root, the only one that is no block, is gathered for a whole pass.
            module.set_reshard_after_forward(module is not root, recurse=False)
        if root in sharded:
            # Forward passes that had no backward: FSDP would prefetch by their order, which the processes do
            # not share.
            root.reset_iter_state()
