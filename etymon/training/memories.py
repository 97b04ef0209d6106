"""What the streams of a run remember, by the numbers of the streams, so that any number of processes can go on with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.objectives.objective import StreamBatch

LENGTHS = "lengths"


class Memories:
    """One state a slice, which always holds the same streams. Saved ones are loaded when their streams are asked for."""

    def __init__(self, saved: Mapping[str, Tensor] | None = None) -> None:
        self._states: dict[tuple[int, ...], Any] = {}
        self._saved: dict[str, dict[str, Tensor]] = {}
        for name, tensor in (saved or {}).items():
            streams, _, part = name.partition("/")
            self._saved.setdefault(streams, {})[part] = tensor

    def recall(self, prepared: StreamBatch, new: Callable[[int], Any], device: torch.device) -> Any:
        """The state of the slice's streams, fresh ones forgotten; `new(rows)` makes an empty one."""
        streams = prepared.streams
        if self._saved:
            self._load(prepared, new, device)
        if all(prepared.fresh) or not self._states:
            return new(len(streams))
        state = self._states.get(streams)
        if state is None:  # the last segments of a text that is read to its end: some of a slice's streams
            whole = next((known for known in self._states if set(streams) <= set(known)), None)
            if whole is None:
                return new(len(streams))
            rows = [whole.index(stream) for stream in streams]
            state = self._states[whole].select(torch.tensor(rows, device=device))
        if any(prepared.fresh):
            state.forget([row for row, fresh in enumerate(prepared.fresh) if fresh])
        return state

    def keep(self, prepared: StreamBatch, state: Any) -> None:
        self._states[prepared.streams] = state

    def copy(self) -> Memories:
        """The same, which goes on by itself: states take up new tensors and never write into old ones."""
        same = Memories()
        same._states = {streams: copy(state) for streams, state in self._states.items()}
        same._saved = dict(self._saved)
        return same

    def _load(self, prepared: StreamBatch, new: Callable[[int], Any], device: torch.device) -> None:
        name = _name(prepared.streams)
        if name in self._saved:
            parts = {part: tensor.to(device, copy=True) for part, tensor in self._saved.pop(name).items()}
            state = new(len(prepared.streams))
            state.load(parts, parts.pop(LENGTHS).tolist())
            self._states[prepared.streams] = state
        elif prepared.streams not in self._states:
            raise EtymonError(
                f"the checkpoint remembers the streams {', '.join(self._saved)}, and a slice has {name}: the number of "
                "streams is fixed by the run; leave --batch and --slices as they were"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save, by the first and last stream of every slice."""
        if not self._states:
            return {
                f"{streams}/{part}": tensor
                for streams, parts in self._saved.items()
                for part, tensor in parts.items()
            }
        named: dict[str, Tensor] = {}  # what was loaded and not asked for belongs to other processes
        for streams, state in self._states.items():
            parts = {**state.tensors(), LENGTHS: torch.tensor(state.lengths)}
            named |= {f"{_name(streams)}/{part}": tensor.detach() for part, tensor in parts.items()}
        return named


def _name(streams: tuple[int, ...]) -> str:
    return f"{streams[0]}-{streams[-1]}"
