"""Every format and packing, and what is said when they cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.data import cutting, document, inputs, text
from etymon.data.document import Document, Tally
from etymon.data.sources import TextFiles
from etymon.data.text import read_documents
from etymon.errors import EtymonError

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


def read(*paths: Path | str, **options: object) -> list[str]:
    """Whole documents."""
    whole, part = [], ""
    for found in read_documents(list(paths), **options):  # type: ignore[arg-type]
        part += found.text
        if not found.more:
            whole.append(part)
            part = ""
    assert not part
    return whole


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_every_format_in_every_packing(tmp_path: Path, kind: str, packing: str) -> None:
    plain = tmp_path / f"a{kind}"
    write(plain, TEXTS)
    path = tmp_path / f"b{kind}{packing}"
    path.write_bytes(PACK[packing](plain.read_bytes()))
    expected = [text.replace("\n", " ") for text in TEXTS] if kind == ".tsv" else TEXTS
    tally = Tally()
    assert read(path, documents="blank", tally=tally) == expected
    (seen,) = tally.files.values()
    assert seen == document.Identity(path.stat().st_size, path.stat().st_mtime_ns, text.sha256(path))


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet"])
def test_tables_name_their_columns_and_kinds(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}"
    write(path, TEXTS)
    with pytest.raises(EtymonError, match=r"no column 'body'; columns there: 'id', 'text'; name .* --column"):
        read(path, column="body")
    if kind == ".parquet":
        with pytest.raises(EtymonError, match="column 'id' holds int64, not text"):
            read(path, column="id")
        path.write_bytes(b"nonsense" * 10)
        with pytest.raises(EtymonError, match="not a parquet file"):
            read(path)


def test_tables_in_small_blocks(tmp_path: Path) -> None:
    texts = [f"text {number}\n, {'x' * (number % 50)}" for number in range(500)]
    path = tmp_path / "a.csv"
    write(path, texts)
    assert read(path, max_document=2000) == texts
    path.write_text("text\n" + "x" * 9000 + "\n")
    with pytest.raises(EtymonError, match=r"longer than 2,000 bytes; allow more with --max-document"):
        read(path, max_document=2000)
    path.write_text("id,text\n1,a\n2\n3,c\n")
    with pytest.raises(
        EtymonError, match=r"not a table \(CSV parse error: Row #3: Expected 2 columns, got 1"
    ):
        read(path)
    tally = Tally()
    assert read(path, errors="skip", tally=tally) == ["a", "c"] and tally.skipped == 1
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
    with pytest.raises(EtymonError, match=rf"{name} is not UTF-8 at {place}.*--errors replace or skip"):
        read(path, documents="blank")
    assert any("\ufffd" in found for found in read(path, documents="blank", errors="replace"))
    tally = Tally()
    assert read(path, documents="blank", errors="skip", tally=tally) == good
    assert tally.skipped == 1


def test_bad_bytes_in_parquet_and_only_bad_bytes(tmp_path: Path) -> None:
    table = pyarrow.table({"text": pyarrow.array([b"good", b"\xff"], pyarrow.binary())})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(EtymonError, match="row 2 is not UTF-8 at byte 0"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", errors="skip") == ["good"]
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(EtymonError, match=r"every file is empty .but for 1 documents left out"):
        read(tmp_path / "b.txt", errors="skip")
    with pytest.raises(EtymonError, match="errors must be"):
        read(tmp_path / "b.txt", errors="ignore")


def test_a_long_document_is_skipped_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "PART", 50)
    path = tmp_path / "a.txt"
    path.write_bytes(b"long words\n" * 30 + b"\xff\n\n" + b"good words\n" * 30 + b"\n" + b"short")
    tally = Tally()
    assert read(path, documents="blank", errors="skip", tally=tally) == [
        ("good words\n" * 30).strip(),
        "short",
    ]
    assert tally.skipped == 1


def test_long_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "' + "b" * 100 + '"}\n{"text": "c"}\n{broken\n{"text": "d"}')
    with pytest.raises(EtymonError, match=r"line 2: the record is longer than 50 bytes; .* --max-document"):
        read(path, max_document=50)
    tally = Tally()
    assert read(path, max_document=50, errors="skip", tally=tally) == ["a", "c", "d"] and tally.skipped == 2


@pytest.mark.parametrize("packing", [name for name in PACK if name])
def test_damaged_packings(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"a.txt{packing}"
    whole = PACK[packing](os.urandom(3000).hex().encode())
    for damaged in (whole[: len(whole) // 2], b"plain text"):
        path.write_bytes(damaged)
        with pytest.raises(EtymonError, match=f"a damaged {inputs.PACKERS[packing]} file"):
            read(path)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def stdin(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    stdin(b"one\ntwo\n")
    assert read("-", format="txt", documents="line") == ["one", "two"]
    stdin(b'text,x\n"a\nb",1\n')
    assert read("-", format="csv") == ["a\nb"]
    with pytest.raises(EtymonError, match=r"standard input has no name .* --format"):
        read("-")
    with pytest.raises(EtymonError, match="cannot read standard input as 'parquet'"):
        read("-", format="parquet")
    stdin(b"ab\xff")
    with pytest.raises(EtymonError, match=r"standard input is not UTF-8 at byte 2 \(line 1\)"):
        read("-", format="txt")
    source = TextFiles(("-",), format="txt")
    with pytest.raises(EtymonError, match="standard input can be read only once"):
        source.fingerprint()
    stdin(b"one")
    assert [found.text for found in source.documents()] == ["one"] and source.fingerprint()
    assert source.size() is None


def test_a_name_does_not_matter_with_a_format(tmp_path: Path) -> None:
    (tmp_path / "corpus.dat").write_text("one\ntwo")
    assert read(tmp_path / "corpus.dat", format="txt", documents="line") == ["one", "two"]
    with pytest.raises(EtymonError, match=r"known text files are .*; name another file's kind with --format"):
        read(tmp_path / "corpus.dat")


# ---------------------------------------------------------------- long texts in parts


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
        patch.setattr(cutting, "PART", part)
        patch.setattr("etymon.data.plain_text.BUFFER", buffer)
        for boundary, texts in wanted.items():
            stream = io.BufferedReader(io.BytesIO(data.encode()))  # type: ignore[arg-type]
            whole, text_so_far, longest = [], "", 0
            options = document.Reading(boundary)  # type: ignore[arg-type]
            for found in text.read_text(stream, "x", options, Tally()):
                text_so_far += found.text
                longest = max(longest, len(found.text))
                if not found.more:
                    whole.append(text_so_far)
                    text_so_far = ""
            assert whole == texts
            assert longest <= 2 * part + buffer


def test_a_line_of_many_megabytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b"word " * 200_000)
    tracemalloc.start()
    size = sum(len(found.text) for found in read_documents(path, documents="line"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 40_000_000 and peak < 12_000_000


# ---------------------------------------------------------------- recognising files again


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = TextFiles((str(path),))
    assert [found.text for found in first.documents()] == ["one"]
    read_again: list[Path] = []
    original = text.sha256
    monkeypatch.setattr(text, "sha256", lambda file: (read_again.append(file), original(file))[1])
    fingerprint = first.fingerprint()  # it was hashed while it was read
    second = TextFiles((str(path),))
    second.recall(first.inputs())
    assert second.fingerprint() == fingerprint and read_again == []
    assert TextFiles((str(path),)).fingerprint() == fingerprint and read_again == [path]
    status = path.stat()
    path.write_text("two")  # another time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    third = TextFiles((str(path),))
    third.recall(first.inputs())
    assert third.fingerprint() != fingerprint
    assert TextFiles((str(path),), errors="skip").fingerprint() != third.fingerprint()
    assert Document("x").more is False
