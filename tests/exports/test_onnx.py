"""ONNX: the files have the names that Optimum and Transformers.js know, and ONNX Runtime says what the model says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

import etymon
from etymon.exports.onnx_target import OnnxRunner
from etymon.exports.writing import export_model, find_target
from etymon.generation import DecodingSettings, generate_texts
from tests import tiny
from tests.exports.conftest import shaken_model

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def session_of(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def names(values):
    return [value.name for value in values]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports by family, head and quantization, each made once."""
    made = {}

    def export(family, head, quantization="float32"):
        key = family, head, quantization
        if key not in made:
            folder = tmp_path_factory.mktemp("exports") / "-".join(key)
            model = shaken_model(family, head)
            target, _ = find_target("onnx", quantization)
            made[key] = folder, model, export_model(model, target, quantization, folder, head)
        return made[key]

    return export


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "classification"),
        ("roberta", "span"),
        ("electra", "replaced"),
        ("distilbert", "vocabulary"),
        ("albert", "choice"),
        ("xlnet", "tagging"),
        ("transformer-xl", "states"),
        ("gptj", "classification"),
    ],
)
def test_onnx_runtime_says_what_the_model_says(exported, family, head):
    folder, model, result = exported(family, head)
    assert result.check.worst < 1e-4 and result.check.agreement == 1.0
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "export.json", "onnx"} <= files
    session = session_of(folder / "onnx" / "model.onnx")
    inputs = ["input_ids", "attention_mask"]
    inputs += ["token_type_ids"] if family in ("bert", "electra", "albert", "xlnet") else []
    remembered = range(model.shape.layers if family == "transformer-xl" else 0)
    assert names(session.get_inputs()) == inputs + [f"past_memory.{layer}" for layer in remembered]
    outputs = {"span": ["start_logits", "end_logits"], "states": ["last_hidden_state"]}.get(head, ["logits"])
    assert names(session.get_outputs()) == outputs + [f"present_memory.{layer}" for layer in remembered]


