"""Stores whose making was interrupted: what is finished is taken over, and the result is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.text import encoding
from etymon.text.encoding import Encoder
from etymon.text.journal import Journal, unfinished_folder
from etymon.text.reading import Document
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer

from .conftest import story

CHILD = """
import sys, time
from etymon.executors import LocalExecutor
from etymon.text import encoding, store_building
from etymon.text.sources import TextFiles
from etymon.text.tokenizer import Tokenizer
encoding.BATCH = 1500
append = store_building.Staging._append
def slow(self, *arguments):
    append(self, *arguments)
    time.sleep(0.02)
store_building.Staging._append = slow
source = TextFiles([sys.argv[1]], boundary="blank")
options = {"executor": LocalExecutor(int(sys.argv[3])), "resumable": True, "source": source}
print(store_building.build_store(source.documents(), Tokenizer.load("tokenizer"), sys.argv[2], **options).resumed_bytes)
"""


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(place: Path, out: str, workers: int) -> subprocess.Popen[str]:
    home = str(Path(encoding.__file__).parents[2])
    words = [sys.executable, "-c", CHILD, "text.txt", out, str(workers)]
    environment = {**os.environ, "PYTHONPATH": home}
    return subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_store_is_the_same_however_often_its_maker_was_killed(
    trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    trained["byte-bpe"].save(tmp_path / "tokenizer")
    text = "\n\n".join(story(number, 12) for number in range(150))
    (tmp_path / "text.txt").write_text(text)
    whole = start(tmp_path, "whole", 1)
    journal = tmp_path / ".store.unfinished" / "encoding.journal"
    for kill, workers in enumerate((1, 2), 1):
        process = start(tmp_path, "store", workers)
        while process.poll() is None and (
            not journal.is_file() or journal.read_bytes().count(b"\n") < 20 * kill
        ):
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert journal.is_file() and not (tmp_path / "store").exists()
    lines = journal.read_bytes().count(b"\n")
    assert lines >= 40
    last = start(tmp_path, "store", 1)
    resumed = int(last.communicate(timeout=60)[0])
    assert int(whole.communicate(timeout=60)[0]) == 0
    assert 0 < resumed < len(text.encode())
    assert files(tmp_path / "store") == files(tmp_path / "whole")
    assert not journal.parent.exists()


def stopped(documents: list[Document], number: int) -> list[Document]:
    """The first documents, and then an error."""

    def read():
        yield from documents[:number]
        raise EtymonError("the line was cut")

    return read()  # type: ignore[return-value]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small batches; the beginning of each that is encoded."""
    encoded: list[str] = []
    real = Encoder.__call__
    monkeypatch.setattr(encoding, "BATCH", 1)
    monkeypatch.setattr(
        Encoder, "__call__", lambda self, batch: encoded.append(batch[0].text) or real(self, batch)
    )
    return encoded


def test_what_is_finished_is_not_encoded_again(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path, counted: list[str]
) -> None:
    tokenizer, options = trained["wordpiece"], {"executor": LocalExecutor(1), "resumable": True}
    build_store(documents, tokenizer, tmp_path / "whole", executor=LocalExecutor(1))
    counted.clear()
    with pytest.raises(
        EtymonError, match=r"the line was cut \(what is finished is kept: the same command goes on"
    ):
        build_store(stopped(documents, 40), tokenizer, tmp_path / "s", **options)
    assert len(counted) == 40
    summary = build_store(documents, tokenizer, tmp_path / "s", **options)
    assert counted == [document.text for document in documents]
    assert summary.resumed_bytes == sum(len(document.text.encode()) for document in documents[:40])
    assert files(tmp_path / "s") == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["text", "tokens", "ends", "line", "tokenizer", "seed"])
def test_what_has_changed_is_encoded_again(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path, counted: list[str], damage: str
) -> None:
    tokenizer, seed = trained["wordpiece"], 0
    with pytest.raises(EtymonError):
        build_store(
            stopped(documents, 40), tokenizer, tmp_path / "s", executor=LocalExecutor(1), resumable=True
        )
    place, first = tmp_path / ".s.unfinished", 0
    if damage == "text":
        documents, first = [*documents[:10], Document("Another text."), *documents[11:]], 10
    elif damage in ("tokens", "ends"):
        rows = np.fromfile(place / damage, np.uint8)
        rows[-1] ^= 1
        rows.tofile(place / damage)
        first = 39
    elif damage == "line":
        journal = place / "encoding.journal"
        journal.write_bytes(journal.read_bytes()[:-9])
        first = 39
    elif damage == "tokenizer":
        tokenizer = trained["byte-bpe"]
    else:
        seed = 1
    build_store(documents, tokenizer, tmp_path / "whole", seed=seed, executor=LocalExecutor(1))
    counted.clear()
    options = {"seed": seed, "executor": LocalExecutor(1), "resumable": True}
    build_store(documents, tokenizer, tmp_path / "s", **options)  # type: ignore[arg-type]
    assert counted == [document.text for document in documents[first:]]
    assert files(tmp_path / "s") == files(tmp_path / "whole")


def test_two_processes_do_not_make_one_store(tmp_path: Path) -> None:
    with (
        unfinished_folder(tmp_path / "s") as place,
        pytest.raises(EtymonError, match="another process is making"),
        unfinished_folder(tmp_path / "s"),
    ):
        pass
    assert not place.exists()


def test_a_journal_of_another_key_is_forgotten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a", {"seed": 0})
    journal.add("first", tokens=3)
    again = Journal(tmp_path / "a", {"seed": 0})
    assert again.next("second") is None and again.next("first") == {"text": "first", "tokens": 3}
    assert Journal(tmp_path / "a", {"seed": 1}).next("first") is None
    assert Journal(tmp_path / "a", {"seed": 0}).next("first") is None
