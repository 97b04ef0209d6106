"""Tensors at addresses that the fastest kernels like.

A kernel may add up in another order where a row does not begin at a multiple of its vectors' width, so two equal models
compute the same to the last bit only if their weights lie alike. What PyTorch allocates is aligned; what is mapped from a
file lies wherever the file's header ends.
"""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

ALIGNMENT = 64
"""Bytes: PyTorch's own, and the width of the widest vectors."""


def align(module: nn.Module) -> None:
    """Moves those parameters and buffers of a module that are not aligned."""
    for tensor in chain(module.parameters(), module.buffers()):
        if not is_aligned(tensor):
            tensor.data = tensor.data.clone()


def is_aligned(tensor: Tensor) -> bool:
    """Other devices than processors see to that themselves, and a tensor without values lies nowhere."""
    if tensor.device.type != "cpu" or isinstance(tensor.data, FakeTensor):
        return True
    return tensor.data_ptr() % ALIGNMENT == 0
