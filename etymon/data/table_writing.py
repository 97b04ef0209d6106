"""Rows as a table file: .jsonl, .csv, .tsv or .parquet."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import atomic_write

WRITTEN = (".jsonl", ".csv", ".tsv", ".parquet")
BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
"""What may end a cell or a line."""


def write_table(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes all rows or nothing. What is no text or number is written as JSON where a cell can hold no other; .tsv knows no
    quotes, so tabs and line breaks become spaces there."""
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
        lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
        if kind == ".csv":
            csv.writer(file, lineterminator="\n").writerows(lines)
            return
        file.writelines("\t".join(BREAKS.sub(" ", _plain(cell)) for cell in line) + "\n" for line in lines)


def _plain(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list | tuple) else value
