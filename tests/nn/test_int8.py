"""Weights of eight bits: rounding by rows, products near the exact ones, folders that come back bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import etymon
from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.nn.int8 import Int8Linear, round_to_int8
from etymon.verbs.convert import convert
from tests.generation.conftest import tiny_model

FAMILIES = [
    "gpt2",
    "gpt1",
    "gptj",
    "gpt3",
    "bert",
    "roberta",
    "albert",
    "electra",
    "bart",
    "transformer",
    "t5",
]


def test_rounding_is_by_rows_and_within_half_a_step() -> None:
    weight = (
        torch.randn(7, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 7)[:, None]
    )
    whole, scale = round_to_int8(weight)
    assert whole.dtype == torch.int8 and whole.abs().amax(1).tolist() == [127] * 7
    assert ((whole * scale[:, None] - weight).abs() <= scale[:, None] * 0.5001).all()
    none, zero = round_to_int8(torch.zeros(2, 3))
    assert not none.any() and torch.isfinite(zero).all()


def test_products_are_near_the_exact_ones() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(64, 96, generator=generator), torch.randn(64, generator=generator)
    x = torch.randn(5, 96, generator=generator)
    exact = x @ weight.T + bias
    error = (Int8Linear(*round_to_int8(weight), bias)(x) - exact).norm() / exact.norm()
    assert error < 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_comes_back_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    etymon.save(model, tmp_path / "whole")
    batch = Batch.of([[5, 6, 7, 8], [9, 10]])

    def states(one: etymon.families.model.Model) -> torch.Tensor:
        with torch.inference_mode():
            hidden = one.encode(batch).hidden_MD if one.encoder_decoder else one.hidden(batch)[0]
            head = one.heads["vocabulary"] if "vocabulary" in one.heads and not one.encoder_decoder else None
            return hidden if head is None else head.logits(hidden)

    exact, small = states(model.eval()), etymon.load(tmp_path / "whole", quantize="int8")
    assert small.int8 and small.parameter_count() == etymon.load(tmp_path / "whole").parameter_count()
    near = states(small)
    assert 0 < (near - exact).norm() / exact.norm() < 0.1
    etymon.save(small, tmp_path / "small")
    again = etymon.load(tmp_path / "small")
    assert again.int8 and torch.equal(states(again), near)
    stored = load_file(tmp_path / "small" / "model.safetensors")
    assert (
        stored["body.words.weight" if again.encoder_decoder else "body.embeddings.words.weight"].dtype
        == torch.int8
    )
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("small", "whole")]
    assert sizes[0] < 0.6 * sizes[1], "tiny models have large norms and positions"


def test_it_generates_and_scores_like_the_whole_model(tmp_path: Path) -> None:
    etymon.save(tiny_model("gpt2"), tmp_path / "whole")
    whole, small = (
        etymon.score(tmp_path / "whole", ["the story"], quantize=how)[0] for how in (None, "int8")
    )
    assert small.log_likelihood == pytest.approx(whole.log_likelihood, rel=0.05)
    assert len(etymon.generate(tmp_path / "whole", ["the"], max_new_tokens=5, quantize="int8")[0].ids) <= 5


def test_convert_says_what_rounding_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etymon.verbs.convert import ConvertOptions, present

    etymon.save(tiny_model("gpt2"), tmp_path / "whole")
    (tmp_path / "held.txt").write_text("the story of a king", encoding="utf-8")
    result = convert(tmp_path / "whole", tmp_path / "small", quantize="int8", data=tmp_path / "held.txt")
    assert set(result.changes) == {"megabytes", "tokens a second", "bits per byte"}
    before, after = result.changes["bits per byte"]
    assert after == pytest.approx(before, rel=0.05)
    present(result, ConvertOptions(source="a", target="b"))
    assert "only etymon opens" in capsys.readouterr().out


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    etymon.save(model, tmp_path / "whole")
    small = etymon.load(tmp_path / "whole", quantize="int8")
    hidden = torch.zeros(1, small.shape.dim)
    with pytest.raises(EtymonError, match="cannot be trained"):
        small.heads["vocabulary"].loss(hidden, None, torch.zeros(1, dtype=torch.long))
    with pytest.raises(EtymonError, match="not both"):
        convert(tmp_path / "whole", tmp_path / "x", quantize="int8", dtype="float16")
    with pytest.raises(EtymonError, match="give --quantize int8"):
        convert(tmp_path / "whole", tmp_path / "x", data=tmp_path / "held.txt")
    etymon.save(small, tmp_path / "small")
    (tmp_path / "x.txt").write_text("a story", encoding="utf-8")
    with pytest.raises(EtymonError, match="cannot be trained"):
        etymon.pretrain(
            "gpt2", data=[tmp_path / "x.txt"], from_=tmp_path / "small", out=tmp_path / "run", steps=1
        )
