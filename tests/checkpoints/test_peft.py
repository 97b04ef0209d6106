"""Folders of adapters: ours come back bit for bit, PEFT opens them, and those that PEFT wrote are opened here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import etymon
from etymon import EtymonError
from etymon.families import REGISTRY
from etymon.families.loading import read_shape
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.lora import LoraSettings, adapt, adapters, merge
from etymon.training.optimisers import OptimiserChoice, build_optimiser, optimiser_tensors, restore_optimiser
from tests.families.folders import refusal
from tests.nn.test_lora import ALL, learnt, plain, states, suitable

IDS = [5, 6, 7, 8, 9, 10]
WIDE = LoraSettings(rank=3, alpha=5.0, targets=("query", "value", "output", "inner"))
OPENERS: dict[str, Any] = {
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
}


@pytest.fixture
def base(tmp_path: Path) -> Callable[..., Path]:
    def saved(family: str, **changes: Any) -> Path:
        etymon.save(plain(family, **changes), tmp_path / family)
        return tmp_path / family

    return saved


def adapted(folder: Path, settings: LoraSettings | None = None, **options: Any) -> Model:
    """A model with adapters and heads that have learnt something."""
    model = learnt(adapt(etymon.load(folder, **options), settings, seed=7, base=folder))
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name in model.lora_heads:
            parameter = model.get_parameter(name)
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def logits(model: Model) -> Tensor:
    """As a class of Transformers gives them for one row."""
    batch = Batch.of([IDS])
    with torch.no_grad():
        if "vocabulary" not in model.heads:
            return model.answer(next(iter(model.head_names)), batch)
        if not model.encoder_decoder:
            return model.heads["vocabulary"].logits(model.hidden(batch)[0])  # type: ignore[operator]
        hidden, _ = model.decode(Batch.of([[1, 12, 13]]), model.encode(batch))
        return model.heads["vocabulary"].logits(hidden)  # type: ignore[operator]


def theirs(model: Any) -> Tensor:
    writes = model.config.is_encoder_decoder and hasattr(model, "lm_head")
    written = {"decoder_input_ids": torch.tensor([[1, 12, 13]])} if writes else {}
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=torch.tensor([IDS]), **written).logits
    return found[0] if found.dim() == 3 else found


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return found


def assert_same(one: Model, other: Model) -> None:
    left, right = dict(one.named_parameters()), dict(other.named_parameters())
    assert list(left) == list(right)
    for name, parameter in left.items():
        assert torch.equal(parameter, right[name]), name
        assert parameter.requires_grad == right[name].requires_grad, name


@pytest.mark.parametrize("settings", [None, ALL], ids=["usual", "all"])
@pytest.mark.parametrize("family", REGISTRY)
def test_a_folder_comes_back_bit_for_bit(
    family: str, settings: LoraSettings | None, base: Callable[..., Path], tmp_path: Path
) -> None:
    folder = base(family)
    for began in (True, False):  # also before the first step, when every B is zero
        model = adapt(etymon.load(folder), settings or suitable(family), seed=3, base=folder)
        model = model if began else adapted(folder, settings or suitable(family))
        etymon.save(model, tmp_path / "adapters", history=[{"objective": "a task"}])
        again = etymon.load(tmp_path / "adapters")
        assert_same(model, again)
        assert again.lora == model.lora and again.lora_base == str(folder)
        assert again.history == [{"objective": "a task"}] and not again.training
    assert not (tmp_path / "adapters" / "config.json").exists()
    torch.testing.assert_close(states(again), states(model), rtol=0, atol=0)
    etymon.save(again, tmp_path / "again", history=[{"objective": "a task"}])
    for file in ("adapter_model.safetensors", "adapter_config.json", "history.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "adapters" / file).read_bytes()


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_training_goes_on_bit_for_bit(optimiser: str, base: Callable[..., Path], tmp_path: Path) -> None:
    choice = OptimiserChoice(name=optimiser, learning_rate=0.01, layer_decay=0.8)

    def train(model: Model, steps: int, before: dict[str, Tensor]) -> dict[str, Tensor]:
        stepper = build_optimiser(model, choice)
        restore_optimiser(stepper, model, before)
        for _ in range(steps):
            stepper.zero_grad()
            model.answer("classification", Batch.of([IDS])).logsumexp(-1).sum().backward()
            stepper.step()
        return {name: value.clone() for name, value in optimiser_tensors(stepper, model).items()}

    folder = base("gpt2")
    model = adapt(etymon.load(folder, heads={"classification"}), base=folder)
    moments = train(model, 2, {})
    etymon.save(model, tmp_path / "checkpoint")
    again = etymon.load(tmp_path / "checkpoint")
    train(model, 2, moments)
    train(again, 2, moments)
    assert_same(model, again)
    assert any(part.lora_b.any() for part in adapters(again).values())


OURS = [
    ("bert", {"classification"}, None),
    ("bert", {"classification"}, WIDE),
    ("bert", {"tagging"}, None),
    ("roberta", {"classification"}, None),
    ("distilbert", {"classification"}, None),
    ("electra", {"classification"}, ALL),
    ("albert", {"classification"}, WIDE),
    ("gpt1", None, None),
    ("gpt2", None, None),
    ("gpt2", None, WIDE),
    ("gpt2", {"classification"}, ALL),
    ("gptj", None, WIDE),
    ("t5", None, None),
    ("t5", {"tagging"}, WIDE),
    ("bart", None, WIDE),
]


@pytest.mark.filterwarnings("error:.*adapter keys:UserWarning")
@pytest.mark.parametrize(("family", "heads", "settings"), OURS)
def test_peft_opens_ours(
    family: str,
    heads: set[str] | None,
    settings: LoraSettings | None,
    base: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = base(family)
    # T5's taggers have no decoder, which the base has.
    told: dict[str, Any] = {"heads": heads, "labels": ["a", "b", "c"], "partial": True} if heads else {}
    model = adapted(folder, settings, **told)
    etymon.save(model, tmp_path / "adapters")
    config = config_of(tmp_path / "adapters")
    assert config["base_model_name_or_path"] == str(folder)
    labels = {} if heads is None else {"num_labels": 3}
    labels |= {"pad_token_id": 0} if family == "gpt2" else {}
    whole = OPENERS[config["task_type"]].from_pretrained(config["base_model_name_or_path"], **labels)
    before = theirs(whole)
    opened = PeftModel.from_pretrained(whole, tmp_path / "adapters")
    assert (theirs(opened) - before).abs().max() > 1e-2
    torch.testing.assert_close(theirs(opened), logits(model), rtol=0, atol=2e-5)
    # Nothing has an adapter that ours does not have.
    lora = {name for name, _ in opened.named_parameters() if "lora_B" in name}
    stored = [
        name for name in load_file(tmp_path / "adapters" / "adapter_model.safetensors") if "lora_B" in name
    ]
    assert len(lora) == len(stored)


def test_names_in_the_config_are_short_and_mean_nothing_else(
    base: Callable[..., Path], tmp_path: Path
) -> None:
    def config(family: str, *targets: str) -> dict[str, Any]:
        folder = base(family)
        etymon.save(adapted(folder, LoraSettings(rank=4, alpha=8.0, targets=targets)), tmp_path / "adapters")
        return config_of(tmp_path / "adapters")

    plain_bert = config("bert", "query", "value")
    assert plain_bert["target_modules"] == ["query", "value"]
    assert plain_bert["rank_pattern"] == plain_bert["alpha_pattern"] == {}
    assert plain_bert["modules_to_save"] == ["bert.pooler", "cls.seq_relationship"]
    assert config("bert", "output")["target_modules"] == ["attention.output.dense"]
    fused = config("gpt2", "query", "value", "output")
    assert fused["target_modules"] == ["c_attn", "attn.c_proj"] and fused["fan_in_fan_out"]
    assert (fused["r"], fused["lora_alpha"], fused["task_type"]) == (4, 8, "CAUSAL_LM")
    assert fused["rank_pattern"] == {"c_attn": 8} and fused["alpha_pattern"] == {"c_attn": 16}
    weights = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    b = weights["base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"]
    assert b.shape == (96, 8) and not b[32:64].any() and not b[:32, 4:].any() and not b[64:, :4].any()


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]}),
    ("bert", {"task_type": "SEQ_CLS", "target_modules": "all-linear"}),  # also the pooler, which is a head here
    ("bert", {"task_type": "TOKEN_CLS", "target_modules": ["query"], "use_rslora": True}),
    ("roberta", {"task_type": "SEQ_CLS", "target_modules": ["key"]}),
    ("gpt2", {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ("gpt2", {"task_type": "CAUSAL_LM", "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True,
              "rank_pattern": {"c_attn": 5, "h.1.mlp.c_proj": 2}, "alpha_pattern": {"attn.c_proj": 11}}),
    ("gpt2", {"task_type": "SEQ_CLS", "target_modules": ["c_attn"], "fan_in_fan_out": True, "layers_to_transform": [1]}),
    ("t5", {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v", "wo"]}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "options"), FOREIGN)
def test_ours_opens_theirs(
    family: str, options: dict[str, Any], base: Callable[..., Path], tmp_path: Path
) -> None:
    folder, task = base(family), options["task_type"]
    labels = {"num_labels": 3} if task.endswith("CLS") else {}
    labels |= {"pad_token_id": 0} if family == "gpt2" else {}
    torch.manual_seed(11)
    whole = OPENERS[task].from_pretrained(folder, **labels)
    model = get_peft_model(whole, LoraConfig(r=3, lora_alpha=7, **options))
    generator = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    if family == "bert":  # their pooler is drawn anew where a base has none, and not stored
        assert any("pooler" in name for name in load_file(folder / "model.safetensors"))
    model.save_pretrained(tmp_path / "theirs")
    ours = etymon.load(tmp_path / "theirs")
    assert ours.lora is not None and ours.lora.rank == 3 and not ours.new_heads
    torch.testing.assert_close(logits(ours), theirs(model), rtol=0, atol=2e-5)
    # Once more through a folder of ours, and merged.
    etymon.save(ours, tmp_path / "ours")
    torch.testing.assert_close(logits(etymon.load(tmp_path / "ours")), logits(ours), rtol=0, atol=1e-6)
    etymon.convert(tmp_path / "theirs", tmp_path / "merged")
    merged = etymon.load(tmp_path / "merged")
    assert merged.lora is None and not adapters(merged)
    torch.testing.assert_close(logits(merged), theirs(model), rtol=0, atol=2e-5)


def test_what_peft_has_trained_on_since_is_more_than_our_blocks(
    base: Callable[..., Path], tmp_path: Path
) -> None:
    """Query and value of c_attn share an A from then on, though our note still speaks of two."""
    etymon.save(adapted(base("gpt2")), tmp_path / "adapters")
    opened = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2"), tmp_path / "adapters", is_trainable=True
    )
    with torch.no_grad():
        for name, parameter in opened.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    opened.save_pretrained(tmp_path / "adapters")
    model = etymon.load(tmp_path / "adapters")
    assert len(adapters(model)) == 6
    torch.testing.assert_close(logits(model), theirs(opened), rtol=0, atol=2e-5)


def test_labels_tokenizer_and_other_heads(base: Callable[..., Path], tmp_path: Path) -> None:
    folder = base("bert")
    model = adapted(folder, heads={"classification"}, labels=["good", "bad", "ugly"])
    etymon.save(model, tmp_path / "adapters")
    again = etymon.load(tmp_path / "adapters")
    assert again.labels == ("good", "bad", "ugly") and again.new_heads == ()
    other = etymon.load(tmp_path / "adapters", heads={"tagging"}, labels=["x", "y"])
    assert other.new_heads == ("tagging",) and len(adapters(other)) == 4
    assert other.lora_heads == ("heads.tagging.linear.bias", "heads.tagging.linear.weight")
    assert all(other.get_parameter(name).requires_grad for name in other.lora_heads)
    assert "classifier.weight is (3, 32), not (2, 32)" in refusal(tmp_path / "adapters", labels=["x", "y"])
    shown = etymon.show(tmp_path / "adapters")
    assert shown.architecture == f"LoRA on {folder}" and shown.weights["files"] == [
        "adapter_model.safetensors"
    ]
    card = (tmp_path / "adapters" / "README.md").read_text(encoding="utf-8")
    assert "PeftModel.from_pretrained(model" in card and f'from_pretrained("{folder}")' in card


def test_convert_merges_and_needs_the_base_no_more(base: Callable[..., Path], tmp_path: Path) -> None:
    folder = base("bert")
    model = adapted(folder, heads={"classification"}, labels=["a", "b", "c"])
    etymon.save(model, tmp_path / "adapters")
    etymon.convert(tmp_path / "adapters", tmp_path / "merged")
    shutil.rmtree(folder)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(theirs(opened), logits(model), rtol=0, atol=2e-5)
    line = refusal(tmp_path / "adapters")
    assert f"no such folder: {folder}" in line and "bring it back" in line and "etymon convert" in line


def test_eight_bits_are_of_the_merged_model(base: Callable[..., Path], tmp_path: Path) -> None:
    model = adapted(base("gpt2"), ALL)
    etymon.save(model, tmp_path / "adapters")
    small = etymon.load(tmp_path / "adapters", quantize="int8")
    assert small.int8 and torch.equal(logits(small), logits(merge(model).quantize()))


def test_adapters_may_stand_on_adapters_and_on_runs(base: Callable[..., Path], tmp_path: Path) -> None:
    etymon.save(adapted(base("gpt2")), tmp_path / "run" / "model")
    first = etymon.load(tmp_path / "run")
    assert first.lora is not None
    second = learnt(adapt(merge(first), seed=9, base=tmp_path / "run"), seed=10)
    etymon.save(second, tmp_path / "second")
    assert config_of(tmp_path / "second")["base_model_name_or_path"] == str(tmp_path / "run" / "model")
    torch.testing.assert_close(logits(etymon.load(tmp_path / "second")), logits(second), rtol=0, atol=1e-6)


def test_a_base_must_be_named_and_be_the_model_s_own(base: Callable[..., Path], tmp_path: Path) -> None:
    folder = base("gpt2")
    with pytest.raises(EtymonError, match="nobody said where"):
        etymon.save(adapt(etymon.load(folder)), tmp_path / "adapters")
    with pytest.raises(EtymonError, match="another shape than its base"):
        etymon.save(adapt(plain("gpt2", vocabulary=44), base=folder), tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()


def test_what_cannot_be_read_is_refused(base: Callable[..., Path], tmp_path: Path) -> None:
    folder, place = base("gpt2"), tmp_path / "adapters"
    etymon.save(adapted(folder), place)
    (place / "etymon.json").unlink()  # these are to be adapters of somebody else
    told, weights = config_of(place), load_file(place / "adapter_model.safetensors")

    def line(changed: dict[str, Any] | None = None, tensors: dict[str, Tensor] | None = None) -> str:
        (place / "adapter_config.json").write_text(json.dumps({**told, **(changed or {})}))
        save_file({**weights, **(tensors or {})}, place / "adapter_model.safetensors")
        return refusal(place)

    root = "base_model.model.transformer."
    assert "kind 'IA3'" in line({"peft_type": "IA3"})
    assert "use_dora = True" in line({"use_dora": True})
    assert "init_lora_weights = 'pissa'" in line({"init_lora_weights": "pissa"})
    assert "bias = 'all'" in line({"bias": "all"})
    assert "does not name its base" in line({"base_model_name_or_path": None})
    assert "lora_magnitude_vector" in line(
        None, {f"{root}h.0.attn.c_attn.lora_magnitude_vector": torch.ones(96)}
    )
    assert "transformer.h.7.attn" in line(
        None,
        {
            f"{root}h.7.attn.c_attn.lora_A.weight": torch.ones(2, 32),
            f"{root}h.7.attn.c_attn.lora_B.weight": torch.ones(96, 2),
        },
    )
    assert "an A and no B" in line(None, {f"{root}h.0.attn.c_proj.lora_A.weight": torch.ones(2, 32)})
    assert "another base" in line(
        None,
        {
            f"{root}h.0.attn.c_proj.lora_A.weight": torch.ones(2, 8),
            f"{root}h.0.attn.c_proj.lora_B.weight": torch.ones(32, 2),
        },
    )
    # What is tied to the words cannot be stored apart from them, and words are not stored with adapters.
    words = etymon.load(folder).get_parameter("body.embeddings.words.weight").detach()
    assert "lm_head.weight" in line(None, {"base_model.model.lm_head.weight": words + 1})
    assert "wte.weight" in line(None, {f"{root}wte.weight": words + 1})


def test_adapters_that_are_their_own_base_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, base in ((one, two), (two, one)):
        folder.mkdir()
        config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2}
        (folder / "adapter_config.json").write_text(json.dumps(config))
    for base in (one, two):
        with pytest.raises(EtymonError, match="are their own base"):
            read_shape(base)
