"""Every optimiser against its formula and its reference, and state that goes out and comes back by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.nn.features import FeatureSettings
from etymon.training.optimisers import (
    OPTIMISERS,
    OptimiserChoice,
    build_optimiser,
    optimiser_tensors,
    parameter_groups,
    restore_optimiser,
    set_rate,
)
from etymon.training.update_rules import COEFFICIENTS, factored_axes, orthogonal
from tests import tiny

Update = Callable[[Tensor, Tensor, dict[str, Any], int, float], Tensor]
RATES = [0.01, 0.02, 0.005, 0.01, 0.03]


class Small(nn.Module):
    """Named as a model is: a matrix that is factored, two that are not, and vectors."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)

        def linear(rows: int, columns: int) -> nn.Linear:
            made = nn.Linear(columns, rows, dtype=dtype)
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            return made

        self.embeddings = linear(6, 4)
        self.layers = nn.ModuleList([linear(130, 129), linear(7, 5)])
        nn.init.zeros_(self.layers[1].bias)  # type: ignore[arg-type]  # as biases begin: relative rates need a least one


def gradient(name: str, parameter: Tensor, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + len(name))
    return torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 10 ** (step % 3 - 1)


def train(module: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for name, parameter in module.named_parameters():
            parameter.grad = gradient(name, parameter, step)
        set_rate(optimiser, RATES[step % len(RATES)])
        optimiser.step()


def plain(
    module: nn.Module, update: Callable[[str], Update], decays: Callable[[str], float], steps: int
) -> dict[str, Tensor]:
    """The same steps, one parameter at a time, by a formula `(p, g, state, t, rate) -> p` without its decay."""
    result = {}
    for name, parameter in module.named_parameters():
        value, state = parameter.detach().clone(), dict[str, Any]()
        for step in range(steps):
            rate = RATES[step % len(RATES)]
            moved = update(name)(value, gradient(name, value, step), state, step + 1, rate)
            value = moved - rate * decays(name) * value
        result[name] = value
    return result


def adam(corrected: bool, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-6) -> Update:
    def update(p: Tensor, g: Tensor, state: dict[str, Any], t: int, rate: float) -> Tensor:
        m = state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
        v = state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g**2
        if corrected:
            m, v = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        return p - rate * m / (v**0.5 + epsilon)

    return update


def adafactor(p: Tensor, g: Tensor, state: dict[str, Any], t: int, rate: float) -> Tensor:
    beta, squares = 1 - t**-0.8, g**2 + 1e-30
    if p.dim() == 2 and min(p.shape) >= 128:
        row = state["r"] = beta * state.get("r", 0.0) + (1 - beta) * squares.mean(1)
        column = state["c"] = beta * state.get("c", 0.0) + (1 - beta) * squares.mean(0)
        v = torch.outer(row, column) / row.mean()
    else:
        v = state["v"] = beta * state.get("v", 0.0) + (1 - beta) * squares
    u = g / v**0.5
    u = u / max(1.0, float((u**2).mean() ** 0.5))
    return p - rate * max(float((p**2).mean() ** 0.5), 1e-3) * u


def lamb(name: str) -> Update:
    """Biases are neither decayed nor adapted."""

    def update(p: Tensor, g: Tensor, state: dict[str, Any], t: int, rate: float) -> Tensor:
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g**2
        u = m / (v**0.5 + 1e-6)
        if name.endswith("bias"):
            return p - rate * u
        u = u + 0.1 * p
        return p - rate * (p**2).sum() ** 0.5 / (u**2).sum() ** 0.5 * u

    return update


def muon(p: Tensor, g: Tensor, state: dict[str, Any], t: int, rate: float) -> Tensor:
    m = state["m"] = 0.95 * state.get("m", 0.0) + 0.05 * g
    return p - rate * 0.2 * max(p.shape) ** 0.5 * orthogonal(0.05 * g + 0.95 * m)


def adagrad(p: Tensor, g: Tensor, state: dict[str, Any], t: int, rate: float) -> Tensor:
    squares = state["s"] = state.get("s", 1.0) + g**2
    return p - rate * g / squares**0.5


def decay(name: str) -> float:
    return 0.0 if name.endswith("bias") else 0.1


@pytest.mark.parametrize(
    "choice, update, decays",
    [
        (OptimiserChoice("adamw", weight_decay=0.1, epsilon=1e-6), lambda name: adam(True), decay),
        (OptimiserChoice("adam-bert", weight_decay=0.1, epsilon=1e-6), lambda name: adam(False), decay),
        (OptimiserChoice("adafactor", weight_decay=0.0), lambda name: adafactor, lambda name: 0.0),
        (OptimiserChoice("lamb", weight_decay=0.1, epsilon=1e-6), lamb, lambda name: 0.0),
        (
            OptimiserChoice("muon", weight_decay=0.1, epsilon=1e-6, matrix_share=1.0),
            lambda name: muon if name.startswith("layers") and "weight" in name else adam(True),
            decay,
        ),
        (OptimiserChoice("adagrad", weight_decay=0.1), lambda name: adagrad, decay),
    ],
    ids=OPTIMISERS,
)
def test_steps_follow_the_formula(choice: OptimiserChoice, update: Any, decays: Any) -> None:
    module = Small()
    expected = plain(module, update, decays, len(RATES))
    train(module, build_optimiser(module, choice), range(len(RATES)))
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.data, expected[name], rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adafactor_is_transformers_where_they_agree(weight_decay: float) -> None:
    transformers = pytest.importorskip("transformers")
    # Transformers factors every matrix; where all are large there is no difference.
    ours = nn.ModuleDict({"layers": nn.Linear(129, 140, dtype=torch.float64)})
    theirs = nn.ModuleDict({"layers": nn.Linear(129, 140, dtype=torch.float64)})
    theirs.load_state_dict(ours.state_dict())
    optimiser = build_optimiser(ours, OptimiserChoice("adafactor", weight_decay=weight_decay, undecayed=()))
    reference = transformers.Adafactor(
        theirs.parameters(), lr=0.01, scale_parameter=True, relative_step=False, weight_decay=weight_decay
    )
    for step in range(6):
        for module in (ours, theirs):
            for name, parameter in module.named_parameters():
                parameter.grad = gradient(name, parameter, step)
        set_rate(optimiser, 0.01)
        optimiser.step()
        reference.step()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=1e-6, atol=1e-9)


