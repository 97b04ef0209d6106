"""Half precision: parts compute in the type of what they are given, as exactly as a plain formula in that type does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.generation.decoding import start_token
from etymon.generation.stepper import Stepper
from etymon.nn import machine, precision
from etymon.nn.batch import Batch, Layout
from etymon.nn.layers import LayerNorm, Linear, RootMeanSquareNorm, StoredAttention, dropout, keep_mask
from etymon.nn.precision import Precision, choose_precision, require_precision, round_weights, set_precision
from etymon.nn.relative import RelativeView, relative_attend
from etymon.nn.vocabulary import DenseVocabulary
from tests import tiny

HALVES = [torch.bfloat16, torch.float16]
CPU = torch.device("cpu")


def errors(run: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype) -> list[float]:
    """How far the value and every gradient are from those in float64, relative to their size."""
    rounded = [part.to(dtype) for part in inputs]  # both sides begin with the same numbers
    exact = value_and_gradients(run, [part.double() for part in rounded])
    half = value_and_gradients(run, rounded)
    return [
        float((mine.double() - true).norm() / true.norm()) for mine, true in zip(half, exact, strict=True)
    ]


def value_and_gradients(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    given = [part.clone().requires_grad_() for part in inputs]
    torch.manual_seed(1)
    out = run(*given)
    weights = torch.sin(torch.arange(out.numel(), dtype=torch.double)).view(out.shape)
    (out.double() * weights).sum().backward()
    return [out.detach(), *(part.grad for part in given if part.grad is not None)]


def assert_as_exact(ours: list[float], plain: list[float]) -> None:
    assert len(ours) == len(plain)
    for mine, theirs in zip(ours, plain, strict=True):
        # Roundings fall differently: within half as much again, and a floor where the plain error is nearly nothing.
        assert mine <= 1.5 * theirs + 1e-3, f"{ours} against {plain} of the plain formula"


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "bias"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_stored_attention_is_as_exact_as_the_plain_formula(
    dtype: torch.dtype, kind: str, rate: float
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 40, 16) for _ in range(3)] + [torch.randn(1, 3, 40, 40)]
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)

    def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return StoredAttention.apply(q, k, v, bias if kind == "bias" else None, kind == "causal", 0.25, rate)

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * 0.25
        if kind == "bias":
            scores = scores + bias
        if kind == "causal":
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1)
        kept = keep_mask(weights.shape, rate) if rate else 1.0
        return (weights * kept / (1 - rate)) @ v

    assert_as_exact(errors(ours, inputs, dtype), errors(plain, inputs, dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_relative_attention_is_as_exact_as_the_plain_formula(dtype: torch.dtype, rate: float) -> None:
    heads, rows, queries, keys, width = 2, 2, 24, 32, 16
    torch.manual_seed(0)
    shapes = [(heads, rows, queries, width), *[(heads, rows, keys, width)] * 2, (heads, keys + 1, width)]
    inputs = [torch.randn(*shape) for shape in shapes] + [torch.randn(heads, width) for _ in range(2)]
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)[None]

    def attend(eager: bool) -> Callable[..., Tensor]:
        def run(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor) -> Tensor:
            table = torch.zeros(keys + 1, 2, dtype=q.dtype)
            view = RelativeView(Layout([queries] * rows), table, keys, offset=queries - 1, hidden_RQT=hidden)
            return relative_attend(q, k, v, r, (u, w), view, scale=0.25, dropout=rate, eager=eager)[0]

        return run

    assert_as_exact(errors(attend(False), inputs, dtype), errors(attend(True), inputs, dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_chunked_loss_is_as_exact_as_the_plain_one(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    import etymon.nn.vocabulary as vocabulary

    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", 700 * 5)  # five rows of logits at a time,
    monkeypatch.setattr(vocabulary, "HALF_ERRORS", 700 * 12)  # and twelve of their gradients,
    monkeypatch.setattr(vocabulary, "GRADIENT_WORDS", 300)  # added up for 300 words at a time
    torch.manual_seed(0)
    x, weight, targets = torch.randn(30, 24), torch.randn(700, 24), torch.randint(0, 700, (30,))
    half = x.to(dtype).requires_grad_()
    head = DenseVocabulary(nn.Parameter(weight), bias=True)
    loss = head.loss(half, None, targets)
    loss.backward()
    assert loss.dtype == head.weight.grad.dtype == torch.float32, "of float32 weights"  # type: ignore[union-attr]
    # The plain loss in float64, of the same rounded numbers.
    exact = [part.to(dtype).double().requires_grad_() for part in (x, weight)]
    true = F.cross_entropy(exact[0] @ exact[1].T, targets, reduction="sum")
    true.backward()
    assert abs(float(loss.detach()) - float(true.detach())) < torch.finfo(dtype).eps * float(true.detach())
    for mine, exact_gradient in ((half.grad, exact[0].grad), (head.weight.grad, exact[1].grad)):
        assert mine is not None and exact_gradient is not None
        error = float((mine.double() - exact_gradient).norm() / exact_gradient.norm())
        assert error < 1.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_dropout_keeps_the_type_and_drops_the_same(dtype: torch.dtype) -> None:
    x = torch.ones(1000)
    torch.manual_seed(0)
    whole = dropout(x, 0.25)
    torch.manual_seed(0)
    half = dropout(x.to(dtype), 0.25)
    assert half.dtype == dtype and torch.equal(half == 0, whole == 0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("make", [LayerNorm, RootMeanSquareNorm, lambda dim: filled(Linear(dim, dim))])
def test_parts_answer_in_the_type_of_their_input_and_learn_in_float32(
    make: Callable[[int], nn.Module], dtype: torch.dtype
) -> None:
    part = make(16)
    x = torch.randn(5, 16)
    half = part(x.to(dtype))
    half.float().square().sum().backward()
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), part(x), rtol=0.02, atol=0.02)
    assert all(parameter.grad.dtype == torch.float32 for parameter in part.parameters())  # type: ignore[union-attr]


def filled(part: Linear) -> Linear:
    nn.init.normal_(part.weight)
    nn.init.zeros_(part.bias)
    return part


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("family", [name for name in REGISTRY if name not in ("rnn", "elmo")])
def test_hidden_states_are_half_and_logits_are_not(family: str, name: Precision) -> None:
    model = tiny.model(family, frozenset({"vocabulary"})).eval()
    whole = outputs(model)
    set_precision(model, name)
    hidden, logits = outputs(model)
    assert hidden.dtype == precision.DTYPES[name], "something on the way went back to float32"
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, whole[1], rtol=0.05, atol=0.05)
    assert precision.get_precision(model) == name
    set_precision(model, "float32")
    assert torch.equal(outputs(model)[1], whole[1]), "and back: nothing of the weights was rounded"


@torch.no_grad()
def outputs(model: Any) -> tuple[Tensor, Tensor]:
    rows = Batch.of([[7, 8, 9, 10, 11], [12, 13, 14]])
    hidden = model.decode(rows, model.encode(rows))[0] if model.encoder_decoder else model.hidden(rows)[0]
    return hidden, model.heads["vocabulary"].logits(hidden)


@pytest.mark.parametrize("family", list(REGISTRY))
def test_rounded_models_answer_nearly_the_same_with_half_the_memory(family: str) -> None:
    model = tiny.model(family, frozenset({"vocabulary"})).eval()
    rows = Batch.of([[7, 8, 9, 10, 11], [12, 13, 14]])
    if family == "elmo":
        with torch.no_grad():
            whole = model.hidden(rows)[0]
            round_weights(model, "bf16")
            half = model.hidden(rows)[0]
        torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)
        return
    whole = outputs(model)[1]
    before = sum(part.numel() * part.element_size() for part in model.parameters())
    round_weights(model, "bf16")
    after = sum(part.numel() * part.element_size() for part in model.parameters())
    torch.testing.assert_close(outputs(model)[1], whole, rtol=0.05, atol=0.05)
    # Recurrent layers, and word vectors that they read, keep float32.
    assert after == before if family == "rnn" else after < 0.6 * before


DECODING = [name for name in REGISTRY if "state" in get_family(name).capabilities]


@pytest.mark.parametrize("family", DECODING)
def test_a_decode_in_half_precision_comes_near_the_float32_one(family: str) -> None:
    """Caches are float32 on a processor, whatever the model computes in."""
    model = tiny.model(family, frozenset({"vocabulary"})).eval()
    whole = step_scores(model)
    round_weights(model, "bf16")
    half = step_scores(model)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=0.05, atol=0.05)


@torch.no_grad()
def step_scores(model: Any) -> Tensor:
    """Log-probabilities of three tokens in a row, of a short and a longer prompt."""
    stepper = Stepper(model, normalised=True)
    scores = [stepper.prefill([[7, 8, 9, 10, 11], [12, 13, 14]], 4, start_token(model))]
    for tokens in ([9, 10], [11, 12]):
        scores.append(stepper.step(torch.tensor(tokens)))
    return torch.stack(scores)


# --- what this machine can, and what auto takes


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETYMON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "_measured", {})
    return tmp_path / "cache" / "measurements.json"


def test_a_machine_is_measured_once(measurements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def measure() -> int:
        calls.append("measured")
        return 7

    assert machine.measured_once("seven", CPU, measure) == 7
    monkeypatch.setattr(machine, "_measured", {})  # as another process
    assert machine.measured_once("seven", CPU, measure) == 7 and len(calls) == 1
    monkeypatch.setattr(machine, "_measured", {})
    measurements.write_text("{ torn", encoding="utf-8")
    assert machine.measured_once("seven", CPU, measure) == 7 and len(calls) == 2
    assert json.loads(measurements.read_text(encoding="utf-8"))[machine.machine_name(CPU)] == {"seven": 7}


def test_without_a_place_to_keep_it_a_measurement_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("ETYMON_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(machine, "_measured", {})
    assert machine.measured_once("seven", CPU, lambda: 7) == 7
    assert machine.measured_once("seven", CPU, lambda: 8) == 7


@pytest.mark.parametrize(
    ("bf16", "fp16", "chosen"), [(3.0, 0.1, "bf16"), (1.1, 0.1, "float32"), (0.1, 0.1, "float32")]
)
def test_auto_takes_half_precision_where_it_is_clearly_faster(
    bf16: float, fp16: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"bf16": bf16, "fp16": fp16}
    monkeypatch.setattr(precision, "products_speed", lambda name, *rest, **others: speeds[name])
    name, reason = choose_precision(tiny.model("gpt2", frozenset({"vocabulary"})), CPU)
    assert name == chosen and reason


def test_what_a_machine_lacks_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "products_speed", lambda *rest, **others: 0.05)
    with pytest.raises(
        EtymonError, match=r"no precision bf16 here: .* 20 times slower; say --precision float32"
    ):
        require_precision("bf16", CPU)
    require_precision("float32", CPU)


def test_measured_speeds_are_ratios_of_real_products(measurements: Path) -> None:
    assert precision.products_speed("bf16", CPU, [(64, 32), (32, 64)], rows=8) > 0
    (kept,) = json.loads(measurements.read_text(encoding="utf-8")).values()
    assert list(kept) == ["bf16 against float32, 8 rows of 32x64 and 64x32"]
