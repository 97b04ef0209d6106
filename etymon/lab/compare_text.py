"""The text and the tables of a comparison: each cut into three parts once, the same for all arms.

OUT/text/{train,validation,test}.jsonl          documents
OUT/tasks/NAME/{train,validation,test}.jsonl    rows
OUT/pairs/{validation,test}.jsonl               minimal pairs, which are not trained on
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from etymon.config import read_yaml, strict
from etymon.errors import EtymonError
from etymon.files import atomic_folder, json_text, read_json, write_json
from etymon.lab.pairs import MinimalPair
from etymon.settings.reading import EncodingSettings
from etymon.tables.table import Table, read_table
from etymon.tasks import task_class
from etymon.text.languages import LanguageText
from etymon.text.sentences import cut_texts
from etymon.text.sources import PreparedText, TextSource

PARTS = {"train": "train on", "validation": "validate on", "test": "test on"}
"""The parts of a text, and what each is there to do."""
FEWEST_DOCUMENTS = 20
"""Of fewer, the end of the text is held out instead of some documents."""
LONGEST = 1 << 20
"""Bytes of a document; what is longer is cut into several at the end of a paragraph or sentence."""
FEWEST_BYTES = 500
"""Of a part that is held out: less says nothing about a model."""
PASSAGE, SHORT_PASSAGE = 2048, 200
"""Characters of a passage that is scored as one item. A pseudo-likelihood takes a row for every token, so its
passages are short."""
MOST_PASSAGES, MOST_SHORT = 200, 60
FEWEST_PAIRS = 5
TASK_SHARE, MOST_ROWS = 0.15, 1000
"""Of a table's rows, those to validate on and those to test on, each."""


@dataclass(frozen=True)
class TextCounts:
    """How much text every part has."""

    description: str
    fingerprint: str
    documents: dict[str, int]
    bytes: dict[str, int]


def cut_text(
    source: TextSource, folder: Path, validation: float, test: float, seed: int, note: Callable[[str], None]
) -> TextCounts:
    """Writes the three parts of a text into `folder`, unless they are there; returns their sizes."""
    if isinstance(source, LanguageText):
        raise EtymonError("languages are not compared apart: give --data without their codes")
    if isinstance(source, PreparedText):
        raise EtymonError(
            f"{source.folder} holds tokens, and arms have tokenizers of their own: give --data with the text"
        )
    if (folder / "text.json").is_file():
        return TextCounts(**read_json(folder / "text.json"))
    note("cutting the text into parts to train on, to validate on, and to test on at the end")
    # Two passes over the text: only the first knows how much there is, and nothing of its size is in memory.
    digests, sizes = [], []
    for text in _documents(source):
        digests.append(_digest(text, seed))
        sizes.append(len(text.encode()))
    choose = _part_by_digest(np.array(digests, "u8"), np.array(sizes), validation, test)
    by_tail = choose is None
    # Documents and bytes.
    counts = {name: [0, 0] for name in PARTS}
    with atomic_folder(folder) as aside:
        files = {name: open(aside / f"{name}.jsonl", "w", encoding="utf-8") for name in PARTS}  # noqa: SIM115
        try:
            texts = _documents(source)
            pieces = (
                _cut_tail(texts, sum(sizes), validation, test)
                if choose is None
                else ((choose(_digest(text, seed)), text) for text in texts)
            )
            for name, text in pieces:
                files[name].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                counts[name][0] += 1
                counts[name][1] += len(text.encode())
        finally:
            for file in files.values():
                file.close()
        for name in PARTS:
            if counts[name][1] < FEWEST_BYTES:
                raise EtymonError(
                    f"{source.description} has too little text: {counts[name][1]:,} bytes to {PARTS[name]}; "
                    "give more text, or larger --validation and --test",
                    code="too-little-text",
                )
        result = TextCounts(
            source.description,
            hashlib.sha256(b"".join(each.to_bytes(8, "little") for each in digests)).hexdigest(),
            {name: count for name, (count, _) in counts.items()},
            {name: size for name, (_, size) in counts.items()},
        )
        write_json(aside / "text.json", asdict(result))
    how = "the end of the text" if by_tail else "some of the documents"
    train, held, tested = (result.bytes[name] for name in PARTS)
    note(f"{train:,} bytes to train on, {held:,} to validate on, {tested:,} to test on ({how})")
    return result


def _documents(source: TextSource) -> Iterator[str]:
    """Documents as whole texts, long ones in several."""
    waiting: list[str] = []
    size = 0
    for document in source.documents():
        waiting.append(document.text)
        size += len(document.text)
        if document.more and size < LONGEST:
            continue
        yield from _bounded("".join(waiting))
        waiting, size = [], 0
    yield from _bounded("".join(waiting))


def _bounded(text: str) -> Iterator[str]:
    parts = [text] if len(text.encode()) <= LONGEST else cut_texts([text], LONGEST)
    yield from (part for part in parts if part.strip())


def _digest(text: str, seed: int) -> int:
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), key=key, digest_size=8).digest(), "little")


def _part_by_digest(
    digests: np.ndarray, sizes: np.ndarray, validation: float, test: float
) -> Callable[[int], str] | None:
    """Which part a document belongs to, by a digest of its text: copies of a text are never in two parts.
    None if there are too few documents for that."""
    # Thresholds, and not a draw a document: of few documents, a draw may hold out none at all.
    order = np.argsort(digests, kind="stable")
    shares = np.cumsum(sizes[order]) / max(1, sizes.sum())
    if len(np.unique(digests)) < FEWEST_DOCUMENTS:
        return None
    ends = [int(digests[order][np.searchsorted(shares, share)]) for share in (test, test + validation)]
    if len({*ends, int(digests[order][-1])}) < 3:  # one document is as large as a part
        return None

    def choose(digest: int) -> str:
        return "test" if digest <= ends[0] else "validation" if digest <= ends[1] else "train"

    return choose


