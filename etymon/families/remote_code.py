"""Folders that Transformers has no class for: the `auto_map` and the file by which it opens them where Etymon
is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etymon.checkpoints.settings import CODE_FILE, config_keys
from etymon.families.family import Family
from etymon.families.model import Model

TASK_CLASSES = {
    "classification": "SequenceClassification",
    "tagging": "TokenClassification",
    "span": "QuestionAnswering",
}
# transfo-xl left Transformers with its fifth version.
LEFT = ("transfo-xl",)
# Imports alone: a folder may be older than the library that opens it, and maths are to be in one place.
CODE = '''"""Opens the model in this folder with Transformers, where Etymon is installed:

    AutoModel.from_pretrained(folder, trust_remote_code=True)

There is nothing else in this file: what the model computes is in the library.
"""

from etymon.transformers_models import {classes}

__all__ = [{names}]
'''


def needs_code(family: Family) -> bool:
    """Whether Transformers has no class for models of a family, whatever their shape."""
    return config_keys(family.model_type) is None or family.model_type in LEFT


def auto_map(model: Model) -> dict[str, str]:
    """What Transformers' automatic classes are to open a folder with, by its heads."""
    endings = {}
    # ELMo predicts a word from either side: no automatic class asks for that.
    if "vocabulary" in model.head_names and "two directions" not in model.capabilities:
        kind = (
            "Seq2SeqLM"
            if model.encoder_decoder
            else "CausalLM"
            if "causal" in model.capabilities
            else "MaskedLM"
        )
        endings[f"AutoModelFor{kind}"] = f"EtymonFor{kind}"
    for head, ending in TASK_CLASSES.items():
        if head in model.head_names:
            endings[f"AutoModelFor{ending}"] = f"EtymonFor{ending}"
    classes = {"AutoConfig": "EtymonConfig", "AutoModel": "EtymonModel", **endings}
    return {name: f"{CODE_FILE.removesuffix('.py')}.{each}" for name, each in classes.items()}


def code_file(classes: Mapping[str, Any]) -> str:
    """The file that an `auto_map` names."""
    # Only those that the folder can be: a class without its head would begin with random numbers.
    names = sorted(each.rpartition(".")[2] for each in classes.values())
    listed = ", ".join(f'"{name}"' for name in names)
    return CODE.format(classes=", ".join(names), names=listed)
