"""The card of a model: what it is, how it was trained and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etymon.checkpoints.card import model_card
from etymon.families.model import PREFIX_KEY, Model

READS_PREFIX = " (it reads a prompt in both directions, which Transformers does not)"


def card(
    model: Model,
    shape: Mapping[str, Any],
    architecture: str | None,
    history: Sequence[Mapping[str, Any]],
    base: str = "",
) -> str:
    """What a folder of this model says in its README.md."""
    last = dict(history[-1]) if history else {}
    tokenizer: dict[str, Any] = {}
    if model.tokenizer is not None:
        tokenizer = {"kind": model.tokenizer.kind, "size": model.tokenizer.size}
        growths = ((entry["grown"], entry["data"]) for entry in history if "grown" in entry)
        told = [f"from {grown['from']:,} to {grown['to']:,} tokens on {data}" for grown, data in growths]
        tokenizer |= {"grown": ", then ".join(told)} if told else {}
    return model_card(
        title=f"{model.family.title} by etymon",
        family=model.family.name,
        parameters=model.parameter_count(),
        shape=shape,
        objective=str(last.get("objective", "")) + (READS_PREFIX if model.carried.get(PREFIX_KEY) else ""),
        data=str(last.get("data", "")),
        training=last.get("training", {}),
        metrics=last.get("metrics", {}),
        tokenizer=tokenizer,
        usage='import etymon\n\nmodel = etymon.load("path/to/this/folder")',
        transformers_class=architecture,
        base=base,
    )
