"""Low-rank adapters: nothing at first, the same merged and apart, and nothing else trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.families.surgery import average_checkpoints, grow
from etymon.nn.batch import Batch, Letters
from etymon.nn.lora import LoraSettings, adapt, adapters, merge
from etymon.training.optimisers import OptimiserChoice, depths, parameter_groups
from tests import tiny

ALL = LoraSettings(rank=3, alpha=6.0, targets=("*",))
ROWS = [[5, 6, 7, 8, 9], [11, 12, 13]]


def plain(family: str, heads: frozenset[str] | None = None, **changes: Any) -> Model:
    known = get_family(family)
    shape = shape_of(known, None, **{**tiny.shape(family), "vocabulary": 40, **changes})
    model = Model(known, shape, known.architectures[0].heads if heads is None else heads).initialise(seed=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # so that nothing is at a first value that hides what is before it
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def learnt(model: Model, seed: int = 0) -> Model:
    """With adapters that do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in adapters(model).values():
            part.lora_b.normal_(0.0, 0.2, generator=generator)
    return model


def states(model: Model, gradient: bool = False) -> Tensor:
    batch = Batch.of(ROWS)
    if "letters" in model.capabilities:
        spelled = torch.arange(8 * 6).reshape(8, 6) % 200 + 3
        batch.letters = Letters(spelled, torch.arange(8), torch.arange(8))
    with torch.set_grad_enabled(gradient):
        if model.encoder_decoder:
            return model.decode(Batch.of([row[::-1] for row in ROWS]), model.encode(batch))[0]
        return model.hidden(batch)[0]


def suitable(family: str) -> LoraSettings:
    return ALL if family == "elmo" else LoraSettings(rank=3, alpha=6.0)


@pytest.mark.parametrize("settings", [None, ALL], ids=["usual", "all"])
@pytest.mark.parametrize("family", REGISTRY)
def test_new_adapters_change_nothing_and_merged_ones_compute_the_same(
    family: str, settings: LoraSettings | None
) -> None:
    model, settings = plain(family).double(), settings or suitable(family)
    names, before = list(dict(model.named_parameters())), states(model)
    adapt(model, settings, seed=1)
    assert torch.equal(states(model), before)
    assert [name for name, _ in model.named_parameters() if ".lora_" not in name] == names
    apart = states(learnt(model))
    assert (apart - before).abs().max() > 1e-4
    assert merge(model) is model and model.lora is None
    assert not adapters(model) and list(dict(model.named_parameters())) == names
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(states(model), apart, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", REGISTRY)
def test_every_adapter_and_nothing_else_of_a_body_gets_a_gradient(family: str) -> None:
    model = learnt(adapt(plain(family), ALL if family in ("elmo", "rnn") else LoraSettings()))
    states(model, gradient=True).square().sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if ".lora_" in name}


def test_heads_train_but_a_vocabulary_that_is_the_word_vectors_does_not() -> None:
    def trained(model: Model) -> set[str]:
        return {name.split(".")[1] for name, one in adapt(model).named_parameters() if one.requires_grad} - {
            "stack"
        }

    assert trained(plain("bert")) == {"pooler", "next_sentence"}
    assert trained(plain("bert", frozenset({"classification"}))) == {"pooler", "classification"}
    assert trained(plain("bert", frozenset({"vocabulary"}), tied=False)) == {"vocabulary"}
    new = plain("bert", frozenset({"vocabulary"}))
    new.new_heads = ("vocabulary",)
    assert trained(new) == {"vocabulary"}
    assert not new.body.embeddings.words.weight.requires_grad


@pytest.mark.parametrize("untied", ["gptj", "t5"])
def test_words_stay_frozen_where_the_output_is_not_theirs(untied: str) -> None:
    model = adapt(plain(untied, tied=False))
    heads = {name for name, _ in model.named_parameters() if name.startswith("heads.")}
    assert heads and set(model.lora_heads) == heads
    assert not any(one.requires_grad for name, one in model.named_parameters() if "words" in name)


def test_first_values_depend_on_seed_and_name_alone() -> None:
    few, many = adapt(plain("bert"), seed=4), adapt(plain("bert", layers=3), ALL, seed=4)
    again, other = adapt(plain("bert"), seed=4), adapt(plain("bert"), seed=5)
    name = "body.stack.layers.1.attention.query.lora_a"
    value = few.get_parameter(name)
    assert torch.equal(value, again.get_parameter(name))
    assert not torch.equal(value, other.get_parameter(name))
    assert many.get_parameter(name).shape == (3, 32)
    assert not torch.equal(value, few.get_parameter(name.replace("query", "value")))
    assert 0.9 * 32**-0.5 < value.abs().max() <= 32**-0.5  # as nn.Linear is drawn, and so PEFT's A
    assert not few.get_parameter(name.replace("lora_a", "lora_b")).any()


