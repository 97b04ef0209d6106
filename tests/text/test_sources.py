"""Files of every format and packing as documents, and what is said when they cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import os
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.files import sha256
from etymon.text import sentences
from etymon.text.sources import PACKINGS, TextFiles, Texts, text_source

TEXTS = ['Über "den" Fluss,\nso sagt man.', "我们去公园。", "third"]


def write(path: Path, texts: list[str]) -> None:
    kind = path.suffix
    if kind == ".txt":
        path.write_text("\n\n".join(texts), encoding="utf-8")
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    elif kind == ".tsv":
        rows = "".join(f"1\t{text}\n" for text in (line.replace("\n", " ") for line in texts))
        path.write_text("id\ttext\n" + rows, encoding="utf-8")
    else:
        table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
        (pyarrow.csv.write_csv if kind == ".csv" else pyarrow.parquet.write_table)(table, path)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}  # fmt: skip


def read(*paths: Path | str, skipped: int = 0, **options: object) -> list[str]:
    """Whole documents; so many were skipped."""
    files = TextFiles(paths, **options)  # type: ignore[arg-type]
    whole, part = [], ""
    for found in files.documents():
        part += found.text
        if not found.more:
            whole.append(part)
            part = ""
    assert not part and files.skipped == skipped
    return whole


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_in_every_packing(tmp_path: Path, kind: str, packing: str) -> None:
    plain = tmp_path / f"a{kind}"
    write(plain, TEXTS)
    path = tmp_path / f"b{kind}{packing}"
    path.write_bytes(PACK[packing](plain.read_bytes()))
    expected = [text.replace("\n", " ") for text in TEXTS] if kind == ".tsv" else TEXTS
    assert read(path, boundary="blank") == expected
    files = TextFiles([path], boundary="blank")
    assert len(list(files.documents())) == 3 and files.bytes_read == path.stat().st_size
    seen = {"bytes": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": sha256(path)}
    assert files.files == {str(path.resolve()): seen}


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet"])
def test_tables_name_their_columns_and_kinds(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}"
    write(path, TEXTS)
    with pytest.raises(
        EtymonError,
        match=r"no column 'body'; columns there: 'id', 'text'.*; name .* --column",
    ):
        read(path, column="body")
    if kind == ".parquet":
        with pytest.raises(EtymonError, match="column 'id' holds int64, not text"):
            read(path, column="id")
        path.write_bytes(b"nonsense" * 10)
        with pytest.raises(EtymonError, match="not a parquet file"):
            read(path)


def test_rows_of_tables(tmp_path: Path) -> None:
    texts = [f"text {number}\n, {'x' * (number % 50)}" for number in range(500)]
    path = tmp_path / "a.csv"
    write(path, texts)
    assert read(path, max_document=2000) == texts
    for long in ("x" * 9000, '"' + "x\n" * 4000 + '"'):
        path.write_text(f"text\n{long}\nshort\n")
        with pytest.raises(EtymonError, match=r"longer than 2,000 bytes; divide it or leave it out"):
            read(path, max_document=2000)
    path.write_text("text\n" + "x" * 9000 + "\nshort\n")
    assert read(path, max_document=2000, errors="skip", skipped=1) == ["short"]
    long = "x\n" * 2000 + 'say ""x""\n' + "x\n" * 2000
    path.write_text(f'id,text\n1,"{long}"\n2,"{long}","{long}"\n3,short\n4\n')
    assert read(path, max_document=2000, errors="skip", skipped=3) == ["short"]
    with pytest.raises(EtymonError, match="line 1002: the record is longer"):
        read(path, max_document=2000)
    path.write_text('"text\n' + "x\n" * 2000)
    with pytest.raises(EtymonError, match=r"a.csv, line 999: the record is longer than 2,000 bytes"):
        read(path, max_document=2000)
    path.write_text("text,,text,\na,b,c,d\n")
    with pytest.raises(EtymonError, match=r"a.csv: two columns are called 'text'; rename one"):
        read(path)
    path.write_text('id,text\n1,a\n2\n\n3,c\r\n4,"d\r\ne"\r\n')
    with pytest.raises(
        EtymonError,
        match=r"a.csv, line 3: a row of 1 columns .separated by commas. where the header has 2; mend it",
    ):
        read(path)
    assert read(path, errors="skip", skipped=1) == ["a", "c", "d\ne"]
    path.write_text('id,text\n1,a\n2,"b\n3,c\n4,d\n')
    with pytest.raises(
        EtymonError, match=r"a.csv, line 3: a quote is opened in this row and never closed; close it"
    ):
        read(path)
    assert read(path, errors="skip", skipped=1) == ["a"]
    path.write_text('id,"text\n1,a\n')
    with pytest.raises(EtymonError, match=r"a.csv, line 1: a quote is opened in this row"):
        read(path)
    path.write_text('id,text\n1,"a\n2,"b, c"\n3,d\n')
    with pytest.raises(EtymonError, match=r"a.csv, line 3: a row of 3 columns from line 2 on .* where"):
        read(path)
    path.write_text('id,text\n1,"a\nb\n"')
    assert read(path) == ["a\nb\n"], "the last quote may be the last character"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": pyarrow.array([*texts, None, ""]).dictionary_encode()}), tmp_path / "b.parquet",
        row_group_size=64,
    )  # fmt: skip
    assert read(tmp_path / "b.parquet") == texts


@pytest.mark.parametrize(
    ("name", "content", "place", "good"),
    [
        ("a.txt", b"good\n\nsch\xf6n\n\nalso good", r"byte 9 \(line 3\)", ["good", "also good"]),
        ("a.jsonl", b'{"text": "good"}\n{"text": "\xf6"}\n', r"byte 27 \(line 2\)", ["good"]),
        ("a.csv", b"text\ngood\nsch\xf6n\n", r"byte 13 \(line 3\)", ["good"]),
        ("a.tsv", b"text\ngood\nsch\xf6n\n", r"byte 13 \(line 3\)", ["good"]),
    ],
)
def test_bad_bytes_are_located_replaced_or_skipped(
    tmp_path: Path, name: str, content: bytes, place: str, good: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for boundary in ("file", "blank", "line"):
        with pytest.raises(
            EtymonError,
            match=rf"{name} is not UTF-8 at {place}: it reads as cp1252, .*ö.*--encoding cp1252.*--errors skip",
        ):
            read(path, boundary=boundary)
    assert any(
        "\ufffd" in found for found in read(path, boundary="blank", errors="replace", max_replaced=0.2)
    )
    assert read(path, boundary="blank", errors="skip", skipped=1) == good


def test_bad_bytes_in_parquet_and_only_bad_bytes(tmp_path: Path) -> None:
    table = pyarrow.table({"text": pyarrow.array([b"good", b"\xff"], pyarrow.binary())})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(EtymonError, match="row 2 is not UTF-8 at byte 0"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", errors="skip", skipped=1) == ["good"]
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(EtymonError, match=r"every file is empty .but for 1 documents left out"):
        read(tmp_path / "b.txt", errors="skip")
    (tmp_path / "c.txt").write_text("hello", encoding="utf-16")
    with pytest.raises(
        EtymonError, match=r"c.txt is not UTF-8 at byte 0 \(line 1\).*mark of utf-16, .*“hello”"
    ):
        read(tmp_path / "c.txt")
    with pytest.raises(EtymonError, match="errors must be"):
        read(tmp_path / "b.txt", errors="ignore")


def test_a_long_document_is_skipped_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "PART", 50)
    path = tmp_path / "a.txt"
    path.write_bytes(b"long words\n" * 30 + b"\xff\n\n" + b"good words\n" * 30 + b"\n" + b"short")
    good = ("good words\n" * 30).strip()
    assert read(path, boundary="blank", errors="skip", skipped=1) == [good, "short"]


def test_long_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "' + "b" * 100 + '"}\n{"text": "c"}\n{broken\n{"text": "d"}')
    with pytest.raises(EtymonError, match=r"line 2: the record is longer than 50 bytes; .* --max-document"):
        read(path, max_document=50)
    assert read(path, max_document=50, errors="skip", skipped=2) == ["a", "c", "d"]


@pytest.mark.parametrize("packing", [name for name in PACK if name])
def test_damaged_packings(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"a.txt{packing}"
    whole = PACK[packing](os.urandom(3000).hex().encode())
    altered = [] if packing == ".zst" else [whole[:-8] + bytes(8)]  # a checksum need not be in such a file
    for damaged in (whole[: len(whole) // 2], whole[:20], b"plain text", *altered):
        path.write_bytes(damaged)
        with pytest.raises(
            EtymonError, match=rf"a.txt{packing} is damaged .* again with {PACKINGS[packing]}"
        ):
            read(path)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def stdin(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    stdin(b"one\ntwo\n")
    assert read("-", format="txt", boundary="line") == ["one", "two"]
    stdin(b'text,x\n"a\nb",1\n')
    assert read("-", format="csv") == ["a\nb"]
    with pytest.raises(EtymonError, match=r"standard input has no name: say that it is txt"):
        read("-")
    with pytest.raises(EtymonError, match="cannot read standard input as 'parquet'"):
        read("-", format="parquet")
    stdin(b"ab\xff")
    with pytest.raises(EtymonError, match=r"standard input is not UTF-8 at byte 2 \(line 1\)"):
        read("-", format="txt")
    source = TextFiles(["-"], format="txt")
    with pytest.raises(EtymonError, match="standard input can be read only once"):
        source.fingerprint()
    stdin(b"one")
    assert [found.text for found in source.documents()] == ["one"] and source.fingerprint()
    assert source.size() is None
    with pytest.raises(EtymonError, match=r"read only once: .*etymon prepare --data -"):
        text_source(["-"])


def test_a_name_does_not_matter_with_a_format(tmp_path: Path) -> None:
    (tmp_path / "corpus.dat").write_text("one\ntwo")
    assert read(tmp_path / "corpus.dat", format="txt", boundary="line") == ["one", "two"]
    with pytest.raises(EtymonError, match=r"known text files are .*; rename it"):
        read(tmp_path / "corpus.dat")
    assert read(tmp_path, format="txt") == ["one\ntwo"]
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert read(tmp_path, format="txt") == ["one\ntwo"]


# ---------------------------------------------------------------- long texts in parts


@example("    a", 4, 1)
@example("b\n     a", 4, 1)
@given(st.text(alphabet="ab \n\r。é", max_size=120), st.integers(4, 40), st.integers(1, 9))
def test_parts_add_up_however_the_bytes_come(data: str, part: int, buffer: int) -> None:
    expected = data.replace("\r\n", "\n").replace("\r", "\n")
    blocks = "\n".join(line if line.strip() else "" for line in expected.split("\n"))
    wanted = {
        "file": [expected],
        "line": [line for line in expected.split("\n") if line],
        "blank": [block for block in re.split(r"\n{2,}", blocks.strip("\n")) if block],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "PART", part)
        patch.setattr("etymon.text.charsets.BUFFER", buffer)
        for boundary, texts in wanted.items():
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
            whole, text_so_far, longest = [], "", 0
            files = TextFiles(["-"], boundary=boundary, format="txt")  # type: ignore[arg-type]
            with suppress(EtymonError):  # there may be no text
                for found in files.documents():
                    text_so_far += found.text
                    longest = max(longest, len(found.text))
                    if not found.more:
                        whole.append(text_so_far)
                        text_so_far = ""
            assert whole == [text for text in texts if text.strip()]
            assert longest <= 2 * part + buffer


def test_a_line_of_many_megabytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b"word " * 200_000)
    tracemalloc.start()
    size = sum(len(found.text) for found in TextFiles([path], boundary="line").documents())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 40_000_000 and peak < 12_000_000


# ---------------------------------------------------------------- recognising files again


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = TextFiles([path])
    assert [found.text for found in first.documents()] == ["one"]
    fingerprint = first.fingerprint()  # it was hashed while it was read
    second = TextFiles([path])
    second.files = first.files
    assert second.fingerprint() == fingerprint and (first.bytes_read, second.bytes_read) == (3, 0)
    third = TextFiles([path])
    assert third.fingerprint() == fingerprint and third.bytes_read == 3
    status = path.stat()
    path.write_text("two")  # another time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert second.fingerprint() != fingerprint and second.bytes_read == 3


def test_fingerprints_follow_content_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    options = [
        {},
        {"boundary": "line"},
        {"errors": "skip"},
        {"column": "x"},
        {"max_document": 9},
        {"format": "txt"},
    ]
    made = {TextFiles([path], **some).fingerprint() for some in options}  # type: ignore[arg-type]
    assert len(made) == len(options) and TextFiles([path]).fingerprint() in made
    path.write_text("two")
    assert TextFiles([path]).fingerprint() not in made
    assert Texts(["a", "b"]).fingerprint() == Texts(("a", "b")).fingerprint() != Texts(["ab"]).fingerprint()


# ---------------------------------------------------------------- which files, and what ends a document


def test_what_ends_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\n \r\n\r\nthree".encode())
    assert read(path) == ["one\ntwo\n \n\nthree"]
    assert read(path, boundary="blank") == ["one\ntwo", "three"]
    assert read(path, boundary="line") == ["one", "two", "three"]


def test_folders_globs_and_gzip_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.md").write_text("b")
    (tmp_path / "c.txt").write_text("c")
    (tmp_path / "picture.png").write_bytes(b"\xff")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write("ä")
    with gzip.open(tmp_path / "d.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"text": "d \\ud800"}\n\n')
    assert read(tmp_path) == ["ä", "c", "d \ufffd", "b"]
    assert read(str(tmp_path / "**" / "*.md"), tmp_path / "c.txt") == ["b", "c"]
    assert TextFiles([tmp_path / "c.txt", tmp_path]).list_files() == [
        tmp_path / name for name in ("c.txt", "a.txt.gz", "d.jsonl.gz", "deep/b.md")
    ]


def test_nothing_and_too_much_in_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": "a"}\n')
    assert read(path) == ["a"], "as in .parquet"
    path.write_text('{"text": "a", "n": ' + "1" * 5000 + "}\n")
    with pytest.raises(EtymonError, match=r"line 1 is not valid JSON .a number of too many digits."):
        read(path)


def test_jsonl_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"id": n, "body": f"text {n}"}) for n in range(3)))
    assert read(path, column="body") == ["text 0", "text 1", "text 2"]
    with pytest.raises(EtymonError, match=r"line 1: no column 'text'; columns there: 'id', 'body'"):
        read(path)
    with pytest.raises(EtymonError, match="holds a int"):
        read(path, column="id")
    path.write_text('{"text": "a"}\n{"text": }\n')
    with pytest.raises(EtymonError, match="line 2 is not valid JSON"):
        read(path)
    path.write_text("[1]\n")
    with pytest.raises(EtymonError, match="line 1: expected an object"):
        read(path)


def test_missing_and_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EtymonError, match="no such file or folder"):
        read(tmp_path / "nothing.txt")
    with pytest.raises(EtymonError, match="no text files in the folder"):
        read(tmp_path)
    with pytest.raises(EtymonError, match="no text files match"):
        read(str(tmp_path / "*.txt"))
    with pytest.raises(EtymonError, match="no text files were given"):
        read()
    (tmp_path / "page.html").write_text("x")
    with pytest.raises(EtymonError, match=r"known text files are .txt, .md, .jsonl"):
        read(tmp_path / "page.html")
    for name in ("page.pdf", "page.docx"):
        (tmp_path / name).write_text("x")
        with pytest.raises(EtymonError, match="a document with its layout: save it as plain text"):
            read(tmp_path / name)
    (tmp_path / "table.xls").write_text("x")
    with pytest.raises(EtymonError, match=r"a spreadsheet's own file: open it there, save it as CSV"):
        read(tmp_path / "table.xls")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(EtymonError, match="every file is empty"):
        read(tmp_path)
    (tmp_path / "full.txt").write_text("x")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path) == ["x"]
    assert "empty.txt holds no text" in caplog.text
    with pytest.raises(EtymonError, match="documents must be"):
        read(tmp_path, boundary="page")
