"""Etymon: pretrain, evaluate, generate with and look inside the pretrained-language-model families.

Everything a user needs is here under one name, e.g. `etymon.pretrain(...)`, `model = etymon.load(folder)`.
Names are resolved on first use, so that `import etymon` costs nothing and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.families.loading import build, load
    from etymon.families.saving import save
    from etymon.nn.trace import trace
    from etymon.verbs.attention import attention
    from etymon.verbs.context import context
    from etymon.verbs.convert import convert
    from etymon.verbs.demo import demo
    from etymon.verbs.distill import distill
    from etymon.verbs.embed import embed
    from etymon.verbs.evaluate import evaluate
    from etymon.verbs.fill import fill
    from etymon.verbs.finetune import finetune
    from etymon.verbs.generate import generate
    from etymon.verbs.predict import predict
    from etymon.verbs.prepare import prepare
    from etymon.verbs.pretrain import pretrain
    from etymon.verbs.probe import probe
    from etymon.verbs.prompt import prompt
    from etymon.verbs.replaced import replaced
    from etymon.verbs.score import score
    from etymon.verbs.show import show
    from etymon.verbs.summarize import summarize
    from etymon.verbs.sweep import sweep
    from etymon.verbs.tasks import tasks
    from etymon.verbs.tokenizer import tokenizer
    from etymon.verbs.translate import translate

__version__ = "0.1.0"

__all__ = [
    "demo",
    "tokenizer",
    "prepare",
    "pretrain",
    "sweep",
    "distill",
    "finetune",
    "predict",
    "evaluate",
    "tasks",
    "translate",
    "summarize",
    "generate",
    "fill",
    "replaced",
    "score",
    "prompt",
    "embed",
    "probe",
    "context",
    "attention",
    "convert",
    "show",
    "build",
    "load",
    "save",
    "trace",
    "EtymonError",
    "__version__",
]

VERBS = tuple(__all__[: __all__.index("build")])
"""In the order of `etymon --help`; each is a function in a module of its own name."""
_HOMES = {
    "build": "etymon.families.loading",
    "load": "etymon.families.loading",
    "save": "etymon.families.saving",
    "trace": "etymon.nn.trace",
    **{verb: f"etymon.verbs.{verb}" for verb in VERBS},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'etymon' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
