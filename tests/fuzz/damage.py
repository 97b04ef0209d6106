"""Ways to damage what Etymon reads: bytes, JSON, YAML, tables, .npy, safetensors and parquet files."""

from __future__ import annotations

import csv
import io
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CONTROLS = ("\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "\u202eoverride", "a\rb", "\x00", "\x08\x08")
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=1", "\t=1", "\r=1", "-3.5", "+7", "''=x")
WORDS = (
    "", " ", "a", "The cat sat.", "[MASK]", "<mask>", "___", "naïve 日本語 🙂", "a" * 3000, "word " * 300, "../..", "/",
    "~", "-", "--", "NaN", "null", "true", "1e308", "🙂" * 50, "\ud800", "\ufeff", *CONTROLS, *FORMULAS,
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 7, 0.5, -0.5, 1.5, 2**31, 2**63, 10**30, 1e-308, 1e308, -1e308, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip


def value(rng: random.Random) -> Any:
    """Something of a wrong type or size."""
    nested: Any = rng.choice(NUMBERS)
    for _ in range(rng.choice((1, 2, 150))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    return rng.choice(
        (None, True, False, [], {}, nested, rng.choice(WORDS), rng.choice(NUMBERS), ["a", 1, None])
    )


def similar(rng: random.Random, usual: Any) -> Any:
    """Something of the same type that is likely wrong in its place."""
    if isinstance(usual, bool) or not isinstance(usual, int | float | str):
        return value(rng)
    if isinstance(usual, str):
        return rng.choice((rng.choice(WORDS), usual + "x", usual.upper(), usual[:-1]))
    return rng.choice((-usual, usual + 1, usual * 2, usual // 2, usual / 3, 0, 1, rng.choice(NUMBERS)))


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes with bits flipped, parts lost, doubled or replaced; never the same."""
    place, width = rng.randrange(len(data) + 1), rng.choice((1, 1, 4, 64, 4096))
    ways = (
        lambda: data[:place],
        lambda: b"",
        lambda: data[:place] + data[place + width :],
        lambda: data[:place] + data[place : place + width] + data[place:],
        lambda: data[:place] + rng.randbytes(width) + data[place:],
        lambda: data[:place] + bytes(min(width, len(data) - place)) + data[place + width :],
        lambda: flipped(rng, data),
        lambda: rng.randbytes(rng.choice((1, 100, 5000))),
    )
    found = rng.choice(ways)()
    return found if found != data else data + b"\0"


def flipped(rng: random.Random, data: bytes, start: int = 0) -> bytes:
    """The bytes with one to eight bits flipped from `start` on."""
    changed = bytearray(data)
    for place in rng.sample(range(start, len(data)), min(len(data) - start, rng.randint(1, 8))):
        changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


# --- trees: JSON and YAML


def damaged_tree(rng: random.Random, tree: Any) -> Any:
    """The tree with one to three values replaced, keys lost, renamed or added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return value(rng)
        container, key = rng.choice(places)
        way = rng.randrange(5)
        if way == 0:
            del container[key]
        elif way == 1 and isinstance(container, dict):
            container[rng.choice(WORDS)] = container.pop(key)
        elif way == 2 and isinstance(container, dict):
            container[rng.choice(WORDS)] = value(rng)
        else:
            container[key] = value(rng) if rng.random() < 0.4 else similar(rng, container[key])
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object with every key in it."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in list(parts)[:200]:
        yield tree, key
        yield from _places(part)


def json_text(rng: random.Random, tree: Any) -> str:
    """JSON with wrong values, or with a horror in the place of one, or no JSON any more."""
    text = json.dumps(damaged_tree(rng, tree))
    way = rng.randrange(8)
    if way == 0:
        return rng.choice(
            ("[" * 100_000, '{"a":' * 100_000, "[" * 300 + "]" * 300, "1" * 6000, "NaN", '"', "[1, 2]")
        )
    if way == 1:
        horror = rng.choice(("[" * 5000 + "]" * 5000, "9" * 6000, "1e999", "-Infinity", '"\\ud800"'))
        return json.dumps({**tree, "horror": "HERE"} if isinstance(tree, dict) else ["HERE"]).replace(
            '"HERE"', horror
        )
    return text


YAML_HORRORS = (
    "a: &a [*a]\n", "a: &a {b: *a}\n", "&a [*a, *a]: 1\n", "!!int abc\n", "seed: !!int abc\n", "seed: !!bool maybe\n",
    "seed: !!float x\n", "seed: !!timestamp x\n", "seed: !!binary x\n", "a: !!python/object:os.system ls\n",
    "seed: " + "9" * 6000 + "\n", "seed: " + "9" * 4000 + "\n", "[" * 20_000, "{a: " * 5000, "- " * 3000, "a: 1\na: 2\n",
    "batch: .inf\n", "learning_rate: .nan\n", "learning_rate: 1e308\n", "<<: [1]\n", "<<: *b\n", "? [1, 2]\n: 3\n",
    "a: *b\n", "%YAML 9.9\n---\na: 1\n", "---\na: 1\n---\nb: 2\n", "\x00", "\x1b[2J: 1\n", "? {a: 1}\n: 2\n",
    "a: !!set {x}\n", "seed: !!omap [1]\n", "seed: !!pairs [1]\n", "text: !!str [1]\n", "~: ~\n", "1: 2\n", "0x: 0x\n",
    "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{this}: &{this} [{', '.join(['*' + last] * 10)}]\n" for last, this in zip("abcdefgh", "bcdefghi")),
)  # fmt: skip


def yaml_text(rng: random.Random, tree: Any) -> str:
    """A run file with wrong values, with a horror behind or in front of it, or damaged as bytes."""
    way = rng.randrange(6)
    if way == 0 and rng.random() < 0.5:
        return rng.choice(YAML_HORRORS)
    plain = yaml.safe_dump(tree)
    if way == 1:
        return plain + rng.choice(YAML_HORRORS)
    if way == 2:
        return damaged_bytes(rng, plain.encode()).decode("utf-8", "replace")
    return yaml.safe_dump(damaged_tree(rng, tree))


# --- tables


def cell(rng: random.Random, usual: str) -> Any:
    return usual if rng.random() < 0.85 else rng.choice((value(rng), *WORDS))


def rows(rng: random.Random, columns: dict[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Rows with the columns, some of whose cells are wrong, and a few without one of them."""
    made = []
    for _ in range(rng.choice((0, 1, 2, 2, 3, 3))):
        row = {name: cell(rng, rng.choice(usual)) for name, usual in columns.items()}
        if rng.random() < 0.05:
            row.pop(rng.choice(list(row)))
        if rng.random() < 0.1:
            row[rng.choice(WORDS)] = value(rng)
        made.append(row)
    return made


def write_rows(rng: random.Random, path: Path, table: list[dict[str, Any]]) -> None:
    """The rows in the format that the file's name ends in, at times damaged."""
    kind, names = path.suffix, list(dict.fromkeys(name for row in table for name in row))
    if kind == ".parquet":
        import pyarrow
        import pyarrow.parquet

        texts = [
            {_printable(str(name)): _printable(str(row.get(name))) for name in names} for row in table
        ] or [{"text": "a"}]
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), buffer)
        data = buffer.getvalue()
    elif kind in (".csv", ".tsv"):
        text = io.StringIO()
        writer = csv.writer(text, delimiter="," if kind == ".csv" else "\t", quoting=csv.QUOTE_MINIMAL)
        writer.writerow(names)
        writer.writerows([row.get(name) for name in names] for row in table)
        data = text.getvalue().encode("utf-8", "replace")
    elif kind == ".jsonl":
        data = "".join(json.dumps(row) + "\n" for row in table).encode()
    elif kind == ".json":
        data = json.dumps(table).encode() if rng.random() < 0.8 else json_text(rng, table).encode()
    else:
        data = "\n".join("\t".join(str(each) for each in row.values()) for row in table).encode(
            "utf-8", "replace"
        )
    path.write_bytes(damaged_bytes(rng, data) if rng.random() < 0.2 else data)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# --- binary files


def damaged_npy(rng: random.Random, data: bytes) -> bytes:
    """An .npy file whose header promises something else."""
    headers = (
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-5,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<U999999999', 'fortran_order': False, 'shape': (), }",
        "(" * 3000, "[1, 2]", "{'descr': 1}", "\x00" * 50, "9" * 6000,
    )  # fmt: skip
    if rng.random() < 0.3:
        return damaged_bytes(rng, data)
    header = rng.choice(headers).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data[128:]


def damaged_header(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header says something else, or has another length."""
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.3:
        return struct.pack("<Q", rng.choice((0, 1, length - 1, length + 8, 2**40, 2**64 - 1))) + data[8:]
    header = json_text(rng, json.loads(data[8 : 8 + length])).encode("utf-8", "replace")
    return struct.pack("<Q", len(header)) + header + data[8 + length :]
