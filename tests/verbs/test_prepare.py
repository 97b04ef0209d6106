"""`etymon prepare`, and `etymon pretrain` on what it made."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.runs import text_stores
from etymon.runs.run_file import RunFile, assemble
from etymon.runs.tokenizer import build_tokenizer
from etymon.text.sources import TextFiles
from etymon.text.store import TokenStore
from etymon.verbs.load_inputs import parse_size
from etymon.verbs.terminal import byte_progress
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a tokenizer."""
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "a.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps({"text": text}) for text in tiny.texts()[:20]))
    tiny.tokenizer("gpt2").save(folder / "tokenizer")
    (folder / "empty").mkdir()
    return folder


def arguments(place: Path, out: Path, *more: object) -> list[object]:
    return ["prepare", "--data", place / "a.txt", "--data", place / "b.jsonl.gz", "--tokenizer", place / "tokenizer",
            "--out", out, "--documents", "line", *more]  # fmt: skip


def test_a_store_is_made_and_reused(place: Path, tmp_path: Path, run: Run) -> None:
    code, out, err = run(*arguments(place, tmp_path / "s", "--validation", "0.2"))
    assert code == 0 and "preparing: " in err and "nothing has changed" not in out
    store = TokenStore.open(tmp_path / "s", tiny.tokenizer("gpt2"))
    assert len(store.train) + len(store.validation) == len(tiny.texts()) + 20
    assert f"{len(store.validation):,} documents" in out
    code, out, _ = run(*arguments(place, tmp_path / "s", "--validation", "0.2", "--workers", "2"))
    assert code == 0 and "nothing has changed: the store is used as it is" in out
    before = (tmp_path / "s" / "store.json").read_bytes()
    code, out, _ = run(*arguments(place, tmp_path / "t", "--validation", "0.2", "--workers", "2"))
    assert code == 0 and (tmp_path / "t" / "store.json").read_bytes() == before


def test_standard_input_in_a_pipe(place: Path, tmp_path: Path) -> None:
    text = "\n".join(tiny.texts())
    command = [
        sys.executable,
        "-m",
        "etymon",
        "prepare",
        "--data",
        "-",
        "--format",
        "txt",
        "--documents",
        "line",
    ]
    command += ["--tokenizer", str(place / "tokenizer"), "--out", str(tmp_path / "s")]
    done = subprocess.run(command, input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    store = TokenStore.open(tmp_path / "s")
    assert len(store.train) + len(store.validation) == len(tiny.texts())


def test_skipped_documents_are_counted(place: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good words\nbad \xff words\nmore good words\n" * 3)
    words = [
        "prepare",
        "--data",
        tmp_path / "bad.txt",
        "--tokenizer",
        place / "tokenizer",
        "--out",
        tmp_path / "s",
    ]
    code, out, err = run(*words, "--documents", "line")
    assert code == 2 and "bad.txt is not UTF-8 at byte 15 (line 2)" in err and not (tmp_path / "s").exists()
    code, out, err = run(*words, "--documents", "line", "--errors", "skip")
    assert code == 0 and "left out 3 documents that could not be read" in out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--out", "{place}"], "holds something that is not a token store"),
        (["--tokenizer", "{place}/nowhere"], "no such folder"),
        (["--tokenizer", "{place}/empty"], "no tokenizer in"),
        (["--validation", "1"], "validation is a share"),
        (["--seed", str(2**63)], "a whole one of at most 64 bits"),
        (["--workers", "0"], "workers is 0, expected at least 1"),
        (["--max-document", "huge"], "cannot read 'huge' as a size"),
        (["--column", "body"], "no column 'body'; columns there: 'text'"),
    ],
)
def test_mistakes(more: list[str], reason: str, place: Path, tmp_path: Path, run: Run) -> None:
    code, _, err = run(*arguments(place, tmp_path / "s", *(word.format(place=place) for word in more)))
    assert code == 2 and reason in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_of_a_run_will_do(place: Path, tmp_path: Path, run: Run) -> None:
    code, _, err = run(
        *arguments(place, tmp_path / "s", "--tokenizer", place)
    )  # which holds it, as a run does
    assert code == 0, err
    code, out, err = run("tokenizer", "--show", place, "--data", place / "a.txt")
    assert code == 0 and f"byte-bpe tokenizer of {tiny.tokenizer('gpt2').size} tokens" in out, err


