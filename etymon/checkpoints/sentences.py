"""How a folder of sentence-transformers makes one vector of a text, beside the weights in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import read_any_json, read_json

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
READING = "sentence_*_config.json"
TOKENIZER = "tokenizer_config.json"
# Transformers writes an enormous number where a tokenizer has no limit.
UNLIMITED = 10**9
# Their names and ours. Those that we have not are told of as they are.
POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
OLD_KEY = "pooling_mode_"
OLD_NAMES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True)
class Sentences:
    """Of any other folder: the mean of all tokens, as it is."""

    pooling: str = "mean"
    normalise: bool = False
    length: int | None = None
    """Tokens that are read of a text, special ones included; None: as many as the model has positions."""
    lowercase: bool = False
    foreign: tuple[str, ...] = ()
    """What it asks for that we do not compute."""
    files: dict[str, str] = field(default_factory=dict)
    """The texts of its files by their paths in the folder, so that a saved model is one of
    sentence-transformers, too."""


def read_sentences(folder: Path) -> Sentences:
    if not (folder / MODULES).is_file():
        return Sentences()
    modules = _modules(folder / MODULES)
    paths = [folder / MODULES, folder / PROMPTS]
    reading = next(iter(sorted(folder.glob(READING))), folder / READING.replace("*", "bert"))
    transformer = read_json(reading) if reading.is_file() else {}
    tokenizer = read_json(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else {}
    pooling, normalise, foreign = "mean", False, []
    for kind, path in modules:
        if kind == "Pooling":
            paths.append(folder / path / "config.json")
            pooling, unknown = _read_pooling(paths[-1])
            foreign += unknown
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            foreign.append(f"a module {kind}")
    prompts = read_json(folder / PROMPTS) if (folder / PROMPTS).is_file() else {}
    if name := prompts.get("default_prompt_name"):
        foreign.append(f"the prompt {name!r} before a text")
    length = transformer.get("max_seq_length") or tokenizer.get("model_max_length")  # since version 6
    length = None if length is None or length > UNLIMITED else int(length)
    lowercase = bool(transformer.get("do_lower_case"))
    files = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in paths if path.is_file()
    }
    files[reading.name] = json.dumps({**transformer, "max_seq_length": length}, indent=2)
    return Sentences(pooling, normalise, length, lowercase, tuple(foreign), {} if foreign else files)


def _modules(path: Path) -> list[tuple[str, str]]:
    """The class and the folder of every module, in order."""
    try:
        return [(module["type"].rpartition(".")[2], module["path"]) for module in read_any_json(path)]
    except (TypeError, KeyError, AttributeError) as error:
        raise EtymonError(
            f"{path} is no list of modules with a type and a path: correct or remove it"
        ) from error


def _read_pooling(path: Path) -> tuple[str, list[str]]:
    config = read_json(path)
    modes: Any = config.get("pooling_mode")
    if modes is None:  # as it was written before version 6
        old = [key.removeprefix(OLD_KEY) for key, on in config.items() if key.startswith(OLD_KEY) and on]
        modes = [OLD_NAMES.get(name, name) for name in old] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) == 1 and modes[0] in POOLINGS:
        return POOLINGS[modes[0]], []
    return "mean", [f"pooling by {' and '.join(map(str, modes))}"]
