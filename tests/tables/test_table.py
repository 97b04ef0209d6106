"""Tables: every kind of file gives the same rows, and whoever complains names the file and the row."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from etymon.errors import EtymonError
from etymon.sampling.examples import NONE, Examples, Ragged, bundles
from etymon.tables.table import read_table

ROWS = [{"de": 'Ein Hund, "groß".', "en": "A dog."}, {"de": "Zwei", "en": "Two, three"}]


def written(folder: Path, kind: str) -> list[Path]:
    path = folder / f"pairs.{kind}"
    if kind == "csv":
        path.write_text('de,en\n"Ein Hund, ""groß"".",A dog.\n\nZwei,"Two, three"\n', encoding="utf-8")
    elif kind == "tsv":
        path.write_text('de\ten\nEin Hund, "groß".\tA dog.\nZwei\tTwo, three\n', encoding="utf-8")
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        for side in ("de", "en"):
            (folder / f"pairs.{side}").write_text("".join(row[side] + "\n" for row in ROWS), encoding="utf-8")
        return [folder / "pairs.de", folder / "pairs.en"]
    return [path]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "parallel"])
def test_every_kind_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path, kind))
    assert [dict(row) for row in table.rows] == ROWS
    assert table.texts("de") == [row["de"] for row in ROWS]
    assert table.fingerprint(["de", "en"]) == read_table(ROWS).fingerprint(["de", "en"])
    changed = read_table([ROWS[0], {**ROWS[1], "en": "Two"}])
    assert changed.fingerprint(["de", "en"]) != table.fingerprint(["de", "en"])


def test_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "cmn.txt"
    path.write_text("Hi.\t嗨。\tby\nRun.\t跑\tby", encoding="utf-8")
    assert read_table(path, ["en", "zh", "who"]).texts("zh") == ["嗨。", "跑"]
    assert read_table(path, ["_", "zh", "_"]).texts("zh") == ["嗨。", "跑"]
    commas = tmp_path / "cmn.csv"
    commas.write_text('Hi.,"one\ntwo"\n\nRun.,three\n', encoding="utf-8")
    found = read_table(commas, ["en", "text"])
    assert found.texts("text") == ["one\ntwo", "three"] and found.places[1].endswith("cmn.csv, line 4")
    with pytest.raises(
        EtymonError,
        match=r"cmn\.txt, line 1: a row of 3 columns .separated by tabs., and 2 were named: en, zh",
    ):
        read_table(path, ["en", "zh"])
    path.write_text("Hi.\t" + "x" * 200_000, encoding="utf-8")
    csv.field_size_limit(1 << 17)
    assert len(read_table(path, ["en", "zh"]).texts("zh")[0]) == 200_000
    with pytest.raises(EtymonError, match=r"cmn\.txt has no named columns: .*--columns"):
        read_table(path)


@pytest.mark.parametrize(
    "rows, reason",
    [
        ([{"de": "a"}, {"en": "b"}], r"row 2: no column 'de'; did you mean 'en'|row 2: no column 'de'"),
        ([{"de": "a"}, {"de": " "}], r"row 2: column 'de' is empty"),
        ([{"de": 3}], r"row 1: column 'de' holds a int, not a text"),
        ([{"de": None}], r"row 1: column 'de' holds nothing, not a text"),
    ],
)
def test_rows_that_cannot_be_used_are_named(rows: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(EtymonError, match=reason) as error:
        read_table(rows).texts("de")
    assert "\n" not in str(error.value)


class Frame:
    """As much of a data frame as is asked for."""

    columns = ("de", "en")

    def to_dict(self, orient: str) -> list[dict[str, str]]:
        assert orient == "records"
        return ROWS


class Polar(Frame):
    """The same of polars, whose own `to_dict` gives columns."""

    def to_dict(self, *, as_series: bool = True) -> dict[str, list[str]]:  # type: ignore[override]
        raise AssertionError("not asked for")

    def to_dicts(self) -> list[dict[str, str]]:
        return ROWS


HELD = [
    ROWS, iter(ROWS), {side: [row[side] for row in ROWS] for side in ("de", "en")}, Frame(), Polar(),
    pyarrow.Table.from_pylist(ROWS),
]  # fmt: skip


@pytest.mark.parametrize("held", HELD)
def test_rows_columns_and_data_frames_of_the_program(held: Any) -> None:
    table = read_table(held)
    assert table.rows == ROWS and table.places == ["row 1", "row 2"]
    assert table.fingerprint(["de"]) == read_table(ROWS).fingerprint(["de"])


def test_numbers_of_numpy_and_nothing_of_pandas_are_plain() -> None:
    pandas = pytest.importorskip("pandas")
    values = [np.float32(1), np.int64(1), np.bool_(True), np.array(["a", "b"]), [np.int8(2)], pandas.NA]
    found = read_table({"value": values}).values("value")
    assert found == [1.0, 1, True, ["a", "b"], [2], None]
    assert [type(value) for value in found[:3]] == [float, int, bool]
    frame = pandas.DataFrame({"text": ["a", None], "label": [1, 2]})
    rows = read_table(frame).rows
    assert rows[0] == {"text": "a", "label": 1} and type(rows[0]["label"]) is int


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (5, "a int is no table: give files, rows .* or a data frame"),
        ([5], "row 1 of the table is a int, not a file, or a row"),
        ([*ROWS, "pairs.csv"], "row 3 of the table is a str, not a row"),
        ({"de": "Ein Hund", "en": "A dog"}, "column 'de' is a str, not a list of values"),
        ({"de": ["a", "b"], "en": ["a"]}, "columns need as many values each: 'de' has 2, 'en' has 1"),
    ],
)
def test_what_is_no_table_is_refused(held: Any, reason: str) -> None:
    with pytest.raises(EtymonError, match=reason):
        read_table(held)


def test_places_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text('de,en\n"two\nlines",a\n,b\n', encoding="utf-8")
    with pytest.raises(EtymonError, match=r"pairs\.csv, line 4: column 'de' is empty"):
        read_table(tmp_path / "pairs.csv").texts("de")
    (tmp_path / "short.en").write_text("one\n", encoding="utf-8")
    (tmp_path / "short.de").write_text("eins\n\nzwei\n", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"as many lines each: .*short\.de has 3, .*short\.en has 1"):
        read_table([tmp_path / "short.de", tmp_path / "short.en"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.csv").touch()
    with pytest.raises(
        EtymonError, match=r"folder is a folder: give the table in it \(it holds: train.csv\)"
    ):
        read_table([tmp_path / "folder"])
    with pytest.raises(EtymonError, match="no such file"):
        read_table(tmp_path / "none.tsv")
    (tmp_path / "bare.tsv").write_text("de\ten\n", encoding="utf-8")
    with pytest.raises(EtymonError, match=r"bare\.tsv has no rows"):
        read_table(tmp_path / "bare.tsv")


def test_equal_sources_are_held_out_together() -> None:
    table = read_table([{"en": f"text {number % 20}", "zh": str(number)} for number in range(100)])
    inside, outside = table.hold_out("en", 0.1, most=1000)
    assert len(outside) == 10 and len(inside) == 90
    assert not set(inside.texts("en")) & set(outside.texts("en"))
    assert table.hold_out("en", 0.1, 1000)[1].rows == outside.rows
    assert len(table.hold_out("en", 0.5, 2)[1]) == 10


# ------------------------------------------------------------ bundles


def test_bundles_hold_every_example_once_and_are_nearly_full() -> None:
    sizes = np.random.default_rng(0).integers(4, 90, 500)
    sizes[7] = 2000
    plan = bundles(sizes, 1000, seed=1, epoch=0)
    found = [row[row != NONE] for row in plan]
    assert sorted(np.concatenate(found)) == list(range(500))
    totals = np.array([sizes[row].sum() for row in found])
    assert all(total <= 1000 or len(row) == 1 for total, row in zip(totals, found))
    assert np.median(totals) > 900
    assert np.mean([np.ptp(sizes[row]) for row in found]) < 0.4 * np.ptp(sizes[sizes < 100]), (
        "of similar length"
    )


def test_bundles_are_a_function_of_seed_and_epoch() -> None:
    sizes = np.random.default_rng(0).integers(4, 90, 200)
    assert np.array_equal(bundles(sizes, 300, 1, 2), bundles(sizes, 300, 1, 2))
    assert not np.array_equal(
        bundles(sizes, 300, 1, 2), bundles(sizes, 300, 1, 3)[: len(bundles(sizes, 300, 1, 2))]
    )
    ordered = bundles(sizes, 300, 1, 0, shuffle=False)
    assert np.array_equal(ordered, bundles(sizes, 300, 2, 5, shuffle=False))
    flat = ordered[ordered != NONE]
    assert (np.diff(sizes[flat]) >= 0).all()


def test_ragged_columns() -> None:
    rows = [np.array([1, 2, 3]), np.array([], int), np.array([4])]
    examples = Examples({"ids": Ragged(rows)}, np.array([3, 0, 1]), np.zeros(3))
    assert [examples.example(number)["ids"].tolist() for number in range(3)] == [[1, 2, 3], [], [4]]
