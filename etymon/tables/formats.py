"""Rows of table files, read and written: .csv, .tsv, .jsonl, .json (SQuAD's too), .parquet, CoNLL's files,
and parallel text files.

A reader yields (place, row) for every row: where it stands, for messages, and its values by column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import atomic_write, is_deep, json_fault, json_text
from etymon.text.charsets import MARK
from etymon.text.reading import RECORDS, SURROGATE, Record
from etymon.text.sources import PACKINGS, TextFiles, refuse_office_files, suffix_of

ReaderOptions = Mapping[str, Any]
USUAL_READING: ReaderOptions = {}
COLUMN_FILES = (".conll", ".iob", ".bio")
"""A token a line, its columns by white space."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".conllu", *COLUMN_FILES)
LONGEST_JSON = 1 << 40
"""Bytes of a .json file's line, which may be all of it: as long as it fits."""
NOT_SPACE = re.compile(r"\S")
CONLLU = "id form lemma upos xpos feats head deprel deps misc".split()
COLUMNS = tuple(CONLLU[2:])
"""The columns of a .conllu file beside `tokens` and `spaces`."""
WORD_NUMBER = re.compile(r"\d+([-.]\d+)?")
SKIPPED = "_"
"""The name of a column that is not wanted."""
DOCUMENT = "-DOCSTART-"
"""The token that a document begins with, which is none (CoNLL 2003)."""
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


def read_rows(
    paths: Sequence[Path], columns: Sequence[str] = (), options: ReaderOptions = USUAL_READING
) -> Iterator[Record]:
    """The rows of tables one after the other. Files that are none of `SUFFIXES` are parallel: line n of each
    belongs to row n, and a file's column is called as its name ends (`train.de`). With `columns`, files have
    no header: these are the names. `options` are arguments of `TextFiles`, as below."""
    kinds = [suffix_of(path) for path in paths]
    if columns:
        for path, kind in zip(paths, kinds, strict=True):
            if kind in COLUMN_FILES:
                yield from column_rows(path, columns, options)
            else:  # by tabs, or by commas, if that is what it is
                kind = "csv" if kind == ".csv" else "tsv"
                yield from TextFiles([path], format=kind, header=columns, **options).records()
    elif set(kinds) <= set(SUFFIXES):
        for path, kind in zip(paths, kinds, strict=True):
            rows = TextFiles([path], **options).records() if kind in RECORDS else READERS[kind](path, options)
            for place, row in rows:
                # A table of answers has apostrophes that keep its cells from being formulas.
                if kind in (".csv", ".tsv") and WRITTEN_COLUMN in row:
                    row = {unguard_cell(name): unguard_cell(cell) for name, cell in row.items()}
                yield place, row
    elif set(kinds) & set(SUFFIXES):
        raise EtymonError(
            f"{', '.join(map(str, paths))} are tables and others: give tables ({', '.join(SUFFIXES)}) or "
            "parallel "
            "text files"
        )
    elif len(paths) == 1:
        refuse_office_files(paths[0])
        raise EtymonError(
            f"{paths[0]} has no named columns: give a {', '.join(SUFFIXES)} file, two parallel text files, "
            "or the "
            "names of its tab-separated columns (--columns en,zh)",
            code="broken-table",
        )
    else:
        yield from _parallel_rows(paths, options)


def _parallel_rows(paths: Sequence[Path], options: ReaderOptions) -> Iterator[Record]:
    bare = [path.with_suffix("") if path.suffix.lower() in PACKINGS else path for path in paths]
    # train.de and train.en are columns "de" and "en"; source.txt and target.txt are "source" and "target".
    names = [path.suffix[1:] for path in bare]
    if len(set(names)) < len(names):
        names = [path.stem for path in bare]
    if len(set(names)) < len(names):
        raise EtymonError(f"{', '.join(map(str, paths))} would be columns of one name: rename them")
    files = [list(TextFiles([path], format="txt", **options).lines()) for path in paths]
    if len(set(map(len, files))) > 1:
        counts = ", ".join(f"{path} has {len(lines):,}" for path, lines in zip(paths, files))
        raise EtymonError(f"parallel files need as many lines each: {counts}", code="broken-table")
    for lines in zip(*files):
        yield lines[0][0], {name: text for name, (_, text) in zip(names, lines)}


