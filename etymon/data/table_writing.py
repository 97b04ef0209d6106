"""Rows as a table file: .jsonl, .csv, .tsv or .parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import atomic_write

WRITTEN = (".jsonl", ".csv", ".tsv", ".parquet")


def write_table(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes all rows or nothing. What is no text or number is written as JSON where a cell can hold no other."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in WRITTEN:
        raise EtymonError(f"{path}: answers are written as {', '.join(WRITTEN)}, not as {kind or 'a file without an ending'}")
    if kind == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist([dict(row) for row in rows])
        with atomic_write(path, "wb") as file:
            pyarrow.parquet.write_table(table, file)
        return
    with atomic_write(path) as file:
        if kind == ".jsonl":
            file.writelines(json.dumps(dict(row), ensure_ascii=False, default=str) + "\n" for row in rows)
            return
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.writer(file, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list | tuple) else value