def test_only_two_large_axes_are_factored() -> None:
    assert factored_axes(torch.Size([128, 128])) == (0, 1)
    assert factored_axes(torch.Size([4096, 127])) is None
    assert factored_axes(torch.Size([4096])) is None
    assert factored_axes(torch.Size([256, 4, 512])) == (0, 2)
    module = Small(torch.float32)
    optimiser = build_optimiser(module, OptimiserChoice("adafactor"))
    train(module, optimiser, range(1))
    shapes = {name: tuple(value.shape) for name, value in optimiser_tensors(optimiser, module).items()}
    assert shapes["row/layers.0.weight"] == (130, 1) and shapes["column/layers.0.weight"] == (1, 129)
    assert shapes["square/layers.1.weight"] == (7, 5)


def test_adafactor_leaves_unseen_rows_alone() -> None:
    words = nn.Embedding(200, 128)
    before = words.weight.detach().clone()
    optimiser = build_optimiser(words, OptimiserChoice("adafactor", weight_decay=0.0))
    words(torch.tensor([3, 5])).square().sum().backward()
    optimiser.step()
    changed = (words.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [3, 5] and bool(torch.isfinite(words.weight).all())


def test_lamb_takes_steps_as_they_are_where_there_is_nothing_to_compare() -> None:
    parts = {"zero": torch.zeros(4, 3), "still": torch.full((4, 3), 2.0), "bias": torch.ones(3)}
    module = nn.ParameterDict(parts | {"large": torch.full((4, 3), 2.0)})
    choice = OptimiserChoice("lamb", weight_decay=0.0, betas=(0.9, 0.99))
    optimiser = build_optimiser(module, choice)
    for name, parameter in module.items():
        parameter.grad = torch.full_like(parameter, 0.0 if name == "still" else 5.0)
    set_rate(optimiser, 0.01)
    optimiser.step()
    # Without bias correction the first update is (1 - beta1) / sqrt(1 - beta2) = 1 in every number.
    reached = {"zero": -0.01, "still": 2.0, "bias": 0.99, "large": 2.0 * 0.99}
    for name, parameter in module.items():
        torch.testing.assert_close(parameter.data, torch.full_like(parameter, reached[name]), msg=name)


def test_muon_is_pytorch_s_with_iterations_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = pytest.importorskip("torch.optim._muon")
    monkeypatch.setattr(reference, "_zeropower_via_newtonschulz", lambda matrix, *_: orthogonal(matrix))
    ours, theirs = Small(), Small()
    optimiser = build_optimiser(ours, OptimiserChoice("muon", weight_decay=0.1, matrix_share=1.0))
    matrices = [layer.weight for layer in theirs.layers]  # type: ignore[misc]
    other = reference.Muon(matrices, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        train(ours, optimiser, range(step, step + 1))
        for name, parameter in theirs.named_parameters():
            parameter.grad = gradient(name, parameter, step)
        other.param_groups[0]["lr"] = RATES[step]
        other.step()
    for mine, yours in zip(ours.layers, matrices, strict=True):
        torch.testing.assert_close(mine.weight, yours, rtol=1e-12, atol=1e-14)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 24), (12, 40), (40, 12)])
