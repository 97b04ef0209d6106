"""CoNLL's files: a token a line, a blank line between sentences; columns of their own (.conllu) or by white space."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from etymon.errors import EtymonError
from etymon.text.reading import Record
from etymon.text.sources import TextFiles

CONLLU = "id form lemma upos xpos feats head deprel deps misc".split()
COLUMNS = tuple(CONLLU[2:])
"""Beside `tokens` and `spaces`."""
NUMBER = re.compile(r"\d+([-.]\d+)?")
SKIPPED = "_"
"""The name of a column that is not wanted."""
DOCUMENT = "-DOCSTART-"
"""The token that a document begins with, which is none (CoNLL 2003)."""


def conllu_rows(path: Path) -> Iterator[Record]:
    """Sentences of CoNLL-U: lists of `tokens`, of `COLUMNS`, and of `spaces`, whether one follows a token in the text. Ranges of
    words and empty nodes are left out."""
    for block in _blocks(path):
        lines = [(place, line.split("\t")) for place, line in block if not line.startswith("#")]
        for place, parts in lines:
            if len(parts) != len(CONLLU):
                raise EtymonError(f"{place}: {len(parts)} columns instead of CoNLL-U's {len(CONLLU)}")
            if not NUMBER.fullmatch(parts[0]):
                raise EtymonError(f"{place}: {parts[0]!r} is no number of a word, as CoNLL-U has it there")
        words = [parts for _, parts in lines if not set("-.") & set(parts[0])]
        if words:
            values = {name: [parts[CONLLU.index(name)] for parts in words] for name in COLUMNS}
            spaces = _spaces([parts for _, parts in lines], words)
            yield lines[0][0], {"tokens": [parts[1] for parts in words], **values, "spaces": spaces}


def column_rows(path: Path, names: Sequence[str] = ()) -> Iterator[Record]:
    """Sentences of a file of columns: lists by the `names` of all of them; or the first as `tokens` and the last as `tags`."""
    for block in _blocks(path):
        rows = []
        block = [(place, line) for place, line in block if line.split()[0] != DOCUMENT]
        for place, line in block:
            parts = line.split("\t") if "\t" in line else line.split()
            if names and len(parts) != len(names):
                raise EtymonError(
                    f"{place}: {len(parts)} columns, and {len(names)} were named: {', '.join(names)}"
                )
            if not names and (len(parts) < 2 or not parts[0] or not parts[-1]):
                raise EtymonError(f"{place}: expected a token and its tag")
            rows.append(parts if names else [parts[0], parts[-1]])
        if rows:
            columns = zip(names or ("tokens", "tags"), zip(*rows, strict=True), strict=True)
            yield block[0][0], {name: list(values) for name, values in columns if name != SKIPPED}


def _spaces(lines: Sequence[Sequence[str]], words: Sequence[Sequence[str]]) -> list[bool]:
    spaces = {parts[0]: "SpaceAfter=No" not in parts[9] for parts in lines}
    for parts in lines:
        if "-" in parts[0]:  # don't = do + n't: no space but behind the last
            first, last = map(int, parts[0].split("-"))
            inside = [word for word in words if first <= int(word[0]) <= last]
            if "".join(word[1] for word in inside) == parts[1]:
                spaces |= {word[0]: False for word in inside} | {str(last): spaces[parts[0]]}
    return [spaces[word[0]] for word in words]


def _blocks(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Lines with their places, a list for all up to a blank one."""
    block: list[tuple[str, str]] = []
    for place, line in TextFiles([path], format="txt").lines():
        if line.strip():
            block.append((place, line))
        elif block:
            yield block
            block = []
    if block:
        yield block
