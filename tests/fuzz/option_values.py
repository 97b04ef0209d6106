"""Odd values of the options of every verb, by their types."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

from etymon import cli
from tests.fuzz.case import Case
from tests.fuzz.workspace import MODELS, SHAPE, Workspace


def verb_options(verb: str) -> dict[str, Any]:
    """The names of a verb's options with their types, as the command line has them."""
    return {option.flag: option.kind for option in cli.command_options(verb) if not option.is_argument}


OPTION_VALUES = (
    "inf", "-inf", "nan", "1e308", "-1", "0", "1", "2", "3", "0.5", "1.5", "-0.5", "1e-300", "99999999999999999999999", "9" * 6000,
    "9223372036854775807", "abc", "", " ", "a" * 3000, "a/b", "/", ".", "..", "/nowhere/at/all", "10m", "1epochs", "0steps",
    "9999999999999999999999h", "[", "{}", "a=b", "=", "seed=!!int abc", "seed=" + "9" * 6000, "shape.layers=[", "\x1b[31m", "1,2",
    "cpu", "cuda", "meta", "mps", "-5", "1e5", "x.csv", "x.npy", "x.html",
)  # fmt: skip
TAKES_MEMORY = {"--batch", "--batch-tokens", "--length", "--size", "--vocabulary", "--source-vocabulary"}
"""Options whose large values ask for more memory than there is: a matter of its own."""
LEFT_OUT = {
    "--workers",
    "--resume",
    "--progress",
    "--limit",
    "--config",
    "--grid",
    "--tensorboard",
}


def options(rng: random.Random, space: Workspace) -> Case:
    """Odd values of options of every verb."""
    out, whole = space.scratch / "out", space.whole
    table = str(whole / "rows.jsonl")
    tiny = [part for each in SHAPE for part in ("--set", each)]
    lines: dict[str, list[str]] = {
        "generate": ["gpt2", "The cat", "--max-new-tokens", "3"],
        "score": ["gpt2", "The cat sat."],
        "fill": ["bert", "The [MASK] sat."],
        "embed": ["bert", "The cat sat."],
        "replaced": ["electra", "The cat sat."],
        "predict": ["classifier", "The cat sat."],
        "evaluate": ["classifier", "--data", table, "--resamples", "10"],
        "translate": ["t5", "The cat", "--beams", "1", "--max-new-tokens", "3"],
        "attention": ["gpt2", "The cat sat.", "--out", str(out)],
        "convert": ["gpt2", str(out)],
        "show": ["gpt2"],
        "tokenizer": ["--data", str(whole / "text.txt"), "--out", str(out), "--kind", "byte-bpe", "--size", "300"],
        "prepare": ["--data", str(whole / "text.txt"), "--out", str(out), "--tokenizer", str(whole / "gpt2")],
        "context": ["gpt2", "--data", str(whole / "text.txt"), "--longest", "8", "--targets", "4"],
        "pretrain": [
            "gpt2", "--data", str(whole / "store"), "--out", str(out), "--steps", "1", "--dry-run", "--batch", "2", "--length",
            "8", *tiny,
        ],
        "finetune": [
            "bert", "--task", "classify", "--train", table, "--out", str(out), "--steps", "1", "--dry-run", "--batch", "2",
        ],
    }  # fmt: skip
    verb = rng.choice(list(lines))
    first, *rest = lines[verb]
    words = [verb, str(whole / first) if first in MODELS and verb != "pretrain" else first, *rest]
    known = {name: kind for name, kind in verb_options(verb).items() if name not in LEFT_OUT | TAKES_MEMORY}
    for name in rng.sample(sorted(known), min(len(known), rng.choice((1, 1, 2)))):
        words += option(rng, name, known[name])
    return Case(words, [out])


def option(rng: random.Random, name: str, kind: Any) -> list[str]:
    """An option with a value, likely one that its type can hold."""
    members = get_args(kind) or (kind,)
    if bool in members:
        return [name]
    choices = [choice for each in members if "Literal" in str(each) for choice in get_args(each)]
    if "Literal" in str(kind) and not choices:
        choices = list(get_args(kind))
    usable = [str(choice) for choice in choices if isinstance(choice, str)]
    if usable and rng.random() < 0.8:
        return [name, rng.choice(usable)]
    numbers = [each for each in OPTION_VALUES if _reads(each, int if int in members else float)]
    if (int in members or float in members) and rng.random() < 0.8:
        return [f"{name}={rng.choice(numbers)}"]
    return [f"{name}={rng.choice(OPTION_VALUES)}"]


def _reads(word: str, kind: Callable[[str], Any]) -> bool:
    try:
        kind(word)
    except ValueError:
        return False
    return True