def test_what_is_missing_is_named(run: Run) -> None:
    assert "--tokenizer FOLDER is missing" in run("prepare", "--out", "s")[2]
    assert "--out FOLDER is missing" in run("prepare", "--tokenizer", "t")[2]


# ---------------------------------------------------------------- training on a store


def test_pretraining_on_a_store_is_like_on_the_text(place: Path, tmp_path: Path) -> None:
    etymon.prepare(
        data=[place / "a.txt"], tokenizer=place / "tokenizer", out=tmp_path / "s", documents="line",
        validation=0.2, progress="silent",
    )  # fmt: skip
    with with_test_sizes():
        direct = {"data": [place / "a.txt"], "documents": "line", "tokenizer": place / "tokenizer"}
        pretrain("gpt2", tmp_path / "a", **direct)
        pretrain("gpt2", tmp_path / "b", data=[tmp_path / "s"])
        assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
        again = resume("gpt2", tmp_path / "b")
        assert again.steps == 12
        with pytest.raises(EtymonError, match="was prepared with its tokenizer: leave out the vocabulary"):
            pretrain("gpt2", tmp_path / "c", data=[tmp_path / "s"], vocabulary=300)
        tiny.tokenizer("t5").save(tmp_path / "other")
        with pytest.raises(EtymonError, match="built with another tokenizer"):
            pretrain("gpt2", tmp_path / "d", data=[tmp_path / "s"], tokenizer=tmp_path / "other")
        with pytest.raises(EtymonError, match="the class-first framing needs a 'class' token"):
            pretrain("bert", tmp_path / "e", data=[tmp_path / "s"])


# ---------------------------------------------------------------- progress and sizes


def test_a_new_run_reads_its_text_twice_and_says_how_far(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, notes, real = [], [], TextFiles._open
    source = TextFiles([place / "a.txt"])
    monkeypatch.setattr(TextFiles, "_open", lambda self, path: opened.append(path) or real(self, path))
    monkeypatch.setattr(text_stores, "NOTE_SECONDS", 0)
    file = assemble(RunFile, {"family": "gpt2", "data": [str(place / "a.txt")]})
    for reads in (2, 2):  # for the tokenizer and for the store; the second time for neither
        tokenizer = build_tokenizer(
            tmp_path, file, get_family("gpt2"), source, 300, sentinels=0, is_kept=False, note=notes.append
        )
        text_stores.encode_text(tmp_path / "store", source, tokenizer, 0.05, 0, notes.append)
        assert len(opened) == reads
    assert any("of text are encoded" in note for note in notes)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("200MB", "1.5 GB", "64kb", "4096", "10B")] == [
        200_000_000, 1_500_000_000, 64_000, 4096, 10,
    ]  # fmt: skip
    with pytest.raises(EtymonError, match="cannot read 'a lot' as a size"):
        parse_size("a lot")


def test_progress_in_lines_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    now = [0.0]
    with byte_progress("reading", 4_000_000, "plain", clock=lambda: now[0]) as done:
        for second in range(0, 26, 5):
            now[0] = second
            done(second * 100_000)
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["reading: 1 MB of 4 MB, 100 kB/s, 30s left", "reading: 2 MB of 4 MB, 100 kB/s, 20s left",
        "reading: 2.5 MB of 4 MB, 100 kB/s, 15s left"]  # fmt: skip
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with byte_progress("preparing", 2000, "rich", console) as done:
        done(2000)
    assert "preparing" in screen.getvalue() and "2.0/2.0 kB" in screen.getvalue()
    with byte_progress("quiet", None, "silent") as done:
        done(1)
    assert capsys.readouterr().err == ""
