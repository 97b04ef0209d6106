"""Long short-term memory (Hochreiter & Schmidhuber 1997), with a projection of its output and with clipped
values.

PyTorch's own LSTM hides the cells, so that they cannot be clipped. Here is one loop over time for all
directions at once. It forms its gradients by itself: only what has to be sequential is inside, and the
gradients of all weights are a few large products behind the loop. Rows of any lengths take no padding:
tokens are sorted by time, longest rows first, so that the tokens of one moment lie side by side.

Legend: N tokens, R rows, G directions, L layers, D width of the input, C cells, F four times that (gates in
the order input, forget, candidate, output), P width of the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etymon.families.elmo.padded_lstm import run_padded
from etymon.nn.batch import Batch
from etymon.nn.layers import Dropout
from etymon.nn.padded_recurrent import make_packing
from etymon.nn.precision import ComputesInPrecision
from etymon.nn.recurrent import Packing

if TYPE_CHECKING:
    from etymon.families.elmo import Shape


class LoopWeights(nn.Linear):
    """A blank matrix that is never called: `LstmLoop` multiplies by itself. Not a `Linear`, since neither
    adapters nor eight-bit weights could take its place."""

    def reset_parameters(self) -> None:
        pass


class Lstm(nn.Module):
    """The parameters of one direction of one layer; `projection` is None where the cells' output is the
    layer's."""

    def __init__(self, dim: int, cells: int, projected: int | None = None) -> None:
        super().__init__()
        self.input = LoopWeights(dim, 4 * cells, bias=False)
        self.state = LoopWeights(projected or cells, 4 * cells)
        self.projection = None if projected is None else LoopWeights(cells, projected, bias=False)


