"""Never a silent partial load: what fits is loaded, what does not is named, and every known dialect is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import etymon
from etymon.checkpoints.weights import write_weights
from etymon.families import get_family
from tests.families.folders import PRETRAINED, assert_same, moved, refusal, rewrite, tiny, without

ONE_OF_THEIRS = {
    "gpt1": "transformer.h.1.mlp.c_proj.weight",
    "gpt3": "transformer.h.1.attn.attention.q_proj.weight",
    "gptj": "transformer.h.1.mlp.fc_in.bias",
    "gpt2": "transformer.h.1.attn.c_attn.weight",
    "bert": "bert.encoder.layer.1.attention.self.key.bias",
    "t5": "decoder.block.1.layer.1.EncDecAttention.v.weight",
    "roberta": "roberta.encoder.layer.1.output.LayerNorm.bias",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output.weight",
    "distilbert": "distilbert.transformer.layer.1.sa_layer_norm.weight",
    "electra": "electra.encoder.layer.1.intermediate.dense.bias",
}


@pytest.mark.parametrize(("family", "name"), ONE_OF_THEIRS.items())
class TestRefusals:
    def test_missing(self, saved: Callable[..., Path], family: str, name: str) -> None:
        line = refusal(saved(family, without(name)))
        assert f"missing: {name}" in line
        assert "unexpected:" not in line

    def test_unexpected(self, saved: Callable[..., Path], family: str, name: str) -> None:
        stranger = re.sub(r"\.\d\.", ".7.", name, count=1)
        line = refusal(saved(family, lambda weights: weights.update({stranger: weights[name].clone()})))
        assert f"unexpected: {stranger}" in line

    def test_misshapen(self, saved: Callable[..., Path], family: str, name: str) -> None:
        line = refusal(saved(family, lambda weights: weights.update({name: torch.zeros(3, 5)})))
        assert f"of another shape: {name} is (3, 5), not" in line

    def test_all_of_it_in_one_line(self, saved: Callable[..., Path], family: str, name: str) -> None:
        def change(weights: dict[str, Tensor]) -> None:
            others = sorted(other for other in weights if other != name)
            weights[name] = torch.zeros(3, 5)
            weights["nobody.knows.weight"] = torch.zeros(2)
            del weights[others[0]], weights[others[1]]

        line = refusal(saved(family, change))
        for part in ("missing:", "unexpected: nobody.knows.weight", f"of another shape: {name}"):
            assert part in line

    def test_a_missing_weight_of_the_body_is_never_tolerated(
        self, saved: Callable[..., Path], family: str, name: str
    ) -> None:
        folder = saved(family, without(name))
        assert name in refusal(folder, partial=True)
        assert name in refusal(folder, heads={"vocabulary"})


TIED_COPIES = {
    "gpt1": ("lm_head.weight", "transformer.tokens_embed.weight"),
    "gpt3": ("lm_head.weight", "transformer.wte.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "t5": ("decoder.embed_tokens.weight", "shared.weight"),
    "roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    "albert": ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
    "distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
}


@pytest.mark.parametrize("family", TIED_COPIES)
def test_stored_copies_of_tied_weights(saved: Callable[..., Path], family: str) -> None:
    copy, source = TIED_COPIES[family]
    folder = saved(family, lambda weights: weights.update({copy: weights[source].clone()}))
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))
    rewrite(folder, moved(copy))
    assert f"stored twice with different values: {copy} and {source}" in refusal(folder)
    # The copy alone will do: some writers keep the other of the two.
    rewrite(
        folder, lambda weights: {**{k: v for k, v in weights.items() if k != source}, copy: weights[source]}
    )
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


# --- dialects


def renamed(*pairs: tuple[str, str]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in weights.items():
            for old, new in pairs:
                name = name.replace(old, new)
            found[name] = tensor
        return found

    return change


def test_old_names_of_norms(saved: Callable[..., Path]) -> None:
    change = renamed(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    assert_same(etymon.load(saved("bert", change)), tiny("bert", PRETRAINED["bert"]))


PREFIXES = {
    **dict.fromkeys(("gpt1", "gpt2", "gpt3", "gptj"), "transformer."),
    **{name: f"{name}." for name in ("bert", "roberta", "albert", "distilbert", "electra")},
}


@pytest.mark.parametrize(("family", "prefix"), PREFIXES.items())
def test_names_without_the_prefix_of_the_body(saved: Callable[..., Path], family: str, prefix: str) -> None:
    folder = saved(
        family, lambda weights: {name.removeprefix(prefix): value for name, value in weights.items()}
    )
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


STRAYS = {
    "gpt2": {"transformer.h.0.attn.bias": (1, 1, 12, 12), "transformer.h.1.attn.masked_bias": ()},
    "gpt1": {"transformer.h.0.attn.bias": (1, 1, 12, 12)},
    "gpt3": {
        "transformer.h.0.attn.attention.bias": (1, 1, 12, 12),
        "transformer.h.1.attn.attention.masked_bias": (),
    },
    "gptj": {"transformer.h.0.attn.bias": (1, 1, 12, 12), "transformer.h.1.attn.masked_bias": ()},
    "bert": {"bert.embeddings.position_ids": (1, 12)},
    "roberta": {"roberta.embeddings.position_ids": (1, 14)},
    "albert": {"albert.embeddings.position_ids": (1, 12)},
    "electra": {"electra.embeddings.position_ids": (1, 12)},
    "t5": {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (32, 2)},
}


@pytest.mark.parametrize("family", STRAYS)
@pytest.mark.parametrize("prefixed", [True, False])
def test_stray_buffers_of_old_files(saved: Callable[..., Path], family: str, prefixed: bool) -> None:
    prefix = get_family(family).names(tiny(family, set()).shape).prefix

    def change(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights |= {name: torch.zeros(shape) for name, shape in STRAYS[family].items()}
        return {name if prefixed else name.removeprefix(prefix): value for name, value in weights.items()}

    assert_same(etymon.load(saved(family, change)), tiny(family, PRETRAINED[family]))


def test_the_bias_of_an_untied_bert(tmp_path: Path) -> None:
    """Transformers 5 stores two and uses the decoder's; version 4 stores the other one alone."""
    model = tiny("bert", {"vocabulary"}, tied=False)
    etymon.save(model, tmp_path / "bert")
    stored = load_file(tmp_path / "bert" / "model.safetensors")
    assert torch.equal(stored["cls.predictions.bias"], stored["cls.predictions.decoder.bias"])
    rewrite(tmp_path / "bert", moved("cls.predictions.bias"))
    assert_same(etymon.load(tmp_path / "bert"), model)

    def older(weights: dict[str, Tensor]) -> None:
        weights["cls.predictions.bias"] = weights.pop("cls.predictions.decoder.bias")

    rewrite(tmp_path / "bert", older)
    assert_same(etymon.load(tmp_path / "bert"), model)


