"""GGUF files hold every weight under llama.cpp's name, its sizes and its tokenizer, read back by gguf's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.checkpoints.folder import EXPORT_RECORD
from etymon.errors import EtymonError
from etymon.exports.check import check_inputs, compare_answers
from etymon.exports.target import STATES
from etymon.exports.writing import export_model
from etymon.families import get_family
from etymon.families.model import Model
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny
from tests.exports.exported import exported_model

gguf = pytest.importorskip("gguf", reason="gguf is not installed (etymon[gguf])")

from etymon.exports.gguf_reading import ReadBackRunner, read_file  # noqa: E402
from etymon.exports.gguf_target import FILE, GgufTarget  # noqa: E402
from etymon.exports.gguf_tensors import export_tensors  # noqa: E402
from etymon.exports.gguf_tokenizer import describe_tokenizer, find_tokenizer_misfit, special_ids  # noqa: E402


@pytest.fixture(autouse=True)
def without_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read back here; tests/exports/test_llama.py runs them."""
    monkeypatch.setattr("etymon.exports.gguf_target.find_llama", lambda: None)


def export(model: Model, head: str, folder: Path, quantization: str = "f32") -> Path:
    return export_model(model, GgufTarget(), quantization, folder / "exported", head).folder / FILE


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "vocabulary", {}),
    ("gpt2", "vocabulary", {"tied": False, "scaled_by_layer": True, "residual_scale": 0.5, "inner_dim": 48}),
    ("t5", "vocabulary", {}),
    ("t5", "vocabulary", {"feed_forward": "relu", "tied": False, "head_dim": 24, "decoder_layers": 1}),
    ("bert", STATES, {"activation": "gelu_tanh"}),
    ("bert", "classification", {"activation": "gelu_tanh", "residual_scale": 0.7}),
    ("roberta", STATES, {"activation": "gelu_tanh"}),
    ("roberta", "classification", {"activation": "gelu_tanh"}),
    ("distilbert", STATES, {"activation": "gelu_tanh"}),
    ("roberta", STATES, {"activation": "gelu_tanh", "position_kind": "rotary"}),
]


