"""Stores of any size: documents in parts, several processes, bounded memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.text import encoding, sentences, store_building
from etymon.text.encoding import batches
from etymon.text.reading import Document
from etymon.text.sentences import sentence_starts
from etymon.text.sources import PreparedText, TextFiles, text_source
from etymon.text.store import TokenStore, link_store
from etymon.text.store_building import Rows, build_store, ensure_store
from etymon.text.tokenizer import Tokenizer

from .conftest import story


def in_parts(text: str, size: int) -> list[Document]:
    front, rest = sentences.cut_front(text, size)
    return [*(Document(part, more=True) for part in front), Document(rest)]


def test_parts_give_the_store_of_the_whole(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [story(number, 8 + number % 5) for number in range(25)]
    whole = [Document(text) for text in texts]
    parts = [part for text in texts for part in in_parts(text, 150)]
    build_store(whole, tokenizer, tmp_path / "a", validation=0.3)
    for limit in (1, 700):  # parts in batches of their own, and together
        monkeypatch.setattr(encoding, "BATCH", limit)
        monkeypatch.setattr(store_building, "TOKENS", 100)
        monkeypatch.setattr(store_building, "DOCUMENTS", 7)
        build_store(parts, tokenizer, tmp_path / "b", validation=0.3)
        one, two = (json.loads((tmp_path / name / "store.json").read_text()) for name in "ab")
        assert one == two


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_single_long_document_loses_its_tail(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    text = story(1, 200)
    build_store([Document(text)], tokenizer, tmp_path / "a", validation=share)
    monkeypatch.setattr(encoding, "BATCH", 300)
    monkeypatch.setattr(store_building, "TOKENS", 64)
    build_store(in_parts(text, 150), tokenizer, tmp_path / "b", validation=share)
    assert (tmp_path / "a" / "store.json").read_text() == (tmp_path / "b" / "store.json").read_text()
    store = TokenStore.open(tmp_path / "b")
    assert store.summary.held_out == "tail" and len(store.validation) == 1
    assert store.train.bytes.sum() + store.validation.bytes.sum() == len(text.encode())
    store.verify()


@settings(max_examples=60)
@given(st.text("ab. \n!A。x", min_size=1, max_size=200).filter(str.strip), st.integers(3, 40))
def test_context_finds_the_sentences_of_the_whole(text: str, size: int) -> None:
    found, offset = [], 0
    for batch in batches(in_parts(text, size)):
        for part in batch:
            starts = sentence_starts(part.before + part.text, part.wrapped) - len(part.before)
            found += [offset + int(start) for start in starts if start >= 0]
            offset += len(part.text)
    wrapped = next(part.wrapped for batch in batches(in_parts(text, size)) for part in batch)
    whole = sentence_starts(text, wrapped).tolist()
    # A start right behind a cut may be seen from both sides; a start is never lost.
    assert set(whole) <= set(found)


def test_workers_change_nothing(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH", 2000)
    tokenizer = trained["unigram"]
    parts = [*documents, *in_parts(story(7, 80), 500)]
    for number in (1, 2):
        build_store(iter(parts), tokenizer, tmp_path / str(number), executor=LocalExecutor(number))
    assert (tmp_path / "1" / "store.json").read_bytes() == (tmp_path / "2" / "store.json").read_bytes()


def test_workers_report_their_mistakes(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained["byte-bpe"]

    def broken() -> Any:
        yield documents[0]
        raise EtymonError("the disk went away")

    with pytest.raises(EtymonError, match="the disk went away"):
        build_store(broken(), tokenizer, tmp_path / "a", executor=LocalExecutor(2))
    monkeypatch.setattr(store_building, "batches", lambda documents: iter([3]))  # which is no batch
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        build_store(documents, tokenizer, tmp_path / "a", executor=LocalExecutor(2))
    monkeypatch.setattr(store_building, "Encoder", _Leaver)
    with pytest.raises(EtymonError, match=r"a worker process ended early .*fewer --workers"):
        build_store(documents, tokenizer, tmp_path / "a", executor=LocalExecutor(2))
    assert list(tmp_path.iterdir()) == []


class _Leaver:
    """Ends the process that it is called in."""

    def __init__(self, *arguments: object) -> None: ...

    def __call__(self, code: int) -> None:
        os._exit(code)


def test_workers_do_not_run_the_users_script_again(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    trained["byte-bpe"].save(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(
        "from etymon.text.store_building import build_store\n"
        "from etymon.executors import LocalExecutor\n"
        "from etymon.text.reading import Document\n"
        "from etymon.text.tokenizer import Tokenizer\n"
        "print('once')\n"
        "build_store([Document('The river. ' * 9)], Tokenizer.load('tokenizer'), 'store', executor=LocalExecutor(2))\n"
    )
    home = str(Path(encoding.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr
    assert TokenStore.open(tmp_path / "store").summary.train.tokens > 0


def test_small_texts_start_no_process(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.executors.ProcessPoolExecutor", None)
    build_store(documents, trained["byte-bpe"], tmp_path / "a")
    assert TokenStore.open(tmp_path / "a").summary.train.documents > 0


def test_rows(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "a", width=2)
    assert rows.find(3) == 0
    for number in range(0, 20, 4):
        rows.append(np.array([[number, 1], [number + 2, 1]]))
    assert rows.read(2, 4).tolist() == [[4, 1], [6, 1]] and rows.read(9, 99).tolist() == [[18, 1]]
    assert [rows.find(value) for value in (0, 5, 6, 99)] == [0, 3, 3, 10]
    column = Rows(tmp_path / "b")
    for number in range(3):
        column.append(np.arange(number))
    column.as_npy()
    assert np.load(tmp_path / "b.npy", mmap_mode="r").tolist() == [0, 0, 1]


# ---------------------------------------------------------------- reuse of files, and stores used from elsewhere


def test_stores_follow_their_files(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": story(number, 3)}) for number in range(30)))
    tokenizer = trained["byte-bpe"]

    def ensure(**options: Any) -> bool:
        return ensure_store(TextFiles([path], **options), tokenizer, tmp_path / "s").reused

    assert ensure() is False
    assert ensure() is True
    os.utime(path, ns=(1, 1))  # another time, the same text
    assert ensure() is True
    assert ensure(errors="skip") is False and ensure(errors="skip") is True
    path.write_text(path.read_text() + '\n{"text": "one more"}')
    assert ensure(errors="skip") is False
    again = Tokenizer.load(tmp_path / "s" / "tokenizer")
    assert again.fingerprint == tokenizer.fingerprint


def test_standard_input_is_always_read(
    trained: dict[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("The river. It saw.", "A letter. A garden. A winter."):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        made = ensure_store(TextFiles(["-"], format="txt"), trained["byte-bpe"], tmp_path / "s")
        assert made.reused is False and made.train.bytes + made.validation.bytes == len(text)


def test_a_link_stands_for_the_store(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path
) -> None:
    tokenizer = trained["byte-bpe"]
    build_store(documents, tokenizer, tmp_path / "s")
    link_store(tmp_path / "link", tmp_path / "s")
    store = TokenStore.open(tmp_path / "link", tokenizer)
    assert np.array_equal(store.train.tokens, TokenStore.open(tmp_path / "s").train.tokens)
    source = text_source([str(tmp_path / "s")])
    assert isinstance(source, PreparedText) and source.fingerprint() == store.description["source"]
    with pytest.raises(EtymonError, match="cannot be mixed"):
        text_source([str(tmp_path / "s"), "x.txt"])
    build_store(documents[:30], tokenizer, tmp_path / "s")
    with pytest.raises(EtymonError, match=r"prepared text in .*s is gone or has changed"):
        TokenStore.open(tmp_path / "link")
    (tmp_path / "s" / "train" / "tokens.bin").write_bytes(b"12")
    with pytest.raises(EtymonError, match="missing or cut short"):
        link_store(tmp_path / "link", tmp_path / "s")
