"""Rows as a table file: .jsonl, .csv, .tsv or .parquet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import atomic_write, json_text
from etymon.text.reading import SURROGATE

WRITTEN = (".jsonl", ".csv", ".tsv", ".parquet")
BREAKS = re.compile(r"[\t\r\n]+")
"""What ends a cell or a line."""
SPECIAL = re.compile(r'[,"\r\n]')
"""What makes a .csv cell need quotes."""
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
"""How cells begin that spreadsheets compute, behind any number of apostrophes."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WRITTEN_COLUMN = "prediction"
"""Every table of answers has this column: it tells the tables that we wrote."""


def write_table(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]],
    tell: Callable[[str], None] | None = None,
    raw_cells: bool = False,
) -> None:
    """Writes all rows or nothing. What is no text or number is written as JSON where a cell can hold no
    other; .tsv knows no quotes, so tabs and line breaks become spaces there, and `tell` gets a message about
    it. Unless `raw_cells`, a cell of .csv and .tsv that a spreadsheet would compute gets an apostrophe
    before it (`guard_cell`)."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in WRITTEN:
        raise EtymonError(
            f"{path}: answers are written as {', '.join(WRITTEN)}, not as "
            f"{kind or 'a file without an ending'}"
        )
    rows = [_clean(row) for row in rows]
    # Rows may differ in their columns: all of them, in the order in which they first appear.
    names = list(dict.fromkeys(name for row in rows for name in row))
    if kind == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:  # it takes the names of the first row for all
            table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        except pyarrow.ArrowException as error:
            raise EtymonError(
                f"{path}: a column holds values of several kinds ({error}): write .jsonl"
            ) from error
        with atomic_write(path, "wb") as file:
            pyarrow.parquet.write_table(table, file)
        return
    with atomic_write(path) as file:
        if kind == ".jsonl":
            file.writelines(json_text(row) + "\n" for row in rows)
            return
        guard = str if raw_cells else guard_cell
        lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
        if kind == ".csv":
            for line in lines:
                # Not the csv module, which leaves a carriage return without quotes before Python 3.13.
                cells = (
                    '"' + cell.replace('"', '""') + '"' if SPECIAL.search(cell) else cell
                    for cell in map(guard, line)
                )
                file.write((",".join(cells) or '""') + "\n")
            return
        file.writelines("\t".join(guard(BREAKS.sub(" ", cell)) for cell in line) + "\n" for line in lines)
    broken = sum(BREAKS.search(cell) is not None for line in lines for cell in line)
    if broken and tell is not None:
        tell(
            f"{path}: tabs and line breaks of {broken:,} cells are spaces, as .tsv knows no quotes; .csv "
            "and .jsonl "
            "keep them"
        )


def guard_cell(cell: str) -> str:
    """The cell with an apostrophe before it, if a spreadsheet would take it for a formula. Numbers stay as
    they are. Cells that look guarded already get one more, so that `unguard_cell` gives back what was
    there."""
    return f"'{cell}" if FORMULA.match(cell) and not NUMBER.fullmatch(cell) else cell


def unguard_cell(cell: str) -> str:
    """The cell without the apostrophe that `guard_cell` put before it."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _clean(value: Any) -> Any:
    """Without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_clean(name): _clean(part) for name, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list | tuple) else value


def _cell(value: Any) -> str:
    if isinstance(value, dict | list):
        return json_text(value)
    return "" if value is None else str(value)