@pytest.mark.parametrize("family, head, fields", CASES)
def test_what_a_file_holds_is_enough_to_compute_the_same(
    family: str, head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """With the activation that llama.cpp has, and so to rounding."""
    model, target = exported_model(family, head, **fields), GgufTarget()
    path = export(model, head, tmp_path)
    figures = compare_answers(target, ReadBackRunner(path), model, head, check_inputs(model, head))
    assert figures.worst < 1e-5
    assert figures.agreement == 1.0


def test_gpt2_is_read_back_tensor_by_tensor(tmp_path: Path) -> None:
    model = exported_model("gpt2", "vocabulary")
    ours, theirs = model.stored_tensors(), read_file(export(model, "vocabulary", tmp_path))[1]
    expected = {
        "token_embd.weight": ours["body.embeddings.words.weight"],
        "position_embd.weight": ours["body.embeddings.positions.weight"],
        "output_norm.weight": ours["body.stack.norm.weight"],
        "output_norm.bias": ours["body.stack.norm.bias"],
    }
    parts = {
        "attn_norm": "attention_norm", "attn_output": "attention.output", "ffn_norm": "feed_forward_norm",
        "ffn_up": "feed_forward.inner", "ffn_down": "feed_forward.outer",
    }  # fmt: skip
    for layer in range(2):
        for kind in ("weight", "bias"):
            begin = f"body.stack.layers.{layer}."
            for theirs_name, ours_name in parts.items():
                expected[f"blk.{layer}.{theirs_name}.{kind}"] = ours[f"{begin}{ours_name}.{kind}"]
            joined = [ours[f"{begin}attention.{part}.{kind}"] for part in ("query", "key", "value")]
            expected[f"blk.{layer}.attn_qkv.{kind}"] = torch.cat(joined)
    assert theirs.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(theirs[name], tensor), name


@pytest.mark.parametrize(
    "family, head, count", [("t5", "vocabulary", 51), ("bert", STATES, 37), ("roberta", STATES, 37)]
)
def test_every_parameter_is_in_the_file_once(family: str, head: str, count: int, tmp_path: Path) -> None:
    model = exported_model(family, head)
    theirs = read_file(export(model, head, tmp_path))[1]
    assert len(theirs) == count
    unused = {"roberta": 2 * 32}.get(family, 0)  # rows of RoBERTa's positions before the first
    assert sum(tensor.numel() for tensor in theirs.values()) + unused == model.parameter_count()


@pytest.mark.parametrize("family, head", [("gpt2", "vocabulary"), ("t5", "vocabulary"), ("bert", STATES)])
@pytest.mark.parametrize("quantization, factor", [("f16", 1e-3), ("q8_0", 1 / 127)])
def test_rounded_weights_are_near_and_what_is_added_stays_whole(
    family: str, head: str, quantization: str, factor: float, tmp_path: Path
) -> None:
    model = exported_model(family, head, dim=64, inner_dim=96, **({"head_dim": 32} if family == "t5" else {}))
    model.tokenizer = None
    path, whole = tmp_path / FILE, export_tensors(model, head)
    GgufTarget().write(model, head, tmp_path, quantization)
    (_, rounded), reader = read_file(path), gguf.GGUFReader(path)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert rounded.keys() == whole.keys()
    for name, tensor in whole.items():
        is_added = any(part in name for part in ("position", "types", "attn_rel_b"))
        is_matrix = tensor.dim() == 2 and not is_added
        assert types[name] == (quantization.upper() if is_matrix else "F32"), name
        assert (rounded[name] - tensor).abs().max() <= factor * tensor.abs().max(), name
        assert is_matrix or torch.equal(rounded[name], tensor), name


def test_rows_that_blocks_do_not_divide_stay_in_16_bits(tmp_path: Path) -> None:
    model = exported_model("gpt2", "vocabulary", inner_dim=48)
    types = {
        tensor.name: tensor.tensor_type.name
        for tensor in gguf.GGUFReader(export(model, "vocabulary", tmp_path, "q8_0")).tensors
    }
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


def test_a_file_says_what_the_model_is(tmp_path: Path) -> None:
    model = exported_model("t5", "vocabulary", decoder_layers=1)
    model.history = [{"license": "cc-by-4.0", "language": ["en", "zh"]}]
    fields = read_file(export(model, "vocabulary", tmp_path))[0]
    assert fields["general.architecture"] == "t5" and fields["general.name"] == "T5"
    assert fields["general.license"] == "cc-by-4.0" and fields["general.languages"] == ["en", "zh"]
    sizes = {
        "block_count": 2, "decoder_block_count": 1, "embedding_length": 32, "feed_forward_length": 48,
        "attention.head_count": 2, "attention.key_length": 8, "attention.relative_buckets_count": 32,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    for key, value in sizes.items():
        assert fields[f"t5.{key}"] == value, key
    assert fields["tokenizer.ggml.eos_token_id"] == 1 and fields["tokenizer.ggml.add_eos_token"] is True


def test_a_classifier_names_its_labels(tmp_path: Path) -> None:
    model = exported_model("roberta", "classification", labels=("bad", "fair", "good"))
    fields = read_file(export(model, "classification", tmp_path))[0]
    assert fields["bert.classifier.output_labels"] == ["bad", "fair", "good"]
    assert fields["bert.pooling_type"] == gguf.PoolingType.RANK


def test_an_export_that_llama_cpp_did_not_run_says_so(tmp_path: Path) -> None:
    path = export(exported_model("gpt2", "vocabulary"), "vocabulary", tmp_path)
    assert "llama.cpp is not installed" in json.loads((path.parent / EXPORT_RECORD).read_text())["checked_by"]


# --- tokenizers


def test_byte_level_tokens_come_with_their_merges() -> None:
    tokenizer = tiny.tokenizer("gpt2")
    described = describe_tokenizer(tokenizer, tokenizer.size + 2)
    assert (described.model, described.pre) == ("gpt2", "gpt-2")
    assert described.tokens[:-2] == tokenizer.tokens and described.types[-2:] == [5, 5]
    assert described.merges is not None and all(merge.count(" ") == 1 for merge in described.merges)
    end = tokenizer.id("end")
    assert end is not None and described.types[end] == 3
    assert described.flags == {"add_bos_token": False, "add_eos_token": False}
    assert special_ids(tokenizer) == {"eos_token_id": end, "bos_token_id": end}


def test_roberta_puts_its_special_tokens_around_a_text() -> None:
    tokenizer = tiny.tokenizer("roberta")
    described = describe_tokenizer(tokenizer, tokenizer.size)
    assert described.pre == "roberta-bpe"
    assert described.flags == {"add_bos_token": True, "add_eos_token": True}


def test_words_of_bert_begin_with_a_space_and_pieces_of_them_do_not() -> None:
    tokenizer = tiny.tokenizer("bert")
    described = describe_tokenizer(tokenizer, tokenizer.size)
    assert len(set(described.tokens)) == tokenizer.size
    for ours, theirs, kind in zip(tokenizer.tokens, described.tokens, described.types, strict=True):
        assert theirs == (ours if kind == 3 else ours[2:] if ours.startswith("##") else f"\u2581{ours}")
    assert described.flags["normalizer.lowercase"] and described.flags["normalizer.strip_accents"]
    ids = special_ids(tokenizer)
    assert (ids["bos_token_id"], ids["seperator_token_id"]) == (
        tokenizer.id("class"),
        tokenizer.id("separator"),
    )


def test_unigrams_come_with_scores_sentinels_and_a_table_of_characters() -> None:
    tokenizer = tiny.tokenizer("t5")
    described = describe_tokenizer(tokenizer, tokenizer.size)
    assert described.model == "t5" and described.scores is not None
    assert [described.types[number] for number in tokenizer.sentinels] == [4] * 100
    assert described.types[tokenizer.id("unknown") or 0] == 2
    assert described.flags["remove_extra_whitespaces"] and described.flags["add_space_prefix"]
    assert described.charsmap


@pytest.mark.parametrize("kind", ["word", "character", "byte", "bpe"])
def test_a_tokenizer_that_llama_cpp_has_not_is_refused(kind: str, tmp_path: Path) -> None:
    specials = {"unknown": "<unk>", "end": "</s>"}
    tokenizer = train_tokenizer(kind, tiny.texts(), 400, specials=specials)
    model = exported_model("gpt2", "vocabulary", vocabulary=400)
    model.tokenizer = tokenizer
    with pytest.raises(EtymonError, match=f"no {kind} tokenizer"):
        export(model, "vocabulary", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_does_more_than_llama_cpp_is_refused() -> None:
    specials = {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]"}
    composed = train_tokenizer("wordpiece", tiny.texts(), 400, specials=specials, normalise="nfc")
    assert find_tokenizer_misfit(composed) == "llama.cpp cuts words as BERT does, and this tokenizer does not"


@pytest.mark.parametrize(
    "family, head, fields, reason",
    [
        ("gpt2", "vocabulary", {"activation": "relu"}, "gelu_tanh"),
        ("gpt2", "classification", {}, "the words that a decoder writes"),
        ("gptj", "vocabulary", {}, "learned table of positions"),
        ("gpt1", "vocabulary", {}, "no architecture"),
        ("gpt3", "vocabulary", {}, "no architecture"),
        ("bert", STATES, {"position_kind": "relative_key"}, "learned table of positions"),
        ("bert", "classification", {"position_kind": "rotary"}, "rotary positions"),
        ("bert", "vocabulary", {}, "--head states"),
        ("distilbert", "classification", {}, "tanh"),
        ("albert", STATES, {}, "word vectors"),
        ("bart", "vocabulary", {}, "no architecture"),
        ("t5", "vocabulary", {"longest_distance": 64}, "farthest distance is 128"),
        ("t5", "vocabulary", {"feed_forward": "silu"}, "gated-gelu"),
        ("xlnet", "vocabulary", {}, "no architecture"),
        ("rnn", "vocabulary", {}, "no architecture"),
    ],
)
def test_what_llama_cpp_has_no_layers_for_is_refused_in_a_line(
    family: str, head: str, fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = exported_model(family, head, **fields)
    with pytest.raises(EtymonError, match=reason) as refusal:
        export(model, head, tmp_path)
    assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())


def test_an_environment_without_llama_cpp_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from etymon.exports import llama_runner

    monkeypatch.setenv("ETYMON_LLAMA", str(tmp_path))
    with pytest.raises(EtymonError, match="name an environment, or unset it"):
        llama_runner.find_llama()


def test_a_worker_that_ends_is_an_error_of_a_line(tmp_path: Path) -> None:
    """An interpreter without llama-cpp-python says what it lacks."""
    import sys

    from etymon.exports.llama_runner import LlamaRunner

    path = export(exported_model("gpt2", "vocabulary"), "vocabulary", tmp_path)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(EtymonError, match=r"llama\.cpp did not run the file: ") as refusal:
        LlamaRunner(Path(sys.executable), path)
    assert "\n" not in str(refusal.value)


def test_families_say_what_they_can_become() -> None:
    target = GgufTarget()
    for family, head in [("gpt2", "vocabulary"), ("t5", "vocabulary"), ("bert", STATES), ("roberta", STATES)]:
        assert target.unsupported(get_family(family), head) is None
    assert target.unsupported(get_family("gptj"), "vocabulary")


def test_numbers_of_a_file_are_finite(tmp_path: Path) -> None:
    model = exported_model("bert", STATES)
    for tensor in read_file(export(model, STATES, tmp_path, "q8_0"))[1].values():
        assert np.isfinite(tensor.numpy()).all()
