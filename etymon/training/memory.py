"""The memory that a step of training takes, measured by taking it with tensors that have shapes and no
values.

Model, slice and optimiser are the real ones, so nothing here knows a family, an objective or an optimiser;
PyTorch's fake tensors allocate nothing, and what is alive at any time is counted as it comes and goes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from etymon.nn.footprint import Footprint
from etymon.objectives.objective import MicroBatch, weighted_loss
from etymon.training.heap import Heap
from etymon.training.optimisers import OptimiserChoice, build_optimiser
from etymon.training.speed import count_operations, recurrence_operations
from etymon.training.unit import StreamMemories, TrainingUnit
from etymon.training.weight_average import WeightAverage

STEPS = 3
"""After which the allocator's gaps hardly grow (12 steps of ELECTRA: the third has the most)."""


def without_values() -> FakeTensorMode:
    """Inside, every new tensor has a shape and takes no memory: for building a unit that is only measured."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def copy_without_values(unit: TrainingUnit) -> TrainingUnit:
    """A copy of a unit whose tensors have shapes alone; what is no module, such as the objective, is
    shared."""
    teacher = [] if unit.teacher is None else [unit.teacher]
    with without_values() as mode:
        # What is in the memo, deepcopy takes over as it is.
        memo: dict[int, Any] = {id(unit.objective): unit.objective, id(unit.memories): StreamMemories()}
        for module in [unit.model, *teacher, *unit.companions.values()]:
            for name in ("tokenizer", "source_tokenizer", "family"):
                if (shared := getattr(module, name, None)) is not None:
                    memo[id(shared)] = shared
        for module in [unit, *teacher]:
            for parameter in module.parameters():
                blank = mode.from_tensor(parameter.detach())
                memo[id(parameter)] = torch.nn.Parameter(blank, requires_grad=parameter.requires_grad)
            memo |= {id(buffer): mode.from_tensor(buffer) for buffer in module.buffers()}
            # Tables that a part keeps for itself (sinusoids) are neither parameters nor buffers.
            tables = [value for part in module.modules() for value in vars(part).values()]
            memo |= {
                id(table): mode.from_tensor(table) for table in tables if isinstance(table, torch.Tensor)
            }
        return copy.deepcopy(unit, memo)


def step_footprint(
    unit: TrainingUnit,
    batch: MicroBatch | None,
    choice: OptimiserChoice,
    slices: int = 1,
    earlier: Sequence[MicroBatch] = (),
    later: Sequence[MicroBatch] = (),
) -> Footprint:
    """What steps of such slices take; without a `batch`, what does not depend on it. `earlier` are the slices
    that its streams have read and remember. The gaps that a processor's allocator leaves are those of some
    steps with the slices of `later`; without any, there are none.

    The unit is one that was built inside `without_values`: its parameters lose their gradients here, and
    those that the choice freezes are frozen.
    """
    parameters = [value for value in unit.parameters() if isinstance(value, FakeTensor)]
    assert parameters, "a unit with values would be trained, not measured"
    # What is read off `live` in between: weights, forward, backward, then the optimiser's first step, which
    # makes its state.
    with parameters[0].fake_mode, _LiveBytes() as live, _Recurrences(live):
        for module in [unit, *([] if unit.teacher is None else [unit.teacher])]:
            for tensor in [*module.parameters(), *module.buffers()]:
                live.add(tensor)
        weights = live.bytes
        optimiser = build_optimiser(unit, choice)
        activations = logits = operations = 0.0
        if batch is not None:
            unit.train()
            unit.memories = StreamMemories()
            with torch.no_grad():
                for other in earlier:
                    unit(other)
            live.peak, live.operations = live.bytes, 0.0
            loss = weighted_loss(unit(batch), batch.counts)
            activations, logits = live.bytes - weights, live.peak - live.bytes
            loss.backward()
            del loss
            operations = live.operations
            # The peak beyond the ends of forward and backward is where logits and their gradient are alive.
            logits = max(logits, live.peak - weights - max(activations, live.bytes - weights))
        # Without a batch there was no backward: gradients of the same size stand in.
        gradients = 0.0
        for value in unit.parameters():
            if value.requires_grad and value.grad is None:
                value.grad = torch.empty_like(value)
            if value.grad is not None:
                gradients += value.grad.numel() * value.grad.element_size()
        highest, live.peak = live.peak, live.bytes
        before = live.bytes
        average = WeightAverage(unit, choice.ema)
        optimiser.step()
        state, update = live.bytes - before, live.peak - live.bytes
        optimiser.zero_grad(set_to_none=True)
        for number, other in enumerate(later, 1):
            weighted_loss(unit(other), other.counts).backward()
            if number % slices == 0 or number == len(later):
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
        gaps = live.heap.peak - max(highest, live.peak) if later else 0.0
        unit.memories = StreamMemories()
        del average
    return Footprint(
        weights=weights,
        gradients=gradients,
        optimiser=state,
        activations=activations,
        logits=logits,
        update=update,
        slices=slices,
        gaps=max(0.0, gaps),
        operations=operations,
        tokens=0.0 if batch is None else float(batch.tokens),
    )


class _LiveBytes(TorchDispatchMode):
    """The bytes of all tensors that are alive, the most that were, and the operations that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = self.operations = 0.0
        self.heap = Heap()
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 1  # there are no values: a counter of steps, or how many rows a packed sequence has
        result = func(*args, **(kwargs or {}))
        self.operations += count_operations(func, args, kwargs or {}, result)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return result

    def add(self, tensor: Tensor) -> None:
        # Views share a storage, so bytes are those of storages; a weak reference tells when one is gone.
        storage = tensor.untyped_storage()
        number, size = storage._cdata, storage.nbytes()
        if number not in self._storages:
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            self.heap.allocate(number, size)
            self._storages[number] = weakref.ref(storage, lambda _: self._drop(number, size))

    def _drop(self, number: int, size: int) -> None:
        if self._storages.pop(number, None) is not None:
            self.bytes -= size
            self.heap.free(number)


