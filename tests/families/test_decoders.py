"""What GPT-1, GPT-3 and GPT-J do differently from GPT-2, and what becomes of a GPT-3 that GPT-Neo cannot express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import read_shape, shape_of
from etymon.families.model import Model
from etymon.nn.batch import Batch
from tests.families.folders import NEO, assert_same, tiny
from tests.families.reference import GPTNEO
from tests.tiny import tokenizer

DECODERS = ("gpt1", "gpt2", "gpt3", "gptj")
OWN = {"attention_bias": True, "scaled": True}
ROWS = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [8, 3, 11, 10, 2]]


def hidden(model: Model, rows: list[list[int]] = ROWS) -> torch.Tensor:
    with torch.no_grad():
        return model.eval().hidden(Batch.of(rows))[0]


# --- GPT-3's layers


@pytest.mark.parametrize("band", [12, 7])
def test_a_band_as_wide_as_the_context_is_dense(band: int) -> None:
    dense, banded = (
        hidden(tiny("gpt3", set(), pattern=pattern, band=band)) for pattern in ("dense", "banded")
    )
    torch.testing.assert_close(dense, banded, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(dense, hidden(tiny("gpt3", set(), pattern="banded", band=6)), atol=1e-3)


def test_a_banded_layer_sees_so_many_tokens() -> None:
    model = tiny("gpt3", set(), layers=3, pattern="banded dense", band=3)
    with etymon.trace(model) as seen:
        hidden(model, [[4, 7, 9, 2, 30]])
    for number, weights_RHQT in enumerate(seen.attention):
        causal = torch.ones(5, 5, dtype=torch.bool).tril()
        visible = causal if number == 1 else causal.triu(-2)
        assert torch.equal(weights_RHQT[0, 0] > 0, visible)


def test_dense_and_banded_layers_are_gpt2_s_where_the_band_is_wide() -> None:
    """The same weights in another body: biases and scale are GPT-2's."""
    model, other = tiny("gpt3", {"vocabulary"}, **OWN, band=12), tiny("gpt2", {"vocabulary"})
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(hidden(model), hidden(other), atol=1e-6, rtol=0)


@pytest.mark.parametrize("pattern", ["", "dense sparse", "dense,banded"])
def test_patterns_that_say_nothing(pattern: str) -> None:
    with pytest.raises(EtymonError, match="must be words out of dense, banded"):
        shape_of(get_family("gpt3"), "pocket", pattern=pattern)


def test_heads_may_be_wider_than_the_model() -> None:
    """The 1.3B model as the paper's table has it: 24 heads of 128 in a width of 2,048."""
    family = get_family("gpt3")
    with torch.device("meta"):
        model = Model(family, shape_of(family, "1.3B", heads=24, head_dim=128), {"vocabulary"})
    assert model.get_parameter("body.stack.layers.0.attention.query.weight").shape == (3072, 2048)
    assert model.parameter_count() == 1_315_723_264 + 24 * (4 * 1024 * 2048 + 3 * 1024)
    with pytest.raises(EtymonError, match="not a multiple"):
        shape_of(family, "13B", dim=5140)


# --- folders of GPT-3


@pytest.mark.parametrize(
    "changes", [OWN, {"scaled": True}, {"attention_bias": True}, {"head_dim": 5}], ids=str
)
def test_what_gpt_neo_cannot_express_is_for_etymon_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny("gpt3", {"vocabulary", "span"}, pattern="banded dense dense", layers=4, **changes)
    etymon.save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("etymon-gpt_neo", [])
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=False)
    loaded = etymon.load(tmp_path / "saved")
    assert read_shape(tmp_path / "saved") == (get_family("gpt3"), model.shape)
    assert (loaded.shape, loaded.head_names) == (model.shape, model.head_names)
    assert_same(loaded, model)
    assert torch.equal(hidden(loaded), hidden(model))


def test_a_scale_is_kept_where_nobody_else_reads(tmp_path: Path) -> None:
    for changes, scale in ((OWN, 0.5), (NEO, 1.0)):
        etymon.save(tiny("gpt3", {"vocabulary"}, residual_scale=0.5, **changes), tmp_path / str(scale))
        assert etymon.load(tmp_path / str(scale)).shape.residual_scale == scale


