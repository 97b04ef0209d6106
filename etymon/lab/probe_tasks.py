"""Probing tasks: what is read of which text, its label, its split, and the type that a control label hangs on."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.tables.formats import COLUMNS, column_rows, conllu_rows
from etymon.text.sentences import sentence_starts
from etymon.text.sources import TextFiles

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]
SPLITS: tuple[Split, ...] = get_args(Split)


class Item(NamedTuple):
    """One thing to classify in a text: its label, the type for the control task, its characters (None: all)."""

    label: str
    type: str
    span: Span | None = None


@dataclass
class Sentence:
    """A text and what there is to classify in it."""

    text: str
    items: list[Item]
    split: Split | None = None


class Example(NamedTuple):
    """A classifier sees only examples of its own group: a pseudo-word is one, most tasks have but one."""

    text: str
    label: str
    type: str
    split: Split
    span: Span | None = None
    group: str = ""


@dataclass
class ProbeTask:
    name: str
    level: Literal["sentence", "token", "pseudo-word"]
    examples: list[Example]
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Refuses what no classifier can be trained or judged on."""
        for split in SPLITS:
            if not any(example.split == split for example in self.examples):
                raise EtymonError(f"{self.name} has no {split} examples: give more, or no split at all")
        trained = [example.label for example in self.examples if example.split == "train"]
        if len(set(trained)) == 1:
            raise EtymonError(
                f"{self.name} has only the label {trained[0]!r} in training: nothing to tell apart"
            )
        if 2 * len(set(trained)) > len(trained):
            raise EtymonError(
                f"{self.name} has {len(set(trained)):,} labels for {len(trained):,} training examples: a probe needs "
                "classes, each with several examples"
            )