class _Recurrences(TorchFunctionMode):
    """Recurrent layers as a processor's kernel runs them: with fake tensors PyTorch would run them step by
    step."""

    def __init__(self, live: _LiveBytes) -> None:
        super().__init__()
        self._live = live

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gates = {"lstm": 4, "gru": 3}.get(getattr(func, "__name__", ""))
        if gates is None or isinstance(func, type) or not any(isinstance(arg, (list, tuple)) for arg in args):
            return func(*args, **(kwargs or {}))
        x, packed = args[0], isinstance(args[1], Tensor) and isinstance(args[3], (list, tuple))
        begin, weights = (args[2], args[3]) if packed else (args[1], args[2])
        states = begin if isinstance(begin, (list, tuple)) else (begin,)
        # Forward, and backward twice as many.
        self._live.operations += 3 * recurrence_operations(x.shape, weights)
        out, *last = _FakeRecurrence.apply(gates, len(states[0]), x, *states, *weights)
        return (out, *last)


class _FakeRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: int, directions: int, x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        states, width = (parts[:2] if gates == 4 else parts[:1]), parts[0].shape[-1]
        tokens = x.shape[:-1]
        ctx.save_for_backward(x, *parts)
        out = x.new_empty(*tokens, directions * width)
        # The gates, cells and states of every token are kept in a workspace.
        ctx.workspace = x.new_empty(*tokens, directions, (gates + 2) * states[-1].shape[-1])
        ctx.kept = out
        return (out, *(torch.empty_like(state) for state in states))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        input_gradients = [
            torch.empty_like(part) if need else None
            for part, need in zip(ctx.saved_tensors, ctx.needs_input_grad[2:])
        ]
        ctx.workspace = ctx.kept = None
        return (None, None, *input_gradients)
