"""Heads come and go: new ones start anew and are told, stored ones are kept or left out, and all of them travel."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import etymon
from etymon import EtymonError
from etymon.nn.batch import Batch
from tests.families.folders import PRETRAINED, assert_same, refusal, rewrite, tiny, without


def test_a_new_head_on_a_pretrained_body(saved: Callable[..., Path]) -> None:
    for family, pretrained in PRETRAINED.items():
        folder = saved(family)
        model = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"])
        assert model.new_heads == ("classification",)
        assert model.labels == ("a", "b", "c")
        assert "vocabulary" not in model.heads
        assert_same(model, tiny(family, pretrained), only="body.")
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        again = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"])
        other = etymon.load(folder, heads={"classification"}, labels=["a", "b", "c"], seed=1)
        weight = "heads.classification.linear.weight"
        assert_same(model, again)
        assert not torch.equal(model.get_parameter(weight), other.get_parameter(weight))


def test_a_stored_head_is_kept_beside_a_new_one(saved: Callable[..., Path]) -> None:
    model = etymon.load(saved("bert"), heads={"vocabulary", "tagging"})
    assert model.new_heads == ("tagging",)
    assert_same(etymon.load(saved("bert")), tiny("bert", PRETRAINED["bert"]), only="heads.vocabulary")
    values = dict(tiny("bert", PRETRAINED["bert"]).named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith("heads.tagging"):
            assert torch.equal(parameter, values[name]), name


@pytest.mark.parametrize("family", PRETRAINED)
def test_heads_can_be_left_out(saved: Callable[..., Path], family: str) -> None:
    model = etymon.load(saved(family), heads=set())
    assert model.new_heads == ()
    assert len(model.heads) == 0
    assert_same(model, tiny(family, PRETRAINED[family]))


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    etymon.save(tiny("bert", {"classification"}, labels=("a", "b", "c")), tmp_path / "bert")
    rewrite(tmp_path / "bert", lambda weights: {**weights, "classifier.weight": torch.zeros(2, 16)})
    # The matrix says how many labels there are.
    assert "classifier.bias is (3,), not (2,)" in refusal(tmp_path / "bert")


@pytest.mark.parametrize(
    ("stored", "told", "new"),
    [
        (("a", "b", "c"), ["a", "b"], True),
        (("a", "b"), ["x", "y"], True),
        (("b", "a"), ["a", "b"], False),
        (("LABEL_0", "LABEL_1"), ["x", "y"], False),
        (("LABEL_0", "LABEL_1"), ["x", "y", "z"], True),
    ],
)
def test_a_head_for_other_labels_starts_anew(
    tmp_path: Path, stored: tuple[str, ...], told: list[str], new: bool
) -> None:
    model = tiny("bert", {"classification"}, labels=stored)
    etymon.save(model, tmp_path / "bert")
    loaded = etymon.load(tmp_path / "bert", labels=told)
    assert loaded.new_heads == (("classification",) if new else ())
    assert loaded.labels == (stored if set(stored) == set(told) else tuple(told))
    assert_same(loaded, model, only="body.")
    if not new:
        assert_same(loaded, model)


def test_a_new_head_does_not_take_another_s_weights(tmp_path: Path) -> None:
    """Several heads go by the same name in the reference: `classifier` is of rows or of tokens."""
    etymon.save(tiny("bert", {"classification"}, labels=("a", "b", "c")), tmp_path / "bert")
    for labels in (["x", "y", "z"], ["x", "y"]):
        model = etymon.load(tmp_path / "bert", heads={"tagging"}, labels=labels)
        assert model.new_heads == ("tagging",)
        assert model.get_parameter("heads.tagging.linear.weight").abs().max() <= 0.04
        assert not model.get_parameter("heads.tagging.linear.bias").any()


def test_more_heads_than_the_class_has(saved: Callable[..., Path]) -> None:
    """The published BERTs name the masked model, and hold the pooler and the other head of pretraining."""
    folder = saved("bert", architectures=["BertForMaskedLM"])
    assert_same(etymon.load(folder), tiny("bert", PRETRAINED["bert"]))
    rewrite(folder, without("cls.seq_relationship.weight", "cls.seq_relationship.bias"))
    model = etymon.load(folder)
    assert model.head_names == {"vocabulary"}
    assert "pooler" not in model.heads
    assert_same(model, tiny("bert", PRETRAINED["bert"]))
    rewrite(folder, lambda weights: {"qa_outputs.weight": torch.zeros(2, 16), **weights})
    assert "unexpected: qa_outputs.weight" in refusal(folder)


def test_an_unknown_head_is_refused(saved: Callable[..., Path]) -> None:
    assert "classification" in refusal(saved("bert"), heads={"clasification"})


def test_what_a_partial_load_did_not_find_is_told(saved: Callable[..., Path]) -> None:
    folder = saved("bert", without("cls.seq_relationship.weight"))
    assert "missing: cls.seq_relationship.weight" in refusal(folder)
    model = etymon.load(folder, partial=True)
    assert model.new_heads == ("next_sentence",)
    assert_same(model, tiny("bert", PRETRAINED["bert"]), only="body.")


UNPUBLISHED = {
    "gpt1": {"vocabulary", "tagging"},
    "gpt3": {"vocabulary", "choice"},
    "gptj": {"vocabulary", "tagging"},
    "bert": {"vocabulary", "classification"},
    "t5": {"vocabulary", "tagging"},
    "bart": {"vocabulary", "choice"},
    "roberta": {"vocabulary", "tagging"},
    "albert": {"vocabulary", "classification"},
    "distilbert": {"vocabulary", "classification"},
    "electra": {"vocabulary", "tagging"},
}


@pytest.mark.parametrize("family", ["gpt1", "gpt2", "gpt3"])
def test_a_classifier_that_also_gives_words_back_opens_as_a_classifier(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny(family, {"vocabulary", "classification"}, labels=("a", "b", "c")).eval()
    etymon.save(model, tmp_path / "saved")
    opened, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(info.values())
    assert_same(etymon.load(tmp_path / "saved"), model)
    ids = torch.tensor([[3, 4, 5, 6]])
    batch = Batch.of_rectangle(ids)
    with torch.no_grad():
        opened.config.pad_token_id = 0
        torch.testing.assert_close(model.answer("classification", batch), opened.eval()(ids).logits)
        words = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
        said = model.heads["vocabulary"].logits(model.hidden(batch)[0])
        torch.testing.assert_close(said[None], words(ids).logits)


@pytest.mark.parametrize("family", UNPUBLISHED)
def test_heads_without_a_class_travel_with_the_others(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = tiny(family, UNPUBLISHED[family], labels=("a", "b", "c")).eval()
    etymon.save(model, tmp_path / "saved")
    own = {
        name
        for name in load_file(tmp_path / "saved" / "model.safetensors")
        if name.startswith("etymon_heads.")
    }
    extra = next(iter(UNPUBLISHED[family] - {"vocabulary"}))
    assert own
    assert all(name.startswith(f"etymon_heads.{extra}.") for name in own)
    loaded = etymon.load(tmp_path / "saved")
    assert loaded.head_names == UNPUBLISHED[family]
    assert extra == "choice" or loaded.labels == ("a", "b", "c")  # a choice has no labels
    assert_same(loaded, model)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    opened, info = cls.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    # BERT's pooler serves the other head, and a class without it leaves it aside.
    rest = {name for name in info["unexpected_keys"] if not name.startswith("etymon_heads.")}
    assert all(".pooler." in name for name in rest)
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        if model.encoder_decoder:
            hidden, _ = model.decode(Batch.of_rectangle(ids), model.encode(Batch.of_rectangle(ids)))
            expected = opened.eval()(input_ids=ids, decoder_input_ids=ids).logits
        else:
            hidden, _ = model.hidden(Batch.of_rectangle(ids))
            expected = opened.eval()(input_ids=ids).logits
        torch.testing.assert_close(
            model.heads["vocabulary"].logits(hidden)[None], expected, atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("family", ["bart", "transformer", "rnn"])
def test_encoder_decoders_score_choices_by_the_last_token(family: str, tmp_path: Path) -> None:
    model = tiny(family, {"choice"}).eval()
    model.carried = {"decoder_start_token_id": 1}
    batch = Batch.of([[3, 4, 5, 6], [7, 8], [3, 4, 5, 9]])
    with torch.no_grad():
        states, scores = model.states(batch), model.answer("choice", batch)
        assert scores.shape == (3, 1) and scores.unique().numel() == 3
        torch.testing.assert_close(scores, model.heads["choice"](states[[3, 5, 9]]))
    etymon.save(model, tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert {name for name in stored if "choice" in name} == {
        f"etymon_heads.choice.{part}.{kind}" for part in ("dense", "linear") for kind in ("weight", "bias")
    }
    again = etymon.load(tmp_path / "saved")
    assert again.head_names == {"choice"} and not again.new_heads
    assert_same(again, model)


def test_labels_and_carried_values_survive(tmp_path: Path) -> None:
    model = tiny("bert", {"classification"}, labels=("bad", "so-so", "good"))
    model.carried = {"pad_token_id": 0, "task_specific_params": {"a": {"b": 1}}}
    etymon.save(model, tmp_path / "bert")
    loaded = etymon.load(tmp_path / "bert")
    assert loaded.labels == ("bad", "so-so", "good")
    assert loaded.carried["task_specific_params"] == {"a": {"b": 1}}
    assert loaded.token("pad") == 0


def test_a_folder_without_a_class_is_read_by_its_names(saved: Callable[..., Path]) -> None:
    for family, heads in PRETRAINED.items():
        # A tied output matrix has no name of its own; a model that writes has one all the same.
        assert etymon.load(saved(family, architectures=None)).head_names == heads


def test_ids_beyond_the_positions_are_refused_with_the_fix() -> None:
    model = tiny("gpt2", {"vocabulary"})
    with pytest.raises(EtymonError, match="13 tokens, but the model has 12 positions"):
        model.hidden(Batch.of([[1] * 13]))


def test_heads_of_an_encoder_leave_the_decoder_out(saved: Callable[..., Path]) -> None:
    model = etymon.load(saved("t5"), heads={"tagging"})
    assert model.body.decoder is None and model.new_heads == ("tagging",)
    assert_same(model, tiny("t5", PRETRAINED["t5"]), only="body.")


@pytest.mark.parametrize(
    ("family", "published"), [("bert", "BertForQuestionAnswering"), ("t5", "T5ForQuestionAnswering")]
)
def test_labels_of_another_head_are_left_out(family: str, published: str, tmp_path: Path) -> None:
    """Transformers would give a span as many outputs."""
    transformers = pytest.importorskip("transformers")
    etymon.save(tiny(family, {"classification"}, labels=("a", "b", "c")), tmp_path / "judge")
    etymon.save(etymon.load(tmp_path / "judge", heads={"span"}), tmp_path / "reader")
    assert "id2label" not in json.loads((tmp_path / "reader" / "config.json").read_text())
    theirs = getattr(transformers, published).from_pretrained(tmp_path / "reader")
    assert theirs.qa_outputs.weight.shape[0] == 2
