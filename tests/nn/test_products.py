"""Linear products other than PyTorch's own: the same numbers, copies that never are out of date, choices that are kept."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import decode
from etymon.nn import machine, products
from etymon.nn.batch import Batch
from etymon.nn.layers import Linear
from etymon.nn.lora import adapt, merge
from etymon.nn.products import VARIABLE, WeightProducts, choose_products
from etymon.settings.decoding import DecodingSettings
from tests.tiny import SHAPES

NAMES = [name for name in products.products(torch.float32) if name != "plain"]
COPYING = [name for name in NAMES if products.products(torch.float32)[name].pack is not None]


@pytest.fixture(params=NAMES)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every linear map uses this product, whatever its size."""
    monkeypatch.setenv(VARIABLE, request.param)
    name: str = request.param
    return name


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> str:
    """One that needs a copy of the matrix; there is always the transposed one."""
    monkeypatch.setenv(VARIABLE, COPYING[-1])
    return COPYING[-1]


def linear(outputs: int = 24, inputs: int = 40, bias: bool = True) -> Linear:
    made = Linear(inputs, outputs, bias=bias).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    choose_products(made)
    return made


def rows(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def assert_right(part: Linear, x: Tensor) -> None:
    torch.testing.assert_close(part(x), F.linear(x, part.weight, part.bias), rtol=1e-5, atol=1e-5)


def tiny_model(family: str = "gpt2") -> Model:
    return etymon.build(family, shape=SHAPES[family], heads=("vocabulary",)).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7, 64, 200])
def test_a_product_gives_the_numbers_of_the_plain_one(product: str, count: int, bias: bool) -> None:
    assert_right(linear(bias=bias), rows(count, 40))


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 7, 64])
def test_half_precision_has_products_of_its_own_with_a_bias_of_float32(product: str, count: int) -> None:
    part, x = linear(), rows(count, 40).bfloat16()
    part.weight.data = part.weight.data.bfloat16()
    output = part(x)
    expected = F.linear(x.float(), part.weight.float(), part.bias)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))


def test_inputs_may_have_any_shape_and_layout(product: str) -> None:
    part = linear()
    for x in (rows(40), rows(2, 3, 40), rows(40, 5).T, rows(6, 80)[:, ::2]):
        assert_right(part, x)


def test_gradients_are_those_of_the_plain_product(product: str) -> None:
    part, x = linear(), rows(3, 40).requires_grad_()
    output = part(x)
    assert torch.equal(output, F.linear(x, part.weight, part.bias))
    output.sum().backward()
    assert x.grad is not None and part.weight.grad is not None


@torch.no_grad()
def test_a_copy_follows_its_matrix(copying: str) -> None:
    part, x = linear(), rows(3, 40)
    assert_right(part, x)
    part.weight.mul_(2)
    assert_right(part, x)
    part.weight.data = torch.ones_like(part.weight)
    assert_right(part, x)
    part.load_state_dict({"weight": torch.full((24, 40), 3.0), "bias": torch.zeros(24)})
    assert_right(part, x)
    part.to(torch.float64)
    torch.testing.assert_close(part(x.double()), F.linear(x.double(), part.weight, part.bias))


@torch.no_grad()
def test_training_drops_copies_and_uses_the_plain_product(copying: str) -> None:
    part, x = linear(), rows(3, 40)
    part(x)
    assert part.products is not None and part.products.packed is not None
    part.train()
    assert part.products is None
    assert torch.equal(part(x), F.linear(x, part.weight, part.bias))
    choose_products(part)
    assert part.products is None, "a model that trains gets no copies"


@torch.no_grad()
def test_copies_of_a_model_make_their_own(copying: str) -> None:
    part, x = linear(), rows(3, 40)
    part(x)
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert isinstance(other.products, WeightProducts) and other.products.packed is None
        other.weight.add_(1)
        assert_right(other, x)
    assert_right(part, x)


