"""Looking inside: hidden states and attention weights, on request and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, Stack
from etymon.nn.recurrent import TwoWayStack
from etymon.nn.recurrent_alignment import Alignment
from etymon.nn.recurrent_attention import RecurrentDecoder, RecurrentEncoder

Seeing = Stack | TwoWayStack | RecurrentEncoder | RecurrentDecoder | Attention | Alignment


@dataclass
class StackTrace:
    """What one stack showed: `hidden` flat `[tokens, width]` (its input first), weights `[row, head, query, key]`."""

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

    Attention then runs its eager formula, proven equal to the fast one; with `attention=False` only hidden states are
    kept, and it stays on the fast path. Nothing is detached: gradients flow through what is seen unless the caller
    turned them off.
    """
    seen = Trace()
    kinds = Stack | TwoWayStack | RecurrentEncoder | RecurrentDecoder
    stacks = [(name, part) for name, part in model.named_modules() if isinstance(part, kinds)]
    watched: list[tuple[Seeing, list[Tensor] | None]] = []

    def watch(part: Seeing, found: list[Tensor]) -> None:
        watched.append((part, part.seen))
        part.seen = found

    for name, stack in stacks:
        record = seen[name.removeprefix("body.").removesuffix(".stack").removesuffix("stack") or "stack"] = (
            StackTrace()
        )
        watch(stack, record.hidden)
        for layer in stack.layers if attention else ():
            for part, weights in _attentions(layer, record):
                watch(part, weights)
        if attention and isinstance(stack, RecurrentDecoder) and stack.alignment is not None:
            watch(stack.alignment, record.cross)
    try:
        yield seen
    finally:
        for seeing, others in reversed(watched):
            if others is not None:  # somebody looks from further out, and sees it too
                others.extend(seeing.seen or ())
            seeing.seen = others


def _attentions(layer: nn.Module, record: StackTrace) -> Iterator[tuple[Attention, list[Tensor]]]:
    cross = layer.cross if isinstance(layer, Block) else None
    for part in layer.modules():
        if isinstance(part, Attention):
            yield part, record.cross if part is cross else record.attention