def _cut_tail(texts: Iterator[str], total: int, validation: float, test: float) -> Iterator[tuple[str, str]]:
    """The parts of a text of few documents, in its order: a document may be cut at the end of a sentence."""
    # Pieces are small beside a part, so that its size is about what was asked for.
    limit = min(4096, max(64, int(total * min(validation, test) / 4)))
    done = 0
    for text in texts:
        pieces = []
        for piece in cut_texts([text], limit):
            share = (done + len(piece.encode()) / 2) / total
            done += len(piece.encode())
            is_train, is_test = share < 1 - validation - test, share >= 1 - test
            pieces.append(("train" if is_train else "test" if is_test else "validation", piece))
        for name, group in groupby(pieces, key=lambda pair: pair[0]):
            yield name, "".join(piece for _, piece in group)


def read_passages(path: Path, size: int = PASSAGE, most: int = MOST_PASSAGES) -> list[str]:
    """Passages of a part of the text, up to `size` characters each and at most so many, evenly spread: the
    items that bits are counted over."""
    with open(path, encoding="utf-8") as lines:
        # In order and evenly spread: the same passages for every arm, whatever its tokenizer.
        texts = (json.loads(line)["text"] for line in lines)
        passages = [passage.strip() for passage in cut_texts(texts, size)]
    passages = [passage for passage in passages if len(passage) > 1]
    if len(passages) <= most:
        return passages
    return [passages[round(place)] for place in np.linspace(0, len(passages) - 1, most)]


# --- tables


@dataclass(frozen=True)
class TaskTable:
    """A task of the user's, cut into three parts."""

    name: str
    task: str
    options: dict[str, Any]
    settings: dict[str, Any]
    """Further settings of `etymon finetune`."""
    folder: Path

    def part(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def read_task(given: str, folder: Path, how: EncodingSettings) -> tuple[TaskTable, Table]:
    """A task as it was given, a table or a YAML file with settings of `etymon finetune`, and all its rows,
    whose files are read as the YAML file says, or else by `how`."""
    path = Path(given).expanduser()
    settings: dict[str, Any] = {"train": [str(path)]}
    if path.suffix.lower() in (".yaml", ".yml"):
        settings = read_yaml(path)
    settings = dict(settings)
    train, name = settings.pop("train", None), settings.pop("task", "classify")
    options = settings.pop("options", {})
    if not train:
        raise EtymonError(f"{path} names no table: give it as train")
    # What a comparison decides for all arms alike.
    for key in ("validation", "family", "start", "seed", "out", "mixture"):
        if key in settings:
            raise EtymonError(f"{path} sets {key}, which the comparison decides: leave it out")
    # The parts are written as UTF-8 with names of columns: runs need not know how the table was read.
    reading = {key: settings.pop(key) for key in how.reader_options if key in settings}
    how = strict(EncodingSettings, how.reader_options | reading, str(path))
    table = read_table(train if isinstance(train, list) else [train], settings.pop("columns", ()), how)
    kind = task_class(name)(task_class(name).Options(**options))
    for column in kind.columns:
        table.values(column)  # refuses a table without it
    kind.texts(table)
    return TaskTable(path.stem, name, options, settings, folder / path.stem), table


def cut_pairs(pairs: Sequence[MinimalPair], folder: Path) -> None:
    """Writes every second pair of a paradigm for validation and the others for the test, unless they are
    there."""
    if folder.is_dir():
        return
    parts: dict[str, list[MinimalPair]] = {"validation": [], "test": []}
    # By turns: published files are sorted by template, and both parts are to have all of them.
    seen: Counter[str] = Counter()
    for pair in pairs:
        parts["test" if seen[pair.paradigm] % 2 else "validation"].append(pair)
        seen[pair.paradigm] += 1
    if len(parts["test"]) < FEWEST_PAIRS:
        raise EtymonError(f"there are {len(pairs)} minimal pairs: give {2 * FEWEST_PAIRS} or more")
    with atomic_folder(folder) as aside:
        for name, chosen in parts.items():
            lines = "".join(json_text(asdict(pair)) + "\n" for pair in chosen)
            (aside / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def cut_table(task: TaskTable, table: Table) -> None:
    """Writes the three parts of a task's rows, unless they are there. Rows with the same text stay
    together."""
    if task.folder.is_dir():
        return
    column = task_class(task.task)(task_class(task.task).Options(**task.options)).columns[0]
    # The test rows first, and of the rest those for validation: a larger table has the same test rows again.
    rest, test = table.hold_out(column, TASK_SHARE, MOST_ROWS)
    train, validation = rest.hold_out(column, TASK_SHARE / (1 - TASK_SHARE), MOST_ROWS)
    if min(len(validation), len(test)) < 5:
        raise EtymonError(
            f"{table.description} has {len(table)} rows, of which {len(test)} would be tested on: give more"
        )
    with atomic_folder(task.folder) as aside:
        for name, part in zip(PARTS, (train, validation, test), strict=True):
            lines = "".join(json_text(dict(row)) + "\n" for row in part.rows)
            (aside / f"{name}.jsonl").write_text(lines, encoding="utf-8")
