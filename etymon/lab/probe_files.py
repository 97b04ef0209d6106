"""Files of probing tasks, with a reader a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.lab.probe_tasks import (
    SPLITS,
    Example,
    Item,
    ProbeTask,
    Sentence,
    Split,
    give_splits,
    limit,
    pseudo_word_task,
)
from etymon.settings.reading import EncodingSettings
from etymon.tables.formats import COLUMNS, ReaderOptions, column_rows, conllu_rows
from etymon.text.sentences import sentence_starts
from etymon.text.sources import TextFiles

Format = Literal["senteval", "table", "tags", "conllu", "raw"]

SPLIT_NAMES: dict[str, Split] = {
    name: split
    for split, names in zip(
        SPLITS, ("tr train training", "va val valid validation dev development", "te test testing")
    )
    for name in names.split()
}
# By suffix; None where the first lines have to tell.
FORMATS: dict[str, Format | None] = {
    ".conllu": "conllu",
    **dict.fromkeys((".conll", ".bio", ".iob", ".tags"), "tags"),
    ".csv": "table",
    ".tsv": None,
    ".txt": None,
}
# Scripts without spaces: a letter of them is as good as a word.
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
FIRST_WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W_{IDEOGRAPHS}]+")
# Of raw text that pseudo-words are made from: more of it would not make them better.
RAW_CHARACTERS = 1 << 25


@dataclass(frozen=True)
class ProbeColumns:
    """Names in the header of a table; `label` may also name a column of CoNLL-U."""

    text: str = "text"
    label: str = "label"
    split: str = "split"


def read_tasks(
    paths: Sequence[str | Path],
    columns: ProbeColumns,
    *,
    format: Format | None = None,
    examples: int = 5000,
    pseudo_words: int = 10,
    seed: int = 0,
    how: EncodingSettings | None = None,
) -> list[ProbeTask]:
    """The tasks in files and folders. Files that differ only in `train`, `dev`, `test` are one task.

    `examples` is the most that are used for training; validation and test have half as many each at most.
    What is used, and the split where none is given, is a function of the texts alone.
    """
    if format is not None and format not in get_args(Format):
        raise EtymonError(f"there is no format {format!r}: {did_you_mean(format, get_args(Format))}")
    if examples < 8 or pseudo_words < 1:
        raise EtymonError("a probe needs at least 8 examples, and pseudo-words at least one pair")
    tasks: list[ProbeTask] = []
    reader_options = {} if how is None else how.reader_options
    for name, files in _group_files(paths, format).items():
        kind = format or _kind(files[0][0], columns, reader_options)
        sentences: list[Sentence] = []
        for path, split in files:
            read = list(READERS[kind](path, columns, reader_options))
            if not read:
                raise EtymonError(f"{path} is empty: there is nothing to probe")
            # Beside files with splits in their names, one without is for training.
            for sentence in read:
                sentence.split = sentence.split or (split or "train" if len(files) > 1 else None)
            sentences += read
        notes = give_splits(sentences, name)
        if kind == "raw":
            task = pseudo_word_task(name, sentences, pseudo_words, examples, seed)
        else:
            notes += limit(sentences, examples, name)
            task = ProbeTask(name, "token" if kind in ("tags", "conllu") else "sentence", [])
            for sentence in sentences:
                for item in sentence.items if sentence.split else ():
                    assert sentence.split is not None
                    task.examples.append(
                        Example(sentence.text, item.label, item.type, sentence.split, item.span)
                    )
        task.notes[:0] = notes
        task.check()
        tasks.append(task)
    return tasks


def _group_files(
    paths: Sequence[str | Path], format: Format | None
) -> dict[str, list[tuple[Path, Split | None]]]:
    """ProbeTask name -> its files, each with the split that its name says."""
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in FORMATS
            )
            if not inside:
                raise EtymonError(f"no tasks in the folder {path}: it needs {', '.join(FORMATS)} files")
            files.update(dict.fromkeys(inside))
        elif not path.is_file():
            raise EtymonError(f"no such file or folder: {path}", code="no-file")
        elif format is None and path.suffix.lower() not in FORMATS:
            raise EtymonError(
                f"cannot tell what {path} is: name it with --format {'|'.join(get_args(Format))}"
            )
        else:
            files[path] = None
    if not files:
        raise EtymonError("there is nothing to probe: give --data with files or folders of tasks")
    # Files whose names differ only in words for a split (sst-train.tsv, sst-dev.tsv) are one task.
    groups: dict[tuple[Path, str], list[tuple[Path, Split | None]]] = {}
    for path in files:
        words = [word.lower() for word in re.split(r"[-_.]", path.stem)]
        split = next((SPLIT_NAMES[word] for word in reversed(words) if word in SPLIT_NAMES), None)
        rest = re.sub(rf"(^|[-_.])({'|'.join(SPLIT_NAMES)})(?=$|[-_.])", "", path.stem, flags=re.IGNORECASE)
        groups.setdefault((path.parent, rest.strip("-_.")), []).append((path, split))
    by_name: dict[str, list[tuple[Path, Split | None]]] = {}
    for (folder, rest), group in groups.items():
        name = rest or folder.resolve().name
        # Two folders may have a task of the same name: folders are put before it until it is unique.
        for parent in (folder, *folder.resolve().parents):
            if name in by_name:
                name = f"{parent.name}/{name}"
        if len({split for _, split in group}) < len(group):
            raise EtymonError(
                f"{', '.join(str(path) for path, _ in group)} look like one task twice: rename one"
            )
        by_name[name] = group
    return by_name


def _kind(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Format:
    by_suffix = FORMATS[path.suffix.lower()]
    if by_suffix is not None:
        return by_suffix
    head = [line for _, line in islice(TextFiles([path], format="txt", **reader_options).lines(), 1000)]
    if not head:
        raise EtymonError(f"{path} is empty: there is nothing to probe")
    first = head[0].split("\t")
    if len(first) == 3 and first[0] in ("tr", "va", "te"):
        return "senteval"
    # Empty lines separate the sentences of a file of tags; a table has none.
    blank = any(not line.strip() for line in head[1:])
    if path.suffix.lower() == ".tsv":
        return "table" if columns.text in first or not blank else "tags"
    pairs = [line.split("\t") for line in head if line.strip()]
    return "tags" if all(len(pair) > 1 and " " not in pair[0] for pair in pairs) else "raw"


def _read_senteval(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Iterator[Sentence]:
    for place, line in TextFiles([path], format="txt", **reader_options).lines():
        if line.strip():
            parts = line.split("\t", 2)
            if len(parts) < 3:
                raise EtymonError(f"{place}: expected split, label and text, with tabs between")
            yield _labelled(place, parts[2], parts[1], parts[0])


def _read_table(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Iterator[Sentence]:
    kind = "tsv" if path.suffix.lower() == ".tsv" else "csv"
    for place, row in TextFiles([path], format=kind, **reader_options).records():
        for name, option in ((columns.text, "--text"), (columns.label, "--label")):
            if name not in row:
                raise EtymonError(
                    f"{path}: no column {name!r}; columns there: {', '.join(map(repr, row))}; "
                    f"name the right one with {option}"
                )
        yield _labelled(place, row[columns.text], row[columns.label], row.get(columns.split))


def _labelled(place: str, text: str, label: str, split: str | None) -> Sentence:
    """A sentence-level example. Its type is its first word: one that comes back in other sentences."""
    text, label = text.strip(), label.strip()
    if not text or not label:
        raise EtymonError(f"{place} has no {'label' if text else 'text'}: mend it, or leave it out")
    if split is not None and split.strip().lower() not in SPLIT_NAMES:
        raise EtymonError(f"{place} is in no split ({split!r}): write train, validation or test")
    # The control label of a sentence has to come back in other sentences, or no probe could learn it.
    word = FIRST_WORD.search(text)
    item = Item(label, (word[0] if word else text[0]).casefold())
    return Sentence(text, [item], None if split is None else SPLIT_NAMES[split.strip().lower()])


def _read_tags(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Iterator[Sentence]:
    for _, row in column_rows(path, (), reader_options):
        yield _tagged((token, tag, True) for token, tag in zip(row["tokens"], row["tags"]))


def _read_conllu(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Iterator[Sentence]:
    """Words as they stood in the text: what was written together is put together again."""
    column = columns.label if columns.label in COLUMNS else "upos"
    for _, row in conllu_rows(path, reader_options):
        yield _tagged(zip(row["tokens"], row[column], row["spaces"]))


def _tagged(words: Iterable[tuple[str, str, bool]]) -> Sentence:
    """Tokens with their tags (`_` for none) and whether a space follows. A token's type is its form."""
    text, items = "", []
    for form, tag, space in words:
        if tag != "_":
            items.append(Item(tag, form.casefold(), (len(text), len(text) + len(form))))
        text += form + " " * space
    return Sentence(text.rstrip(), items)


def _read_raw(path: Path, columns: ProbeColumns, reader_options: ReaderOptions) -> Iterator[Sentence]:
    text = ""
    for part in TextFiles([path], format="txt", **reader_options).documents():
        text += part.text[: RAW_CHARACTERS - len(text)]
        if len(text) == RAW_CHARACTERS:
            break
    # Lines of a book break sentences anywhere: white space is made one space.
    starts = sentence_starts(text).tolist()
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        yield Sentence(" ".join(text[start:stop].split()), [])


READERS: dict[Format, Callable[[Path, ProbeColumns, ReaderOptions], Iterator[Sentence]]] = {
    "senteval": _read_senteval,
    "table": _read_table,
    "tags": _read_tags,
    "conllu": _read_conllu,
    "raw": _read_raw,
}
