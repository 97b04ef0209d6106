"""Transformer-XL as a model and as a folder, and the adaptive softmax as a choice of other decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import build
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode
from etymon.nn.batch import Batch
from tests.decoders import DECODERS, rows_of, tiny_decoder

SHAPE: dict[str, Any] = {
    "vocabulary": 90, "dim": 24, "layers": 2, "heads": 3, "head_dim": 8, "inner_dim": 40, "memory": 12,
    "cutoffs": [20, 50], "divisor": 2, "dropout": 0.1,
}  # fmt: skip


def tiny(**changes: Any) -> Model:
    torch.manual_seed(0)
    return build("transformer-xl", "pocket", shape={**SHAPE, **changes}, heads=("vocabulary",)).eval()


def log_probs(model: Model, rows: list[list[int]]) -> torch.Tensor:
    hidden, _ = model.hidden(Batch.of(rows), model.remember(len(rows)))
    return model.heads["vocabulary"].log_probs(hidden)  # type: ignore[operator, no-any-return]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"cutoffs": [], "divisor": 1},
    {"divisor": 1},
    {"divisor": 1, "embedding_dim": 16},
    {"memory": 0},
    {"tied": False, "tied_maps": [False, False, False]},
    {"own_biases": False, "norm_first": True, "same_length": True, "zero_start": True, "clamp": 5},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_folder_gives_back_what_it_was_given(changes: dict[str, Any], tmp_path: Path) -> None:
    model, rows = tiny(**changes), rows_of([9, 9])
    etymon.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "transfo-xl" and config["architectures"] == ["TransfoXLLMHeadModel"]
    read = etymon.load(tmp_path)
    assert read.shape == model.shape and not read.new_heads
    assert torch.equal(log_probs(read, rows), log_probs(model, rows))


def test_published_names_and_copies_are_read(tmp_path: Path) -> None:
    model, rows = tiny(own_biases=False), rows_of([9])
    etymon.save(model, tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    assert {name for name in stored if "bias" in name and "norm" not in name and "Core" not in name} == {
        "transformer.r_w_bias", "transformer.r_r_bias", "crit.cluster_bias",
        *(f"crit.out_layers.{i}.bias" for i in range(3)),
    }  # fmt: skip
    (tmp_path / "etymon.json").unlink()  # this is to be a folder of somebody else
    # As the original code stores it: no prefix, every copy, and a buffer.
    older = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    for i in range(3):
        older[f"crit.out_layers.{i}.weight"] = older[f"word_emb.emb_layers.{i}.weight"].clone()
    older["crit.out_projs.1"] = older["word_emb.emb_projs.1"].clone()
    older["layers.1.dec_attn.r_w_bias"] = older["r_w_bias"].clone()
    older["pos_emb.inv_freq"] = torch.ones(12)
    save_file(older, file, metadata={"format": "pt"})
    assert torch.equal(log_probs(etymon.load(tmp_path), rows), log_probs(model, rows))
    older["crit.out_projs.2"] = older["word_emb.emb_projs.2"] + 1
    save_file(older, file, metadata={"format": "pt"})
    with pytest.raises(EtymonError, match="stored twice"):
        etymon.load(tmp_path)


def test_the_original_order_of_clusters_is_read_and_not_written(tmp_path: Path) -> None:
    model, rows = tiny(), rows_of([9])
    etymon.save(model, tmp_path)
    file, settings = tmp_path / "model.safetensors", tmp_path / "config.json"
    stored = load_file(file)
    (tmp_path / "etymon.json").unlink()  # this is to be a folder of somebody else
    for name in ("crit.cluster_weight", "crit.cluster_bias"):
        stored[name] = stored[name].flip(0).contiguous()
    save_file(stored, file, metadata={"format": "pt"})
    assert not torch.equal(log_probs(etymon.load(tmp_path), rows), log_probs(model, rows))
    config = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**config, "etymon_reversed_clusters": True}), encoding="utf-8")
    read = etymon.load(tmp_path)
    assert torch.equal(log_probs(read, rows), log_probs(model, rows))
    etymon.save(read, tmp_path / "again")
    assert "etymon_reversed" not in (tmp_path / "again" / "config.json").read_text(encoding="utf-8")
    assert torch.equal(log_probs(etymon.load(tmp_path / "again"), rows), log_probs(model, rows))


def test_what_another_code_would_compute_is_refused(tmp_path: Path) -> None:
    etymon.save(tiny(), tmp_path)
    settings = tmp_path / "config.json"
    config = json.loads(settings.read_text(encoding="utf-8"))
    for key, value in (("attn_type", 2), ("sample_softmax", 100), ("ext_len", 4), ("adaptive", False)):
        settings.write_text(json.dumps({**config, key: value}), encoding="utf-8")
        with pytest.raises(EtymonError, match=key):
            etymon.load(tmp_path)
    for cutoffs in ([50, 20], [20, 90]):
        with pytest.raises(EtymonError, match="cutoffs"):
            tiny(cutoffs=cutoffs)
    with pytest.raises(EtymonError, match="divisor"):
        tiny(divisor=8)
    with pytest.raises(EtymonError, match="set same_length to false"):
        tiny(memory=0, same_length=True)


def test_it_writes_texts_far_longer_than_its_memory() -> None:
    model = tiny(same_length=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(12)
    prompts = rows_of([5, 9, 3])
    written = decode(model, prompts, DecodingSettings(max_new_tokens=300))
    assert model.positions is None
    for prompt, (sequence,) in zip(prompts, written, strict=True):
        text = [*prompt, *sequence.ids]
        best = log_probs(model, [text])[len(prompt) - 1 : -1].argmax(-1)
        assert len(sequence.ids) == 300 and best.tolist() == list(sequence.ids)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("divisor", [1, 2])
def test_any_decoder_may_have_cutoffs(family: str, divisor: int, tmp_path: Path) -> None:
    model, rows = tiny_decoder(family, cutoffs=(5, 12), divisor=divisor), rows_of([9, 3])
    etymon.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["etymon_cutoffs"] == [5, 12] and config["model_type"].startswith("etymon-")
    read, batch = etymon.load(tmp_path), Batch.of(rows)
    assert read.shape == model.shape and not read.new_heads
    found = [one.heads["vocabulary"].log_probs(one.hidden(batch)[0]) for one in (model, read)]  # type: ignore[operator]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].exp().sum(-1), torch.ones(len(found[0])))


def test_without_cutoffs_a_folder_says_nothing_of_them(tmp_path: Path) -> None:
    etymon.save(tiny_decoder("gpt2"), tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert "cutoffs" not in text and "divisor" not in text


def test_a_pointer_and_cutoffs_exclude_each_other() -> None:
    with pytest.raises(EtymonError, match="pointer"):
        build("gpt2", shape={"pointer": 5, "cutoffs": [100]})


def test_eight_bits(tmp_path: Path) -> None:
    model, rows = tiny(), rows_of([9, 4])
    exact = log_probs(model, rows)
    small = model.quantize()
    rounded = log_probs(small, rows)
    assert (rounded - exact).abs().max() < 0.1
    etymon.save(small, tmp_path)
    torch.testing.assert_close(log_probs(etymon.load(tmp_path), rows), rounded)
