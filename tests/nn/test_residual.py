"""The residual scale: what it computes, how it is saved, and what it does to gradients of deep stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import etymon
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.training.optimisers import gradient_norms
from tests.families.folders import PRETRAINED, refusal, tiny

FAMILIES = ["gpt2", "gptj", "bert", "t5"]
SCALE = 0.3


def batch(vocabulary: int = 31, length: int = 9, rows: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, vocabulary, (rows, length), generator=generator)
    return Batch.of_rectangle(ids, torch.ones_like(ids, dtype=torch.bool))


def logits(model: Model) -> Tensor:
    given = batch()
    model.eval()
    if model.encoder_decoder:
        hidden, _ = model.decode(given, model.encode(given))
    else:
        hidden, _ = model.hidden(given)
    return model.heads["vocabulary"].logits(hidden)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_scale_of_one_changes_no_bit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family, PRETRAINED[family])
    found = logits(model)
    found.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("etymon.nn.blocks.torch.add", lambda x, added, alpha: x + added)
    again = logits(model)
    again.sum().backward()
    assert torch.equal(found, again)
    for one, two in zip(gradients, model.parameters(), strict=True):
        assert (one is None and two.grad is None) or torch.equal(one, two.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_folded_folders_are_ordinary_and_compute_the_same(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny(family, PRETRAINED[family], residual_scale=SCALE)
    expected = logits(model)
    assert not torch.allclose(expected, logits(tiny(family, PRETRAINED[family])), atol=1e-2)
    etymon.save(model, tmp_path / "folded")
    config = json.loads((tmp_path / "folded/config.json").read_text())
    assert not any(key.startswith("etymon") for key in config)
    again = etymon.load(tmp_path / "folded")
    assert again.shape.residual_scale == 1.0
    torch.testing.assert_close(logits(again), expected, rtol=1e-5, atol=1e-5)
    assert model.shape.residual_scale == SCALE and torch.equal(logits(model), expected), (
        "saving changes nothing"
    )

    theirs = getattr(transformers, config["architectures"][0]).from_pretrained(tmp_path / "folded").eval()
    ids = batch().ids.view(2, -1)
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if family == "t5" else {})
    outputs = theirs(**given)
    read = outputs["prediction_logits"] if family == "bert" else outputs["logits"]
    torch.testing.assert_close(read.reshape(expected.shape), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_unfolded_folders_come_back_exactly_and_transformers_does_not_open_them(
    family: str, tmp_path: Path
) -> None:
    model = tiny(family, PRETRAINED[family], residual_scale=SCALE)
    etymon.save(model, tmp_path / "own", fold=False)
    again = etymon.load(tmp_path / "own")
    assert again.shape == model.shape and again.head_names == model.head_names
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert torch.equal(logits(again), logits(model))
    assert "Transformers has no class for this model" in (tmp_path / "own/README.md").read_text()
    assert json.loads((tmp_path / "own/config.json").read_text())["architectures"] == []
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModel.from_pretrained(tmp_path / "own", trust_remote_code=False)
    # From there, an ordinary folder is one step away.
    etymon.save(again, tmp_path / "folded")
    etymon.save(model, tmp_path / "direct")
    assert (tmp_path / "folded/model.safetensors").read_bytes() == (
        tmp_path / "direct/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_scale_both_ways_of_saving_are_the_same(family: str, tmp_path: Path) -> None:
    model = tiny(family, PRETRAINED[family])
    etymon.save(model, tmp_path / "one")
    etymon.save(model, tmp_path / "two", fold=False)
    for file in ("config.json", "model.safetensors", "README.md"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_scale_is_positive(tmp_path: Path) -> None:
    etymon.save(tiny("bert", PRETRAINED["bert"], residual_scale=SCALE), tmp_path / "own", fold=False)
    path = tmp_path / "own/config.json"
    path.write_text(path.read_text().replace(str(SCALE), "0.0"))
    assert "residual_scale is 0.0" in refusal(tmp_path / "own")


def bottom_and_top(layers: int, *, norm_first: bool, scale: float = 1.0) -> tuple[float, float]:
    """The gradient's norm in the lowest and in the highest layer, before training, averaged over three starts.

    Matrices keep the size of what passes through them, as in 2017; BERT's own initialisation is so small that at this
    width its layers would hardly matter.
    """
    family = get_family("bert")
    shape = family.shape(
        vocabulary=31, positions=16, dim=32, layers=layers, heads=4, inner_dim=128, dropout=0.0, attention_dropout=0.0,
        deviation=32**-0.5, residual_scale=scale,
    )  # fmt: skip
    found = []
    for seed in range(3):
        model = Model(family, shape, {"vocabulary"}).initialise(seed)
        for layer in model.body.stack.layers:
            layer.norm_first = norm_first
        hidden, _ = model.hidden(batch(length=16, rows=8))
        targets = torch.randint(31, hidden.shape[:1], generator=torch.Generator().manual_seed(seed))
        logits = model.heads["vocabulary"].logits(torch.nn.functional.layer_norm(hidden, (32,)))  # type: ignore[operator]
        torch.nn.functional.cross_entropy(logits, targets).backward()
        norms = gradient_norms(model)
        found.append([norms["layers.0"], norms[f"layers.{layers - 1}"]])
    bottom, top = torch.tensor(found).log().mean(0).exp().tolist()
    return bottom, top


def test_gradients_of_deep_stacks() -> None:
    """What Xiong et al. (2020) prove of the first steps. With norms after the sum, the top layer's gradient does not
    shrink however deep the stack, which is why those models need a warm-up; with norms before the parts it shrinks as
    one over the root of the depth, and the bottom gets ever more of the gradient than the top. A residual scale of one
    over the root of the depth tames the former as well, and keeps bottom and top alike in both.
    """
    depths = (2, 6, 12, 24)

    def all_depths(norm_first: bool, scaled: bool) -> tuple[list[float], list[float]]:
        pairs = [
            bottom_and_top(depth, norm_first=norm_first, scale=(2 * depth) ** -0.5 if scaled else 1.0)
            for depth in depths
        ]
        return [bottom / top for bottom, top in pairs], [top for _, top in pairs]

    after, top_after = all_depths(False, False)
    before, top_before = all_depths(True, False)
    after_scaled, top_after_scaled = all_depths(False, True)
    before_scaled, _ = all_depths(True, True)

    assert top_after[-1] > 0.6 * top_after[0]
    assert top_before[-1] < 0.45 * top_before[0] and top_before == sorted(top_before, reverse=True)
    assert top_after_scaled[-1] < 0.45 * top_after_scaled[0]

    assert before == sorted(before) and before[-1] > 3
    assert all(post < pre for post, pre in zip(after, before, strict=True))
    assert all(1 / 1.6 < scaled < 1.6 for scaled in after_scaled + before_scaled)
    assert all(scaled < plain for scaled, plain in zip(before_scaled, before, strict=True))
