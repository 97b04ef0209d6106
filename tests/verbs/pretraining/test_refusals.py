"""What `etymon pretrain` refuses: one line, before any work, and nobody's files are lost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.text.sources import Texts
from tests import tiny
from tests.verbs.small_runs import FAMILIES, crash, pretrain, resume


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("long work began before the refusal")


@pytest.mark.parametrize(
    "family, changes, reason",
    [
        ("gtp2", {}, "no family 'gtp2': did you mean 'gpt2'"),
        ("gpt2", {"size": "pockt"}, "no size 'pockt': did you mean 'pocket'"),
        ("gpt2", {"objective": "casual"}, "no objective 'casual': did you mean 'causal'"),
        ("gpt2", {"objective": "masked"}, "needs a model that is bidirectional, and GPT-2 is not"),
        ("bert", {"objective": "causal"}, "needs a model that is causal, and BERT is not"),
        ("bert", {"objective": "span-corruption"}, "needs a model that is encoder-decoder"),
        ("gpt2", {"steps": 0}, "steps is 0, expected at least 1"),
        ("gpt2", {"steps": -3}, "steps is -3, expected at least 1"),
        ("gpt2", {"batch": 0}, "batch is 0, expected at least 1"),
        ("gpt2", {"slices": 0}, "slices is 0, expected at least 1"),
        ("gpt2", {"length": -1}, "length is -1, expected at least 1"),
        ("gpt2", {"vocabulary": 0}, "vocabulary is 0, expected at least 1"),
        ("gpt2", {"steps": None, "budget": "0s"}, "'0s'"),
        ("gpt2", {"steps": None, "budget": "-5m"}, "'-5m'"),
        ("gpt2", {"steps": None, "budget": "10"}, "cannot read the budget '10': write a time .* or an amount"),
        ("gpt2", {"budget": "10m"}, "give steps or a budget, not both"),
        ("gpt2", {"batch": 9}, "a batch of 9 samples cannot be cut into 2 equal slices"),
        ("gpt2", {"length": 65}, "65 tokens do not fit GPT-2 test, which has 64 positions"),
        ("gpt2", {"learning_rate": 0.0}, "learning_rate is 0.0, expected above 0"),
        ("gpt2", {"learning_rate": math.nan}, "learning.rate"),
        ("gpt2", {"validation": 1.0}, "validation is 1.0, expected below 1"),
        ("gpt2", {"validation": -0.1}, "validation is -0.1, expected at least 0"),
        ("gpt2", {"seed": 2**64}, "64 bits"),
        ("gpt2", {"steps": "12"}, "steps of pretrain is '12': expected a number"),
        ("gpt2", {"length": "12"}, "length of pretrain is '12': expected a number"),
        ("gpt2", {"schedule": "cosin"}, "schedule is \"cosin\", did you mean 'cosine'\\?"),
        ("gpt2", {"optimiser": "adam"}, "optimiser is \"adam\""),
        ("gpt2", {"optimiser": "muon", "learning_rate": None}, "give --learning-rate with muon"),
        ("gpt2", {"warmup": 30.0}, "warmup is 30.0, expected at most 1"),
        ("gpt2", {"clip": -1.0}, "clip is -1.0, expected at least 0"),
        ("gpt2", {"layer_decay": 2.0}, "layer_decay is 2.0, expected at most 1"),
        ("gpt2", {"workers": -1}, "workers is -1, expected at least 0"),
        ("gpt2", {"device": "gpu"}, "there is no device 'gpu'"),
        ("gpt2", {"device": "meta"}, "there is no device 'meta'"),
        ("gpt2", {"dry_run": True, "resume": True}, "give --resume or --dry-run, not both"),
        ("gpt2", {"save_at": ["5m"]}, "save-at takes babylm, words .* or amounts such as 500steps and 20Mtokens, not '5m'"),
        ("gpt2", {"save_at": ["5wrods"]}, "cannot read the budget '5wrods'"),
        ("gpt2", {"from_": "nowhere"}, "nowhere"),
        ("gpt2", {"config": Path("nowhere.yaml")}, "cannot read nowhere.yaml: No such file"),
        ("gpt2", {"documents": "page"}, "documents is \"page\""),
        ("gpt2", {"progress": "loud"}, "progress is \"loud\""),
        ("gpt2", {"tokenizer": "somewhere", "vocabulary": 300}, "not both"),
        ("gpt2", {"data": None}, "there is no text to train on"),
        ("gpt2", {"data": []}, "there is no text to train on"),
        ("gpt2", {"data": "nowhere.txt"}, "no such file or folder: nowhere.txt"),
        ("gpt2", {"resume": True}, "there is no run in .* to resume"),
        ("bart", {"set": ["options.mean_span=0"]}, "objective 'denoising': mean_span is 0, expected above 0"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_any_work(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.runs.tokenizer.train_tokenizer", forbidden)
    monkeypatch.setattr("etymon.runs.text_stores.ensure_store", forbidden)
    # The missing file is found by looking for it, which is what the tokenizer's first glance does.
    with pytest.raises(EtymonError, match=reason) as error:
        pretrain(family, tmp_path / "run", **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_texts_without_content(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    with pytest.raises(EtymonError, match="every file is empty"):
        pretrain("gpt2", tmp_path / "run", data=[str(tmp_path / "empty.txt")])
    with pytest.raises(EtymonError, match="there is no text"):
        pretrain("gpt2", tmp_path / "run", data=Texts([]))
    with pytest.raises(EtymonError, match="there is no text"):
        pretrain("gpt2", tmp_path / "run", data=Texts(["", "  \n"]))
    with pytest.raises(EtymonError, match=r"the text is [2-7] tokens: there is nothing to hold out"):
        pretrain("gpt2", tmp_path / "run", data=Texts(["ab"]), steps=1)
    for family in FAMILIES:  # one token to train on, or none
        with pytest.raises(EtymonError, match=r"single token|2 tokens|too short"):
            pretrain(family, tmp_path / family, data=Texts(["a"]), steps=1)


def test_a_run_is_never_overwritten(straight: Callable[[str], Pretrained]) -> None:
    done = straight("gpt2")
    with pytest.raises(EtymonError, match="holds a run already: go on with --resume"):
        pretrain("gpt2", done.folder)
    with pytest.raises(EtymonError, match="trains gpt2, not bert"):
        resume("bert", done.folder)


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"holds something else \(store\)"):
        pretrain("gpt2", tmp_path)
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"holds something else \(store, thesis.tex\)"):
        pretrain("gpt2", tmp_path)
    assert (tmp_path / "store" / "precious.txt").read_text(encoding="utf-8") == "mine"
    other = tmp_path / "other" / "model"
    other.mkdir(parents=True)
    (other / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(EtymonError, match="was not written by etymon"):
        pretrain("gpt2", tmp_path / "other")
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    for target in (file, file / "run"):
        with pytest.raises(EtymonError, match="file is a file, and the run needs a folder there"):
            pretrain("gpt2", target)


def test_an_objective_without_a_target_is_refused_before_the_first_step(tmp_path: Path) -> None:
    without = ["options.masking=roberta", "options.density=0"]
    with pytest.raises(EtymonError, match=r"masked leaves nothing to predict .* its options .*density"):
        pretrain("bert", tmp_path, objective="masked", set=without)
    assert not (tmp_path / "run.yaml").exists() and not (tmp_path / "metrics.jsonl").exists()
    # The folder is free for another attempt.
    assert pretrain("bert", tmp_path, objective="masked", set=without[:1], steps=1).steps == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(EtymonError, match="cannot write to"):
            pretrain("gpt2", tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "family, wrong, reason",
    [("bert", "gpt2", "'class' token"), ("t5", "gpt2", "0 sentinels"), ("gpt2", "bert", "'end' token")],
)
def test_a_tokenizer_of_the_wrong_kind(family: str, wrong: str, reason: str, tmp_path: Path) -> None:
    tiny.tokenizer(wrong).save(tmp_path / "tokenizer")
    with pytest.raises(EtymonError, match=reason):
        pretrain(family, tmp_path / "run", tokenizer=tmp_path / "tokenizer")
    with pytest.raises(EtymonError):
        pretrain(family, tmp_path / "run", tokenizer=tmp_path / "nowhere")


def test_a_given_tokenizer_is_used_and_kept(tmp_path: Path, at_step: Callable[..., None]) -> None:
    tiny.tokenizer("bert").save(tmp_path / "tokenizer")
    at_step(6, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("bert", tmp_path / "run", tokenizer=tmp_path / "tokenizer", objective="masked")
    (tmp_path / "tokenizer").rename(tmp_path / "gone")
    result = resume("bert", tmp_path / "run")
    assert result.model.tokenizer is not None
    assert result.model.tokenizer.fingerprint == tiny.tokenizer("bert").fingerprint
    assert result.model.head_names == {"vocabulary"} and result.steps == 12
    assert np.isfinite(result.metrics["bits_per_target"])
