from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest

from etymon.data.text import Document, documents_fingerprint, list_files, read_documents, source_fingerprint
from etymon.errors import EtymonError


def texts(*paths: Path | str, **options: str) -> list[str]:
    return [document.text for document in read_documents(list(paths), **options)]  # type: ignore[arg-type]


def test_what_ends_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\n \r\n\r\nthree".encode())
    assert texts(path) == ["one\ntwo\n \n\nthree"]
    assert texts(path, documents="blank") == ["one\ntwo", "three"]
    assert texts(path, documents="line") == ["one", "two", "three"]
    assert [document.source for document in read_documents(path, documents="blank")] == [
        f"{path}:1",
        f"{path}:5",
    ]


def test_folders_globs_and_gzip_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.md").write_text("b")
    (tmp_path / "c.txt").write_text("c")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write("ä")
    with gzip.open(tmp_path / "d.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"text": "d \\ud800"}\n\n')
    assert texts(tmp_path) == ["ä", "c", "d \ufffd", "b"]
    assert texts(str(tmp_path / "**" / "*.md"), tmp_path / "c.txt") == ["b", "c"]
    assert list_files([tmp_path / "c.txt", tmp_path]) == [
        tmp_path / name for name in ("c.txt", "a.txt.gz", "d.jsonl.gz", "deep/b.md")
    ]


def test_jsonl_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"id": n, "body": f"text {n}"}) for n in range(3)))
    assert texts(path, column="body") == ["text 0", "text 1", "text 2"]
    with pytest.raises(EtymonError, match=r"line 1: no column 'text'; columns there: 'id', 'body'"):
        texts(path)
    with pytest.raises(EtymonError, match="holds a int"):
        texts(path, column="id")
    path.write_text('{"text": "a"}\n{"text": }\n')
    with pytest.raises(EtymonError, match="line 2: not valid JSON"):
        texts(path)
    path.write_text("[1]\n")
    with pytest.raises(EtymonError, match="line 1: expected an object"):
        texts(path)


@pytest.mark.parametrize("documents", ["file", "line"])
def test_undecodable_bytes_are_located(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"gut\nsch\xf6n\n")
    with pytest.raises(EtymonError, match=r"latin.txt is not UTF-8 at byte 7 \(line 2\).*iconv -f LATIN1"):
        texts(path, documents=documents)
    path.write_text("hello", encoding="utf-16")
    with pytest.raises(EtymonError, match=r"byte 0 \(line 1\).*UTF-16"):
        texts(path, documents=documents)


def test_missing_and_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EtymonError, match="no such file or folder"):
        texts(tmp_path / "nothing.txt")
    with pytest.raises(EtymonError, match="no text files in the folder"):
        texts(tmp_path)
    with pytest.raises(EtymonError, match="no text files match"):
        texts(str(tmp_path / "*.txt"))
    with pytest.raises(EtymonError, match="no text files were given"):
        texts()
    (tmp_path / "table.xls").write_text("x")
    with pytest.raises(EtymonError, match=r"known text files are .txt, .md, .jsonl"):
        texts(tmp_path / "table.xls")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(EtymonError, match="every file is empty"):
        texts(tmp_path)
    (tmp_path / "full.txt").write_text("x")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert texts(tmp_path) == ["x"]
    assert "empty.txt holds no text" in caplog.text
    with pytest.raises(EtymonError, match="documents must be"):
        texts(tmp_path, documents="page")


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress(b"hello" * 1000)
    for damaged in (whole[:20], b"plain text", whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(EtymonError, match="damaged gzip"):
            texts(path)


def test_fingerprints_follow_content_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = source_fingerprint(path)
    assert source_fingerprint([path]) == first
    assert source_fingerprint(path, documents="line") != first
    path.write_text("two")
    assert source_fingerprint(path) != first
    one, two = [Document("a"), Document("b")], [Document("ab")]
    assert documents_fingerprint(one) == documents_fingerprint([*one]) != documents_fingerprint(two)