@pytest.mark.parametrize(
    ("types", "pattern"),
    [
        ([[["global", "local"], 2]], "dense banded"),
        ([[["global"], 4]], "dense"),
        ([[["local", "global"], 1], [["local"], 1], [["local"], 1]], "banded dense banded"),
        ([[["global", "local"], 1], [["global", "global"], 1]], "dense banded dense"),
    ],
    ids=str,
)
def test_a_gpt_neo_folder_comes_back_as_it_was(types: list[Any], pattern: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoConfig(**{**GPTNEO, "num_layers": 4, "attention_types": types})
    transformers.GPTNeoForCausalLM(config).save_pretrained(tmp_path / "theirs")
    model = etymon.load(tmp_path / "theirs")
    assert model.shape.pattern == pattern
    assert not (model.shape.attention_bias or model.shape.scaled)
    etymon.save(model, tmp_path / "ours")
    before, after = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("theirs", "ours"))
    told = {key for key in before if key not in ("attention_types", "transformers_version", "use_cache")}
    assert {key: after.get(key) for key in told} == {key: before[key] for key in told}
    assert not any(key.startswith("etymon") for key in after)
    assert etymon.load(tmp_path / "ours").shape == model.shape
    opened = transformers.GPTNeoConfig.from_pretrained(tmp_path / "ours")
    assert opened.attention_layers == config.attention_layers


# --- GPT-1's framing, GPT-J's positions


def test_gpt1_s_folder_has_its_tokenizer_and_framing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    own = tokenizer("gpt1")
    assert own.kind == "word-bpe" and own.id("unknown") == 0 and own.id("begin") == own.id("end") == 1
    model = tiny("gpt1", {"vocabulary", "choice"}, vocabulary=own.size)
    model.tokenizer = own
    etymon.save(model, tmp_path / "saved")
    loaded = etymon.load(tmp_path / "saved").tokenizer
    assert loaded is not None and loaded.framing == own.framing
    start, delimiter, classify = (own.id(role) for role in ("begin", "separator", "class"))
    one, two = loaded.encode_batch(["The river", "crossed"])
    assert loaded.framing.frame(one, two).ids.tolist() == [start, *one, delimiter, *two, classify]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs("The river", "crossed")["input_ids"] == [start, *one, delimiter, *two, classify]
    # Without a task, a prompt is left open there, too.
    spoken = tiny("gpt1", {"vocabulary"}, vocabulary=own.size)
    spoken.tokenizer = own
    etymon.save(spoken, tmp_path / "spoken")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "spoken")
    for text in ("The river crossed", "THE RIVER'S café. _start_ answer_classify_"):
        assert theirs(text)["input_ids"] == loaded.encode(text).tolist()
    generation = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == generation["bos_token_id"] == start


def test_gptj_refuses_what_its_positions_do_not_reach() -> None:
    model = tiny("gptj", {"vocabulary"})
    assert model.positions == 12 and model.body.embeddings.positions is None
    hidden(model, [[4] * 12])
    with pytest.raises(EtymonError, match="13 tokens, but the model has 12 positions"):
        hidden(model, [[4] * 13])


# --- published configurations, recipes, pocket sizes

SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "task_specific_params": {"text-generation": {}},
}  # fmt: skip
PUBLISHED: dict[tuple[str, str], dict[str, Any]] = {
    ("gpt1", "base"): {
        **SUMMARY, "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 512, "n_special": 0, "predict_special_tokens": True,
        "resid_pdrop": 0.1, "vocab_size": 40478,
    },
    ("gpt3", "neo-2.7B"): {
        **SUMMARY, "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0,
        "attention_layers": ["global", "local"] * 16, "attention_types": [[["global", "local"], 16]],
        "bos_token_id": 50256, "embed_dropout": 0, "eos_token_id": 50256, "gradient_checkpointing": False,
        "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": None, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neo", "num_heads": 20, "num_layers": 32, "resid_dropout": 0,
        "tokenizer_class": "GPT2Tokenizer", "use_cache": True, "vocab_size": 50257, "window_size": 256,
    },
    ("gptj", "6B"): {
        **SUMMARY, "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
        "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": False,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
        "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64,
        "scale_attn_weights": True, "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer", "use_cache": True,
        "vocab_size": 50400,
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "size"), PUBLISHED)
def test_published_configurations(family: str, size: str) -> None:
    known = get_family(family)
    fields, _ = known.settings.read(PUBLISHED[family, size], "config.json")
    assert strict(known.shape, fields, "config.json") == shape_of(known, size)


def test_published_rates() -> None:
    gpt3 = get_family("gpt3")
    rates = {size: gpt3.recipe_for(size).learning_rate for size in ("125M", "1.3B", "13B", "175B")}
    assert rates == {"125M": 6e-4, "1.3B": 2e-4, "13B": 1e-4, "175B": 0.6e-4}
    assert all(gpt3.recipe_for(size).final == 0.1 for size in gpt3.sizes)
    gpt1 = get_family("gpt1").recipe_for("base")
    assert (gpt1.learning_rate, gpt1.warmup_steps, gpt1.schedule, gpt1.final) == (2.5e-4, 2000, "cosine", 0.0)


@pytest.mark.parametrize("family", DECODERS)
def test_pocket_sizes_are_small(family: str) -> None:
    with torch.device("meta"):
        count = Model(
            get_family(family), shape_of(get_family(family), "pocket"), {"vocabulary"}
        ).parameter_count()
    assert 4_000_000 < count < 6_000_000
    assert {"causal", "state"} <= get_family(family).capabilities