def shuffled(texts: Sequence[str]) -> list[str]:
    """Distinct texts in an order that depends on each text alone."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode("utf-8", "replace")).digest())


def give_splits(sentences: Sequence[Sentence], name: str) -> list[str]:
    """Gives every sentence a split; the same text is never in two of those that are made here."""
    there = {sentence.split for sentence in sentences}
    if there == {None}:
        _move(sentences, None, {"test": 0.1, "validation": 0.1, "train": 0.8})
        return []
    if "train" not in there or len(there) == 1:
        alone = f"all examples are for {there.pop()}" if len(there) == 1 else "no examples are for train"
        raise EtymonError(f"{name}: {alone}; a probe needs train and test, or no split at all")
    notes = []
    if "test" not in there:
        _move(sentences, "validation", {"test": 1.0})
        notes.append(f"{name} has no test split: its validation split is used for that")
    if "test" not in there or "validation" not in there:
        _move(sentences, "train", {"validation": 0.1, "train": 0.9})
        notes.append(f"{name}: a tenth of its training split is held out for validation")
    return notes


def _move(sentences: Sequence[Sentence], source: Split | None, shares: dict[Split, float]) -> None:
    moved = [sentence for sentence in sentences if sentence.split == source]
    texts = shuffled([sentence.text for sentence in moved])
    target: dict[str, Split] = {}
    for split, share in shares.items():  # the last one takes the rest
        begin = len(target)
        count = max(1, round(share * len(texts)))
        target |= dict.fromkeys(texts[begin : begin + count], split)
    last = list(shares)[-1]
    for sentence in moved:
        sentence.split = target.get(sentence.text, last)


def limit(sentences: list[Sentence], most: int, name: str) -> list[str]:
    """Leaves out whole sentences beyond the most examples of a split."""
    notes = []
    for split in SPLITS:
        here = [sentence for sentence in sentences if sentence.split == split]
        total, used = sum(len(one.items) for one in here), 0
        room = most if split == "train" else most // 2
        if total <= room:
            continue
        rank = {text: number for number, text in enumerate(shuffled([one.text for one in here]))}
        for sentence in sorted(here, key=lambda one: rank[one.text]):
            if used >= room:
                sentence.items = []
            used += len(sentence.items)
        notes.append(f"{name}: {used:,} of {total:,} {split} examples are used (--examples)")
    return notes


Format = Literal["senteval", "table", "tags", "conllu", "raw"]

SPLIT_NAMES: dict[str, Split] = {
    name: split
    for split, names in zip(
        SPLITS, ("tr train training", "va val valid validation dev development", "te test testing")
    )
    for name in names.split()
}
FORMATS: dict[str, Format | None] = {
    ".conllu": "conllu", ".conll": "tags", ".bio": "tags", ".iob": "tags", ".tags": "tags",
    ".csv": "table", ".tsv": None, ".txt": None,
}  # fmt: skip
"""By suffix; None where the first lines have to tell."""
IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
FIRST_WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W_{IDEOGRAPHS}]+")
RAW_CHARACTERS = 1 << 25
"""Of raw text that pseudo-words are made from: more of it would not make them better."""


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
) -> list[ProbeTask]:
    """The tasks in files and folders. Files that differ only in `train`, `dev`, `test` are one task.

    `examples` is the most that are used for training; validation and test have half as many each at most. What is
    used, and the split where none is given, is a function of the texts alone.
    """
    if format is not None and format not in get_args(Format):
        raise EtymonError(f"there is no format {format!r}: {did_you_mean(format, get_args(Format))}")
    if examples < 8 or pseudo_words < 1:
        raise EtymonError("a probe needs at least 8 examples, and pseudo-words at least one pair")
    tasks: list[ProbeTask] = []
    for name, files in _grouped(paths, format).items():
        kind = format or _kind(files[0][0], columns)
        sentences: list[Sentence] = []
        for path, split in files:
            found = list(READERS[kind](path, columns))
            if not found:
                raise EtymonError(f"{path} is empty: there is nothing to probe")
            for sentence in found:
                sentence.split = sentence.split or (split or "train" if len(files) > 1 else None)
            sentences += found
        notes = give_splits(sentences, name)
        if kind == "raw":
            task = pseudo_word_task(name, sentences, pseudo_words, examples, seed)
        else:
            notes += limit(sentences, examples, name)
            level: Literal["sentence", "token"] = "token" if kind in ("tags", "conllu") else "sentence"
            task = ProbeTask(name, level, [
                Example(sentence.text, item.label, item.type, sentence.split, item.span)
                for sentence in sentences if sentence.split
                for item in sentence.items
            ])  # fmt: skip
        task.notes[:0] = notes
        task.check()
        tasks.append(task)
    return tasks


# ------------------------------------------------------------ files


def _grouped(
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
            raise EtymonError(f"no such file or folder: {path}")
        elif format is None and path.suffix.lower() not in FORMATS:
            raise EtymonError(
                f"cannot tell what {path} is: name it with --format {'|'.join(get_args(Format))}"
            )
        else:
            files[path] = None
    if not files:
        raise EtymonError("there is nothing to probe: give --data with files or folders of tasks")
    groups: dict[tuple[Path, str], list[tuple[Path, Split | None]]] = {}
    for path in files:
        words = re.split(r"[-_.]", path.stem)
        told = next(
            (SPLIT_NAMES[word.lower()] for word in reversed(words) if word.lower() in SPLIT_NAMES), None
        )
        rest = re.sub(rf"(^|[-_.])({'|'.join(SPLIT_NAMES)})(?=$|[-_.])", "", path.stem, flags=re.IGNORECASE)
        groups.setdefault((path.parent, rest.strip("-_.")), []).append((path, told))
    named: dict[str, list[tuple[Path, Split | None]]] = {}
    for (folder, rest), group in groups.items():
        name = rest or folder.resolve().name
        for parent in (folder, *folder.resolve().parents):
            if name in named:
                name = f"{parent.name}/{name}"
        if len(group) > 1 and len({told for _, told in group}) < len(group):
            raise EtymonError(
                f"{', '.join(str(path) for path, _ in group)} look like one task twice: rename one"
            )
        named[name] = group
    return named


def _kind(path: Path, columns: ProbeColumns) -> Format:
    known = FORMATS[path.suffix.lower()]
    if known is not None:
        return known
    head = [line for _, line in islice(TextFiles([path], format="txt").lines(), 1000)]
    if not head:
        raise EtymonError(f"{path} is empty: there is nothing to probe")
    first = head[0].split("\t")
    if len(first) == 3 and first[0] in ("tr", "va", "te"):
        return "senteval"
    blank = any(not line.strip() for line in head[1:])
    if path.suffix.lower() == ".tsv":
        return "table" if columns.text in first or not blank else "tags"
    pairs = [line.split("\t") for line in head if line.strip()]
    return "tags" if all(len(pair) > 1 and " " not in pair[0] for pair in pairs) else "raw"


# ------------------------------------------------------------ readers, one a format


def _read_senteval(path: Path, columns: ProbeColumns) -> Iterator[Sentence]:
    for place, line in TextFiles([path], format="txt").lines():
        if line.strip():
            parts = line.split("\t", 2)
            if len(parts) < 3:
                raise EtymonError(f"{place}: expected split, label and text, with tabs between")
            yield _labelled(place, parts[2], parts[1], parts[0])


def _read_table(path: Path, columns: ProbeColumns) -> Iterator[Sentence]:
    kind = "tsv" if path.suffix.lower() == ".tsv" else "csv"
    for place, row in TextFiles([path], format=kind).records():
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
    word = FIRST_WORD.search(text)
    known = None if split is None else SPLIT_NAMES[split.strip().lower()]
    return Sentence(text, [Item(label, (word[0] if word else text[0]).casefold())], known)


def _read_tags(path: Path, columns: ProbeColumns) -> Iterator[Sentence]:
    for _, row in column_rows(path):
        yield _tagged((token, tag, True) for token, tag in zip(row["tokens"], row["tags"]))


def _read_conllu(path: Path, columns: ProbeColumns) -> Iterator[Sentence]:
    """Words as they stood in the text: what was written together is put together again."""
    column = columns.label if columns.label in COLUMNS else "upos"
    for _, row in conllu_rows(path):
        yield _tagged(zip(row["tokens"], row[column], row["spaces"]))


def _tagged(words: Iterable[tuple[str, str, bool]]) -> Sentence:
    """Tokens with their tags (`_` for none) and whether a space follows. A token's type is its form."""
    text, items = "", []
    for form, tag, space in words:
        if tag != "_":
            items.append(Item(tag, form.casefold(), (len(text), len(text) + len(form))))
        text += form + " " * space
    return Sentence(text.rstrip(), items)