@pytest.mark.parametrize(
    "spelling", [{"tie_word_embeddings": False}, {"scale_decoder_outputs": False}], ids=str
)
def test_both_spellings_of_an_untied_t5(tmp_path: Path, spelling: dict[str, bool]) -> None:
    model = tiny("t5", {"vocabulary"}, tied=False, feed_forward="gated-gelu")
    etymon.save(model, tmp_path / "t5")
    config = json.loads((tmp_path / "t5" / "config.json").read_text())
    assert config["tie_word_embeddings"] is config["scale_decoder_outputs"] is False
    for key in ("tie_word_embeddings", "scale_decoder_outputs"):
        del config[key]
    # Transformers 5 writes the first with the second.
    extra = {"tie_word_embeddings": True} if "scale_decoder_outputs" in spelling else {}
    (tmp_path / "t5" / "config.json").write_text(json.dumps({**config, **extra, **spelling}))
    loaded = etymon.load(tmp_path / "t5")
    assert loaded.shape.tied is False
    assert_same(loaded, model)


@pytest.mark.parametrize("family", PRETRAINED)
@pytest.mark.parametrize("kind", ["shards", "bin", "bin shards"])
def test_shards_and_pickles(saved: Callable[..., Path], family: str, kind: str) -> None:
    folder = saved(family)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if kind == "shards":
        write_weights(folder, weights, shard_size=4000)
        assert (folder / "model.safetensors.index.json").is_file()
    elif kind == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        names = sorted(weights)
        places = {name: f"pytorch_model-{1 + i % 2:05d}-of-00002.bin" for i, name in enumerate(names)}
        for file in set(places.values()):
            torch.save({name: weights[name] for name in names if places[name] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(etymon.load(folder), tiny(family, PRETRAINED[family]))


# --- configuration


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", "yes"),
        ("gpt2", "activation_function", "prelu"),
        ("gpt2", "n_head", 3),
        ("gpt1", "afn", "mish"),
        ("gpt3", "attention_types", [[["global", "sparse"], 1]]),
        ("gpt3", "attention_types", "global"),
        ("gpt3", "attention_types", [[["global", "local"], 2]]),
        ("gpt3", "attention_layers", ["local", "global"]),
        ("gpt3", "window_size", 0),
        ("gptj", "rotary_dim", None),
        ("gptj", "rotary_dim", 7),
        ("gptj", "rotary_dim", 10),
        ("gptj", "rotary", False),
        ("bert", "position_embedding_type", "rotary"),
        ("bert", "is_decoder", True),
        ("bert", "hidden_size", "16"),
        ("t5", "feed_forward_proj", "gated-prelu"),
        ("t5", "model_type", "unheard-of"),
        ("roberta", "max_position_embeddings", "14"),
        ("roberta", "pad_token_id", "<pad>"),
        ("albert", "num_hidden_groups", 3),
    ],
)
def test_configurations_that_are_another_model(
    saved: Callable[..., Path], family: str, key: str, value: Any
) -> None:
    line = refusal(saved(family, **{key: value}))
    assert key in line or str(value).strip("[']") in line
