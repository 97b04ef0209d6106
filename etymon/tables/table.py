"""Tables: rows with named columns, out of files (`formats`) or the program's memory."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.files import holds, parse_json
from etymon.settings.reading import EncodingSettings
from etymon.tables.formats import is_damaged, read_rows
from etymon.text.reading import SURROGATE

logger = logging.getLogger("etymon.tables")

MISSING = ("NAType", "NaTType")
"""What pandas puts where there is no value."""

COLUMN_OPTIONS = frozenset(
    "text second label tokens tags entities question context answers choices source target".split()
)
"""Options that name a column, and the column that each means unless told."""


@dataclass
class Table:
    """Rows, and the places where they stand, for messages about one."""

    rows: list[Mapping[str, Any]]
    places: list[str]
    description: str
    skipped: int = 0
    """Rows with bytes that are no text, which were left out."""

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, numbers: Sequence[int]) -> Table:
        """Chosen rows."""
        return Table([self.rows[n] for n in numbers], [self.places[n] for n in numbers], self.description)

    def values(self, column: str) -> list[Any]:
        """A column as it is; every row must have it."""
        return [self._value(number, column) for number in range(len(self))]

    def texts(self, column: str) -> list[str]:
        """A column of texts, none of them empty."""
        return [self._text(number, column) for number in range(len(self))]

    def fingerprint(self, columns: Sequence[str]) -> str:
        """Changes when any of these columns does."""
        # Of the columns alone that are read: others may change without a cached result becoming wrong.
        digest = hashlib.sha256(json.dumps(list(columns)).encode())
        for row in self.rows:
            digest.update(json.dumps([row.get(name) for name in columns], default=str).encode())
        return digest.hexdigest()

    def hold_out(self, column: str, share: float, most: int) -> tuple[Table, Table]:
        """The table without about a `share` of its rows, at most `most`, and these. Rows with the same text
        in the column stay together: what is held out was not seen in training."""
        texts = [
            json.dumps(value) if isinstance(value, list | tuple) else self._text(number, column)
            for number, value in enumerate(self.values(column))
        ]
        # By a hash of the text: the choice is the same in every run, and hardly changes when rows are added.
        ranked = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
        held = set(ranked[: min(most, max(1, round(share * len(ranked))))]) if share else set()
        rest, held_out = (
            self.at([number for number, text in enumerate(texts) if (text in held) is side])
            for side in (False, True)
        )
        if not len(rest):
            raise EtymonError(
                f"{self.description} has too few rows to hold some out: give --validation", code="few-rows"
            )
        return rest, held_out

    def _value(self, number: int, column: str) -> Any:
        row = self.rows[number]
        if column not in row:
            hint = did_you_mean(column, map(str, row))
            # Nobody may have asked for a column of that name: it is what is read unless told.
            if column in COLUMN_OPTIONS and "?" not in hint:
                hint += f", and name it with --{column}"
            raise EtymonError(f"{self.places[number]}: no column {column!r}; {hint}", code="no-column")
        return row[column]

    def _text(self, number: int, column: str) -> str:
        value = self._value(number, column)
        if not isinstance(value, str):
            kind = "nothing" if value is None else f"a {type(value).__name__}"
            raise EtymonError(f"{self.places[number]}: column {column!r} holds {kind}, not a text")
        if not value.strip():
            raise EtymonError(
                f"{self.places[number]}: column {column!r} is empty; fill it in, or leave the row out",
                code="empty-cell",
            )
        # JSON can spell half of a surrogate pair, which is no character.
        return SURROGATE.sub("\ufffd", value).replace("\r\n", "\n").replace("\r", "\n")


def read_table(given: Any, columns: Sequence[str] = (), how: EncodingSettings | None = None) -> Table:
    """A table out of files, or of rows that the program holds (`rows_or_paths`). Several files follow one
    another, or are parallel; with `columns` they have no header (`formats.read_rows`). `how` says what the
    bytes of files mean."""
    rows = rows_or_paths(given)
    if any(isinstance(row, Mapping) for row in rows):
        places = [f"row {number}" for number in range(1, len(rows) + 1)]
        table = Table(rows, places, "rows given by the program")
    else:
        paths = [Path(path).expanduser() for path in rows]
        for path in paths:
            if path.is_dir():
                raise EtymonError(f"{path} is a folder: give the table in it ({holds(path)})")
            if not path.is_file():
                raise EtymonError(f"no such file: {path}", code="no-file")
        table = Table([], [], ", ".join(map(str, paths)))
        # The places are kept beside the rows: tasks name the row that they refuse.
        how = how or EncodingSettings()
        for place, row in read_rows(paths, columns, how.reader_options):
            if how.errors == "skip" and is_damaged(row):
                table.skipped += 1
                continue
            table.places.append(place)
            table.rows.append(row)
        if table.skipped:
            logger.warning(
                f"{table.description}: rows that cannot be read and were left out: {table.skipped:,}"
            )
    if not table.rows:
        raise EtymonError(f"{table.description or 'the table'} has no rows: give some")
    return table


def rows_or_paths(given: Any) -> list[Any]:
    """Files as they are, or rows as values that JSON knows: from a list of dicts, columns by their names, or
    a data frame of polars, Arrow or pandas, none of which need be installed."""
    if isinstance(given, str | Path):
        return [given]
    if isinstance(given, Mapping):
        for name, values in given.items():
            if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
                raise EtymonError(
                    f"column {name!r} is a {type(values).__name__}, not a list of values; one row alone is "
                    "a list "
                    "of one dict"
                )
        columns = {name: list(values) for name, values in given.items()}
        if len(set(map(len, columns.values()))) > 1:
            counts = ", ".join(f"{name!r} has {len(values):,}" for name, values in columns.items())
            raise EtymonError(f"columns need as many values each: {counts}")
        given = [dict(zip(columns, row)) for row in zip(*columns.values())]
    elif hasattr(given, "to_dicts"):  # polars
        given = given.to_dicts()
    elif hasattr(given, "to_pylist"):  # an Arrow table
        given = given.to_pylist()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # pandas
        given = given.to_dict("records")
    if not isinstance(given, Iterable):
        raise EtymonError(
            f"a {type(given).__name__} is no table: give files, rows (a list of dicts), columns (a dict of "
            "lists) or "
            "a data frame"
        )
    # Files and rows may not be mixed: where one is a row, all must be.
    entries = list(given)
    has_rows = any(isinstance(entry, Mapping) for entry in entries)
    kind, name = (Mapping, "a row (a dict)") if has_rows else (str | Path, "a file, or a row (a dict)")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, kind):
            raise EtymonError(f"row {number} of the table is a {type(entry).__name__}, not {name}")
    return [_plain(row) for row in entries] if has_rows else entries


def _plain(value: Any) -> Any:
    """The value without numpy's kinds of numbers and lists."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if type(value).__name__ in MISSING else value


def json_cell(value: Any) -> Any:
    """The list or object that a cell holds as JSON, which is how those are written where cells are texts; or
    the cell as it is."""
    if not isinstance(value, str) or not value.startswith(("[", "{")):
        return value
    try:
        return parse_json(value, "the cell")
    except EtymonError:
        return value
