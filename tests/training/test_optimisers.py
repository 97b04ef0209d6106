"""Schedules as functions, groups by name, and optimiser state that goes out and comes back by name."""

from __future__ import annotations

import math

import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.training.optimisers import adamw, optimiser_tensors, restore_optimiser
from etymon.training.schedules import rate
from tests import tiny


def test_warm_up_rises_to_the_peak() -> None:
    for schedule in ("constant", "linear", "cosine"):
        rising = [rate(schedule, step, 100, 10) for step in range(10)]
        assert rising == pytest.approx([(step + 1) / 10 for step in range(10)])
        assert rate(schedule, 10, 100, 10) == 1.0
    assert rate("linear", 0, 10, 0) == 1.0


def test_schedules_fall_to_the_final_rate() -> None:
    assert rate("linear", 55, 100, 10) == pytest.approx(0.5)
    assert rate("cosine", 55, 100, 10) == pytest.approx(0.5)
    assert rate("cosine", 40, 100, 10) == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))
    assert rate("linear", 100, 100, 10, final=0.1) == pytest.approx(0.1)
    assert rate("cosine", 5000, 100, 10, final=0.1) == pytest.approx(0.1)
    assert rate("constant", 99, 100, 10, final=0.1) == 1.0
    for schedule in ("linear", "cosine"):
        falling = [rate(schedule, step, 100, 10, 0.1) for step in range(10, 100)]
        assert falling == sorted(falling, reverse=True)
        assert falling[-1] > 0.1, "the last step still moves the weights"


def test_unknown_schedule() -> None:
    with pytest.raises(EtymonError, match="did you mean 'cosine'"):
        rate("cosin", 0, 10, 1)


def make(model: torch.nn.Module, family: str) -> torch.optim.AdamW:
    recipe = get_family(family).recipe
    return adamw(
        model,
        learning_rate=1e-2,
        betas=(0.9, 0.95),
        epsilon=1e-8,
        weight_decay=0.1,
        undecayed=recipe.undecayed,
    )


@pytest.mark.parametrize("family, objective", tiny.CASES)
def test_biases_and_norms_are_not_decayed_and_nothing_is_held_twice(family: str, objective: str) -> None:
    model = tiny.model(family, tiny.objective(family, objective))
    optimiser = make(model, family)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decay = {
        names[id(parameter)]: group["weight_decay"]
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    held = [id(parameter) for group in optimiser.param_groups for parameter in group["params"]]
    assert len(held) == len(set(held)) == len(names), "tied parameters are held once"
    for name, parameter in model.named_parameters():
        assert decay[name] == (0.0 if parameter.dim() == 1 else 0.1), name
    vocabulary = tiny.tokenizer(family).size
    tables = [
        name
        for name, parameter in model.named_parameters()
        if len(parameter) == vocabulary and parameter.dim() == 2
    ]
    assert len(tables) == 1


def test_only_trainable_parameters_are_held() -> None:
    model = tiny.model("gpt2", tiny.objective("gpt2", "causal"))
    for parameter in model.body.embeddings.parameters():
        parameter.requires_grad_(False)
    held = {id(p) for group in make(model, "gpt2").param_groups for p in group["params"]}
    assert not held & {id(parameter) for parameter in model.body.embeddings.parameters()}


def test_state_comes_back_by_name() -> None:
    def train(model: torch.nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimiser.step()

    objective = tiny.objective("bert", "masked")
    straight, stopped = tiny.model("bert", objective), tiny.model("bert", objective)
    first = make(straight, "bert")
    train(straight, first, range(6))
    second = make(stopped, "bert")
    train(stopped, second, range(3))
    tensors = {name: tensor.clone() for name, tensor in optimiser_tensors(second, stopped).items()}
    assert {name.split("/")[0] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
    third = make(stopped, "bert")
    restore_optimiser(third, stopped, dict(reversed(tensors.items())))
    train(stopped, third, range(3, 6))
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, dict(stopped.named_parameters())[name]), name
    assert all(
        tensor.device == next(stopped.parameters()).device
        for tensor in optimiser_tensors(third, stopped).values()
    )