# ---------------------------------------------------------------- JSON and Parquet


def _json_rows(path: Path, options: ReaderOptions) -> Iterator[Record]:
    """A list of objects, SQuAD's tree of questions, or (many files are called so) one object after the
    other."""
    # Read as text first: so it may be compressed, and bad bytes are reported with their line.
    files = TextFiles([path], format="txt", max_document=LONGEST_JSON, **options)
    text = "\n".join(line for _, line in files.lines())
    try:
        document = json.loads(text)
        if is_deep(document):
            raise RecursionError
    except json.JSONDecodeError:
        yield from _json_objects(text, path)
        return
    except (ValueError, RecursionError) as error:
        raise EtymonError(f"{path} is not valid JSON ({json_fault(error)})", code="broken-table") from error
    if is_squad(document):
        yield from _squad_rows(document, str(path))
    elif isinstance(document, list) and all(isinstance(row, dict) for row in document):
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(document, 1))
    elif isinstance(document, dict):  # a file of one line
        yield f"{path}, row 1", document
    else:
        raise EtymonError(f"{path} holds no rows: give a list of objects, an object a line, or a SQuAD file")


def _json_objects(text: str, path: Path) -> Iterator[Record]:
    """Objects one after the other, a line each or not."""
    decoder, line, before, stop = json.JSONDecoder(), 1, 0, 0
    while match := NOT_SPACE.search(text, stop):
        line, before = line + text.count("\n", before, match.start()), match.start()
        try:
            row, stop = decoder.raw_decode(text, match.start())
            if is_deep(row):
                raise RecursionError
        except (ValueError, RecursionError) as error:
            place = f"{path}, line {getattr(error, 'lineno', line)}"
            raise EtymonError(
                f"{place} is not valid JSON ({json_fault(error)})", code="broken-table"
            ) from error
        place = f"{path}, line {line}"
        if not isinstance(row, dict):
            raise EtymonError(f"{place}: expected an object, and not {type(row).__name__}")
        yield place, row


def is_squad(document: Any) -> bool:
    """Whether a JSON document is built as SQuAD's files are (1.1 and 2.0): articles, paragraphs,
    questions."""
    articles = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(articles, list) and any(
        isinstance(article, Mapping) and "paragraphs" in article for article in articles
    )


def _squad_rows(document: Mapping[str, Any], name: str) -> Iterator[Record]:
    """Every question, in order: its id, title, context, question, is_impossible and, as a list, its
    answers."""

    def require(holder: Mapping[str, Any], key: str, place: str) -> Any:
        if key not in holder:
            raise EtymonError(f"{place}: no {key!r}, which SQuAD's files have there")
        return holder[key]

    def parts(holder: Mapping[str, Any], key: str, place: str, kind: str) -> Iterator[tuple[Any, str]]:
        objects = require(holder, key, place)
        if not isinstance(objects, list) or not all(isinstance(part, Mapping) for part in objects):
            raise EtymonError(f"{place}: {key!r} is no list of objects, as SQuAD's files have it there")
        yield from ((part, f"{place}, {kind} {number}") for number, part in enumerate(objects, 1))

    for article, in_article in parts(document, "data", name, "article"):
        for paragraph, in_paragraph in parts(article, "paragraphs", in_article, "paragraph"):
            for question, place in parts(paragraph, "qas", in_paragraph, "question"):
                row = {
                    "id": require(question, "id", place),
                    "title": article.get("title", ""),
                    "context": require(paragraph, "context", place),
                    "question": require(question, "question", place),
                    "is_impossible": bool(question.get("is_impossible")),
                }
                if "answers" in question:  # files of questions alone have none
                    row["answers"] = [] if row["is_impossible"] else question["answers"]
                yield place, row


def _parquet_rows(path: Path, options: ReaderOptions) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise EtymonError(f"{path} is not a parquet file, or damaged ({error})") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


# ---------------------------------------------------------------- CoNLL: a token a line


