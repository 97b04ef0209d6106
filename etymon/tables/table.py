"""Tables: rows with named columns, out of files (`SUFFIXES`), parallel text files, or the program."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.files import holds, is_deep, json_fault, parse_json
from etymon.tables.conll import column_rows, conllu_rows
from etymon.tables.in_memory_rows import listed
from etymon.tables.squad import is_squad, squad_rows
from etymon.tables.writing import WRITTEN_COLUMN, unguard_cell
from etymon.text.reading import SURROGATE, Record
from etymon.text.sources import PACKINGS, TextFiles, suffix_of

COLUMN_FILES = (".conll", ".iob", ".bio")
"""A token a line, its columns by white space."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".conllu", *COLUMN_FILES)
LONGEST_JSON = 1 << 40
"""Bytes of a .json file's line, which may be all of it: as long as it fits."""
SPACE = re.compile(r"\s*")


@dataclass
class Table:
    """Rows, and the places where they stand, for those who have to complain about one."""

    rows: list[Mapping[str, Any]]
    places: list[str]
    description: str

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
        digest = hashlib.sha256(json.dumps(list(columns)).encode())
        for row in self.rows:
            digest.update(json.dumps([row.get(name) for name in columns], default=str).encode())
        return digest.hexdigest()

    def divided(self, column: str, share: float, most: int) -> tuple[Table, Table]:
        """The table without about a `share` of its rows, at most `most`, and these. Rows with the same text in the column
        stay together: what is held out was not seen in training."""
        texts = [
            json.dumps(value) if isinstance(value, list | tuple) else self._text(number, column)
            for number, value in enumerate(self.values(column))
        ]
        ranked = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
        held = set(ranked[: min(most, max(1, round(share * len(ranked))))]) if share else set()
        inside = [number for number, text in enumerate(texts) if text not in held]
        outside = [number for number, text in enumerate(texts) if text in held]
        if not inside:
            raise EtymonError(f"{self.description} has too few rows to hold some out: give --validation")
        return self.at(inside), self.at(outside)

    def _value(self, number: int, column: str) -> Any:
        row = self.rows[number]
        if column not in row:
            raise EtymonError(
                f"{self.places[number]}: no column {column!r}; {did_you_mean(column, map(str, row))}"
            )
        return row[column]

    def _text(self, number: int, column: str) -> str:
        value = self._value(number, column)
        if not isinstance(value, str):
            kind = "nothing" if value is None else f"a {type(value).__name__}"
            raise EtymonError(f"{self.places[number]}: column {column!r} holds {kind}, not a text")
        if not value.strip():
            raise EtymonError(
                f"{self.places[number]}: column {column!r} is empty; fill it in, or leave the row out"
            )
        # JSON can spell half of a surrogate pair, which is no character.
        return SURROGATE.sub("\ufffd", value).replace("\r\n", "\n").replace("\r", "\n")


def read_table(given: Any, columns: Sequence[str] = ()) -> Table:
    """A table out of files, or of rows that the program holds (`listed`).

    Several tables follow one another. Files that are none of `SUFFIXES` are parallel: line n of each belongs to row n, and
    a file's column is called as its name ends (`train.de`). With `columns`, files have no header: these are the names.
    """
    rows = listed(given)
    if any(isinstance(row, Mapping) for row in rows):
        places = [f"row {number}" for number in range(1, len(rows) + 1)]
        table = Table(rows, places, "rows given by the program")
    else:
        paths = [Path(path).expanduser() for path in rows]
        for path in paths:
            if path.is_dir():
                raise EtymonError(f"{path} is a folder: give the table in it ({holds(path)})")
            if not path.is_file():
                raise EtymonError(f"no such file: {path}")
        found = list(_records(paths, columns))
        table = Table(
            [row for _, row in found], [place for place, _ in found], ", ".join(str(path) for path in paths)
        )
    if not table.rows:
        raise EtymonError(f"{table.description or 'the table'} has no rows: give some")
    return table


def json_cell(value: Any) -> Any:
    """The list or object that a cell holds as JSON, which is how such are written where cells are texts; or the cell as it is."""
    if not isinstance(value, str) or not value.startswith(("[", "{")):
        return value
    try:
        return parse_json(value, "the cell")
    except EtymonError:
        return value


