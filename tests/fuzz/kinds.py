"""Kinds of input: each makes a case, which is a command line and what must hold after it, out of a random generator."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from tests.fuzz import damage
from tests.fuzz.case import Case
from tests.fuzz.option_values import OPTION_VALUES, options
from tests.fuzz.workspace import MODELS, SHAPE, Workspace

Kind = Callable[[random.Random, Workspace], Case]
TABLE_COLUMNS = {"text": ("The cat sat.", "Rome is the capital."), "label": ("good", "bad")}
FIXTURES = Path(__file__).parents[1] / "fixtures"
SUFFIXES = (".csv", ".csv", ".tsv", ".jsonl", ".jsonl", ".json", ".parquet", ".parquet", ".conllu", ".txt")


def reading(rng: random.Random, space: Workspace, name: str, folder: Path) -> Case:
    """A command that opens the model in `folder`, which is, or was, the one called `name`."""
    out, table = space.scratch / "out", str(space.whole / "rows.jsonl")
    common = [["show", folder], ["show", folder, "--json"], ["convert", folder, out]]
    special: dict[str, list[list[Any]]] = {
        "gpt2": [["score", folder, "The cat sat."], ["generate", folder, "The cat", "--max-new-tokens", "3"]],
        "bert": [["fill", folder, "The [MASK] sat."], ["embed", folder, "The cat sat."]],
        "t5": [["generate", folder, "The cat", "--max-new-tokens", "3"], ["fill", folder, "The ___ sat."]],
        "electra": [["replaced", folder, "The cat sat."], ["embed", folder, "The cat sat."]],
        "classifier": [["predict", folder, "The cat sat."], ["evaluate", folder, "--data", table]],
    }
    special["adapters"] = special["classifier"]
    chosen = rng.choice([*common, *special[name] * 3])
    return Case([str(word) for word in chosen], [out])


def configs(rng: random.Random, space: Workspace) -> Case:
    """JSON files of a model folder with wrong values."""
    name = rng.choice(MODELS)
    folder = space.copy(name)
    path = rng.choice(sorted(folder.glob("*.json")))
    path.write_text(damage.json_text(rng, json.loads(path.read_text())), errors="replace")
    return reading(rng, space, name, folder)


def weights(rng: random.Random, space: Workspace) -> Case:
    """Flipped bits among the numbers of a model, which must be noticed."""
    name = rng.choice(MODELS)
    folder = space.copy(name)
    (path,) = folder.glob("*.safetensors")
    data = path.read_bytes()
    path.write_bytes(damage.flipped(rng, data, 8 + int.from_bytes(data[:8], "little")))
    return Case(reading(rng, space, name, folder).arguments, [space.scratch / "out"], must_fail=True)


def headers(rng: random.Random, space: Workspace) -> Case:
    """A weights file with another header, or damaged anywhere."""
    name = rng.choice(MODELS)
    folder = space.copy(name)
    (path,) = folder.glob("*.safetensors")
    data = path.read_bytes()
    path.write_bytes(
        damage.damaged_header(rng, data) if rng.random() < 0.7 else damage.damaged_bytes(rng, data)
    )
    return Case(
        reading(rng, space, name, folder).arguments,
        [space.scratch / "out"],
        must_fail=path.read_bytes() != data,
    )


def bundles(rng: random.Random, space: Workspace) -> Case:
    """A checkpoint from before the hub with one of its files damaged anywhere."""
    name = rng.choice(("tensorflow/bert", "tensorflow/gpt2", "tensorflow/t5", "pickles/gpt1", "pickles/bart",
                       "pickles/roberta", "pickles/transfo-xl"))  # fmt: skip
    folder = Path(shutil.copytree(FIXTURES / name, space.scratch / "bundle"))
    patterns = ("*.index", "*.data-*", "*.pt", "params_*", "dict.txt", "encoder*.json")
    path = rng.choice([path for pattern in patterns for path in sorted(folder.glob(pattern))])
    data = path.read_bytes()
    path.write_bytes(damage.damaged_bytes(rng, data))
    out = space.scratch / "out"
    # Padding of the index and variables of the optimiser are never read.
    return Case(["convert", str(folder), str(out)], [out])


def folders(rng: random.Random, space: Workspace) -> Case:
    """A file of a model folder lost, damaged, or a folder of its name."""
    name = rng.choice(MODELS)
    folder = space.copy(name)
    path = rng.choice(sorted(each for each in folder.rglob("*") if each.is_file()))
    lose(rng, path)
    case = reading(rng, space, name, folder)
    case.must_fail = path.suffix == ".safetensors"
    return case


def lose(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    way = rng.randrange(6)
    if way == 1:
        path.mkdir()
    elif way == 2:
        path.symlink_to(path)
    elif way > 2:
        path.write_bytes(damage.damaged_bytes(rng, data))


def adapter_loops(rng: random.Random, space: Workspace) -> Case:
    """Adapters whose base is wrong: they themselves, each other, or nothing of the kind."""
    folder = space.copy("adapters")
    other = space.scratch / "other"
    if rng.random() < 0.5:
        other.symlink_to(folder)
    base = rng.choice(
        (folder, other, space.whole, space.whole / "gpt2", ".", "..", "", *damage.WORDS, None, 1, [])
    )
    path = folder / "adapter_config.json"
    config = {
        **json.loads(path.read_text()),
        "base_model_name_or_path": str(base) if isinstance(base, Path) else base,
    }
    if rng.random() < 0.3:
        config[rng.choice(["r", "lora_alpha", "alpha_pattern", "rank_pattern", "revision"])] = damage.value(
            rng
        )
    path.write_text(json.dumps(config))
    return reading(rng, space, "adapters", folder)


def tables(rng: random.Random, space: Workspace) -> Case:
    """Tables of any format with wrong cells, or damaged."""
    path = space.scratch / f"table{rng.choice(SUFFIXES)}"
    damage.write_rows(rng, path, damage.rows(rng, TABLE_COLUMNS))
    out = space.scratch / f"out{rng.choice(('.csv', '.csv', '.tsv', '.jsonl', '.parquet', '.txt'))}"
    verb = rng.choice(("predict", "predict", "evaluate"))
    words = [verb, str(space.whole / "classifier"), "--data", str(path), "--out", str(out)]
    if rng.random() < 0.1:
        words += ["--columns", rng.choice(("text,label", "text", ",", "text,text", *damage.WORDS))]
    if rng.random() < 0.1:
        words += ["--text", rng.choice(("label", "nothing", *damage.WORDS))]
    return Case(words, [out])


def text(rng: random.Random) -> str:
    """A text as an argument can hold it: no NUL, and nothing that is taken for an option."""
    words = " ".join(rng.choices(damage.WORDS, k=rng.choice((1, 1, 2, 5)))).replace("\0", "")
    return words if not words.startswith("-") else f" {words}"


def texts(rng: random.Random, space: Workspace) -> Case:
    """Odd texts, given as arguments or on standard input, at times on a terminal."""
    name, *words = rng.choice(
        (
            ("gpt2", "score"), ("gpt2", "generate", "--max-new-tokens", "3"), ("gpt2", "embed"), ("bert", "fill"),
            ("bert", "embed"), ("bert", "score"), ("t5", "generate", "--max-new-tokens", "3"), ("t5", "fill"),
            ("electra", "replaced"), ("classifier", "predict"), ("t5", "translate", "--beams", "1"), ("gpt2", "attention"),
        )
    )  # fmt: skip
    verb, *options = words
    folder = str(space.whole / name)
    is_terminal = rng.random() < 0.5
    out = space.scratch / "out.html"
    if verb == "attention":
        return Case([verb, folder, text(rng), "--out", str(out)], [out], is_terminal=is_terminal)
    if rng.random() < 0.3:
        lines = "\n".join(text(rng) for _ in range(3)).encode("utf-8", "surrogatepass")
        return Case([verb, folder, "-", *options], stdin=lines, is_terminal=is_terminal)
    if rng.random() < 0.2:
        options = [*options, "--json"] if verb != "embed" else options
    return Case(
        [verb, folder, *(text(rng) for _ in range(rng.choice((1, 2)))), *options], is_terminal=is_terminal
    )


def run_files(rng: random.Random, space: Workspace) -> Case:
    """Run files, mixtures and prompt tasks with wrong values, aliases, tags and depths; odd overrides."""
    whole, out = space.whole, space.scratch / "out"
    path, rows = space.scratch / "file.yaml", str(whole / "short.jsonl")
    kind: Literal["run", "task", "mixture"] = rng.choice(("run", "task", "mixture"))
    trees: dict[str, dict[str, Any]] = {
        "run": {
            "family": "gpt2", "data": [str(whole / "store")], "budget": "1steps", "batch": 2, "length": 8, "seed": 0,
            "shape": {"dim": 16, "layers": 1, "heads": 2, "positions": 32}, "learning_rate": 0.001, "slices": 1,
            "phases": [{"share": 1.0, "length": 8}], "validation": 0.1, "options": {}, "size": "pocket", "schedule": "cosine",
        },
        "task": {
            "instruction": "Which?", "template": "{text}: {label}", "label": "label",
            "choices": ["good", "bad"], "examples": rows, "queries": rows,
        },
        "mixture": {
            "members": [{"name": "a", "task": "classify", "data": [rows], "options": {"text": "text", "label": "label"}}],
            "setting": "hybrid", "rates": "equal", "limit": 10, "temperature": 2.0,
        },
    }  # fmt: skip
    path.write_text(damage.yaml_text(rng, trees[kind]), encoding="utf-8", errors="replace")
    if kind == "task":
        return Case(["prompt", str(whole / "gpt2"), str(path), "--shots", "1", "--limit", "2"])
    if kind == "mixture":
        line = ["finetune", str(whole / "bert"), "--mixture", str(path), "--out", str(out), "--steps", "1"]
        return Case([*line, "--batch", "2", "--progress", "silent"])
    words = ["pretrain", "gpt2", "--config", str(path), "--out", str(out), "--dry-run"]
    if rng.random() < 0.3:
        words += [f"--set={rng.choice(list(trees['run']))}={rng.choice(OPTION_VALUES)}"]
    return Case(words, [out])


def run_folders(rng: random.Random, space: Workspace) -> Case:
    """A stopped run whose files are damaged, and which is to go on."""
    folder = space.copy("run")
    path = rng.choice(sorted(each for each in folder.rglob("*") if each.is_file()))
    if path.name == "metrics.jsonl":
        lines = path.read_text().splitlines()
        number = rng.randrange(len(lines))
        lines[number] = rng.choice(
            (lines[number][:9], "5", "{}", "[" * 5000, '{"step": "a"}', "", json.dumps({"step": None}))
        )
        path.write_text("\n".join(lines))
    elif path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(damage.json_text(rng, json.loads(path.read_text())), errors="replace")
    elif path.suffix == ".yaml":
        import yaml

        path.write_text(damage.yaml_text(rng, yaml.safe_load(path.read_text())), errors="replace")
    elif path.suffix == ".npy":
        path.write_bytes(damage.damaged_npy(rng, path.read_bytes()))
    else:
        lose(rng, path)
    if rng.random() < 0.2:
        return Case(["show", str(folder)])
    return Case(["pretrain", "gpt2", "--out", str(folder), "--resume", "--progress", "silent"])


def stores(rng: random.Random, space: Workspace) -> Case:
    """A prepared store whose files are damaged."""
    folder = space.copy("store")
    path = rng.choice(sorted(each for each in folder.rglob("*") if each.is_file()))
    if path.suffix == ".npy":
        path.write_bytes(damage.damaged_npy(rng, path.read_bytes()))
    elif path.suffix == ".json":
        path.write_text(damage.json_text(rng, json.loads(path.read_text())), errors="replace")
    else:
        lose(rng, path)
    out = space.scratch / "out"
    words = [
        "pretrain",
        "gpt2",
        "--data",
        str(folder),
        "--out",
        str(out),
        "--dry-run",
        "--steps",
        "1",
        "--batch",
        "2",
    ]
    return Case([*words, "--length", "8", *(part for each in SHAPE for part in ("--set", each))], [out])


PACKINGS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def corpora(rng: random.Random, space: Workspace) -> Case:
    """Text to train on, of any format, packed or not, damaged or not."""
    kind, packing = (
        rng.choice((".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet")),
        rng.choice(list(PACKINGS)),
    )
    path, out = space.scratch / f"corpus{kind}", space.scratch / "out"
    if kind in (".txt", ".md"):
        data = "\n".join(text(rng) for _ in range(20)).encode(
            "utf-8", rng.choice(("replace", "surrogatepass"))
        )
        path.write_bytes(damage.damaged_bytes(rng, data) if rng.random() < 0.3 else data)
    else:
        damage.write_rows(rng, path, damage.rows(rng, TABLE_COLUMNS))
    if packing:
        data = PACKINGS[packing](path.read_bytes())
        path.unlink()
        path = path.with_name(path.name + packing)
        path.write_bytes(damage.damaged_bytes(rng, data) if rng.random() < 0.3 else data)
    words = ["--data", str(path), "--out", str(out), "--errors", rng.choice(("strict", "replace", "skip"))]
    words += ["--documents", rng.choice(("file", "blank", "line"))]
    if rng.random() < 0.5:
        return Case(["prepare", *words, "--tokenizer", str(space.whole / "gpt2"), "--workers", "1"], [out])
    kinds = rng.choice(("byte-bpe", "wordpiece", "unigram", "character", "byte", "bpe", "word"))
    return Case(
        ["tokenizer", *words, "--kind", kinds, *(() if kinds == "byte" else ("--size", "300"))], [out]
    )


def full_disks(rng: random.Random, space: Workspace) -> Case:
    """Writing fails in the middle: nothing may be left of what was written."""
    out, whole = space.scratch / "out", space.whole
    table = str(whole / "rows.jsonl")
    name, words = rng.choice(
        (
            ("out", ["convert", str(whole / "gpt2"), "OUT"]),
            ("out.csv", ["predict", str(whole / "classifier"), "--data", table, "--out", "OUT"]),
            ("out.parquet", ["predict", str(whole / "classifier"), "--data", table, "--out", "OUT"]),
            ("out.npy", ["embed", str(whole / "bert"), *["The cat sat."] * 9, "--out", "OUT"]),
            ("out.jsonl", ["embed", str(whole / "bert"), *["The cat sat."] * 9, "--out", "OUT"]),
            ("out", ["prepare", "--data", str(whole / "text.txt"), "--tokenizer", str(whole / "gpt2"), "--out", "OUT"]),
            ("out", ["tokenizer", "--data", str(whole / "text.txt"), "--kind", "byte-bpe", "--size", "300", "--out", "OUT"]),
            ("out.html", ["attention", str(whole / "gpt2"), "The cat sat.", "--out", "OUT"]),
        )
    )  # fmt: skip
    out = out.with_name(name)
    limit = rng.choice((0, 1, 50, 500, 5000))
    return Case([str(out) if word == "OUT" else word for word in words], [out], file_limit=limit)


KINDS: dict[str, Kind] = {
    each.__name__: each
    for each in (
        configs, weights, tables, texts, options, headers, run_files, folders, adapter_loops, stores, corpora, full_disks, run_folders,
        bundles,
    )
}  # fmt: skip
