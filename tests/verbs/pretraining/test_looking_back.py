"""Runs of decoders that read a prefix in both directions, and of decoders with a pointer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import load
from tests.verbs.small_runs import crash, metrics, pretrain, resume

WAYS: dict[str, dict[str, Any]] = {
    "prefix": {"objective": "prefix"},
    "pointer": {"set": ["shape.pointer=8"]},
    "both": {"objective": "prefix", "set": ["shape.pointer=8"]},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_learns_goes_on_and_generates(way: str, tmp_path: Path, at_step: Callable[..., None]) -> None:
    expected = pretrain("gpt2", tmp_path / "straight", **WAYS[way])
    curve = [
        record["validation_bits_per_byte"]
        for record in metrics(expected.folder)
        if "validation_bits_per_byte" in record
    ]
    assert curve[-1] < curve[0]
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run", **WAYS[way])
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(expected.folder)
    model = load(expected.folder)
    assert model.reads_prefix == (way != "pointer")
    assert model.shape.pointer == (0 if way == "prefix" else 8)
    ours = [etymon.generate(each, ["The river", "The"], max_new_tokens=6) for each in (model, expected.model)]
    assert [one.ids for one in ours[0]] == [one.ids for one in ours[1]]


def test_what_a_model_learnt_last_says_how_it_reads(tmp_path: Path) -> None:
    first = pretrain("gpt2", tmp_path / "one", objective="prefix", steps=2)
    assert load(first.folder).reads_prefix
    then = pretrain("gpt2", tmp_path / "two", from_=first.folder, size=None, objective="causal", steps=2)
    assert not load(then.folder).reads_prefix
    assert [entry["objective"] for entry in then.model.history] == ["prefix", "causal"]
    mixed = pretrain("gpt2", tmp_path / "three", objective="causal=0.5,prefix=0.5", steps=2)
    assert load(mixed.folder).reads_prefix and "bits_per_target" in mixed.metrics


def test_a_student_with_a_pointer_is_refused_in_a_line(tmp_path: Path) -> None:
    teacher = pretrain("gpt2", tmp_path / "teacher", steps=2, set=["shape.pointer=8"])
    taught: dict[str, Any] = {"budget": "2steps", "batch": 4, "length": 16, "progress": "silent"}
    texts = tmp_path / "text.txt"
    texts.write_text("The river followed the garden. " * 200, encoding="utf-8")
    etymon.distill(teacher.folder, out=tmp_path / "student", data=[texts], layers=1, **taught)
    assert load(tmp_path / "student").shape.pointer == 0  # but such a model can teach
    with pytest.raises(EtymonError, match=r"leave them or shape\.pointer out"):
        etymon.distill(
            teacher.folder, out=tmp_path / "other", data=[texts], set=["shape.pointer=8"], **taught
        )
