"""Exports to CTranslate2 say what the model says, in every class of its runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from etymon.checkpoints.folder import EXPORT_RECORD
from etymon.errors import EtymonError
from etymon.exports.check import check_inputs, compare_answers, model_answers
from etymon.exports.target import STATES, CheckInputs
from etymon.exports.writing import export_model
from etymon.families import get_family
from etymon.families.model import Model
from etymon.generation.decoding import decode
from etymon.settings.decoding import DecodingSettings
from tests.exports.exported import exported_model

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (etymon[ctranslate2])")

from etymon.exports.ctranslate2_target import CTranslate2Target  # noqa: E402

# Every kind of folder, and every part that a layer may be made of.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "vocabulary", {}),
    ("gpt2", "vocabulary", {"scaled_by_layer": True, "residual_scale": 0.5, "tied": False}),
    ("gpt2", "vocabulary", {"scaled": False, "activation": "quick_gelu", "inner_dim": 48}),
    ("gptj", "vocabulary", {}),
    ("gpt1", "vocabulary", {}),
    ("bert", STATES, {}),
    ("bert", STATES, {"position_kind": "rotary"}),
    ("bert", STATES, {"position_kind": "relative_key"}),
    ("bert", STATES, {"position_kind": "relative_bias", "residual_scale": 0.7}),
    ("bert", "classification", {}),
    ("bert", "tagging", {}),
    ("bert", "choice", {}),
    ("roberta", STATES, {}),
    ("roberta", "classification", {}),
    ("roberta", "span", {}),
    ("distilbert", STATES, {}),
    ("distilbert", "classification", {}),
    ("bart", "vocabulary", {}),
    (
        "bart",
        "vocabulary",
        {"scaled": True, "decoder_heads": 4, "decoder_layers": 1, "decoder_inner_dim": 48},
    ),
    ("bart", "vocabulary", {"position_kind": "rotary", "activation": "relu"}),
    ("bart", STATES, {}),
    ("t5", "vocabulary", {}),
    ("t5", "vocabulary", {"feed_forward": "relu", "head_dim": 24, "decoder_layers": 1}),
    ("t5", "vocabulary", {"tied": False, "longest_distance": 20, "buckets": 16}),
    ("t5", STATES, {}),
    ("transformer", "vocabulary", {}),
    ("transformer", "vocabulary", {"norm": "before", "attention_bias": True, "tied": False}),
    ("transformer", "vocabulary", {"position_kind": "relative_bias", "norm": "before"}),
]


def export(model: Model, head: str, folder: Path, quantization: str = "float32") -> Path:
    return export_model(model, CTranslate2Target(), quantization, folder / "exported", head).folder


@pytest.mark.parametrize("family, head, fields", CASES)
def test_the_runtime_says_what_the_model_says(
    family: str, head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model, target = exported_model(family, head, **fields), CTranslate2Target()
    folder = export(model, head, tmp_path)
    figures = compare_answers(target, target.open(folder), model, head, check_inputs(model, head))
    assert figures.worst < 2e-5
    assert figures.agreement == 1.0


@pytest.mark.parametrize("family, head", [("gpt2", "vocabulary"), ("bert", STATES), ("t5", "vocabulary")])
def test_eight_bits_are_smaller_and_leave_the_model_as_it_was(family: str, head: str, tmp_path: Path) -> None:
    model = exported_model(family, head, dim=64, inner_dim=128)
    before = {name: tensor.clone() for name, tensor in model.stored_tensors().items()}
    folder = export(model, head, tmp_path, "int8")
    whole = export(model, head, tmp_path / "whole")
    assert (folder / "model.bin").stat().st_size < 0.5 * (whole / "model.bin").stat().st_size
    assert 0 < json.loads((folder / EXPORT_RECORD).read_text())["check"]["worst"] < 0.25
    for name, tensor in model.stored_tensors().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt1"])
def test_greedy_tokens_are_the_same(family: str, tmp_path: Path) -> None:
    model = exported_model(family, "vocabulary")
    prompts = [[5, 6, 7], [40], [9, 80, 41, 12, 33]]
    settings = DecodingSettings(max_new_tokens=12, min_new_tokens=12)
    ours = [row[0].ids for row in decode(model, prompts, settings)]
    generator = ctranslate2.Generator(str(export(model, "vocabulary", tmp_path)), intra_threads=1)
    names = vocabulary(tmp_path / "exported" / "vocabulary.json")
    # One at a time: of prompts of several lengths, CTranslate2 gives back a part.
    theirs = [
        generator.generate_batch(
            [[names[number] for number in row]], max_length=12, min_length=12, include_prompt_in_result=False
        )[0]
        for row in prompts
    ]
    assert [list(result.sequences_ids[0]) for result in theirs] == ours


@pytest.mark.parametrize("family", ["bart", "t5", "transformer"])
def test_beams_are_the_same(family: str, tmp_path: Path) -> None:
    model = exported_model(family, "vocabulary")
    sources = [[5, 6, 7, 8], [40, 2], [9, 80, 41, 12, 33]]
    model.carried |= {"forced_eos_token_id": None, "forced_bos_token_id": None}
    # Of one length: where a text may end, CTranslate2 stops earlier.
    settings = DecodingSettings(beams=4, max_new_tokens=10, min_new_tokens=10, length_penalty=0.0, returns=4)
    ours = [[beam.ids for beam in row] for row in decode(model, sources, settings)]
    translator = ctranslate2.Translator(str(export(model, "vocabulary", tmp_path)), intra_threads=1)
    names = vocabulary(tmp_path / "exported" / "shared_vocabulary.json")
    ids = {name: number for number, name in enumerate(names)}
    results = translator.translate_batch(
        [[names[number] for number in row] for row in sources],
        beam_size=4,
        num_hypotheses=4,
        length_penalty=0.0,
        max_decoding_length=10,
        min_decoding_length=10,
    )
    theirs = [[[ids[token] for token in beam] for beam in result.hypotheses] for result in results]
    assert theirs == ours


def vocabulary(path: Path) -> list[str]:
    names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return names


def test_a_classifier_is_an_encoder_and_one_product(tmp_path: Path) -> None:
    """As docs/exporting.md shows it."""
    model = exported_model("bert", "classification", labels=("bad", "fair", "good"))
    folder = export(model, "classification", tmp_path)
    encoder, head = ctranslate2.Encoder(str(folder), intra_threads=1), load_file(folder / "head.safetensors")
    # Whoever may read the model may read its head.
    assert (folder / "head.safetensors").stat().st_mode == (folder / "model.bin").stat().st_mode
    pooled = np.array(encoder.forward_batch([[2, 5, 6, 3]]).pooler_output)
    logits = pooled @ head["weight"].T + head["bias"]
    ours = model_answers(model, "classification", CheckInputs([[2, 5, 6, 3]]))
    assert np.allclose(logits, ours, atol=1e-5)


def test_segments_go_as_token_types(tmp_path: Path) -> None:
    from etymon.nn.batch import Batch

    model = exported_model("bert", STATES)
    encoder = ctranslate2.Encoder(str(export(model, STATES, tmp_path)), intra_threads=1)
    row, segments = [2, 5, 6, 3, 7, 3], [0, 0, 0, 0, 1, 1]
    theirs = np.array(encoder.forward_batch([row], token_type_ids=[segments]).last_hidden_state)[0]
    with torch.inference_mode():
        ours = model.last_layer(Batch.of([row], segments=[segments])).numpy()
    assert np.allclose(theirs, ours, atol=1e-5)


def test_a_folder_names_its_tokens_and_how_texts_begin_and_end(tmp_path: Path) -> None:
    model = exported_model("bart", "vocabulary", vocabulary=500)
    folder = export(model, "vocabulary", tmp_path)
    assert model.tokenizer is not None
    known = model.tokenizer.tokens
    names = vocabulary(folder / "shared_vocabulary.json")
    assert names[: len(known)] == known
    assert names[len(known) :] == [f"<unused_{number}>" for number in range(len(known), 500)]
    config = json.loads((folder / "config.json").read_text())
    assert config["decoder_start_token"] == config["eos_token"] == "</s>"
    assert (config["bos_token"], config["unk_token"]) == ("<s>", "<unk>")
    assert (folder / "tokenizer.json").exists()


def test_a_source_with_words_of_its_own_keeps_them(tmp_path: Path) -> None:
    model = exported_model("transformer", "vocabulary", source_vocabulary=70)
    folder = export(model, "vocabulary", tmp_path)
    assert len(vocabulary(folder / "source_vocabulary.json")) == 70
    assert len(vocabulary(folder / "target_vocabulary.json")) == model.shape.vocabulary


@pytest.mark.parametrize(
    "family, head, fields, reason",
    [
        ("bert", "vocabulary", {}, "--head states"),
        ("bert", STATES, {"position_kind": "relative_key_query"}, "and not keys"),
        ("bert", STATES, {"activation": "mish"}, "activation"),
        ("gpt2", "classification", {}, "the words that a decoder writes"),
        ("gpt2", "vocabulary", {"pointer": 8}, "one product"),
        ("gpt3", "vocabulary", {}, "a part of the text"),
        ("albert", STATES, {}, "word vectors"),
        ("xlnet", "vocabulary", {}, "no layers like its"),
        ("transformer-xl", "vocabulary", {}, "no layers like its"),
        ("rnn", STATES, {}, "no layers like its"),
        ("elmo", STATES, {}, "no layers like its"),
        ("transformer", "vocabulary", {"sinusoids": False}, "positions"),
    ],
)
def test_what_the_runtime_has_no_layers_for_is_refused_in_a_line(
    family: str, head: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = exported_model(family, head, **fields)
    with pytest.raises(EtymonError, match=reason) as refusal:
        export(model, head, tmp_path)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_reads_prompts_in_both_directions_is_refused(tmp_path: Path) -> None:
    model = exported_model("gpt2", "vocabulary")
    model.reads_prefix = True
    with pytest.raises(EtymonError, match="both directions"):
        export(model, "vocabulary", tmp_path)


def test_families_say_what_they_can_become() -> None:
    target = CTranslate2Target()
    for family in ("gpt2", "gptj", "gpt1", "bart", "t5", "transformer"):
        assert target.unsupported(get_family(family), "vocabulary") is None
    for family in ("bert", "roberta", "distilbert", "electra"):
        assert target.unsupported(get_family(family), STATES) is None
    assert "word vectors" in str(target.unsupported(get_family("albert"), STATES))