def test_newton_schulz_evens_singular_values_out(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix, dtype)
    assert made.dtype == torch.float32
    reached = torch.linalg.svdvals(made)
    assert float(reached[values > 0.05 * values[0]].min()) > 0.6 and float(reached.max()) < 1.3
    alignment = (left * (made @ right.T)).sum(0)  # the singular vectors stay
    assert bool((alignment[values > 0.05 * values[0]] > 0.6).all())
    assert bool((orthogonal(torch.zeros(shape)) == 0).all())


@pytest.mark.parametrize("spread", [0.0, 6.0])
def test_wide_matrices_turn_as_the_iteration_says(spread: float) -> None:
    """By their squares, and with rows of very different lengths, too."""
    scales = torch.logspace(0, -spread, 16, dtype=torch.float64)[:, None]
    wide = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scales
    a, b, c = COEFFICIENTS
    expected = wide / wide.norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        square = expected @ expected.mT
        expected = a * expected + (b * square + c * square @ square) @ expected
    torch.testing.assert_close(orthogonal(wide), expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(orthogonal(wide.mT.float()), expected.mT.float(), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_muon_iterates_in_the_precision_of_the_run(precision: Any, dtype: torch.dtype) -> None:
    module = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(16, 24, bias=False)])})
    (weight,) = module.parameters()
    before = weight.detach().clone()
    weight.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    choice = OptimiserChoice("muon", learning_rate=0.1, weight_decay=0.0)
    build_optimiser(module, choice, precision).step()
    moved = (before - weight.detach()) / (0.1 * 0.2 * 24**0.5)
    torch.testing.assert_close(
        moved, orthogonal(weight.grad * (0.05 * 0.95 + 0.05), dtype), atol=1e-5, rtol=0
    )
    assert weight.dtype == torch.float32


def test_muon_takes_the_matrices_inside_layers_only() -> None:
    for family in REGISTRY:
        objective = tiny.objective(family, get_family(family).objective)
        model = tiny.model(family, objective)
        optimiser = build_optimiser(model, OptimiserChoice("muon", matrix_share=2.5))
        for group in optimiser.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                inside = ".layers." in name and parameter.dim() == 2 and not name.endswith("bias")
                assert group["matrices"] == inside and group["rate_share"] == (2.5 if inside else 1.0), name


@pytest.mark.parametrize("family", REGISTRY)
def test_fine_tuning_decays_neither_recurrent_biases_nor_mixes(family: str) -> None:
    known = get_family(family).with_features(FeatureSettings(words=8, gate=True))
    model = Model(known, shape_of(known, None, **tiny.shape(family)), {"tagging"}, ["a", "b"])
    groups = parameter_groups(model, OptimiserChoice(weight_decay=0.1, undecayed=known.tuning.undecayed))
    decayed = {name for group in groups if group["weight_decay"] for name in group["names"]}
    wide = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert decayed == {name for name in wide if not name.endswith("bias")}


@pytest.mark.parametrize("family, objective", tiny.CASES)
def test_biases_and_norms_are_not_decayed_and_nothing_is_held_twice(family: str, objective: str) -> None:
    model = tiny.model(family, tiny.objective(family, objective))
    undecayed = tuple(get_family(family).recipe.undecayed)
    vocabulary = tiny.tokenizer(family).size
    for name in OPTIMISERS:
        optimiser = build_optimiser(model, OptimiserChoice(name, weight_decay=0.1, undecayed=undecayed))
        held = {
            id(parameter): group["weight_decay"]
            for group in optimiser.param_groups
            for parameter in group["params"]
        }
        count = sum(len(group["params"]) for group in optimiser.param_groups)
        assert count == len(held) == len(list(model.parameters())), "tied parameters are held once"
        for parameter_name, parameter in model.named_parameters():
            assert held[id(parameter)] == (0.0 if parameter.dim() == 1 else 0.1), parameter_name
    tables = [p for p in model.parameters() if len(p) == vocabulary and p.dim() == 2]
    assert len(tables) == 1