@torch.no_grad()
def test_adapters_stand_beside_copies_and_are_merged_into_the_matrix(copying: str) -> None:
    model = tiny_model()
    choose_products(model)
    batch = Batch.of([[1, 2, 3, 4]])
    model.hidden(batch)
    adapt(model)
    for name, parameter in model.named_parameters():
        if ".lora_b" in name:
            parameter.add_(0.5)
    model.eval()
    choose_products(model)
    adapted = model.hidden(batch)[0]
    merged = merge(model).hidden(batch)[0]
    torch.testing.assert_close(merged, adapted, rtol=1e-4, atol=1e-4)
    choose_products(model)
    torch.testing.assert_close(model.hidden(batch)[0], adapted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_query_key_and_value_are_one_product_and_follow_their_matrices(copying: str) -> None:
    model, batch = tiny_model(), Batch.of([[1, 2, 3, 4], [5, 6]])
    attention = model.body.stack.layers[0].attention

    def assert_same() -> None:
        chosen = model.hidden(batch)[0]
        plain = copy.deepcopy(model)
        for part in plain.modules():
            if isinstance(part, Linear):
                part.products = None
        torch.testing.assert_close(chosen, plain.hidden(batch)[0], rtol=1e-5, atol=1e-5)

    choose_products(model)
    assert_same()
    assert attention.joined.packed is not None and attention.query.products.packed is None
    for change in (attention.key.weight, attention.value.bias):
        change.add_(0.5)
        assert_same()
    model.train()
    assert attention.joined.packed is None


def test_a_saved_model_has_its_own_weights_alone(copying: str, tmp_path: Path) -> None:
    model = tiny_model()
    etymon.save(model, tmp_path / "before")
    choose_products(model)
    with torch.no_grad():
        model.hidden(Batch.of([[1, 2, 3]]))
    etymon.save(model, tmp_path / "after")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("before", "after")]
    assert weights[0] == weights[1]
    assert model.quantize().int8


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_generated_tokens_are_those_of_the_plain_product(
    family: str, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = tiny_model(family), [[3, 4, 5, 6], [7, 8, 9]]
    settings = DecodingSettings(max_new_tokens=8, min_new_tokens=8, end_ids=(0,))
    with torch.inference_mode():
        expected = [row[0].ids for row in decode(model, prompts, settings)]
    choose_products(model)
    with torch.inference_mode():
        assert [row[0].ids for row in decode(model, prompts, settings)] == expected
        monkeypatch.setenv(VARIABLE, "plain")
        for part in model.modules():
            if getattr(part, "products", None) is not None:
                part.products = None
        assert [row[0].ids for row in decode(model, prompts, settings)] == expected


def test_traced_states_are_those_of_the_product(copying: str) -> None:
    model, batch = tiny_model(), Batch.of([[1, 2, 3]])
    choose_products(model)
    with torch.no_grad():
        with etymon.trace(model, attention=False) as seen:
            last = model.hidden(batch)[0]
        assert torch.equal(seen.hidden[-1], last) and torch.equal(model.hidden(batch)[0], last)
        assert model.body.stack.layers[0].feed_forward.inner.products.packed is not None


def test_no_copies_where_memory_is_short(copying: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "available_memory", lambda: 100.0)
    part = linear()
    assert part.products is not None
    with torch.no_grad():
        assert torch.equal(part(rows(3, 40)), F.linear(rows(3, 40), part.weight, part.bias))
    assert part.products.packed is None


def test_copies_stay_when_they_have_used_the_memory_up(copying: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = linear()
    with torch.no_grad():
        part(rows(3, 40))
    assert part.products is not None and (packed := part.products.packed) is not None
    monkeypatch.setattr(products, "available_memory", lambda: 100.0)
    choose_products(part)
    assert part.products is not None and part.products.packed is packed


def test_a_row_is_written_alike_alone_and_in_a_batch(product: str) -> None:
    model, prompts = tiny_model(), [[3, 4, 5, 6], [7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]
    settings = DecodingSettings(max_new_tokens=8, min_new_tokens=8, end_ids=(0,))
    choose_products(model)
    with torch.inference_mode():
        together = [row[0].ids for row in decode(model, prompts, settings)]
        assert [decode(model, [prompt], settings)[0][0].ids for prompt in prompts] == together


def test_an_unknown_product_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "magic")
    with torch.no_grad(), pytest.raises(EtymonError, match=r"ETYMON_PRODUCTS is 'magic'.*measured, plain"):
        linear()(rows(3, 40))


# --- the choice


def test_the_fastest_is_preferred_and_a_copy_only_if_it_is_worth_its_memory() -> None:
    times = {"plain": [3.0, 9.0, 9.0], "transposed": [1.0, 9.0, 9.0]}
    assert products.prefer(times) == {"1": ["transposed", "plain"], "8": ["plain"], "64": ["plain"]}
    times["transposed"][0] = 2.9
    assert products.prefer(times)["1"] == ["plain"]


@pytest.mark.skipif("onednn" not in NAMES, reason="PyTorch was built without oneDNN")
def test_all_rows_share_one_kind_of_copy() -> None:
    times = {
        "plain": [5.0, 5.0, 5.0], "transposed": [1.0, 5.0, 5.0], "onednn": [3.0, 3.0, 2.0], "onednn-packed": [1.5, 1.0, 1.0]
    }  # fmt: skip
    assert products.prefer(times) == {key: ["onednn-packed", "onednn"] for key in ("1", "8", "64")}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing measured yet, and a cache folder of its own."""
    monkeypatch.setenv(VARIABLE, "measured")
    monkeypatch.setenv("ETYMON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "_measured", {})
    monkeypatch.setattr(products, "_busy", [])
    return tmp_path / "cache"


def count_measurements(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[int, int]]:
    sizes = []

    def measure(outputs: int, inputs: int, dtype: torch.dtype) -> Any:
        sizes.append((outputs, inputs))
        return answer

    monkeypatch.setattr(products, "measure_products", measure)
    return sizes


def choose(outputs: int, inputs: int, count: int, copies: bool = True) -> str:
    return products.choose_product(outputs, inputs, count, torch.float32, copies)


def test_a_size_is_measured_once_a_machine(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"1": ["transposed", "plain"], "8": ["plain"], "64": ["transposed", "plain"]}
    sizes = count_measurements(monkeypatch, answer)
    assert [choose(512, 256, count) for count in (1, 3, 4, 31, 32, 999)] == [
        "transposed", "transposed", "plain", "plain", "transposed", "transposed",
    ]  # fmt: skip
    assert choose(512, 256, 1, copies=False) == "plain"
    monkeypatch.setattr(machine, "_measured", {})  # as another process would find it
    assert choose(512, 256, 1) == "transposed"
    assert choose(16, 16, 1) == "plain", "too small to be measured"
    assert choose(50_257, 768, 1) == "transposed", "a large one is measured by a part of it"
    assert sizes == [(512, 256), (3072, 768)]
    (table,) = json.loads((fresh / "measurements.json").read_text(encoding="utf-8")).values()
    assert sorted(table) == ["product of 3072x768 float32", "product of 512x256 float32"]


def test_a_busy_machine_measures_again_in_the_next_process(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_measurements(monkeypatch, None)
    expected = next(name for name in products.UNMEASURED if name in products.products(torch.float32))
    assert choose(512, 256, 1) == choose(512, 256, 8) == expected
    assert sizes == [(512, 256)] and not (fresh / "measurements.json").exists()


def test_a_folder_that_cannot_be_written_costs_a_measurement_and_nothing_else(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.write_text("a file in the way of the folder", encoding="utf-8")
    sizes = count_measurements(monkeypatch, {str(count): ["plain"] for count in products.ROWS})
    assert choose(512, 256, 1) == choose(512, 256, 8) == "plain"
    assert sizes == [(512, 256)]


def test_a_real_measurement_names_products_of_this_machine(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "STEADY", float("inf"))
    monkeypatch.setattr(products, "SECONDS", 60)
    preferences = products.measure_products(256, 256, torch.float32)
    assert preferences is not None and set(preferences) == {"1", "8", "64"}
    available = products.products(torch.float32)
    for names in preferences.values():
        assert set(names) <= set(available) and available[names[-1]].pack is None
