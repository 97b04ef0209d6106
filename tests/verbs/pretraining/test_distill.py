"""`etymon distill` as a user meets it: a student out of a teacher, exact restarts, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import etymon
from etymon.errors import EtymonError
from tests import tiny
from tests.verbs.small_runs import crash, metrics, pretrain, with_test_sizes


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("teachers")
    with with_test_sizes():
        return {
            "bert": pretrain("bert", folder / "bert", objective="masked", steps=4).folder,
            "gpt2": pretrain("gpt2", folder / "gpt2", steps=4).folder,
            "roberta": pretrain("roberta", folder / "roberta", steps=2).folder,
            "t5": pretrain("t5", folder / "t5", steps=2).folder,
        }


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(tiny.texts()), encoding="utf-8")
    return path


def distil(teacher: Path, out: Path, text: Path, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "data": [text], "documents": "blank", "out": out, "budget": "6steps", "batch": 8, "length": 32,
        "progress": "silent", "set": ["save_every=3"],
    }  # fmt: skip
    return etymon.distill(teacher, **{**arguments, **changes})


def test_a_bert_becomes_a_distilbert_that_transformers_opens(
    teachers: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    result = distil(teachers["bert"], tmp_path / "run", text, family="distilbert", layers=1)
    assert result.model.family.name == "distilbert" and result.model.shape.layers == 1
    assert {"soft", "masked", "cosine"} <= set(result.metrics)
    opened = transformers.DistilBertForMaskedLM.from_pretrained(result.model_folder)
    assert opened.config.dim == tiny.SHAPES["bert"]["dim"]
    taught = etymon.load(teachers["bert"])
    assert result.model.tokenizer.fingerprint == taught.tokenizer.fingerprint
    run = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text(encoding="utf-8"))
    assert run["teacher"] == str(teachers["bert"]) and run["objective"] == "distilled-masked"


def test_a_student_knows_positions_as_its_teacher_does(text: Path, tmp_path: Path) -> None:
    with with_test_sizes():
        kind = {"set": ["shape.position_kind=relative_key"]}
        teacher = pretrain("bert", tmp_path / "bert", objective="masked", steps=1, **kind).folder
        result = distil(
            teacher, tmp_path / "run", text, family="electra", teacher_layers="none", budget="1steps"
        )
    assert result.model.shape.position_kind == "relative_key"


def test_a_decoder_learns_from_a_decoder_in_bits_per_byte(
    teachers: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    result = distil(teachers["gpt2"], tmp_path / "run", text)
    assert result.model.family.name == "gpt2" and result.model.shape.layers == 1
    assert "bits_per_byte" in result.metrics and "soft" in result.metrics


def test_a_narrower_student_is_bridged_and_goes_on_bit_for_bit(
    teachers: dict[str, Path], text: Path, tmp_path: Path, at_step: Callable[..., None]
) -> None:
    changes: dict[str, Any] = {
        "family": "bert",
        "set": ["save_every=3", "shape.dim=16", "shape.inner_dim=32", "shape.heads=2"],
    }
    expected = distil(teachers["bert"], tmp_path / "straight", text, **changes)
    at_step(4, crash)
    with pytest.raises(ConnectionAbortedError):
        distil(teachers["bert"], tmp_path / "run", text, **changes, resume="auto")
    again = distil(teachers["bert"], tmp_path / "run", text, **changes, resume="auto")
    assert metrics(again.folder) == metrics(expected.folder)
    weights = (result.model_folder / "model.safetensors" for result in (again, expected))
    assert len({path.read_bytes() for path in weights}) == 1
    assert json.loads((again.model_folder / "config.json").read_text(encoding="utf-8"))["hidden_size"] == 16


def test_the_student_begins_with_the_layers_asked_for(
    teachers: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    teacher = etymon.load(teachers["bert"])
    still = {"set": ["learning_rate=1e-12", "weight_decay=0"], "budget": "1steps"}
    for asked, layer in (("1", 1), ("0", 0)):
        result = distil(teachers["bert"], tmp_path / asked, text, layers=1, teacher_layers=asked, **still)
        own = result.model.body.stack.layers[0].attention.key.weight
        torch.testing.assert_close(own, teacher.body.stack.layers[layer].attention.key.weight)
    anew = distil(teachers["bert"], tmp_path / "anew", text, layers=1, teacher_layers="none", **still)
    assert not torch.allclose(anew.model.body.embeddings.words.weight, teacher.body.embeddings.words.weight)


@pytest.mark.parametrize(
    "teacher, changes, reason",
    [
        ("t5", {}, "cannot be distilled"),
        ("roberta", {"family": "distilbert"}, "puts other tokens around a text"),
        ("bert", {"family": "gpt2"}, "puts other tokens around a text"),
        ("bert", {"teacher_layers": "0,5", "layers": 2}, "from 0 to 1"),
        ("bert", {"teacher_layers": "first"}, "numbers such as 0,2,4"),
        ("bert", {"set": ["shape.dim=16", "teacher_layers=[0]"]}, r"teacher_layers: \[\]"),
        ("bert", {"family": "distilbart"}, "no family 'distilbart'"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_work(
    teacher: str, changes: dict[str, Any], reason: str, teachers: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    with pytest.raises(EtymonError, match=reason):
        distil(teachers[teacher], tmp_path / "run", text, **changes)
    assert not (tmp_path / "run" / "model").exists()


def test_a_distilled_objective_without_a_teacher_is_refused(tmp_path: Path) -> None:
    with with_test_sizes(), pytest.raises(EtymonError, match="etymon distill TEACHER"):
        pretrain("bert", tmp_path / "run", objective="distilled-masked")


def test_a_file_says_what_options_do_not(teachers: dict[str, Path], text: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.yaml").write_text(
        "teacher_layers: []\nshape: {inner_dim: 40}\noptions: {masking: bert, soft: 2.0}\n", encoding="utf-8"
    )
    own = {"config": tmp_path / "asked.yaml", "budget": "1steps", "soft": 3.0, "layers": 1}
    done = distil(teachers["bert"], tmp_path / "run", text, **own)
    assert (done.model.shape.inner_dim, done.model.shape.layers) == (40, 1)
    kept = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text(encoding="utf-8"))
    assert kept["options"] == {"masking": "bert", "soft": 3.0}


def test_attention_is_followed_head_by_head(teachers: dict[str, Path], text: Path, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="the teacher has 2 of them, the student 1: leave --attention out"):
        distil(teachers["bert"], tmp_path / "run", text, attention=1.0, set=["shape.heads=1"])