def _read_raw(path: Path, columns: ProbeColumns) -> Iterator[Sentence]:
    text = ""
    for part in TextFiles([path], format="txt").documents():
        text += part.text[: RAW_CHARACTERS - len(text)]
        if len(text) == RAW_CHARACTERS:
            break
    starts = sentence_starts(text).tolist()
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        yield Sentence(" ".join(text[start:stop].split()), [])


READERS: dict[Format, Callable[[Path, ProbeColumns], Iterator[Sentence]]] = {
    "senteval": _read_senteval,
    "table": _read_table,
    "tags": _read_tags,
    "conllu": _read_conllu,
    "raw": _read_raw,
}


WORD = re.compile(r"[^\W\d_]+")
COMMON = 100
"""The most frequent words are left alone: they are mostly function words."""
FEWEST = 20
"""Occurrences in training that a word needs."""


def pseudo_word_task(
    name: str, sentences: Sequence[Sentence], pairs: int, most: int, seed: int = 0
) -> ProbeTask:
    """A group of examples a pair of words, with as many of the one as of the other.

    The word itself is the same in all of them, so the control label hangs on the word before it.
    """
    chosen, notes = _pairs(name, sentences, pairs, seed)
    pair_of = {word: pair for pair in chosen for word in pair}
    found: dict[tuple[str, str], dict[str, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for sentence in sentences:
        words = [(match[0].casefold(), match.span()) for match in WORD.finditer(sentence.text)]
        for pair in dict.fromkeys(pair_of[word] for word, _ in words if word in pair_of):
            example = _example(sentence, words, pair)
            found[pair][example.split].append(example)
    examples = []
    for pair in chosen:
        for split in SPLITS:
            here = found[pair][split]
            rank = {text: place for place, text in enumerate(shuffled([each.text for each in here]))}
            here.sort(key=lambda each: rank[each.text])
            sides = [[each for each in here if each.label == word] for word in pair]
            limit = max(1, (most if split == "train" else most // 2) // (2 * len(chosen)))
            kept = min(limit, *map(len, sides))
            examples += [each for side in sides for each in side[:kept]]
    return ProbeTask(f"{name} pseudo-words", "pseudo-word", examples, notes)


def _pairs(
    name: str, sentences: Sequence[Sentence], wanted: int, seed: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Neighbours by frequency, drawn among all that are frequent enough."""
    counts = Counter(
        match[0].casefold()
        for sentence in sentences
        if sentence.split == "train"
        for match in WORD.finditer(sentence.text)
    )
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[COMMON:]
    ranked = [word for word in ranked if counts[word] >= FEWEST and len(word) > 2]
    neighbours = list(zip(ranked[::2], ranked[1::2]))
    if not neighbours:
        raise EtymonError(
            f"{name} is too little text for pseudo-words: no two words beyond the {COMMON} most frequent "
            f"occur {FEWEST} times in {sum(counts.values()):,}; give more text"
        )
    drawn = np.random.default_rng(seed).permutation(len(neighbours))[:wanted]
    short = f"{name} has words for {len(neighbours)} pseudo-words only"
    return [neighbours[number] for number in sorted(drawn)], [short] if len(neighbours) < wanted else []


def _example(sentence: Sentence, words: Sequence[tuple[str, Span]], pair: tuple[str, str]) -> Example:
    """The first of the two words in a sentence, with every one of them replaced, in whatever case it stood."""
    assert sentence.split is not None
    pseudo = "".join(pair)
    number = next(number for number, (word, _) in enumerate(words) if word in pair)
    label, (start, _) = words[number]
    text, end = "", 0
    for word, (begin, stop) in words:
        if word in pair:
            text += sentence.text[end:begin] + pseudo
            end = stop
    before = words[number - 1][0] if number else ""
    return Example(
        text + sentence.text[end:], label, before, sentence.split, (start, start + len(pseudo)), pseudo
    )