def test_dropout_falls_on_what_an_adapter_reads_while_it_trains() -> None:
    model = learnt(adapt(plain("gpt2"), LoraSettings(dropout=0.5)))
    calm = states(model)
    assert torch.equal(states(model), calm)
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(states(model), calm)
    with torch.no_grad():
        for part in adapters(model).values():
            part.lora_b.zero_()
    torch.manual_seed(0)
    dropped = states(model)
    torch.manual_seed(1)
    assert torch.equal(states(model), dropped)  # the base reads everything


def test_targets_are_last_parts_of_names_or_patterns_of_them() -> None:
    def found(family: str, *targets: str) -> set[str]:
        model = adapt(plain(family), LoraSettings(targets=targets))
        return {
            name.removeprefix("body.").replace("stack.layers.", "")
            for name in adapters(model)
            if ".0." in name
        }

    assert found("bert", "query", "outer") == {"0.attention.query", "0.feed_forward.outer"}
    assert found("bert", "*er") == {"0.feed_forward.inner", "0.feed_forward.outer"}
    assert found("t5", "cross.q*") == {"decoder.0.cross.query"}
    assert len(found("xlnet", "*")) == 7 and "0.attention.position" in found("xlnet", "*")


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(EtymonError, match=r"no linear map of ELMo is called query or value: .*projection"):
        adapt(plain("elmo"))
    with pytest.raises(
        EtymonError, match="is called valeu: adapters go on query, key, value, output, inner, outer"
    ):
        adapt(plain("bert"), LoraSettings(targets=("query", "valeu")))
    assert len(adapters(adapt(plain("rnn")))) == 1  # its attention has a query and no value
    with pytest.raises(
        EtymonError, match=r"rank 1,000 are larger than the matrices they are for, whose rank is \d+"
    ):
        adapt(plain("bert"), LoraSettings(rank=1000))
    with pytest.raises(EtymonError, match="merge"):
        adapt(adapt(plain("gpt2")))
    with pytest.raises(EtymonError, match="eight bits"):
        adapt(plain("gpt2").quantize())
    for wrong in ({"rank": 0}, {"alpha": -1.0}, {"dropout": 1.0}, {"targets": ()}, {"ranks": 8}):
        with pytest.raises(EtymonError):
            LoraSettings(**wrong)  # type: ignore[arg-type]


def test_nothing_reads_a_matrix_past_its_adapter(tmp_path: Path) -> None:
    """Eight bits, means of checkpoints and larger vocabularies look at weights by themselves."""
    model, merged = (learnt(adapt(plain("gpt2"), ALL)) for _ in range(2))
    assert torch.equal(states(model.quantize()), states(merge(merged).quantize()))
    assert model.lora is None

    etymon.save(plain("gpt2"), tmp_path / "base")
    runs = [
        learnt(adapt(etymon.load(tmp_path / "base"), ALL, base=tmp_path / "base"), seed) for seed in (1, 2)
    ]
    for number, one in enumerate(runs):
        etymon.save(one, tmp_path / str(number))
    mean = average_checkpoints([tmp_path / "0", tmp_path / "1"])
    name = "body.stack.layers.0.attention.query.weight"
    expected = sum(merge(one).get_parameter(name).double() for one in runs) / 2
    torch.testing.assert_close(mean.get_parameter(name).double(), expected, rtol=0, atol=1e-6)

    with pytest.raises(EtymonError, match="merge them first"):
        grow(adapt(plain("gpt2")), 40, [[1, 2]])


def test_optimisers_know_how_deep_adapters_lie() -> None:
    model = adapt(plain("bert", frozenset({"classification"})))
    below = depths(dict(model.named_parameters()))
    assert below["body.stack.layers.1.attention.query.lora_a"] == 1
    assert below["body.stack.layers.0.attention.value.lora_b"] == 2
    groups = parameter_groups(model, OptimiserChoice(weight_decay=0.1, undecayed=("*bias",), layer_decay=0.5))
    names = {name for group in groups for name in group["names"]}
    assert names == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sum(".lora_" in name for name in names) == 8
