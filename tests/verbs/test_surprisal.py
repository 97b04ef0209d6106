"""`etymon surprisal`: tables by word with their places in a file, and the same sums as `score --words`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import etymon
from etymon.tables.table import read_table
from tests.generation.conftest import tiny_model

TEXT = "The cat sat on the mat. The dog ate soup!\n\nParis is the capital of France.\nRome is the capital.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".jsonl"])
def test_a_table_by_word_with_places_in_the_file(file: Path, folder, run, kind):
    out = file.with_suffix(kind)
    code, printed, _ = run("surprisal", folder("gpt2"), "--file", file, "--out", out, "--guesses", 2)
    assert code == 0 and printed.splitlines()[0].split() == [
        "word",
        "bits",
        "corrected",
        "entropy",
        "guesses",
    ]
    rows = read_table([out]).rows
    assert [row["word"] for row in rows] == TEXT.split()
    for row in rows:
        assert TEXT[int(row["start"]) : int(row["stop"])] == row["word"]
        assert (
            float(row["entropy"]) > 0 and 0 < float(row["probability_2"]) <= float(row["probability_1"]) <= 1
        )
    assert "guess_3" not in rows[0] and row["guess_1"]


@pytest.mark.parametrize(("by", "parts"), [("line", 3), ("sentence", 4)])
def test_what_is_read_by_itself(file: Path, folder, by, parts):
    (result,) = etymon.surprisal(folder("gpt2"), file=file, by=by)
    assert [word.word for word in result.words] == TEXT.split()
    assert all(TEXT[word.start : word.stop] == word.word for word in result.words)
    line = "Paris is the capital of France."
    (alone,) = etymon.surprisal(folder("gpt2"), [line])
    begin = TEXT.index(line)
    found = [word.surprisal for word in result.words if begin <= word.start < begin + len(line)]
    assert found == pytest.approx([word.surprisal for word in alone.words], abs=1e-4)
    assert alone.words[0].start == 0


def test_an_encoder_reads_sentences_by_itself(file: Path, folder):
    (result,) = etymon.surprisal(folder("bert"), file=file)
    assert "".join(word.word for word in result.words) == "".join(TEXT.split())
    assert all(word.corrected is None for word in result.words)


def test_sums_are_those_of_score_words(file: Path, folder, run):
    out = file.with_name("words.csv")
    code, _, _ = run("score", folder("gpt2"), "--file", file, "--words", "tokens", "--out", out)
    assert code == 0
    scored = read_table([out]).rows
    (result,) = etymon.surprisal(folder("gpt2"), file=file)
    assert [row["word"] for row in scored] == [word.word for word in result.words]
    assert [int(row["start"]) for row in scored] == [word.start for word in result.words]
    sums = [float(row["surprisal"]) for row in scored]
    assert sums[:10] == pytest.approx([word.surprisal for word in result.words][:10], abs=1e-3)


def test_words_of_a_script_without_spaces(tmp_path: Path):
    model = tiny_model("gpt2")
    text = "語語語本本本 soup"
    plain = etymon.surprisal(model, [text])[0].words
    words = etymon.surprisal(model, [text], words="tests.verbs.test_surprisal:cut_in_threes")[0].words
    assert [word.word for word in words] == ["語語語", "本本本", "soup"] != [word.word for word in plain]
    assert sum(word.surprisal for word in words) == pytest.approx(
        sum(word.surprisal for word in plain), abs=1e-3
    )


def cut_in_threes(text: str) -> list[str]:
    """Chinese characters by threes, other words as they are."""
    return re.findall(r"[^\x00-\x7f]{3}|[a-z]+", text)


def test_the_segmenter_of_the_training_is_used(folder):
    pytest.importorskip("jieba")
    model, notes = tiny_model("gpt2"), []
    model.history = [{"objective": "causal", "words": {"way": "jieba", "version": "0.42.1"}}]
    words = etymon.surprisal(model, ["我们在北京大学学习。"], on_note=notes.append)[0].words
    assert "北京大学" in [word.word for word in words] and not notes
    # A function of a folder's history is named, never run.
    model.history = [{"objective": "causal", "words": {"way": "nobody:knows", "version": "1"}}]
    etymon.surprisal(model, ["The cat."], on_note=notes.append)
    assert notes == [
        "the model's words were found by nobody:knows: say --words nobody:knows to have the same ones here"
    ]


def test_json_and_refusals(file: Path, folder, run):
    record = json.loads(run("surprisal", folder("gpt2"), "The cat sat.", "--json")[1])
    assert record["text"] == "The cat sat." and record["words"][1]["word"] == "cat"
    for words, reason in [
        (("surprisal", folder("gpt2")), "there is no text"),
        (("surprisal", folder("gpt2"), "x", "--out", "x.html"), "its name must end in .csv"),
        (("surprisal", folder("gpt2"), "--file", file, "--out", file), "cannot write"),
        (("surprisal", folder("gpt2"), "   "), "there is no word to predict"),
        (("score", folder("gpt2"), "The cat.", "--out", "x.csv"), "--out is a table of words"),
    ]:
        code, _, err = run(*words)
        assert code == 2 and reason in err and len(err.splitlines()) == 1, err
    assert not Path("x.html").exists()
    (long,) = etymon.surprisal(folder("gpt2"), ["The cat sat on the mat. " * 10])
    assert len(long.words) == 60
    printed = run("surprisal", folder("gpt2"), "The cat sat on the mat. " * 10)[1]
    assert printed.splitlines()[-1] == "... 20 more words: write all by --out words.csv"
