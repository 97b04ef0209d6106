"""Looking inside: hidden states and attention weights, on request and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class StackTrace:
    """What one stack showed: `hidden` flat `[tokens, width]` (its input first), weights `[row, head, query,
    key]`."""

    hidden: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


class Trace(dict[str, StackTrace]):
    """By the name of the stack in the model; the attributes read a model's only (or first) stack."""

    @property
    def hidden(self) -> list[Tensor]:
        return next(iter(self.values())).hidden

    @property
    def attention(self) -> list[Tensor]:
        return next(iter(self.values())).attention


@contextmanager
def trace(model: nn.Module, attention: bool = True) -> Iterator[Trace]:
    """Records hidden states and attention weights of the calls made inside the `with` block.

    Attention then runs its eager formula, proven equal to the fast one; with `attention=False` only hidden
    states are kept, and it stays on the fast path. Nothing is detached: gradients flow through what is seen
    unless the caller turned them off.
    """
    recorded = Trace()
    watched: list[tuple[Any, list[Tensor] | None]] = []

    def watch(part: Any, records: list[Tensor]) -> None:
        watched.append((part, part.seen))
        part.seen = records

    for name, part in model.named_modules():
        # Whatever keeps what it computes has `seen`: stacks, which have layers, and attentions inside of
        # them.
        if not hasattr(part, "seen") or not hasattr(part, "layers"):
            continue
        stack = name.removeprefix("body.").removesuffix(".stack").removesuffix("stack") or "stack"
        record = recorded[stack] = StackTrace()
        watch(part, record.hidden)
        # Records of attention make it run the eager formula: only on request.
        for inner, attending in part.named_modules() if attention else ():
            if attending is not part and hasattr(attending, "seen"):
                is_cross = inner.rpartition(".")[2] in ("cross", "alignment")
                watch(attending, record.cross if is_cross else record.attention)
    try:
        yield recorded
    finally:
        for part, outer in reversed(watched):
            if outer is not None:  # a trace around this one gets the same records
                outer.extend(part.seen)
            part.seen = outer