def run(
    parts: Sequence[Lstm],
    x_GND: Sequence[Tensor],
    steps: Sequence[tuple[int, int]],
    hidden_GRP: Tensor,
    cell_GRC: Tensor,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs directions side by side over tokens in order of time; rows of the states are the longest first.

    Returns the outputs `[G, N, P]` and the last hidden and cell states of every row.
    """
    if cell_clip is None and projection_clip is None and len({stop - begin for begin, stop in steps}) == 1:
        return _run_fused(parts, x_GND, len(steps), hidden_GRP, cell_GRC)
    # The inputs' part of all gates in one product a direction, outside of the loop.
    given_GNF = torch.stack(
        [F.linear(x_ND, part.input.weight, part.state.bias) for part, x_ND in zip(parts, x_GND)]
    )
    weights = [part.state.weight for part in parts]
    weights += [part.projection.weight for part in parts if part.projection is not None]
    return LstmLoop.apply(given_GNF, hidden_GRP, cell_GRC, steps, cell_clip, projection_clip, *weights)


def _run_fused(
    parts: Sequence[Lstm], x_GND: Sequence[Tensor], steps: int, hidden_GRP: Tensor, cell_GRC: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's own LSTM. It can clip nothing, and for small models it is up to twice as fast
    (docs/lab-notes.md)."""
    directions = []
    for g, (part, x_ND) in enumerate(zip(parts, x_GND, strict=True)):
        weights = [part.input.weight, part.state.weight, part.state.bias, torch.zeros_like(part.state.bias)]
        if part.projection is not None:
            weights.append(part.projection.weight)
        x_TRD, before = x_ND.view(steps, -1, x_ND.shape[-1]), (hidden_GRP[g, None], cell_GRC[g, None])
        directions.append(torch.lstm(x_TRD, before, weights, True, 1, 0.0, part.training, False, False))
    y_GTRP, hidden_G1RP, cell_G1RC = (torch.stack(part) for part in zip(*directions, strict=True))
    return y_GTRP.flatten(1, 2), hidden_G1RP[:, 0], cell_G1RC[:, 0]


class LstmLoop(torch.autograd.Function):
    """The part of the directions that is sequential. `given_GNF` is what the inputs and the bias give the
    gates; `weights` are the recurrent matrices of the directions, then their projections, if any.

    The backward pass keeps the gates, the cells before clipping and the states before every token, so that
    the gradients of all weights are one product each after the loop.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given_GNF: Tensor,
        hidden_GRP: Tensor,
        cell_GRC: Tensor,
        steps: Sequence[tuple[int, int]],
        cell_clip: float | None,
        projection_clip: float | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        directions, tokens, _ = given_GNF.shape
        width, cells = hidden_GRP.shape[2], cell_GRC.shape[2]
        projections = weights[directions:]
        gates_GNF = torch.empty_like(given_GNF)
        cells_GNC = given_GNF.new_empty(directions, tokens, cells)
        raw_GNP = given_GNF.new_empty(directions, tokens, width)
        # States before every token, for the gradients of the recurrent weights.
        before_GNP, before_GNC = torch.empty_like(raw_GNP), torch.empty_like(cells_GNC)
        hidden_GRP, cell_GRC = hidden_GRP.clone(), cell_GRC.clone()
        for begin, stop in steps:
            now, active = slice(begin, stop), stop - begin
            before_GNP[:, now], before_GNC[:, now] = hidden_GRP[:, :active], cell_GRC[:, :active]
            # One product a direction: a batched one of two large matrices took three times as long on a
            # processor.
            for g in range(directions):
                torch.addmm(given_GNF[g, now], before_GNP[g, now], weights[g].T, out=gates_GNF[g, now])
            gates = gates_GNF[:, now]
            # In place: the activated gates are what the backward pass needs.
            gates[..., : 2 * cells].sigmoid_()
            gates[..., 2 * cells : 3 * cells].tanh_()
            gates[..., 3 * cells :].sigmoid_()
            i, f, m, o = gates.chunk(4, -1)
            cell = torch.addcmul(f * before_GNC[:, now], i, m)
            # Before clipping: the gradient needs to know what was cut off.
            cells_GNC[:, now] = cell
            cell = _clip(cell, cell_clip)
            y_GRC = o * cell.tanh()
            if projections:
                for g in range(directions):
                    torch.mm(y_GRC[g], projections[g].T, out=raw_GNP[g, now])
            else:
                raw_GNP[:, now] = y_GRC
            # Rows that have ended keep their last state.
            hidden_GRP[:, :active] = _clip(raw_GNP[:, now], projection_clip)
            cell_GRC[:, :active] = cell
        ctx.save_for_backward(gates_GNF, cells_GNC, raw_GNP, before_GNP, before_GNC, *weights)
        ctx.steps, ctx.clips, ctx.rows = steps, (cell_clip, projection_clip), hidden_GRP.shape[1]
        return _clip(raw_GNP, projection_clip).clone(), hidden_GRP, cell_GRC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_GNP: Tensor, last_GRP: Tensor, last_GRC: Tensor) -> tuple[Any, ...]:
        gates_GNF, cells_GNC, raw_GNP, before_GNP, before_GNC, *weights = ctx.saved_tensors
        cell_clip, projection_clip = ctx.clips
        directions = len(cells_GNC)
        projections = weights[directions:]
        errors_GNF, errors_GNP = torch.empty_like(gates_GNF), torch.empty_like(raw_GNP)
        y_GNC = torch.empty_like(cells_GNC) if projections else None
        hidden_GRP, cell_GRC = last_GRP.clone(), last_GRC.clone()
        for begin, stop in reversed(ctx.steps):
            now, active = slice(begin, stop), stop - begin
            i, f, m, o = gates_GNF[:, now].chunk(4, -1)
            raw_cell = cells_GNC[:, now]
            tanh_cell = _clip(raw_cell, cell_clip).tanh()
            error_P = _clip_gradient(
                output_GNP[:, now] + hidden_GRP[:, :active], raw_GNP[:, now], projection_clip
            )
            errors_GNP[:, now] = error_P
            if y_GNC is not None:
                y_GNC[:, now] = o * tanh_cell
                # Through the projection, back to the cells' output.
                error = torch.empty_like(tanh_cell)
                for g in range(directions):
                    torch.mm(error_P[g], projections[g], out=error[g])
            else:
                error = error_P
            cell = torch.addcmul(cell_GRC[:, :active], error * o, 1 - tanh_cell * tanh_cell)
            cell = _clip_gradient(cell, raw_cell, cell_clip)
            by_i, by_f, by_m, by_o = errors_GNF[:, now].chunk(4, -1)
            torch.mul(cell * m, i * (1 - i), out=by_i)
            torch.mul(cell * before_GNC[:, now], f * (1 - f), out=by_f)
            torch.mul(cell * i, 1 - m * m, out=by_m)
            torch.mul(error * tanh_cell, o * (1 - o), out=by_o)
            cell_GRC[:, :active] = cell * f
            for g in range(directions):
                hidden_GRP[g, :active] = torch.mm(errors_GNF[g, now], weights[g])
        # All steps in one product a direction: the reason why the loop forms its gradients itself.
        by_state = [errors_GNF[g].T @ before_GNP[g] for g in range(directions)]
        by_projection = [] if y_GNC is None else [errors_GNP[g].T @ y_GNC[g] for g in range(directions)]
        return errors_GNF, hidden_GRP, cell_GRC, None, None, None, *by_state, *by_projection


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)


def _clip_gradient(gradient: Tensor, x: Tensor, limit: float | None) -> Tensor:
    """The gradient of `_clip` by x: none where it was cut off."""
    return gradient if limit is None else gradient * (x.abs() <= limit)


class LstmState:
    """Hidden and cell states of every layer's directions, `[L, G, R, ...]`, which streams of text carry.
    Detached."""

    def __init__(self, hidden_LGRP: Tensor, cell_LGRC: Tensor, lengths: Sequence[int]) -> None:
        self.hidden_LGRP, self.cell_LGRC = hidden_LGRP, cell_LGRC
        self.lengths: tuple[int, ...] = tuple(lengths)
        """Tokens that every row has read."""

    def select(self, rows: Tensor) -> LstmState:
        lengths = [self.lengths[row] for row in rows.tolist()]
        return LstmState(self.hidden_LGRP[:, :, rows], self.cell_LGRC[:, :, rows], lengths)

    def forget(self, rows: Sequence[int]) -> None:
        keep = [row not in rows for row in range(len(self.lengths))]
        keep_R1 = torch.tensor(keep, device=self.hidden_LGRP.device)[:, None]
        # Not a product with 0: states that diverged to infinity or NaN have to go as well.
        self.hidden_LGRP = torch.where(keep_R1, self.hidden_LGRP, 0.0)
        self.cell_LGRC = torch.where(keep_R1, self.cell_LGRC, 0.0)
        self.lengths = tuple(length if kept else 0 for length, kept in zip(self.lengths, keep, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        return {"hidden": self.hidden_LGRP, "cell": self.cell_LGRC}

    def load(self, tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> None:
        self.hidden_LGRP, self.cell_LGRC = (tensors[name].to(self.hidden_LGRP) for name in ("hidden", "cell"))
        self.lengths = tuple(lengths)


class TwoWayStack(ComputesInPrecision, nn.Module):
    """Two stacks of LSTMs, one from the beginning of every row and one from its end, which never look at
    each other.

    Inputs and outputs are `[N, 2P]`: the first half is the way ahead, the second the way back. With
    `skip_connections`, a layer's input is added to its output, but not around the first. Dropout is on
    every layer's input and on the last output.
    """

    keeps_float32 = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(
            nn.ModuleDict({way: Lstm(shape.dim, shape.cells, shape.dim) for way in ("ahead", "back")})
            for _ in range(shape.layers)
        )
        self.dropout = Dropout(shape.dropout)
        self.seen: list[Tensor] | None = None
        """Set by `etymon.trace`: the input and every layer's output are then kept."""

    def start(self, rows: int) -> LstmState:
        like = next(self.parameters()).detach()
        widths = self.shape.dim, self.shape.cells
        hidden_LGRP, cell_LGRC = (like.new_zeros(len(self.layers), 2, rows, width) for width in widths)
        # A program's number of rows is a symbol, which no list can have.
        return LstmState(hidden_LGRP, cell_LGRC, [0] * rows if isinstance(rows, int) else ())

    def forward(
        self, x_ND: Tensor, batch: Batch, memory: Any = None, state: LstmState | None = None
    ) -> Tensor:
        # The same for all layers, and for every pass over the batch.
        if "packings" not in batch.views:
            batch.views["packings"] = (
                make_packing(batch.layout),
                make_packing(batch.layout, backwards=True),
            )
        packings: tuple[Packing, Packing] = batch.views["packings"]
        ahead = packings[0]  # rows and steps are the same in both
        old = state or self.start(batch.layout.rows)
        hidden, cell = [], []
        if self.seen is not None:
            self.seen.append(x_ND)
        ways = [packing.pack(x_NP) for x_NP, packing in zip(x_ND.chunk(2, -1), packings, strict=True)]
        for number, layer in enumerate(self.layers):
            ways = [self.dropout(x_NP) for x_NP in ways]
            run_all: Any = run_padded if batch.layout.is_padded else run
            y_GNP, hidden_GRP, cell_GRC = run_all(
                list(layer.values()),  # type: ignore[operator]
                ways,
                packings if batch.layout.is_padded else ahead.steps,
                old.hidden_LGRP[number][:, ahead.rows],
                old.cell_LGRC[number][:, ahead.rows],
                self.shape.cell_clip,
                self.shape.projection_clip,
            )
            skips = number > 0 and self.shape.skip_connections
            ways = [y_NP + x_NP if skips else y_NP for x_NP, y_NP in zip(ways, y_GNP)]
            hidden.append(hidden_GRP[:, ahead.back].detach())
            cell.append(cell_GRC[:, ahead.back].detach())
            if self.seen is not None or number == len(self.layers) - 1:
                x_ND = torch.cat([packing.flat(y_NP) for y_NP, packing in zip(ways, packings)], -1)
            if self.seen is not None:
                self.seen.append(x_ND)
        if state is not None:
            lengths = [before + new for before, new in zip(state.lengths, batch.layout.lengths, strict=True)]
            state.load({"hidden": torch.stack(hidden), "cell": torch.stack(cell)}, lengths)
        return self.dropout(self.enter(x_ND))
