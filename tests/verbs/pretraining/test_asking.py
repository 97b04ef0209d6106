"""The report of a run shows what its objective asked from the first validation on, and what the model answers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import etymon
from etymon.families import REGISTRY
from etymon.runs import asking
from etymon.text.sources import Texts
from tests import tiny
from tests.test_language import english_headings
from tests.verbs.small_runs import pretrain, resume

TITLE = "What must be predicted, and what the model answers"


def section(folder: Path, title: str = TITLE) -> str:
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page.split(f"<h2>{title}</h2>", 1)[1].split("</section>")[0]


@pytest.mark.parametrize("family", REGISTRY)
def test_every_family_shows_what_was_asked_and_its_answers(family: str, tmp_path: Path) -> None:
    options = {"objective": "masked"} if family == "distilbert" else {}
    result = pretrain(family, tmp_path / "run", steps=2, **options)
    shown = section(result.folder)
    # Whatever the direction of a token, the arrow stands before it.
    assert "held-out" in shown and '<small class="asked" dir="ltr">→ <bdi>' in shown
    # A guess is a token and how sure the model is.
    assert re.search(r"<small[^>]*>[^<]+ \d+%</small>", shown)
    assert "the model&#39;s first guess" in shown


@pytest.mark.parametrize("family", ["electra", "transformer-xl"])
def test_a_resumed_run_shows_the_same(family: str, tmp_path: Path) -> None:
    straight = pretrain(family, tmp_path / "straight", steps=6, save_every=3)
    again = pretrain(family, tmp_path / "again", steps=6, save_every=3)
    for folder in (again.folder / "checkpoints").iterdir():
        if folder.name.endswith("6"):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
    resumed = resume(family, again.folder)
    assert resumed.steps == 6
    assert section(resumed.folder) == section(straight.folder)


def test_asking_draws_nothing_and_leaves_the_unit_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = asking.ask_samples, []

    def watched(job, unit, feed, store):
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), unit.objective, unit.memories
        weights = {name: each.clone() for name, each in unit.named_parameters()}
        first, second = real(job, unit, feed, store), real(job, unit, feed, store)
        assert repr(first) == repr(second)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])
        assert unit.objective is before[2] and unit.memories is before[3]
        assert all(torch.equal(each, weights[name]) for name, each in unit.named_parameters())
        seen.append(first)
        return first

    monkeypatch.setattr("etymon.runs.validation.ask_samples", watched)
    for family in ("electra", "xlnet", "gpt2"):
        pretrain(family, tmp_path / family, steps=1)
    assert [len(samples) for samples in seen] == [1, 1, 1]
    assert [reader.name for reader in seen[0][0].readers] == ["generator", "discriminator"]


def test_of_long_samples_a_part_with_questions_is_shown(tmp_path: Path) -> None:
    result = pretrain("gpt2", tmp_path / "run", steps=1, length=64)
    shown = section(result.folder)
    assert shown.count("<li><span") == asking.MOST_TOKENS and "<li>…</li>" in shown


def test_a_mixture_shows_every_member_and_without_held_out_text_the_training_text(tmp_path: Path) -> None:
    name = "masked=0.5,masked-next-sentence=0.5"
    result = pretrain("bert", tmp_path / "run", steps=1, objective=name, validation=0.0)
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert page.count(TITLE) == 2 and "nothing is held out" in page
    assert "next sentence: " in page


def test_an_objective_that_cannot_be_followed_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AttributeError("no such call")

    monkeypatch.setattr(asking, "explain_example", fail)
    result = pretrain("gpt2", tmp_path / "run", steps=1, progress="plain")
    assert TITLE not in (result.folder / "report.html").read_text(encoding="utf-8")
    assert "no sample of the objective: no such call" in capsys.readouterr().err
    assert etymon.load(result.folder) is not None


def test_the_section_is_chinese_where_messages_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    text = Texts([text.replace("river", "小河") for text in tiny.texts()])
    result = pretrain("electra", tmp_path / "run", steps=1, data=text)
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert not english_headings(page)
    shown = section(result.folder, "要预测什么，模型怎样回答")
    assert "判别器" in shown and "the model" not in shown and "likely" not in shown