def test_frozen_parameters_are_neither_held_nor_given_gradients() -> None:
    model = tiny.model("gpt2", tiny.objective("gpt2", "causal"))
    choice = OptimiserChoice(frozen=("body.embeddings.*", "*.layers.0.*"))
    held = {name for group in build_optimiser(model, choice).param_groups for name in group["names"]}
    assert held and not any("embeddings" in name or "layers.0." in name for name in held)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (name in held)
    with pytest.raises(EtymonError, match=r"no parameter matches the frozen pattern 'body\.embedding'"):
        build_optimiser(model, OptimiserChoice(frozen=("body.embedding",)))
    with pytest.raises(EtymonError, match="nothing is left to train"):
        build_optimiser(model, OptimiserChoice(frozen=("*",)))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("family, objective", [("bert", "masked"), ("t5", "span-corruption")])
def test_a_resumed_run_is_exact(name: str, family: str, objective: str, tmp_path: Path) -> None:
    chosen = tiny.objective(family, objective)
    choice = OptimiserChoice(name, weight_decay=0.1, layer_decay=0.8)
    straight, stopped = tiny.model(family, chosen), tiny.model(family, chosen)
    train(straight, build_optimiser(straight, choice), range(6))
    first = build_optimiser(stopped, choice)
    train(stopped, first, range(3))
    tensors = optimiser_tensors(first, stopped)
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / "state.safetensors")
    stored = load_file(tmp_path / "state.safetensors")
    kept = {key: value.clone() for key, value in stored.items()}
    second = build_optimiser(stopped, choice)
    restore_optimiser(second, stopped, dict(reversed(stored.items())))
    assert sorted(optimiser_tensors(second, stopped)) == sorted(tensors)
    train(stopped, second, range(3, 6))
    assert all(torch.equal(value, kept[key]) for key, value in stored.items()), (
        "what was given is not trained on"
    )
    for key, parameter in straight.named_parameters():
        assert torch.equal(parameter, stopped.get_parameter(key)), key


def test_state_of_what_is_not_trained_is_refused() -> None:
    model = tiny.model("bert", tiny.objective("bert", "masked"))
    optimiser = build_optimiser(model, OptimiserChoice(frozen=("body.embeddings.*",)))
    for name in ("body.embeddings.words.weight", "body.nowhere.weight"):
        with pytest.raises(EtymonError, match=f"has exp_avg of {name}, which is not trained here"):
            restore_optimiser(optimiser, model, {f"exp_avg/{name}": torch.zeros(1)})


def test_a_parameter_without_gradient_stays() -> None:
    for name in OPTIMISERS:
        module = Small(torch.float32)
        before = {key: value.clone() for key, value in module.state_dict().items()}
        optimiser = build_optimiser(module, OptimiserChoice(name))
        optimiser.step()
        assert not optimiser_tensors(optimiser, module)
        module.embeddings.weight.grad = torch.ones_like(module.embeddings.weight)
        optimiser.step()
        changed = [key for key, value in module.state_dict().items() if not torch.equal(value, before[key])]
        assert changed == ["embeddings.weight"], name


def test_a_choice_is_checked() -> None:
    with pytest.raises(EtymonError, match="did you mean 'adafactor'"):
        OptimiserChoice("adafaktor")
    for wrong in (
        {"betas": [0.9, 1.0]},
        {"layer_decay": 0.0},
        {"layer_decay": 1.1},
        {"weight_decay": -1.0},
        {"epsilon": -1e-8},
        {"betas": [0.9]},
        {"learning_rates": 1.0},
    ):
        with pytest.raises(EtymonError):
            strict(OptimiserChoice, wrong, "run.yaml")
    given = strict(OptimiserChoice, {"name": "muon", "betas": [0.8, 0.9], "frozen": ["*bias"]}, "run.yaml")
    assert given.betas == (0.8, 0.9) and given.frozen == ("*bias",)


def test_recipes_name_known_optimisers_and_schedules() -> None:
    from etymon.training.schedules import ScheduleChoice

    for name in REGISTRY:
        family = get_family(name)
        for size in family.sizes:
            recipe = family.recipe_for(size)
            OptimiserChoice(recipe.optimiser, undecayed=tuple(recipe.undecayed))
            ScheduleChoice(recipe.schedule, warmup=recipe.warmup_steps or 0, final=recipe.final)
    assert get_family("bert").recipe_for("base").optimiser == "adam-bert"
    published = get_family("t5").recipe_for("v1.1-base")
    assert published.optimiser == "adafactor" and published.warmup_steps is not None
    for step in (0, 9_999, 999_999):
        share = ScheduleChoice(published.schedule, warmup=published.warmup_steps).share(step, 2**19)
        assert published.learning_rate * share == pytest.approx(1 / math.sqrt(max(step + 1, 10**4)))
