"""Answers as tables: what is written is what is read again, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etymon.errors import EtymonError
from etymon.tables.formats import WRITTEN, write_table
from etymon.tables.table import read_table

ROWS: list[dict[str, Any]] = [
    {"text": 'A "letter", and\nanother.\tIndeed', "prediction": "good", "probabilities": {"bad": 0.25, "good": 0.75}},
    {"text": "浙商银行", "prediction": None, "more": [1, 2]},
]  # fmt: skip


@pytest.mark.parametrize("ending", WRITTEN)
def test_rows_come_back_as_they_were(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    told: list[str] = []
    write_table(path, ROWS, told.append)
    lost = f"{path}: tabs and line breaks of 1 cells are spaces, as .tsv knows no quotes; .csv and .jsonl keep them"
    assert told == ([lost] if ending == ".tsv" else [])
    found = read_table(path).rows
    first, second = found
    text = ROWS[0]["text"]
    assert first["text"] == (text.replace("\n", " ").replace("\t", " ") if ending == ".tsv" else text)
    assert second["text"] == "浙商银行" and first["prediction"] == "good" and not second["prediction"]
    shares, more = first["probabilities"], second["more"]
    if ending in (".csv", ".tsv"):
        shares, more = json.loads(shares), json.loads(more)
    assert shares == {"bad": 0.25, "good": 0.75}
    assert more == [1, 2], "a column that the first row does not have"


@pytest.mark.parametrize("ending", WRITTEN)
def test_half_a_surrogate_pair_does_not_undo_the_work(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    write_table(path, [{"text": "a \ud83d b", "more": [{"\udc00": "\udc00"}]}])
    (row,) = read_table(path).rows
    assert row["text"] == "a \ufffd b" and "\ufffd" in str(row["more"])


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        EtymonError, match=r"out\.xls: answers are written as \.jsonl, \.csv, \.tsv, \.parquet, not as \.xls"
    ):
        write_table(tmp_path / "out.xls", ROWS)
    with pytest.raises(
        EtymonError, match=r"out\.parquet: a column holds values of several kinds .*: write \.jsonl"
    ) as refused:
        write_table(tmp_path / "out.parquet", [{"label": 1}, {"label": "one"}])
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "＝1", "\t=1", "\r=1", "'=1", "''-x", "-"]
HARMLESS = ["-3.5", "+7", "1e-5", "'quoted'", "it's = here", "a-b", " =1", ""]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_cells_cannot_begin_a_formula_and_come_back_as_they_were(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    cells = FORMULAS + HARMLESS
    write_table(path, [{"=name": cell, "prediction": "-x"} for cell in cells])
    blank = str.maketrans("\t\r", "  " if ending == ".tsv" else "\t\n")  # as texts are always read
    texts = [cell.translate(blank) for cell in cells]
    assert [row["=name"] for row in read_table(path).rows] == texts
    assert {row["prediction"] for row in read_table(path).rows} == {"-x"}
    stored = [
        line.split("," if ending == ".csv" else "\t")[0].strip('"')
        for line in path.read_bytes().decode().split("\n")
    ]
    dangerous = [cell for cell in stored if cell.startswith(tuple("=+-@＝\t\r"))]
    assert dangerous == ["-3.5", "+7"], "numbers stay numbers"


def test_raw_cells_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_table(path, [{"text": "=1+1", "prediction": "-x"}], raw_cells=True)
    assert path.read_text() == "text,prediction\n=1+1,-x\n"
    assert read_table(path).rows == [{"text": "=1+1", "prediction": "-x"}]


def test_apostrophes_of_other_peoples_tables_stay(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    path.write_text("text,label\n'=1,'-x\n")
    assert read_table(path).rows == [{"text": "'=1", "label": "'-x"}]
