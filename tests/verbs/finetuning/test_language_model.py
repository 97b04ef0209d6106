"""`etymon finetune --task language-model`: a table of short texts, from a command to a model that finds them likelier."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import load
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, with_test_sizes

TEXTS = [text[:80] for text in tiny.texts(60, seed=9)]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture
def tweets(tmp_path: Path) -> Path:
    path = tmp_path / "tweets.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["tweet"], *([text] for text in TEXTS)])
    return path


def test_a_pretrained_model_goes_on_with_a_table(tmp_path: Path, tweets: Path) -> None:
    start = pretrain("gpt2", tmp_path / "start", steps=2).model_folder
    done = etymon.finetune(
        start, task="language-model", train=tweets, text="tweet", learning_rate=1e-2, out=tmp_path / "run", steps=12,
        batch_tokens=256, length=32, validate_every=6, progress="silent", hold_out=0.35,
    )  # fmt: skip
    judged = [
        one["validation_bits_per_byte"] for one in metrics(done.folder) if "validation_bits_per_byte" in one
    ]
    assert judged[-1] < 0.8 * judged[0] and done.best_step == 12
    score = done.scores["bits_per_byte"]
    assert score.falls and score.low is not None and score.low <= score.value <= (score.high or 0)
    entry = load(done.folder).history[-1]
    assert entry["objective"] == "causal" and entry["task"]["options"] == {"text": "tweet", "objective": None}
    evaluated = etymon.evaluate(done.folder, data=[{"tweet": text} for text in TEXTS[:4]])
    told = etymon.score(done.folder, TEXTS[:4])
    assert [one["prediction"] for one in evaluated.predictions] == [one.log_likelihood for one in told]
    (asked,) = etymon.predict(done.folder, TEXTS[0])
    assert asked.answer["bits_per_byte"] == told[0].bits_per_byte
    assert "bits per byte" in (done.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["bert", "t5", "bart"])
def test_families_without_a_likelihood_are_judged_by_their_loss(family: str, tmp_path: Path) -> None:
    own = {
        "task": "language-model", "from_scratch": True, "size": "test", "train": [{"text": text} for text in TEXTS],
        "steps": 3, "validate_every": 3, "vocabulary": 300, "progress": "silent", "length": 32,
    }  # fmt: skip
    assert etymon.finetune(family, out=tmp_path / "dry", dry_run=True, **own).plan  # type: ignore[arg-type]
    done = etymon.finetune(family, out=tmp_path / "run", **own)  # type: ignore[arg-type]
    assert done.best_step == 3 and "bits_per_target" in done.metrics and not done.scores
    again = load(done.folder)
    for name, tensor in done.model.stored_tensors().items():
        assert torch.equal(tensor, again.stored_tensors()[name]), name
    if family == "bert":
        assert etymon.evaluate(done.folder, data=own["train"]).scores["loss"].value > 0  # type: ignore[arg-type]
    else:
        with pytest.raises(EtymonError, match="there is nothing to predict"):
            etymon.predict(done.folder, TEXTS[0])


def test_the_loss_of_an_encoder_decoder_can_be_evaluated(tmp_path: Path, tweets: Path) -> None:
    pretrain("t5", tmp_path / "start", steps=1)
    done = etymon.finetune(
        tmp_path / "start",
        task="language-model",
        train=[tweets],
        text="tweet",
        out=tmp_path / "run",
        steps=1,
        progress="silent",
    )
    (loss,) = etymon.evaluate(done.folder, data=[tweets]).scores.values()
    assert loss.value > 0


def test_streams_are_for_pretraining(tmp_path: Path, tweets: Path) -> None:
    with pytest.raises(EtymonError, match="etymon pretrain xlnet --from MODEL"):
        etymon.finetune(
            "xlnet", from_scratch=True, size="test", task="language-model", train=tweets, text="tweet", out=tmp_path / "run"
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
