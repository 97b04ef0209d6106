"""Activations by their published names: the same function as Transformers', and the same name in a folder that is saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.families.shape import ACTIVATION_NAMES
from etymon.families.t5 import FEED_FORWARDS, SETTINGS, SPELLINGS
from etymon.nn.layers import ACTIVATIONS
from tests.families.reference import BERT, GPT1, GPT2, GPTJ, GPTNEO, T5

activations = pytest.importorskip("transformers.activations")
LEARNED_OR_FOREIGN = {"prelu", "xielu", "sqrtsoftplus"}
"""One with parameters, and those of much later models."""
KEYS = {
    "bert": "hidden_act",
    "roberta": "hidden_act",
    "albert": "hidden_act",
    "electra": "hidden_act",
    "distilbert": "activation",
    "xlnet": "ff_activation",
    "bart": "activation_function",
    "gpt2": "activation_function",
    "gpt3": "activation_function",
    "gptj": "activation_function",
}


def test_every_activation_of_transformers_is_the_same_function_here() -> None:
    published = set(activations.ACT2FN)
    assert set(ACTIVATION_NAMES.values()) == published - LEARNED_OR_FOREIGN
    x = torch.linspace(-12, 12, 97, dtype=torch.float64)
    for ours, theirs in ACTIVATION_NAMES.items():
        torch.testing.assert_close(ACTIVATIONS[ours](x), activations.ACT2FN[theirs](x), msg=theirs)


@pytest.mark.parametrize("family", KEYS)
def test_folder_keeps_the_name_of_its_activation(family: str) -> None:
    settings = etymon.families.get_family(family).settings
    for name in ACTIVATION_NAMES.values():
        fields, _ = settings.read({KEYS[family]: name}, "config.json")
        shape = etymon.families.get_family(family).shape(**fields)
        assert settings.write(vars(shape))[KEYS[family]] == name


def test_unknown_activation_is_refused_in_one_line() -> None:
    with pytest.raises(etymon.EtymonError, match=r"activation is .*did you mean 'gelu_tanh'"):
        etymon.build("bert", shape={"activation": "gelu_new"})


SPELT = [
    ("GPT2LMHeadModel", {**GPT2, "activation_function": "swish"}),
    ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_fast"}),
    ("OpenAIGPTLMHeadModel", {**GPT1, "afn": "swish"}),
    ("GPTNeoForCausalLM", {**GPTNEO, "activation_function": "quick_gelu"}),
    ("GPTJForCausalLM", {**GPTJ, "activation_function": "mish"}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gelu"}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-mish"}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}),
    ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "relu", "dense_act_fn": "silu"}),
]


@pytest.mark.parametrize(("name", "config"), SPELT, ids=lambda value: value if isinstance(value, str) else "")
def test_models_with_other_activations_compute_what_transformers_does(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    cls = getattr(transformers, name)
    peer = cls(cls.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    peer.save_pretrained(tmp_path / "peer")
    model = etymon.load(tmp_path / "peer")
    etymon.save(model, tmp_path / "saved")
    opened = cls.from_pretrained(tmp_path / "saved").eval()
    ids = torch.arange(3, 15).view(2, 6)
    more = {"decoder_input_ids": ids.flip(1)} if model.encoder_decoder else {}
    batch = etymon.nn.batch.Batch.of(ids.tolist())
    with torch.no_grad():
        if model.encoder_decoder:
            decoded = etymon.nn.batch.Batch.of(ids.flip(1).tolist())
            hidden, _ = model.decode(decoded, model.encode(batch))
        else:
            hidden, _ = model.hidden(batch)
        logits = model.heads["vocabulary"].logits(hidden).view(2, 6, -1)
        expected = peer(ids, **more).logits
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(opened(ids, **more).logits, expected, atol=1e-6, rtol=1e-6)
    for key, value in config.items():
        if key in {*KEYS.values(), "afn"}:
            assert json.loads((tmp_path / "saved" / "config.json").read_text())[key] == value


def test_t5_names_every_activation_plain_and_gated() -> None:
    assert set(FEED_FORWARDS) == {*SPELLINGS, *(f"gated-{name}" for name in SPELLINGS)}
    assert FEED_FORWARDS["gelu"] == "gelu"
    assert FEED_FORWARDS["gated-gelu"] == "gelu_tanh"
    for name in FEED_FORWARDS:
        assert SETTINGS.read({"feed_forward_proj": name}, "config.json")[0]["feed_forward"] == name
