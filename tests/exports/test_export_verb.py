"""`etymon export`: what it refuses, in one line and before any work, and what it leaves behind."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

import etymon
from etymon.cli import main
from etymon.errors import EtymonError
from etymon.exports import TARGETS, ExportCell, check, get_target
from etymon.exports.check import check_inputs, compare_answers, model_answers
from etymon.exports.target import EIGHT_BITS, HALF, CheckInputs, exportable_heads
from etymon.exports.torch_target import TorchTarget
from etymon.exports.writing import weights_digest
from etymon.families import REGISTRY, get_family
from etymon.families.saving import save
from tests.exports.conftest import shaken_model


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "classifier"
    save(shaken_model("bert", "classification"), folder)
    return folder


def refusal(**options):
    with pytest.raises(EtymonError) as error:
        etymon.export(**options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_export_is_written_with_what_its_check_found(classifier, tmp_path):
    result = etymon.export(classifier, to="torch", out=tmp_path / "program")
    record = json.loads((tmp_path / "program" / "export.json").read_text())
    assert record["check"]["worst"] == result.check.worst < 1e-4 and record["check"]["agreement"] == 1.0
    assert record["head"] == "classification" and record["quantization"] == "float32"
    assert record["model_sha256"] == weights_digest(etymon.load(classifier))
    assert record["versions"]["torch"] == torch.__version__
    assert (tmp_path / "program" / "tokenizer.json").is_file()


def test_a_failed_check_exits_non_zero_and_leaves_nothing(classifier, tmp_path, monkeypatch, capsys):
    def other_answers(model, head, inputs):
        return [answer + 1 for answer in model_answers(model, head, inputs)]

    monkeypatch.setattr(check, "model_answers", other_answers)
    with pytest.raises(SystemExit) as stop:
        main(["export", str(classifier), "--to", "torch", "--out", str(tmp_path / "program")])
    assert stop.value.code == 2 and list(tmp_path.iterdir()) == []
    message = capsys.readouterr().err
    assert "says something else than the model" in message and message.count("\n") == 1


def test_what_is_wrong_is_said_before_the_model_is_read(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert "did you mean 'torch'" in refusal(model=nowhere, to="troch")
    assert "no quantization 'int3'" in refusal(model=nowhere, to="torch", quantize="int3")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("mine")
    assert "exists already and is left alone" in refusal(model=nowhere, to="torch", out=taken)
    assert (taken / "file").read_text() == "mine"
    assert "say what to export to" in refusal(model=nowhere)
    assert "give its folder, or say --list" in refusal()
    assert "nowhere" in refusal(model=nowhere, to="torch", out=tmp_path / "program")


def test_a_missing_runtime_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(TorchTarget, "packages", ("torch", "no_such_runtime"))
    monkeypatch.setattr(TorchTarget, "extra", "onnx")
    message = refusal(model=tmp_path, to="torch")
    assert "needs no_such_runtime: pip install 'etymon[onnx]'" in message


def test_a_damaged_model_and_a_wrong_head_are_refused_and_leave_nothing(classifier, tmp_path):
    assert "has no head 'tagging': export classification or states" in refusal(
        model=classifier, to="torch", head="tagging", out=tmp_path / "program"
    )
    model = shaken_model("bert", "classification")
    save(model, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"damaged!")
    message = refusal(model=tmp_path / "damaged", to="torch", out=tmp_path / "program")
    assert "is not what was saved" in message and not (tmp_path / "program").exists()
    assert "export the model that they were made of" in refusal(
        model=shaken_model("gpt2", "vocabulary").quantize(), to="torch", out=tmp_path / "program"
    )


def test_an_unsupported_family_is_refused_with_the_reason_of_the_list(tmp_path, monkeypatch):
    monkeypatch.setattr(TorchTarget, "unsupported", lambda self, family, head: "it has no layers for it")
    model = shaken_model("gpt2", "vocabulary")
    message = refusal(model=model, to="torch", out=tmp_path / "program")
    assert "GPT-2 cannot be exported to torch (vocabulary): it has no layers for it" in message
    cells = etymon.export(list=True)
    assert ExportCell("gpt2", "vocabulary", "torch", "it has no layers for it") in cells


def test_the_list_has_every_family_head_and_target():
    cells = etymon.export(list=True)
    expected = {
        (family, head, target)
        for family in REGISTRY
        for head in exportable_heads(get_family(family))
        for target in TARGETS
    }
    assert {(cell.family, cell.head, cell.target) for cell in cells} == expected
    for name in TARGETS:
        assert get_target(name).name == name and get_target(name).quantizations


def test_the_list_names_every_head_and_whom_a_reason_concerns(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", "--list"])
    text = capsys.readouterr().out
    lines = {line.split(" ")[0]: line for line in text.splitlines() if line}
    assert stop.value.code == 0 and "all but vocabulary, replaced" in lines["bert"]
    assert "classification, states" in lines["bert"] and lines["xlnet"].endswith("all but conditional_span")
    assert (
        "gguf: llama.cpp adds a learned table of positions to word vectors, and nothing else (gptj)" in text
    )


def test_an_export_is_called_as_its_run_if_nobody_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(shaken_model("bert", "classification"), tmp_path / "runs" / "reviews" / "model")
    for model in ("runs/reviews/model", "runs/reviews"):
        result = etymon.export(model, to="torch")
        assert str(result.folder) == "reviews-torch" and (tmp_path / "reviews-torch").is_dir()
        shutil.rmtree(tmp_path / "reviews-torch")


def test_checked_rows_have_the_promised_lengths_and_both_scripts():
    model = shaken_model("gpt2", "vocabulary")
    inputs = check_inputs(model, "vocabulary")
    lengths = [[len(row) for row in each.rows] for each in inputs]
    assert lengths == [[1], [7], [64], [64, 7, 1]] * 2
    english, chinese = (model.tokenizer.decode(inputs[place].rows[0]) for place in (2, 6))
    assert "model" in english.replace(" ", "") and "模型" in chinese
    writer = check_inputs(shaken_model("bart", "vocabulary"), "vocabulary")
    assert all(row[0] == shaken_model("bart", "vocabulary").decoder_start for row in writer[3].targets)


class Wrong:
    """A runtime that is right but for one answer."""

    def __init__(self, model, change):
        self.model, self.change = model, change

    def answer(self, inputs: CheckInputs):
        answers = model_answers(self.model, "classification", inputs)
        if len(answers) == 3:
            answers[1] = self.change(answers[1])
        return answers


@pytest.mark.parametrize("change", [lambda row: row + 0.5, lambda row: row * np.nan, lambda row: -row])
def test_one_wrong_row_is_found(change):
    model = shaken_model("bert", "classification")
    runner, inputs = Wrong(model, change), check_inputs(model, "classification")
    figures = compare_answers(TorchTarget(), runner, model, "classification", inputs)
    with pytest.raises(EtymonError, match="says something else"):
        check.require_close(figures, TorchTarget.quantizations["float32"], "torch")


def test_choices_of_a_few_rows_are_held_by_what_they_lose():
    """A classifier is asked twelve times: one choice between outputs that are almost the same is no failure, and a
    confident one that is turned round is."""
    kept = {"worst": 0.001, "noise": 0.001, "agreement": 11 / 12, "rows": 12}
    check.require_close(check.CheckFigures(**kept, places=12, lost=1e-6), HALF, "onnx")
    for changed in ({"places": 12, "lost": 0.03}, {"places": 1200, "lost": 1e-6}):
        with pytest.raises(EtymonError, match="says something else"):
            check.require_close(check.CheckFigures(**kept, **changed), HALF, "onnx")


class Answers:
    """A runtime that says what it is told to."""

    def __init__(self, answers):
        self.answers = answers

    def answer(self, inputs: CheckInputs):
        return self.answers


def figures_of(monkeypatch, head, ours, theirs):
    monkeypatch.setattr(TorchTarget, "answers", lambda *arguments: [np.asarray(ours, np.float32)])
    runner = Answers([np.asarray(theirs, np.float32)])
    return compare_answers(TorchTarget(), runner, None, head, [CheckInputs([[1]])])


def test_what_is_lost_is_weighed_by_what_the_model_is_sure_of(monkeypatch):
    doubtful, sure = [[0.0, 0.1, -9.0]], [[9.0, 0.0, -9.0]]
    turned = figures_of(monkeypatch, "vocabulary", doubtful, [[0.1, 0.0, -9.0]])
    assert turned.agreement == 0.0 and turned.lost == pytest.approx(0.04996, abs=1e-4)
    assert figures_of(monkeypatch, "vocabulary", sure, [[0.0, 9.0, -9.0]]).lost > 0.99
    assert figures_of(monkeypatch, "vocabulary", sure, [[8.0, 0.0, -9.0]]).lost == 0.0
    # Rounding alone may turn outputs round that are closer than this.
    assert figures_of(monkeypatch, "vocabulary", [[0.0, 1e-5]], [[1e-5, 0.0]]).agreement == 1.0


def test_noise_finds_wrong_answers_that_are_small(monkeypatch):
    """Of a model that is hardly sure of anything, no difference is large and no probability is lost."""
    draw = np.random.default_rng(0)
    ours, theirs = (0.01 * draw.standard_normal((50, 20)) for _ in range(2))
    figures = figures_of(monkeypatch, "vocabulary", ours, theirs)
    assert figures.worst < 0.25 and figures.lost < 0.01 and figures.noise > 1
    with pytest.raises(EtymonError, match="the noise 1"):
        check.require_close(figures, EIGHT_BITS, "onnx")
    # What all logits of a place share changes no probability.
    assert figures_of(monkeypatch, "vocabulary", ours, ours + 1).noise < 1e-5
    assert figures_of(monkeypatch, "states", ours, ours + 1).noise > 1


def test_the_best_of_a_span_is_a_place_and_not_a_kind(monkeypatch):
    ours = [[5.0, 0.0], [0.0, 6.0], [1.0, 1.0]]
    assert figures_of(monkeypatch, "span", ours, ours).places == 2
    assert figures_of(monkeypatch, "span", ours, ours[::-1]).agreement == 0.5


def test_the_callers_model_stays_as_it_was(tmp_path):
    model = shaken_model("bert", "classification").train()
    before = weights_digest(model)
    etymon.export(model, to="torch", out=tmp_path / "program")
    assert model.training and weights_digest(model) == before
