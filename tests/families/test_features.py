"""Models whose task heads read features: every layer in order, frozen or not, in folders and on pretrained bodies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.families.surgery import average_checkpoints, grow
from etymon.nn.batch import Batch
from etymon.nn.features import INITIAL, FeatureHead, FeatureSettings
from tests import tiny

FAMILIES = ["elmo", "bert", "gpt2", "xlnet", "t5", "rnn"]
TASKS = {"classification": (3, 4), "choice": (3, 1), "tagging": (11, 4), "span": (11, 2)}
ROWS = [[5, 6, 7, 8], [9], [4, 9, 6, 5, 7, 8]]
BOTH = FeatureSettings(cells=4, place="both", words=3)
GATED = FeatureSettings(cells=4, source="last-four", words=5, gate=True)


def model(
    family: str,
    features: FeatureSettings | None = BOTH,
    heads: Any = tuple(TASKS),
    dropout: float = 0.0,
    **changes: Any,
) -> Model:
    known, tokenizer = get_family(family), tiny.tokenizer(family)
    shape = {**tiny.shape(family, dropout), "vocabulary": tokenizer.size, **changes}
    made = Model(known, shape_of(known, None, **shape), heads, "abcd", features).initialise()
    made.tokenizer = tokenizer
    return made.eval()


def weights(made: Model, prefix: str = "") -> dict[str, Tensor]:
    return {name: value for name, value in made.named_parameters() if name.startswith(prefix)}


def assert_equal(one: Model, two: Model, prefix: str = "") -> None:
    values = weights(two, prefix)
    assert values
    assert all(torch.equal(value, values[name]) for name, value in weights(one, prefix).items())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_answer(family: str) -> None:
    made, batch = model(family), Batch.of(ROWS)
    with torch.no_grad():
        assert {head: tuple(made.answer(head, batch).shape) for head in TASKS} == TASKS
        layers = made.layers(batch)
        for head in TASKS:
            assert torch.equal(made.answer_from(head, layers, batch), made.answer(head, batch))
        assert made.answer("tagging", batch, torch.tensor([3, 0])).shape == (2, 4)
    assert all(isinstance(made.heads[head], FeatureHead) for head in TASKS)
    assert set(made.heads) == set(TASKS)  # what other heads would read of is not built
    with pytest.raises(EtymonError, match="features"):
        made.read("tagging", layers[-1], batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_those_of_a_trace(family: str) -> None:
    made, batch = model(family), Batch.of(ROWS)
    with torch.no_grad(), etymon.trace(made) as seen:
        last = made.encode(batch).hidden_MD if made.encoder_decoder else made.hidden(batch)[0]
    layers = made.layers(batch)
    expected = next(stack.hidden for stack in seen.values() if stack.hidden)
    assert (
        (len(layers), layers[0].shape[1]) == made.family.layers(made.shape) == (len(expected), last.shape[1])
    )
    for one, two in zip(layers, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    torch.testing.assert_close(layers[-1], last, rtol=0, atol=1e-5)


def test_who_looks_inside_sees_what_features_are_made_of() -> None:
    made, batch = model("bert"), Batch.of(ROWS)
    with torch.no_grad(), etymon.trace(made) as seen:
        made.answer("tagging", batch)
    assert len(seen.hidden) == 3 and len(seen.attention) == 2
    assert made.body.stack.seen is None and made.body.stack.layers[0].attention.seen is None


@pytest.mark.parametrize("features", [BOTH, GATED])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_keeps_heads_and_settings(family: str, features: FeatureSettings, tmp_path: Path) -> None:
    made, batch = model(family, features), Batch.of(ROWS)
    etymon.save(made, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["etymon_features"]["source"] == features.source
    own = {name for name in load_file(tmp_path / "model.safetensors") if name.startswith("etymon_heads.")}
    assert len(own) == len(weights(made, "heads."))
    again = etymon.load(tmp_path)
    assert again.features == features and not again.new_heads and again.head_names == made.head_names
    assert again.family == made.family  # checkpoints of one run have a mean
    assert_equal(made, again)
    for head in TASKS:
        assert torch.equal(again.answer(head, batch), made.answer(head, batch))
    etymon.save(again, tmp_path / "again")
    assert_equal(etymon.load(tmp_path / "again"), made)


@pytest.mark.parametrize("family", ["elmo", "bert", "t5"])
def test_new_heads_on_a_pretrained_body(family: str, tmp_path: Path) -> None:
    pretrained = model(family, None, get_family(family).architectures[0].heads)
    etymon.save(pretrained, tmp_path)
    assert "etymon_features" not in (tmp_path / "config.json").read_text(encoding="utf-8")
    made = etymon.load(tmp_path, heads={"tagging"}, labels="abcd", features=GATED)
    assert made.new_heads == ("tagging",) and made.features == GATED
    assert_equal(made, pretrained, "body.")
    assert_equal(made, model(family, GATED, {"tagging"}), "heads.")
    if family == "elmo":  # it has no other task heads
        usual = etymon.load(tmp_path, heads={"tagging"})
        assert usual.features == FeatureSettings() and isinstance(usual.heads["tagging"], FeatureHead)


def test_stored_heads_of_another_kind_start_anew(tmp_path: Path) -> None:
    plain = model("bert", None, {"classification", "vocabulary"})
    etymon.save(plain, tmp_path / "plain")
    made = etymon.load(tmp_path / "plain", features=BOTH)
    assert made.new_heads == ("classification",) and set(made.heads) == {"classification", "vocabulary"}
    assert_equal(made, plain, "heads.vocabulary")
    etymon.save(made, tmp_path / "both")
    assert etymon.load(tmp_path / "both", features=GATED).new_heads == ("classification",)
    assert etymon.load(tmp_path / "both", features=BOTH).new_heads == ()
    assert etymon.load(tmp_path / "both", heads={"classification", "span"}).new_heads == ("span",)
    left_out = etymon.load(tmp_path / "both", heads={"vocabulary"})
    etymon.save(left_out, tmp_path / "words")
    assert "etymon_features" not in (tmp_path / "words" / "config.json").read_text(encoding="utf-8")


def test_a_foreign_folder_may_come_without_our_note(tmp_path: Path) -> None:
    """As the hub has it: names alone tell that there is a pooler, which nobody needs here."""
    etymon.save(model("bert", None, {"pooler"}), tmp_path)
    for name in ("history.json", "etymon.json"):
        (tmp_path / name).unlink()
    stored = load_file(tmp_path / "model.safetensors")
    save_file({f"bert.{name}": value for name, value in stored.items()}, tmp_path / "model.safetensors")
    assert etymon.load(tmp_path, heads={"span"}, features=BOTH).new_heads == ("span",)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_body_unless_it_is_frozen(family: str) -> None:
    made, batch = model(family), Batch.of(ROWS)
    made.answer("tagging", batch).square().sum().backward()
    grads = {name: value.grad for name, value in made.named_parameters()}
    assert any(grad is not None and grad.any() for name, grad in grads.items() if name.startswith("body."))
    for part in (
        "mixes.0.scalars.0",
        "mixes.1.gamma",
        "lstms.0.weight_ih_l0",
        "lstms.0.weight_hh_l0_reverse",
    ):
        grad = grads[f"heads.tagging.{part}"]
        assert grad is not None and grad.any(), part
    made.zero_grad()
    made.frozen_body = True
    made.answer("tagging", batch).square().sum().backward()
    grads = {name: value.grad for name, value in made.named_parameters()}
    assert all(grad is None for name, grad in grads.items() if name.startswith("body."))
    assert all(grads[name] is not None for name in weights(made, "heads.tagging."))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_body_drops_nothing_while_heads_train(family: str) -> None:
    made, batch = model(family, dropout=0.5), Batch.of(ROWS)
    expected = [layer.detach() for layer in made.layers(batch)]
    made.train()
    assert not torch.equal(made.layers(batch)[-1], expected[-1])
    made.frozen_body = True
    for layer, other in zip(made.layers(batch), expected, strict=True):
        torch.testing.assert_close(layer, other, rtol=0, atol=1e-5)
        assert not layer.requires_grad
    assert made.body.training and made.heads.training  # as they were


def test_a_family_has_its_own_heads_unless_told() -> None:
    assert not get_family("bert").feature_heads
    made = model("bert", None, {"tagging"})
    assert made.features is None and not isinstance(made.heads["tagging"], FeatureHead)
    with pytest.raises(EtymonError, match="choice"):
        model("t5", None, {"choice"})
    assert model("t5", BOTH, {"choice"}).answer("choice", Batch.of(ROWS)).shape == (3, 1)


def test_words_that_only_letters_tell_apart_share_a_vector() -> None:
    made = model("elmo")
    assert made.tokenizer is not None
    first, second = made.tokenizer.lexicon.encode_batch(["quokka", "zyzzyva"])
    unknown = made.tokenizer.id("unknown")
    assert first[0] >= made.shape.vocabulary and first[0] != second[0]
    one, two = Batch.of([first]), Batch.of([second])
    layers = made.layers(one)
    assert not torch.equal(layers[0], made.layers(two)[0])
    same = [made.answer_from("tagging", layers, batch) for batch in (one, two, Batch.of([[unknown]]))]
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])


def test_a_vocabulary_grows_under_features() -> None:
    made, batch = model("bert", BOTH, {"tagging"}), Batch.of(ROWS)
    larger = grow(made, made.shape.vocabulary, [[5, 6]])
    assert larger.features == BOTH
    torch.testing.assert_close(larger.answer("tagging", batch), made.answer("tagging", batch))
    words = larger.get_parameter("heads.tagging.vectors.weight")
    torch.testing.assert_close(words[-1], words[[5, 6]].mean(0))


def test_checkpoints_have_a_mean(tmp_path: Path) -> None:
    made = model("elmo", GATED, {"tagging"})
    etymon.save(made, tmp_path / "one")
    etymon.save(made, tmp_path / "two")
    assert_equal(average_checkpoints([tmp_path / "one", tmp_path / "two"]), made)


def test_weights_of_eight_bits_come_back(tmp_path: Path) -> None:
    made, batch = model("bert", GATED, {"tagging"}).quantize(), Batch.of(ROWS)
    etymon.save(made, tmp_path)
    assert torch.equal(etymon.load(tmp_path).answer("tagging", batch), made.answer("tagging", batch))


def test_first_values() -> None:
    values = weights(model("gpt2", GATED, {"tagging"}), "heads.tagging.")
    bias = values["heads.tagging.lstms.0.bias_ih_l0"]
    assert bias.chunk(4)[1].eq(1).all() and bias.sum().item() == 4.0
    assert not values["heads.tagging.lstms.0.bias_hh_l0_reverse"].any()
    assert 0.3 < values["heads.tagging.vectors.weight"].std().item() * 5**0.5 < 1.2
    mixed = weights(model("gpt2", BOTH, {"tagging"}), "heads.tagging.mixes.1.")
    assert [value.item() for value in mixed.values()] == [1.0, 0.0, 0.0, 0.0]
    assert all(pattern.startswith("heads.*.") for pattern, _ in INITIAL)


def test_layers_that_take_turns_are_mixed_each() -> None:
    made = model("albert", inner_groups=2)
    with torch.no_grad():
        assert made.answer("tagging", Batch.of(ROWS)).shape == TASKS["tagging"]
        assert len(made.layers(Batch.of(ROWS))) == made.family.layers(made.shape)[0] == 5
