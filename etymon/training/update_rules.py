"""Optimisers that PyTorch has not, or not as the papers' released code has them: how a step moves the
parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from etymon.training.shards import as_cut, cut, gather_whole, is_cut, local, mean, norms, parts


class Optimiser(torch.optim.Optimizer):
    """A step is an `update` of every group's parameters that have gradients.

    `defaults` hold for groups that do not say otherwise; those that an optimiser has no use for do no harm.
    Parameters may be cut over processes: then each moves its part, and asks for norms and means of the whole.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are there before the step"
        for group in self.param_groups:
            if parameters := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self.update(parameters, [parameter.grad for parameter in parameters], group)

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Moves the parameters of a group that have gradients."""
        raise NotImplementedError

    def moments(self, parameters: list[Any], name: str) -> list[Tensor]:
        """The state of that name, a tensor for every parameter, which begins at zero."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]

    def adamw(
        self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any], *, corrected: bool = True
    ) -> None:
        """An AdamW step: one pass over memory, four times as fast on a CPU as separate operations."""
        # At step 1e7, beta^step is 0 for every beta in use: a correction by 1 - beta^step is none.
        steps = [torch.full((), 1e7, device=parameters[0].device)] * len(parameters)
        if corrected:
            for place, parameter in enumerate(parameters):
                state = self.state[parameter]
                state["step"] = steps[place] = (
                    state["step"] + 1 if state else torch.ones((), device=parameter.device)
                )
        torch._fused_adamw_(
            parts(parameters),
            parts(gradients),
            parts(self.moments(parameters, "exp_avg")),
            parts(self.moments(parameters, "exp_avg_sq")),
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

    Without the correction the first step is (1 - beta1) / sqrt(1 - beta2) times as long, 3.2 times at the
    usual betas: one more reason for warm-up.
    """

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        self.adamw(parameters, gradients, group, corrected=False)


class Adagrad(Optimiser):
    """Adagrad (Duchi et al. 2011): every number's rate falls with the squares of its gradients so far.

    As bilm-tf has it: sums of squares begin at one, so that no first step is a jump. Decay is apart, as
    everywhere here. (PyTorch's makes its state beforehand, which cannot begin anew after steps that were only
    measured.)
    """

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        for parameter, gradient in zip(parameters, gradients):
            state = self.state[parameter]
            if not state:
                state["sum"] = torch.ones_like(parameter)
            weight, gradient, total = parts([parameter, gradient, state["sum"]])
            total.addcmul_(gradient, gradient)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.addcdiv_(gradient, total.sqrt(), value=-group["lr"])


class Adafactor(Optimiser):
    """Adafactor (Shazeer and Stern 2018) with the settings that T5 was trained with.

    Second moments only, kept as row and column means where a matrix is large enough. Rates are relative: a
    step moves a parameter by the rate times its own root mean square (at least 0.001), and an update of a
    root mean square above 1 is scaled down to it. (PyTorch's has other rules for the smallest values and
    scales; Transformers' factors every matrix, whatever its size.)
    """

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        rate, weight_decay = group["lr"], group["weight_decay"]
        for parameter, gradient in zip(parameters, gradients):
            state, axes = self.state[parameter], factored_axes(parameter.shape)
            weight, gradient = local(parameter), local(gradient)
            squares = gradient.square().add_(1e-30)  # epsilon_1 of the paper
            # The means over the columns of every row and the rows of every column; else every square itself.
            moments = {"square": squares}
            if axes is not None:
                rows, columns = mean(squares, axes[1], parameter), mean(squares, axes[0], parameter)
                moments = {"row": rows, "column": columns}
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                for quantity, value in moments.items():
                    mean_axis = None if axes is None else axes[1 if quantity == "row" else 0]
                    state[quantity] = _zeros_of_means(value, mean_axis, parameter)
            state["step"] += 1
            # 1 - beta2 of the paper's section 7.2: the first step starts from its own squares.
            new_share = float(state["step"]) ** -0.8
            for quantity, value in moments.items():
                local(state[quantity]).lerp_(value, new_share)
            if axes is None:
                update = local(state["square"]).rsqrt().mul_(gradient)
            else:
                # The squares as an outer product of row and column means (the paper's section 3).
                row, column = local(state["row"]), local(state["column"])
                update = gradient * (row / mean(row, axes[0], parameter)).rsqrt_()
                update.mul_(column.rsqrt())
            # Steps relative to the parameter (section 8, epsilon_2) and clipped updates (section 6).
            scale = root_mean_square(weight, parameter).clamp_(min=1e-3)
            step = scale / root_mean_square(update, parameter).clamp_(min=1.0)
            if weight_decay:
                weight.mul_(1.0 - rate * weight_decay * scale)
            weight.addcmul_(update, step, value=-rate)


def _zeros_of_means(part: Tensor, mean_axis: int | None, parameter: Any) -> Any:
    """Zeros for means over an axis: cut as the parameter is, unless they are over the axis that is cut."""
    zeros = torch.zeros_like(part)
    if not is_cut(parameter) or mean_axis == 0:
        return zeros
    shape = list(parameter.shape)
    if mean_axis is not None:
        shape[mean_axis] = 1
    return as_cut(zeros, parameter, shape)


def factored_axes(shape: torch.Size) -> tuple[int, int] | None:
    """The two largest axes, if both have 128 or more: fewer means would not stand for all squares."""
    if len(shape) < 2:
        return None
    first, second = sorted(sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:])
    return (first, second) if min(shape[first], shape[second]) >= 128 else None


def root_mean_square(part: Tensor, like: Any) -> Tensor:
    """Of a tensor that is cut as the parameter `like` is."""
    norm = norms([part], like)[0] if is_cut(like) else torch.linalg.vector_norm(part)
    return norm / like.numel() ** 0.5


class Lamb(Optimiser):
    """LAMB (You et al. 2019) as ALBERT's released code has it: Adam's direction, a length in proportion to
    the weights.

    Every tensor moves by the rate times its own norm, along Adam's update (without bias correction) plus
    decay. So one rate serves large batches, for which Adam's is too small in some layers and too large in
    others. Where weights or update are all zero, and in groups with `adapted` false (biases and norms), the
    update is taken as it is.
    """

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        like = parameters[0]
        means, squares = (parts(self.moments(parameters, name)) for name in ("exp_avg", "exp_avg_sq"))
        parameters, gradients = parts(parameters), parts(gradients)
        torch._foreach_lerp_(means, gradients, 1 - group["betas"][0])
        torch._foreach_mul_(squares, group["betas"][1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["betas"][1])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, roots)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapted"]:
            sizes, lengths = (norms(each, like) for each in (parameters, updates))
            ratios = torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0)
            torch._foreach_mul_(updates, list(ratios))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


MOMENTUM = 0.95
# Of Muon's quintic, steep at 0: singular values end up between about 0.7 and 1.2, not at 1 exactly.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# At most so many numbers are iterated as one stack: a step takes a few copies of it.
STACKED = 1 << 24


class Muon(Optimiser):
    """Muon (Jordan et al. 2024) for groups with `matrices` true, AdamW for the others, as one optimiser.

    A matrix of r rows and c columns moves by rate * 0.2 * sqrt(max(r, c)) along the nearest orthogonal matrix
    to its momentum (Nesterov's, 0.95): about as far, by root mean square, as AdamW would move it, so that
    AdamW's rate and weight decay carry over (Liu et al. 2025). (PyTorch's always iterates in bfloat16, which
    a CPU without instructions for it computes slowly or not at all, and leaves embeddings, norms and biases
    to a second optimiser.)
    """

    def update(self, parameters: list[Any], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if not group["matrices"]:
            return self.adamw(parameters, gradients, group)
        by_shape: dict[torch.Size, list[Any]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        # Matrices of a shape side by side: small ones cost their calls, not their arithmetic.
        for shape, alike in by_shape.items():
            together = max(1, STACKED // shape.numel())
            for first in range(0, len(alike), together):
                self._move(alike[first : first + together], group)

    def _move(self, matrices: list[Any], group: dict[str, Any]) -> None:
        rate, weight_decay = group["lr"], group["weight_decay"]
        gradients = parts([matrix.grad for matrix in matrices])
        moments = parts(self.moments(matrices, "momentum"))
        torch._foreach_lerp_(moments, gradients, 1 - MOMENTUM)
        directions = torch._foreach_lerp(gradients, moments, MOMENTUM)
        # No part of a matrix can be made orthogonal by itself: every process gathers it, and keeps its part.
        whole_directions = [gather_whole(each, like) for each, like in zip(directions, matrices)]
        # A small model's iterations are a good part of its step: where its passes are rounded, so are these.
        is_rounded = group.get("precision") == "bf16" or matrices[0].is_cuda
        updates = orthogonal(torch.stack(whole_directions), torch.bfloat16 if is_rounded else torch.float32)
        moved = [local(cut(update, like)) for update, like in zip(updates, matrices)]
        torch._foreach_mul_(parts(matrices), 1 - rate * weight_decay)
        alpha = -rate * 0.2 * max(matrices[0].shape) ** 0.5
        torch._foreach_add_(parts(matrices), moved, alpha=alpha)


def orthogonal(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Roughly the nearest matrix with orthonormal rows or columns, by five Newton-Schulz iterations, rounded
    to `dtype` but for matrices of higher precision than float32.

    Of one matrix `[r, c]`, or of a stack of them.
    """
    dtype = dtype if matrices.dtype != torch.float64 else torch.float64
    stack = matrices if matrices.dim() == 3 else matrices[None]
    # Legend: S matrices of r rows and c columns, r <= c from here on.
    is_tall = stack.shape[1] > stack.shape[2]
    x = (stack.mT if is_tall else stack).to(dtype)  # the smaller side makes the smaller products
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    if x.shape[2] >= 2 * x.shape[1] and dtype != torch.bfloat16:
        # The same iterations of wide matrices by their small squares: x' = p x and x' x'T = p (x xT) p, where
        # p is a polynomial of x xT. Nearly twice as fast for feed-forward parts; eight bits of mantissa would
        # not do.
        square, product = x @ x.mT, None
        for number in range(ITERATIONS):
            p = torch.baddbmm(square, square, square, beta=b, alpha=c)
            p.diagonal(dim1=1, dim2=2).add_(a)
            product = p if product is None else p @ product
            if number < ITERATIONS - 1:
                square = p @ (square @ p)
        x = product @ x
    else:
        for _ in range(ITERATIONS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype).reshape(matrices.shape)