def _records(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Record]:
    if columns:
        for path in paths:
            if suffix_of(path) in COLUMN_FILES:
                yield from column_rows(path, columns)
            else:  # by tabs, or by commas, if that is what it is
                kind = "csv" if suffix_of(path) == ".csv" else "tsv"
                yield from TextFiles([path], format=kind, header=columns).records()
    elif all(suffix_of(path) in SUFFIXES for path in paths):
        for path in paths:
            own = OWN.get(suffix_of(path))
            rows = own(path) if own is not None else TextFiles([path]).records()
            yield from map(_unguarded, rows) if suffix_of(path) in (".csv", ".tsv") else rows
    elif any(suffix_of(path) in SUFFIXES for path in paths):
        raise EtymonError(
            f"{', '.join(map(str, paths))} are tables and others: give tables ({', '.join(SUFFIXES)}) or parallel text files"
        )
    elif len(paths) == 1:
        raise EtymonError(
            f"{paths[0]} has no named columns: give a {', '.join(SUFFIXES)} file, two parallel text files, or the names of "
            "its tab-separated columns (--columns en,zh)"
        )
    else:
        yield from _parallel(paths)


def _unguarded(record: Record) -> Record:
    """A row of a table of answers without the apostrophes that keep its cells from being formulas; others as they are."""
    place, row = record
    if WRITTEN_COLUMN not in row:
        return record
    return place, {unguard_cell(name): unguard_cell(cell) for name, cell in row.items()}


def _parallel(paths: Sequence[Path]) -> Iterator[Record]:
    bare = [path.with_suffix("") if path.suffix.lower() in PACKINGS else path for path in paths]
    names = [path.suffix[1:] for path in bare]
    if len(set(names)) < len(names):
        names = [path.stem for path in bare]
    if len(set(names)) < len(names):
        raise EtymonError(f"{', '.join(map(str, paths))} would be columns of one name: rename them")
    files = [list(TextFiles([path], format="txt").lines()) for path in paths]
    counts = [len(lines) for lines in files]
    if len(set(counts)) > 1:
        told = ", ".join(f"{path} has {count:,}" for path, count in zip(paths, counts))
        raise EtymonError(f"parallel files need as many lines each: {told}")
    for lines in zip(*files):
        yield lines[0][0], {name: text for name, (_, text) in zip(names, lines)}


def _json(path: Path) -> Iterator[Record]:
    """A list of objects, SQuAD's tree of questions, or (many files are called so) one object after the other."""
    files = TextFiles([path], format="txt", max_document=LONGEST_JSON)
    text = "\n".join(line for _, line in files.lines())
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        yield from _objects(text, path)
        return
    except (ValueError, RecursionError) as error:
        raise EtymonError(f"{path} is not valid JSON ({json_fault(error)})") from error
    if is_deep(document):
        raise EtymonError(f"{path} is not valid JSON ({json_fault(RecursionError())})")
    if is_squad(document):
        yield from squad_rows(document, str(path))
    elif isinstance(document, list) and all(isinstance(row, dict) for row in document):
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(document, 1))
    elif isinstance(document, dict):  # a file of one line
        yield f"{path}, row 1", document
    else:
        raise EtymonError(f"{path} holds no rows: give a list of objects, an object a line, or a SQuAD file")


def _objects(text: str, path: Path) -> Iterator[Record]:
    """Objects one after the other, a line each or not."""
    decoder, line, before = json.JSONDecoder(), 1, 0
    start = _behind_space(text, 0)
    while start < len(text):
        line, before = line + text.count("\n", before, start), start
        try:
            row, stop = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", line)
            raise EtymonError(f"{path}, line {line} is not valid JSON ({json_fault(error)})") from error
        if is_deep(row):
            raise EtymonError(f"{path}, line {line} is not valid JSON ({json_fault(RecursionError())})")
        if not isinstance(row, dict):
            raise EtymonError(f"{path}, line {line}: expected an object, and not {type(row).__name__}")
        yield f"{path}, line {line}", row
        start = _behind_space(text, stop)


def _behind_space(text: str, start: int) -> int:
    found = SPACE.match(text, start)
    return start if found is None else found.end()


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise EtymonError(f"{path} is not a parquet file, or damaged ({error})") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row


OWN = {".parquet": _parquet, ".json": _json, ".conllu": conllu_rows} | dict.fromkeys(
    COLUMN_FILES, column_rows
)
"""Readers of files that are not read as text is."""
