"""Strict configuration: what fits is built exactly, what does not is refused in one helpful line."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from etymon.config import did_you_mean, load_yaml, parse_count, parse_duration, read_yaml, strict
from etymon.errors import EtymonError
from etymon.settings import option, settings
from tests.fuzz.damage import YAML_HORRORS


class Optimiser(BaseModel):
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


class Run(BaseModel):
    hidden_size: int
    name: str = "run"
    kind: Literal["masked", "causal"] = "masked"
    folder: Path | None = None
    tied: bool = False
    optimiser: Optimiser = Optimiser()
    stages: list[Optimiser] = []

    @field_validator("hidden_size")
    @classmethod
    def positive(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("must be positive")
        return value


@pydantic_dataclass(frozen=True)
class PydanticShape:
    hidden_size: int
    layers: int = 2


@dataclass(frozen=True)
class PlainShape:
    hidden_size: int
    layers: int = 2


def refusal(call, *arguments) -> str:
    with pytest.raises(EtymonError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("cls", [Run, PydanticShape, PlainShape])
def test_unknown_key_suggests_the_right_one(cls):
    message = refusal(strict, cls, {"hiden_size": 64}, "run.yaml")
    assert message == "unknown key 'hiden_size' in run.yaml: did you mean 'hidden_size'?"


@pytest.mark.parametrize("cls", [Run, PydanticShape, PlainShape])
def test_missing_key_and_good_value(cls):
    assert refusal(strict, cls, {}, "run.yaml") == "missing key 'hidden_size' in run.yaml"
    assert strict(cls, {"hidden_size": 64}, "run.yaml").hidden_size == 64


def test_unknown_key_in_a_section_and_in_a_list():
    nested = {"hidden_size": 8, "optimiser": {"learning_rat": 1}}
    assert "section optimiser: did you mean 'learning_rate'?" in refusal(strict, Run, nested, "run.yaml")
    listed = {"hidden_size": 8, "stages": [{}, {"beta": [1, 2]}]}
    assert "section stages.1: did you mean 'betas'?" in refusal(strict, Run, listed, "run.yaml")


@pytest.mark.parametrize(
    ("mapping", "parts"),
    [
        ({"hidden_size": "64"}, ["hidden_size", '"64"', "expected a valid integer"]),
        ({"hidden_size": 64.5}, ["hidden_size", "64.5", "integer"]),
        ({"hidden_size": -1}, ["hidden_size", "-1", "must be positive"]),
        ({"hidden_size": 1, "tied": 1}, ["tied", "1", "true or false"]),
        ({"hidden_size": 1, "kind": "span"}, ["kind", '"span"', "'masked' or 'causal'"]),
        ({"hidden_size": 1, "optimiser": {"betas": [0.9]}}, ["optimiser.betas", "run.yaml"]),
    ],
)
def test_wrong_values_name_key_value_and_expectation(mapping, parts):
    message = refusal(strict, Run, mapping, "run.yaml")
    assert all(part in message for part in parts), message


def test_yaml_with_overrides(tmp_path):
    path = write(tmp_path, "hidden_size: 64\nname: on\noptimiser:\n  learning_rate: 1e-4\n")
    run = load_yaml(path, Run, ["optimiser.betas=[0.8, 0.95]", "folder=out/a=b", "kind=causal"])
    assert run.optimiser == Optimiser(learning_rate=1e-4, betas=(0.8, 0.95))
    assert (run.name, run.folder, run.kind) == ("on", Path("out/a=b"), "causal")


def test_yaml_merge_keys(tmp_path):
    text = "hidden_size: 1\noptimiser: &o {learning_rate: .5}\nstages: [{<<: *o, betas: [0, 1]}, {<<: *o}]\n"
    run = load_yaml(write(tmp_path, text), Run)
    assert [stage.learning_rate for stage in run.stages] == [0.5, 0.5]


def test_override_mistakes(tmp_path):
    path = write(tmp_path, "hidden_size: 64\n")
    assert "key=value" in refusal(load_yaml, path, Run, ["hidden_size"])
    assert "key=value" in refusal(load_yaml, path, Run, ["optimiser.=1"])
    assert "not a section" in refusal(load_yaml, path, Run, ["hidden_size.x=1"])
    assert "did you mean 'hidden_size'" in refusal(load_yaml, path, Run, ["hiddensize=3"])


def test_bad_files(tmp_path):
    assert "cannot read" in refusal(load_yaml, tmp_path / "absent.yaml", Run)
    assert "line 2" in refusal(load_yaml, write(tmp_path, "hidden_size: 64\nname: a: b\n"), Run)
    assert "written twice" in refusal(load_yaml, write(tmp_path, "hidden_size: 1\nhidden_size: 2\n"), Run)
    assert "a list" in refusal(load_yaml, write(tmp_path, "- 1\n"), Run)
    assert "missing key" in refusal(load_yaml, write(tmp_path, ""), Run)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    assert "UTF-8" in refusal(load_yaml, path, Run)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1.5h", 5400), ("1h30m", 5400), ("2d", 172800), (" 1M ", 60)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "m", "-5m", "0s", "5m!", "1h 2"])
def test_bad_durations(text):
    assert "write e.g." in refusal(parse_duration, text)


def test_duration_without_a_unit_gets_a_hint():
    assert "10m" in refusal(parse_duration, "10")


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("32k", 32_000), ("1.5M", 1_500_000), ("2B", 2 * 10**9), ("1e6", 10**6), (7, 7)],
)
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "-3", "1.5", "0.0001k", "k", "3 apples"])
def test_bad_counts(text):
    assert repr(text) in refusal(parse_count, text)


@given(st.integers(0, 10**15))
def test_counts_read_back_what_was_written(number):
    assert parse_count(str(number)) == parse_count(f"{number:_}") == number
    assert parse_count(f"{number}k") == number * 1000


def test_did_you_mean():
    assert did_you_mean("Bert", ["bert", "gpt2"]) == "did you mean 'bert'?"
    assert did_you_mean("zzz", ["bert", "gpt2"]) == "choose from bert, gpt2"
    assert did_you_mean("x", []) == "none is allowed here"


@pytest.mark.parametrize("text", YAML_HORRORS, ids=lambda text: repr(text[:20]))
def test_yaml_horrors_are_read_in_bounded_time_or_refused_in_one_line(text, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    began = time.process_time()
    try:
        strict(PlainShape, read_yaml(path), str(path))
    except EtymonError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        raise AssertionError("nothing of it is a setting")
    assert time.process_time() - began < 3


def test_anchors_may_be_used_as_people_use_them(tmp_path):
    (tmp_path / "run.yaml").write_text("a: &a {b: 1}\nc: *a\nd: [*a, *a]\n1: x\n")
    assert read_yaml(tmp_path / "run.yaml") == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}] * 2, "1": "x"}


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**30, -(2**70)])
def test_numbers_that_no_setting_takes_are_refused_wherever_they_are(number):
    with pytest.raises(EtymonError, match=r"bad value in here: tree.0.x is .*expected a finite number"):
        strict(PlainShape, {"tree": [{"x": number}]}, "here")


@settings
class Late:
    rank: int = option(8, "of matrices", gt=0)


@settings
class Later(Late):
    part: Late | None = option(None, "a section")


def test_settings_refuse_in_one_line_before_and_after_they_are_built():
    for build in (lambda: None, lambda: strict(Later, {"part": {"rank": 3}}, "run.yaml"), Late, Later):
        build()
        for cls in (Late, Later):
            with pytest.raises(EtymonError, match="rank is 0, expected above 0"):
                cls(rank=0)
