"""Filters of text on the command line: prepare, tokenizer, pretrain and show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import etymon
from etymon.text.filtering import read_report
from tests import tiny
from tests.verbs.small_runs import pretrain, with_test_sizes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus that has copies and a short line, and a tokenizer."""
    folder = tmp_path_factory.mktemp("filters")
    texts = [*tiny.texts(), *tiny.texts()[:7], "x", tiny.texts()[8] + " again"]
    (folder / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    tiny.tokenizer("gpt2").save(folder / "tokenizer")
    return folder


def test_a_filtered_store_is_reported_and_shown(place: Path, tmp_path: Path, run: Run) -> None:
    words = ["prepare", "--data", place / "a.txt", "--documents", "line", "--tokenizer", place / "tokenizer"]
    words += ["--out", tmp_path / "s", "--deduplicate", "exact", "--min-length", "2words"]
    code, out, err = run(*words)
    read = len(tiny.texts()) + 9
    summary = f"{read - 8:,} of {read:,} documents kept"
    assert code == 0 and summary in out and "7 copies, 1 too short" in out, err
    assert "nothing has changed" in run(*words)[1] and summary in run(*words)[1]
    assert "nothing has changed" not in run(*words, "--min-length", "3words")[1]
    code, out, err = run("show", tmp_path / "s")
    assert code == 0 and summary in out and "'x' (document" in out and "a.txt" in out, err
    shown = json.loads(run("show", tmp_path / "s", "--json")[1])
    assert shown["filtering"]["dropped"] == {"copies": 7, "too short": 1}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--min-length", "few"], 'min_length is "few"'),
        (["--similarity", "2"], "similarity is 2"),
        (["--language", "klingon"], "language"),
        (["--deduplicate", "some"], "deduplicate"),
        (["--min-length", "99999"], "the filters leave nothing of"),
    ],
)
def test_mistakes(more: list[str], reason: str, place: Path, tmp_path: Path, run: Run) -> None:
    words = [
        "prepare",
        "--data",
        place / "a.txt",
        "--tokenizer",
        place / "tokenizer",
        "--out",
        tmp_path / "s",
    ]
    code, _, err = run(*words, *more)
    assert code == 2 and reason in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_pretraining_filters_as_preparing_does(place: Path, tmp_path: Path) -> None:
    filters = {"documents": "line", "deduplicate": "exact", "min_length": "2words"}
    made = etymon.prepare(
        data=place / "a.txt", tokenizer=place / "tokenizer", out=tmp_path / "s", validation=0.2,
        progress="silent", **filters,
    )  # fmt: skip
    with with_test_sizes():
        pretrain("gpt2", tmp_path / "run", data=[place / "a.txt"], tokenizer=place / "tokenizer", **filters)
    report = read_report(tmp_path / "run" / "store")
    assert report == made.filtering and report.dropped == {"copies": 7, "too short": 1}
    for name in ("train/tokens.bin", "validation/tokens.bin"):
        assert (tmp_path / "run" / "store" / name).read_bytes() == (tmp_path / "s" / name).read_bytes()


def test_tokenizers_learn_from_what_is_kept(place: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "aaaa bbbb"}\n{"text": "long zzzzzz zzzzzz zzzzzz"}\n')
    words = ["tokenizer", "--kind", "char", "--data", tmp_path / "a.jsonl"]
    for number, more in enumerate(([], ["--max-length", "10"])):
        assert run(*words, "--out", tmp_path / str(number), *more)[0] == 0
    texts = [(tmp_path / name / "tokenizer.json").read_text() for name in "01"]
    assert ['"z"' in text for text in texts] == [True, False]
