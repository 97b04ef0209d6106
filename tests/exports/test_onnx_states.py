"""ONNX of what carries states or memory from call to call: recurrent models, Transformer-XL and XLNet."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import etymon
from etymon.exports.onnx_target import OnnxRunner
from etymon.exports.program import HeadProgram, pad_rows
from etymon.exports.state_program import MemoryProgram, RecurrentDecoderProgram, RecurrentEncoderProgram
from etymon.families.model import Model
from etymon.generation import DecodingSettings, generate_texts
from etymon.nn.batch import Batch
from etymon.settings.adapters import FeatureSettings
from tests.exports.exported import exported_model

ROWS = [[5, 6, 7, 8, 9, 10, 11], [9, 8, 7], [12]]
TARGETS = [[1, 9, 8, 7], [1, 7, 9, 5], [1, 5, 6, 7]]
RECURRENT = {
    "bahdanau": {},
    "lstm": {"cell": "lstm", "bridge": "states", "layers": 1},
    "biases": {"alignment_bias": True, "output_bias": True, "readout": "tanh"},
    "luong": {
        "attention": "luong", "score": "general", "bidirectional": False, "copied": True, "cell": "lstm",
        "encoder_dim": 32,
    },
    "feeding": {
        "attention": "luong", "score": "dot", "bidirectional": False, "copied": True, "feed": True,
        "backwards": True, "encoder_dim": 32, "layers": 1,
    },
    "local": {"attention": "luong", "score": "general", "feed": True, "window": 2, "readout": "linear"},
    "fixed": {"attention": "none", "bidirectional": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    assert onnxruntime
    made = {}

    def export(family, head, **fields):
        key = family, head, str(fields)
        if key not in made:
            model = exported_model(family, head, **fields)
            folder = tmp_path_factory.mktemp("exports") / "export"
            etymon.export(model, to="onnx", head=head, out=folder)
            made[key] = model, OnnxRunner(folder / "onnx"), folder
        return made[key]

    return export


def run(session, arrays):
    wanted = {value.name for value in session.get_inputs()}
    outputs = session.run(None, {name: array for name, array in arrays.items() if name in wanted})
    return dict(zip((value.name for value in session.get_outputs()), outputs, strict=True))


@pytest.mark.parametrize("fields", RECURRENT.values(), ids=RECURRENT)
def test_padding_on_either_side_changes_no_recurrent_state(fields):
    """All kinds of attention, cells and first states: rows with padding, in two calls, are rows without."""
    model = exported_model("rnn", "vocabulary", **fields)
    with torch.inference_mode():
        hidden_NF, _ = model.decode(Batch.of(TARGETS), model.encode(Batch.of(ROWS)))
        expected = model.heads["vocabulary"].logits(hidden_NF).view(3, 4, -1)
        padded = pad_rows(ROWS)
        ids, mask = torch.from_numpy(padded.ids_RT), torch.from_numpy(padded.mask_RT)
        # Places count in a local window, which begins with the first cell: padding on the left moves it.
        for flip in (False, True)[: 1 if "window" in fields else 2]:
            turned = [part.clone() for part in (ids, mask)]
            for row, tokens in enumerate(ROWS):
                for part in turned if flip else ():
                    part[row] = part[row].roll(part.shape[1] - len(tokens))
            values, *states = RecurrentEncoderProgram(model)(*turned)
            decoder = RecurrentDecoderProgram(model)
            given = {"encoder_hidden_states": values}
            if model.body.decoder.alignment is not None:
                given["encoder_attention_mask"] = turned[1]
                if model.body.decoder.alignment.key is not None:
                    given["encoder_keys"] = states.pop(0)
            targets, parts = torch.tensor(TARGETS), []
            for begin, end in ((0, 1), (1, 4)):
                logits, *states = decoder(targets[:, begin:end], past_states=states, **given)
                parts.append(logits)
            torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=1e-5)
            whole = HeadProgram(model, "vocabulary")(*turned, decoder_input_ids=targets)
            torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)


def test_a_recurrent_model_writes_the_same_tokens_in_onnx_runtime(exported):
    model, runner, _ = exported("rnn", "vocabulary", **RECURRENT["feeding"])
    encoder, decoder = runner.sessions["encoder_model"], runner.sessions["decoder_model"]
    text = "The captain crossed the river."
    settings = DecodingSettings(max_new_tokens=8, min_new_tokens=8)
    (expected,) = generate_texts(model, [text], settings)
    ids = np.array([model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids], np.int64)
    mask = np.ones_like(ids)
    source = run(encoder, {"input_ids": ids, "attention_mask": mask})
    given = {**source, "encoder_hidden_states": source["last_hidden_state"], "encoder_attention_mask": mask}
    new, written = np.array([[model.decoder_start]]), []
    while len(written) < 8:
        states = {name.replace("present", "past"): part for name, part in given.items()}
        outputs = run(decoder, {**given, **states, "input_ids": new})
        given |= outputs
        logits = outputs["logits"][0, -1].copy()
        logits[model.token("end")] = -np.inf  # the text may not end before
        new = np.array([[logits.argmax()]])
        written.append(int(new[0, 0]))
    assert written == list(expected.ids)


def test_elmo_reads_letters_as_the_documents_spell_them(exported):
    """The snippet of docs/exporting.md, on words that no vocabulary has."""
    model, runner, _ = exported("elmo", "tagging", layers=1)

    def spell(word):
        inside = {"<S>": [257], "</S>": [258]}.get(word) or [byte + 1 for byte in word.encode()[:48]]
        return ([259, *inside, 260] + [261] * 50)[:50]

    words = ["<S>", "Die", "Brücke", "überquerte", "河", "</S>"]
    letters = np.array([[spell(word) for word in words]])
    (session,) = runner.sessions.values()
    assert [value.name for value in session.get_inputs()] == ["character_ids", "attention_mask"]
    given = {"character_ids": letters, "attention_mask": np.ones(letters.shape[:2], np.int64)}
    lexicon = model.tokenizer.lexicon
    ids = [model.token("begin"), *lexicon.encode_batch(["Die Brücke überquerte 河"])[0], model.token("end")]
    with torch.inference_mode():
        expected = model.answer("tagging", Batch.of([ids])).numpy()
    assert np.abs(session.run(["logits"], given)[0][0] - expected).max() < 1e-5


def test_word_vectors_of_a_head_are_looked_up_by_ids():
    features = FeatureSettings(words=8, place="both", gate=False, layers=2, cells=16)
    plain = exported_model("bert", "states")
    model = Model(plain.family, plain.shape, {"classification"}, ("0", "1", "2"), features)
    model.initialise(1).eval()
    padded = pad_rows(ROWS)
    with torch.inference_mode():
        expected = model.answer("classification", Batch.of(ROWS))
        actual = HeadProgram(model, "classification")(*map(torch.from_numpy, (padded.ids_RT, padded.mask_RT)))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_elmo_says_what_comes_behind_and_what_came_before():
    model = exported_model("elmo", "vocabulary")
    program = HeadProgram(model, "vocabulary")
    assert program.output_names == ["logits", "backward_logits"]
    inputs, _ = program.example()
    with torch.inference_mode():
        ahead, back = program(**inputs)
        hidden_ND = model.hidden(Batch.of([[5, 6, 7]]))[0]
    assert ahead.shape == back.shape == (3, 7, model.shape.output_words)
    assert hidden_ND.shape[1] == 2 * model.shape.dim


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("transformer-xl", {}),
        ("transformer-xl", {"zero_start": True, "memory": 5}),
        ("transformer-xl", {"same_length": True, "memory": 4, "clamp": 6}),
        ("xlnet", {"memory": 5}),
        ("xlnet", {"memory": 6, "reuse": 2}),
        ("xlnet", {"memory": 4, "causal": True, "same_length": True}),
    ],
)
def test_three_segments_remember_as_streams_do(family, fields):
    model = exported_model(family, "states", **fields)
    program, state = MemoryProgram(model, "states"), model.remember(2)
    ids = torch.arange(2 * 11).view(2, 11) % 50 + 5
    zeros = model.shape.memory if fields.get("zero_start") else 0
    memory = [torch.zeros(2, zeros, 32)] * 2
    with torch.inference_mode():
        for begin, end in ((0, 2), (2, 8), (8, 11)):
            expected, _ = model.hidden(Batch.of(ids[:, begin:end].tolist()), state)
            mask = torch.ones(2, memory[0].shape[1] + end - begin, dtype=torch.long)
            actual, *memory = program(ids[:, begin:end], mask, memory)
            torch.testing.assert_close(actual.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)
            for part, remembered in zip(memory, state.layers, strict=True):
                torch.testing.assert_close(part, remembered, atol=1e-5, rtol=1e-5)


def test_transformer_xl_writes_the_same_tokens_from_its_memory(exported):
    """Eight tokens behind a prompt, with a memory of five: older ones are dropped on the way."""
    model, runner, _ = exported("transformer-xl", "vocabulary", memory=5, layers=1)
    session = runner.sessions["model"]
    assert [value.name for value in session.get_inputs()] == [
        "input_ids", "attention_mask", "past_memory.0",
    ]  # fmt: skip
    assert runner.signature == {"head": "vocabulary", "memory": 5, "zeros": 0}
    settings = DecodingSettings(max_new_tokens=8, min_new_tokens=8)
    prompt = "The captain crossed"
    (expected,) = generate_texts(model, [prompt], settings)
    new, written = np.array([model.tokenizer.encode(prompt)], np.int64), []
    memory = {"past_memory.0": np.zeros((1, 0, 32), np.float32)}
    while len(written) < 8:
        mask = np.ones((1, memory["past_memory.0"].shape[1] + new.shape[1]), np.int64)
        outputs = run(session, {"input_ids": new, "attention_mask": mask, **memory})
        memory = {name.replace("present", "past"): part for name, part in outputs.items() if name != "logits"}
        assert memory["past_memory.0"].shape[1] <= 5
        logits = outputs["logits"][0, -1].copy()
        if model.token("end") is not None:
            logits[model.token("end")] = -np.inf
        new = np.array([[logits.argmax()]])
        written.append(int(new[0, 0]))
    assert written == list(expected.ids)


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_texts_are_remembered_behind_padding_on_the_left(family):
    model = exported_model(family, "states", memory=5)
    row, memory, mask = [9, 8, 7, 6], [torch.zeros(1, 0, 32)] * 2, torch.tensor([[0, 0, 1]])
    program, state = MemoryProgram(model, "states"), model.remember(1)
    with torch.inference_mode():
        for ids, piece in (([0, 0, row[0]], row[:1]), (row[1:], row[1:])):
            expected, _ = model.hidden(Batch.of([piece]), state)
            actual, *memory = program(torch.tensor([ids]), mask, memory)
            torch.testing.assert_close(actual[0, -len(piece) :], expected, atol=1e-5, rtol=1e-5)
            mask = torch.cat([mask, torch.ones(1, 3, dtype=torch.long)], 1)
    assert memory[0].shape[1] == 5


@pytest.mark.parametrize(("family", "head"), [("elmo", "classification"), ("rnn", "vocabulary")])
def test_a_recurrent_program_runs_in_pytorch(tmp_path, family, head):
    fields = {"layers": 1} if family == "elmo" else RECURRENT["feeding"]
    model = exported_model(family, head, **fields)
    result = etymon.export(model, to="torch", head=head, out=tmp_path / "export")
    assert result.check.worst < 1e-4 and result.check.agreement == 1.0


def test_recurrent_models_have_no_half_precision(tmp_path):
    model = exported_model("rnn", "vocabulary")
    with pytest.raises(etymon.EtymonError, match="drifts: say --quantize int8"):
        etymon.export(model, to="onnx", quantize="fp16", out=tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_a_loop_keeps_its_weights_where_others_are_rounded(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    model = exported_model("rnn", "vocabulary", **RECURRENT["feeding"])
    result = etymon.export(model, to="onnx", quantize="int8", out=tmp_path / "export")
    assert result.check.noise < 0.1
    files = sorted(path.name for path in (tmp_path / "export" / "onnx").glob("*.onnx"))
    assert files == ["decoder_model_quantized.onnx", "encoder_model_quantized.onnx"]


def test_a_mix_that_norms_over_a_batch_is_refused(tmp_path):
    model = exported_model("elmo", "tagging")
    family = model.family.with_features(FeatureSettings(layer_norm=True))
    model = Model(family, model.shape, {"tagging"}, features=FeatureSettings(layer_norm=True))
    with pytest.raises(etymon.EtymonError, match="fine-tune without layer_norm"):
        etymon.export(model.initialise(1), to="onnx", out=tmp_path / "export")
    assert list(tmp_path.iterdir()) == []
