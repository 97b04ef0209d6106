"""Original TensorFlow checkpoints: converted, they give the outputs that Transformers' own reader of them gave."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import etymon
from etymon import cli
from etymon.errors import EtymonError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tensorflow"
# The folder, the class that opens what was converted, the heads that were asked for, and what they are.
CASES = [
    ("bert", "BertForPreTraining", None, {"vocabulary", "next_sentence"}),
    ("gpt2", "GPT2LMHeadModel", None, {"vocabulary"}),
    ("albert", "AlbertForPreTraining", None, {"vocabulary", "sentence_order"}),
    ("electra", "ElectraForPreTraining", None, {"replaced"}),
    ("electra", "ElectraForMaskedLM", ["vocabulary"], {"vocabulary"}),
    ("xlnet", "XLNetLMHeadModel", None, {"vocabulary"}),
    ("t5", "T5ForConditionalGeneration", None, {"vocabulary"}),
    ("t5.1.1", "T5ForConditionalGeneration", None, {"vocabulary"}),
]


@pytest.mark.parametrize(
    ("name", "cls", "heads", "expected_heads"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_converted_it_gives_the_expected_outputs(
    name: str, cls: str, heads: list[str] | None, expected_heads: set[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    result = etymon.convert(FIXTURES / name, tmp_path / "out", heads=heads)
    assert set(result.heads) - {"pooler"} == expected_heads and result.new_heads == ()
    model = getattr(transformers, cls).from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    expected = np.load(FIXTURES / name / f"expected{'-' + cls if heads else ''}.npz")
    ids = torch.from_numpy(expected["ids"])
    more = {"decoder_input_ids": ids.flip(1)[:, :7]} if name.startswith("t5") else {}
    with torch.no_grad():
        outputs = model(input_ids=ids, **more)
    for output in set(expected.files) - {"ids"}:
        np.testing.assert_allclose(outputs[output].numpy(), expected[output], rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("bert", "the"),
        ("electra", "the"),
        ("gpt2", "t"),
        ("albert", "▁the"),
        ("xlnet", "▁the"),
        ("t5", "▁the"),
    ],
)
def test_the_tokenizer_beside_it_comes_along(name: str, first: str) -> None:
    tokenizer = etymon.load(FIXTURES / name).tokenizer
    assert tokenizer is not None
    tokens = tokenizer.backend.encode("the river", add_special_tokens=False).tokens
    assert tokens[0] == first and "[UNK]" not in tokens and "<unk>" not in tokens


def test_without_a_tokenizer_there_is_none() -> None:
    assert etymon.load(FIXTURES / "t5.1.1").tokenizer is None


def test_what_belongs_to_training_is_left_aside_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "etymon"):
        etymon.load(FIXTURES / "bert")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "left aside 13 variables of training (optimiser slots, global step)"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "etymon"):
        etymon.load(FIXTURES / "electra")
    assert "left aside 23 variables of the generator (--heads vocabulary takes it)" in caplog.text


def test_a_fine_tuned_bert_has_its_classifier(tmp_path: Path) -> None:
    """`output_weights` beside the body is what run_classifier.py trains."""
    from etymon.families.imports.foreign import translate
    from etymon.families.imports.tensorflow_names import BERT

    pieces, unknown = translate(
        ["output_weights", "output_bias", "cls/squad/output_weights", "strange/kernel"], BERT
    )
    assert list(pieces) == ["classifier.weight", "classifier.bias", "qa_outputs.weight"]
    assert unknown == ["strange/kernel"]


def test_show_says_what_it_is() -> None:
    shown = etymon.show(FIXTURES / "gpt2")
    assert shown.family == "GPT-2" and shown.architecture == "TensorFlow's GPT-2"
    assert shown.weights["files"] == ["model.ckpt.index", "model.ckpt.data-00000-of-00001"]


def refusal(folder: Path) -> str:
    with pytest.raises(EtymonError) as caught:
        etymon.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_or_strange_is_said(tmp_path: Path) -> None:
    bert = Path(shutil.copytree(FIXTURES / "bert", tmp_path / "bert"))
    (bert / "bert_config.json").unlink()
    assert "no bert_config.json, which says its sizes: put it there" in refusal(bert)
    config = json.loads((FIXTURES / "bert" / "bert_config.json").read_text())
    (bert / "bert_config.json").write_text(json.dumps({**config, "hidden_size": 20, "intermediate_size": 99}))
    assert "do not fit BERT" in refusal(bert)
    (bert / "a_config.json").write_text("{}")
    assert "several configurations (a_config.json, bert_config.json)" in refusal(bert)
    xlnet = Path(shutil.copytree(FIXTURES / "xlnet", tmp_path / "xlnet"))
    config = json.loads((xlnet / "xlnet_config.json").read_text())
    (xlnet / "xlnet_config.json").write_text(json.dumps({**config, "n_layer": "two"}))
    assert "n_layer = 'two'" in refusal(xlnet)
    (xlnet / "xlnet_config.json").write_text(json.dumps({**config, "n_layer": 3}))
    assert "missing: transformer.layer.2" in refusal(xlnet) or "has 2 layers" in refusal(xlnet)


def test_a_checkpoint_of_another_family_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from etymon.families.imports import tensorflow

    monkeypatch.setattr(tensorflow, "KINDS", ())
    assert "of no family that is read here (it has bert/embeddings/LayerNorm/beta" in refusal(
        FIXTURES / "bert"
    )


def test_electra_without_a_configuration_needs_heads_of_64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etymon.families.imports import tensorflow

    electra = Path(shutil.copytree(FIXTURES / "electra", tmp_path / "electra"))
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", 48)
    assert "does not say how many attention heads a width of 64 has" in refusal(electra)
    (electra / "config.json").write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4}))
    assert etymon.load(electra).shape.heads == 4


def test_a_damaged_checkpoint_leaves_nothing_behind(tmp_path: Path) -> None:
    gpt2 = Path(shutil.copytree(FIXTURES / "gpt2", tmp_path / "gpt2"))
    data = gpt2 / "model.ckpt.data-00000-of-00001"
    values = bytearray(data.read_bytes())
    values[2000] ^= 4
    data.write_bytes(values)
    with pytest.raises(SystemExit) as left:
        cli.main(["convert", str(gpt2), str(tmp_path / "out")])
    assert left.value.code == 2
    assert not (tmp_path / "out").exists() and sorted(path.name for path in tmp_path.iterdir()) == ["gpt2"]