def conllu_rows(path: Path, options: ReaderOptions = USUAL_READING) -> Iterator[Record]:
    """Sentences of CoNLL-U: lists of `tokens`, of `COLUMNS`, and of `spaces`, whether one follows a token in
    the text. Ranges of words and empty nodes are left out."""
    for block in _sentence_lines(path, options):
        lines = [(place, line.split("\t")) for place, line in block if not line.startswith("#")]
        for place, parts in lines:
            if len(parts) != len(CONLLU):
                raise EtymonError(f"{place}: {len(parts)} columns instead of CoNLL-U's {len(CONLLU)}")
            if not WORD_NUMBER.fullmatch(parts[0]):
                raise EtymonError(f"{place}: {parts[0]!r} is no number of a word, as CoNLL-U has it there")
        # 3-4 is a range of words that are written as one, 5.1 a word that is not in the text.
        words = [parts for _, parts in lines if not set("-.") & set(parts[0])]
        if not words:
            continue
        spaces = {parts[0]: "SpaceAfter=No" not in parts[9] for _, parts in lines}
        for _, parts in lines:
            if "-" in parts[0]:  # don't = do + n't: no space but behind the last
                first, last = map(int, parts[0].split("-"))
                inside = [word for word in words if first <= int(word[0]) <= last]
                if "".join(word[1] for word in inside) == parts[1]:
                    spaces |= {word[0]: False for word in inside} | {str(last): spaces[parts[0]]}
        row: dict[str, list[Any]] = {"tokens": [parts[1] for parts in words]}
        row |= {name: [parts[CONLLU.index(name)] for parts in words] for name in COLUMNS}
        yield lines[0][0], {**row, "spaces": [spaces[parts[0]] for parts in words]}


def column_rows(
    path: Path, names: Sequence[str] = (), options: ReaderOptions = USUAL_READING
) -> Iterator[Record]:
    """Sentences of a file of columns: lists by the `names` of all of them; or the first as `tokens` and the
    last as `tags`."""
    for block in _sentence_lines(path, options):
        rows = []
        block = [(place, line) for place, line in block if line.split()[0] != DOCUMENT]
        for place, line in block:
            # Tabs, where there are some, part cells that may be empty or hold spaces.
            parts = line.split("\t") if "\t" in line else line.split()
            if names and len(parts) != len(names):
                raise EtymonError(
                    f"{place}: {len(parts)} columns, and {len(names)} were named: {', '.join(names)}",
                    code="broken-table",
                )
            if not names and (len(parts) < 2 or not parts[0] or not parts[-1]):
                raise EtymonError(f"{place}: expected a token and its tag")
            rows.append(parts if names else [parts[0], parts[-1]])
        if rows:
            columns = zip(names or ("tokens", "tags"), zip(*rows, strict=True), strict=True)
            yield block[0][0], {name: list(values) for name, values in columns if name != SKIPPED}


def _sentence_lines(path: Path, options: ReaderOptions) -> Iterator[list[tuple[str, str]]]:
    """Lines with their places, a list for all up to a blank one."""
    block: list[tuple[str, str]] = []
    for place, line in TextFiles([path], format="txt", **options).lines():
        if line.strip():
            block.append((place, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _read_columns(path: Path, options: ReaderOptions) -> Iterator[Record]:
    return column_rows(path, (), options)


READERS: dict[str, Callable[[Path, ReaderOptions], Iterator[Record]]] = {
    ".parquet": _parquet_rows,
    ".json": _json_rows,
    ".conllu": conllu_rows,
    **dict.fromkeys(COLUMN_FILES, _read_columns),
}
"""Readers of files that `TextFiles.records` does not read."""


def is_damaged(value: Any) -> bool:
    """Whether a cell, or any cell of a row, holds bytes that are no text."""
    if isinstance(value, str):
        return MARK in value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(map(is_damaged, parts))


# --- writing


def write_table(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]],
    tell: Callable[[str], None] | None = None,
    raw_cells: bool = False,
    bom: bool = False,
) -> None:
    """Writes all rows or nothing. What is no text or number is written as JSON where a cell can hold no
    other; .tsv knows no quotes, so tabs and line breaks become spaces there, and `tell` gets a message about
    it. With a `bom`, spreadsheets know that a .csv or .tsv is UTF-8. Unless `raw_cells`, a cell of .csv and
    .tsv that a spreadsheet would compute gets an apostrophe before it (`guard_cell`)."""
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
        file.write("\ufeff" if bom else "")
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