def greedy(session, ids, mask, steps):
    """As Transformers.js decodes: no past at first, one token at a time, positions by the mask."""
    shapes = {value.name: value.shape for value in session.get_inputs() if "past" in value.name}
    caches = {name: np.zeros((len(ids), shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
    new = ids
    for _ in range(steps):
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -new.shape[1] :]
        given = {"input_ids": new, "attention_mask": mask, "position_ids": positions, **caches}
        outputs = dict(zip(names(session.get_outputs()), session.run(None, given), strict=True))
        new = outputs["logits"][:, -1].argmax(-1)[:, None]
        ids, mask = np.concatenate([ids, new], 1), np.concatenate([mask, np.ones_like(new)], 1)
        caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
    return ids


def test_a_decoder_writes_the_same_tokens_from_its_caches(exported):
    folder, model, _ = exported("gpt2", "vocabulary")
    session = session_of(folder / "onnx" / "model.onnx")
    assert names(session.get_inputs())[:4] == [
        "input_ids", "attention_mask", "position_ids", "past_key_values.0.key",
    ]  # fmt: skip
    assert names(session.get_outputs())[:3] == ["logits", "present.0.key", "present.0.value"]
    prompts = ["The river", "The captain crossed the"]
    rows = [model.tokenizer.encode(prompt) for prompt in prompts]
    longest = max(map(len, rows))
    ids, mask = (np.zeros((2, longest), np.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :], mask[number, longest - len(row) :] = row, 1
    written = greedy(session, ids, mask, 8)[:, longest:]
    settings = DecodingSettings(max_new_tokens=8, min_new_tokens=8)
    expected = [generate_texts(model, [prompt], settings)[0].ids for prompt in prompts]
    assert written.tolist() == [list(row) for row in expected]


def test_an_encoder_decoder_is_an_encoder_and_one_merged_decoder(exported):
    folder, _, result = exported("bart", "vocabulary")
    assert result.check.worst < 1e-4
    files = sorted(path.name for path in (folder / "onnx").glob("*.onnx"))
    assert files == ["decoder_model_merged.onnx", "encoder_model.onnx"]
    decoder = session_of(folder / "onnx" / "decoder_model_merged.onnx")
    assert names(decoder.get_inputs())[:5] == [
        "encoder_attention_mask", "input_ids", "encoder_hidden_states",
        "past_key_values.0.decoder.key", "past_key_values.0.decoder.value",
    ]  # fmt: skip
    assert names(decoder.get_inputs())[-1] == "use_cache_branch"
    assert names(decoder.get_outputs())[:4] == [
        "logits", "present.0.decoder.key", "present.0.decoder.value", "present.0.encoder.key",
    ]  # fmt: skip


def test_the_first_branch_does_not_read_the_past(exported):
    """Optimum hands it caches of one token that mean nothing."""
    folder, model, _ = exported("bart", "vocabulary")
    runner = OnnxRunner(folder / "onnx")
    decoder = runner.sessions["decoder_model_merged"]
    given = {
        "encoder_attention_mask": np.ones((1, 3), np.int64),
        "input_ids": np.array([[model.decoder_start]]),
        "encoder_hidden_states": np.ones((1, 3, 32), np.float32),
        "use_cache_branch": np.array([False]),
    }
    logits = []
    for length, value in ((0, 0.0), (1, 7.0)):
        caches = {
            part.name: np.full((1, part.shape[1], length, part.shape[3]), value, np.float32)
            for part in decoder.get_inputs()
            if "past" in part.name
        }
        logits.append(decoder.run(["logits"], given | caches)[0])
    assert np.array_equal(*logits)


def greedy_behind_an_encoder(files, source, config, steps):
    """As Optimum decodes: caches of no tokens at first, of the sizes that it takes from the configuration; the
    source's keys are those of the first call."""
    encoder, decoder = (
        session_of(files / name) for name in ("encoder_model.onnx", "decoder_model_merged.onnx")
    )
    mask = np.ones_like(source)
    memory = encoder.run(["last_hidden_state"], {"input_ids": source, "attention_mask": mask})[0]
    given = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
    past = [name for name in names(decoder.get_inputs()) if name.startswith("past")]
    heads = config.num_attention_heads
    caches = dict.fromkeys(past, np.zeros((1, heads, 0, config.hidden_size // heads), np.float32))
    ids = [config.decoder_start_token_id]
    for step in range(steps):
        inputs = {"input_ids": np.array([ids[-1:]]), "use_cache_branch": np.array([step > 0]), **given}
        outputs = dict(zip(names(decoder.get_outputs()), decoder.run(None, inputs | caches), strict=True))
        ids.append(int(outputs["logits"][0, -1].argmax()))
        changing = [name for name in past if step == 0 or ".decoder." in name]
        caches |= {name: outputs[name.replace("past_key_values", "present")] for name in changing}
    return ids[1:]


@pytest.mark.parametrize(
    ("family", "fields"),
    [("t5", {}), ("bart", {}), ("bart", {"decoder_heads": 4})],
)
def test_an_encoder_decoder_writes_the_same_tokens_as_optimum_begins(family, fields, tmp_path, monkeypatch):
    """Also where heads are of another width than Optimum expects, or others in the decoder."""
    monkeypatch.setitem(tiny.SHAPES, family, {**tiny.SHAPES[family], **fields})
    model = shaken_model(family, "vocabulary", seed=3)
    folder = tmp_path / "export"
    etymon.export(model, to="onnx", out=folder)
    prompt = "The captain crossed the old"
    expected = generate_texts(model, [prompt], DecodingSettings(max_new_tokens=8, min_new_tokens=8))[0]
    source = np.array([AutoTokenizer.from_pretrained(folder)(prompt).input_ids])
    config = AutoConfig.from_pretrained(folder)
    written = greedy_behind_an_encoder(folder / "onnx", source, config, 8)
    assert written == list(expected.ids)


@pytest.mark.parametrize(("family", "head"), [("bert", "classification"), ("gpt2", "vocabulary")])
@pytest.mark.parametrize("quantization", ["fp16", "int8"])
def test_rounded_weights_have_the_names_that_runtimes_look_for(exported, family, head, quantization):
    folder, _, result = exported(family, head, quantization)
    suffix = {"fp16": "_fp16", "int8": "_quantized"}[quantization]
    assert [path.name for path in (folder / "onnx").glob("*.onnx")] == [f"model{suffix}.onnx"]
    record = json.loads((folder / "export.json").read_text())
    assert record["quantization"] == quantization and record["check"]["worst"] == result.check.worst
    session = session_of(folder / "onnx" / f"model{suffix}.onnx")
    assert {value.type for value in session.get_outputs()} == {"tensor(float)"}


@pytest.mark.parametrize("family", ["gpt2", "bert", "bart", "xlnet"])
def test_a_tied_matrix_of_eight_bits_is_stored_once(exported, family):
    """Word vectors and output: one table, a scale a word, which the product reads turned round."""
    import onnx

    folder, model, _ = exported(family, "vocabulary", "int8")
    (path,) = (
        (folder / "onnx").glob("*model_*quantized.onnx")
        if family != "bart"
        else [folder / "onnx" / "decoder_model_merged_quantized.onnx"]
    )
    graph = onnx.load(path).graph
    size = [model.shape.vocabulary, model.heads["vocabulary"].weight.shape[1]]
    tables = [weight for weight in graph.initializer if sorted(weight.dims) == sorted(size)]
    assert [list(table.dims) for table in tables] == [size]
    assert onnx.numpy_helper.to_array(tables[0]).dtype == np.uint8


def test_the_folder_opens_in_transformers(exported):
    folder, model, _ = exported("bert", "classification")
    assert AutoConfig.from_pretrained(folder).id2label == dict(enumerate(model.labels))
    ids = AutoTokenizer.from_pretrained(folder)("The river").input_ids
    assert ids[1:-1] == model.tokenizer.encode("The river").tolist()


def test_sentences_are_vectors_after_mean_pooling(exported):
    """`states` are what feature extraction pools: the mean over the mask is etymon's own vector."""
    folder, model, _ = exported("distilbert", "states")
    session = session_of(folder / "onnx" / "model.onnx")
    row = [model.tokenizer.id("class"), *model.tokenizer.encode("The river"), model.tokenizer.id("separator")]
    given = {"input_ids": np.array([[*row, 0, 0]]), "attention_mask": np.array([[1] * len(row) + [0, 0]])}
    states = session.run(None, given)[0][0, : len(row)]
    vector = etymon.embed(model, ["The river"], pooling="mean")[0]
    assert np.abs(states.mean(0) - vector).max() < 1e-5


def test_adaptive_word_vectors_and_a_memory_of_zeros_are_exported(tmp_path, monkeypatch):
    shape = {
        **tiny.SHAPES["transformer-xl"],
        "cutoffs": [100, 200],
        "divisor": 2,
        "zero_start": True,
        "layers": 1,
    }
    monkeypatch.setitem(tiny.SHAPES, "transformer-xl", shape)
    result = etymon.export(shaken_model("transformer-xl", "vocabulary"), to="onnx", out=tmp_path / "export")
    assert result.check.worst < 1e-4 and result.check.agreement == 1.0
