"""What our own optimisers share: a step is an update of every group's parameters that have gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Optimiser(torch.optim.Optimizer):
    """`defaults` hold for the groups that do not say otherwise; those that an optimiser has no use for do no harm."""

    def __init__(self, groups: Sequence[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there before the step"
        for group in self.param_groups:
            if held := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self.update(held, group)

    def moments(self, held: list[Any], *names: str) -> Iterator[list[Tensor]]:
        """The state of those names, each a tensor for every parameter, which begins at zero."""
        for name in names:
            for parameter in held:
                if name not in self.state[parameter]:
                    self.state[parameter][name] = torch.zeros_like(parameter)
            yield [self.state[parameter][name] for parameter in held]

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        """One step of `held`, the group's parameters that have gradients."""
        raise NotImplementedError


LONG_AGO = 1e7
"""A step count at which beta^step is 0 for every beta in use, so that a correction by 1 - beta^step is none."""


def fused_adam(
    optimiser: Optimiser, held: list[Any], group: dict[str, Any], *, corrected: bool = True
) -> None:
    """One AdamW step of a group: one pass over memory, four times as fast on a CPU as separate operations."""
    steps = [torch.full((), LONG_AGO, device=held[0].device)] * len(held)
    if corrected:
        for place, parameter in enumerate(held):
            kept = optimiser.state[parameter]
            kept["step"] = steps[place] = (
                kept["step"] + 1 if kept else torch.ones((), device=parameter.device)
            )
    means, squares = optimiser.moments(held, "exp_avg", "exp_avg_sq")
    torch._fused_adamw_(
        held,
        [parameter.grad for parameter in held],
        means,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class BertAdam(Optimiser):
    """Adam as BERT's released code has it: weight decay apart from the moments, and no bias correction.

    Without the correction the first step is (1 - beta1) / sqrt(1 - beta2) times as long, 3.2 times at the usual betas:
    one more reason for warm-up.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        fused_adam(self, held, group, corrected=False)


class Adagrad(Optimiser):
    """As bilm-tf has it: sums of squares begin at one, so that no first step is a jump. Decay is apart, as everywhere here.

    (PyTorch's own makes its state beforehand, which cannot be begun anew after a rehearsal.)
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        for parameter in held:
            gradient, kept = parameter.grad, self.state[parameter]
            if not kept:
                kept["sum"] = torch.ones_like(parameter)
            kept["sum"].addcmul_(gradient, gradient)
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.addcdiv_(gradient, kept["sum"].sqrt(), value=-group["lr"])


SMALLEST_FACTORED = 128
TINY_SQUARE, TINY_SCALE = 1e-30, 1e-3
DECAY_POWER, THRESHOLD = 0.8, 1.0


class Adafactor(Optimiser):
    """Second moments only, kept as row and column means where a matrix is large enough.

    Rates are relative: a step moves a parameter by the rate times its own root mean square (at least 0.001), and an
    update of a root mean square above 1 is scaled down to it.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        for parameter in held:
            self._move(parameter, parameter.grad, group["lr"], group["weight_decay"])

    def _move(self, parameter: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> None:
        state, axes = self.state[parameter], factored_axes(parameter.shape)
        squares = gradient.square().add_(TINY_SQUARE)
        # The means over the columns of every row and over the rows of every column; or else every square itself.
        seen = {"square": squares} if axes is None else {
            "row": squares.mean(axes[1], keepdim=True), "column": squares.mean(axes[0], keepdim=True),
        }  # fmt: skip
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state.update({quantity: torch.zeros_like(value) for quantity, value in seen.items()})
        state["step"] += 1
        # 1 - beta2: the first step starts from its own squares.
        new_share = float(state["step"]) ** -DECAY_POWER
        for quantity, value in seen.items():
            state[quantity].lerp_(value, new_share)
        if axes is None:
            update = state["square"].rsqrt().mul_(gradient)
        else:
            row, column = state["row"], state["column"]
            update = gradient * (row / row.mean(axes[0], keepdim=True)).rsqrt_()
            update.mul_(column.rsqrt())
        scale = root_mean_square(parameter).clamp_(min=TINY_SCALE)
        step = scale / (root_mean_square(update) / THRESHOLD).clamp_(min=1.0)
        if weight_decay:
            parameter.mul_(1.0 - rate * weight_decay * scale)
        parameter.addcmul_(update, step, value=-rate)


def factored_axes(shape: torch.Size) -> tuple[int, int] | None:
    """The two largest axes, if both are large enough for their means to stand for all squares."""
    if len(shape) < 2:
        return None
    first, second = sorted(sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:])
    return (first, second) if min(shape[first], shape[second]) >= SMALLEST_FACTORED else None


def root_mean_square(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor) / tensor.numel() ** 0.5


class Lamb(Optimiser):
    """Every tensor moves by the rate times its own norm, along Adam's update (without bias correction) plus decay.

    So one rate serves large batches, for which Adam's is too small in some layers and too large in others. Where
    weights or update are all zero, and in groups with `adapted` false (biases and norms), the update is taken as it is.
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in held]
        means, squares = self.moments(held, "exp_avg", "exp_avg_sq")
        torch._foreach_lerp_(means, gradients, 1 - group["betas"][0])
        torch._foreach_mul_(squares, group["betas"][1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["betas"][1])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        torch._foreach_add_(updates, held, alpha=group["weight_decay"])
        if group["adapted"]:
            own, moved = (torch.stack(torch._foreach_norm(each)) for each in (held, updates))
            ratios = torch.where((own > 0) & (moved > 0), own / moved, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(held, updates, alpha=-group["lr"])


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic whose slope at 0 is steep: singular values end up between about 0.7 and 1.2, not at 1 exactly."""
ITERATIONS = 5
STACKED = 1 << 24
"""Numbers of a stack of matrices that are iterated together."""
MOMENTUM = 0.95


class Muon(Optimiser):
    """Groups with `matrices` true take Muon's step, the others AdamW's.

    A matrix of r rows and c columns moves by rate * 0.2 * sqrt(max(r, c)) along the nearest orthogonal matrix to its
    momentum (Nesterov's, 0.95): about as far, by root mean square, as AdamW would move it, so that AdamW's rate and
    weight decay carry over (Liu et al. 2025).
    """

    def update(self, held: list[Any], group: dict[str, Any]) -> None:
        if not group["matrices"]:
            return fused_adam(self, held, group)
        by_shape: dict[torch.Size, list[Any]] = {}
        for parameter in held:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, alike in by_shape.items():
            together = max(1, STACKED // shape.numel())
            for first in range(0, len(alike), together):
                self._move(alike[first : first + together], group)

    def _move(self, parameters: list[Any], group: dict[str, Any]) -> None:
        """One step of matrices of the same shape, side by side: small ones cost their calls, not their arithmetic."""
        rate = group["lr"]
        gradients = [parameter.grad for parameter in parameters]
        (moments,) = self.moments(parameters, "momentum")
        torch._foreach_lerp_(moments, gradients, 1 - MOMENTUM)
        updates = orthogonal(torch.stack(torch._foreach_lerp(gradients, moments, MOMENTUM)))
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        alpha = -rate * 0.2 * max(parameters[0].shape) ** 0.5
        torch._foreach_add_(parameters, list(updates), alpha=alpha)


def orthogonal(matrices: Tensor) -> Tensor:
    """Roughly the nearest matrix with orthonormal rows or columns, by five Newton-Schulz iterations; of one or a stack."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.promote_types(matrices.dtype, torch.float32)
    stack = matrices if matrices.dim() == 3 else matrices[None]
    tall = stack.shape[1] > stack.shape[2]
    x = (stack.mT if tall else stack).to(dtype)  # the smaller side makes the smaller products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    if x.shape[2] >= 2 * x.shape[1] and dtype != torch.bfloat16:
        x = _turned(x)
    else:
        for _ in range(ITERATIONS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)


def _turned(x: Tensor) -> Tensor:
    """The same iterations of wide matrices by their small squares: x' = p x and x' x'T = p (x xT) p, where p is a polynomial of
    x xT. Nearly twice as fast for feed-forward parts; eight bits of mantissa would not do."""
    a, b, c = COEFFICIENTS
    square, turn = x @ x.mT, None
    for number in range(ITERATIONS):
        step = torch.baddbmm(square, square, square, beta=b, alpha=c)
        step.diagonal(dim1=1, dim2=2).add_(a)
        turn = step if turn is None else step @ turn
        if number < ITERATIONS - 1:
            square = step @ (square @ step)
    assert turn is not None
    return turn @ x
