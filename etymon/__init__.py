"""Etymon: pretrain, evaluate, generate with and look inside the pretrained-language-model families.

Everything a user needs is here under one name, e.g. `etymon.pretrain(...)`, `model = etymon.load(folder)`.
Names are resolved on first use, so that `import etymon` costs nothing and does not import torch. Their types are in
`__init__.pyi`, which `python -m tests.signatures` writes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from etymon.errors import EtymonError as EtymonError

__version__ = "0.2.0"

# Summaries stand here, and not with the verbs, so that `etymon --help` need not import any.
VERBS: dict[str, str] = dict(
    line.split(": ", 1)
    for line in """
demo: Train a small GPT-2 on the prose inside Python itself, in about three minutes.
tokenizer: Learn a tokenizer from text, and report how it fits text that it has not seen.
prepare: Turn text into a token store that `etymon pretrain --data STORE` uses.
plan: Say what a training run would take: memory by device, operations, time, price, and the command.
pretrain: Train a model on your own text.
sweep: Try every combination of some settings and rank them by validation.
compare: Find out which family, recipe or objective is best for your text, task and budget.
distill: Train a smaller model to do what a larger one does.
finetune: Teach a model a task, from a table of examples.
predict: Answer texts or the rows of a table with a fine-tuned model.
evaluate: Score a model on a table, with confidence intervals.
tasks: Say which family does which fine-tuning task: by a head, by writing the answer, or not at all and why.
translate: Translate texts with a model that was trained for it.
summarize: Summarise texts with a model that was trained for it.
generate: Write on from a prompt.
fill: Fill the blanks of a text.
replaced: Say which tokens of a text do not belong there (ELECTRA).
score: Measure how likely a model finds a text.
surprisal: Say how surprised a model is by every word of a text.
pairs: Compare good and bad sentences: accuracy on minimal pairs such as BLiMP's.
prompt: Show a model examples of a task and let it answer.
embed: Turn texts into vectors.
probe: Probe every layer of a frozen model for what it knows.
context: Measure loss by context length, and how much context each model makes use of.
attention: Draw which tokens attend to which.
explain: Show what an objective does to a sentence: what it hides, what must be predicted, and which tokens see which.
serve: Serve models over HTTP: OpenAI's protocol, and filling, predicting, translating and more.
convert: Read a checkpoint and write it as a Hugging Face folder.
export: Write a model for another runtime (ONNX, PyTorch programs and others), and check its answers there.
push: Send a run or a model to the Hugging Face hub: card, curves, results, milestones.
new: Write a commented file for an objective, family, task or masking scheme of your own and its test.
show: Say what a model folder holds: family, shape, parameters, tokenizer, history, and the memory it takes.
""".strip().splitlines()
)
"""In the order of `etymon --help`; each is a function in a module of its own name, and this is what it does."""

_HOMES = {
    "build": "etymon.families.loading",
    "load_plugin": "etymon.registry",
    "register": "etymon.registry",
    "load": "etymon.families.loading",
    "save": "etymon.families.saving",
    "trace": "etymon.nn.trace",
    **{verb: f"etymon.verbs.{verb}" for verb in VERBS},
}

__all__ = [*VERBS, "build", "load", "load_plugin", "register", "save", "trace", "EtymonError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'etymon' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
