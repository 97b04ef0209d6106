"""The model card: a README.md that says what a model is, what it was trained on and how it is opened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from etymon.families.model import PREFIX_KEY, Model

READS_PREFIX = " (it reads a prompt in both directions, which Transformers does not)"


def card(
    model: Model,
    shape: Mapping[str, Any],
    architecture: str | None,
    history: Sequence[Mapping[str, Any]],
    base: str,
) -> str:
    """README.md with front matter for the Hugging Face hub.

    `architecture` is the class that opens the same folder, or None where Transformers has none. Of adapters, `base` is the
    model that they belong to, and the class is its. Whatever is not known is said to be missing.
    """
    last: Mapping[str, Any] = history[-1] if history else {}
    objective = str(last.get("objective", "")) + (READS_PREFIX if model.carried.get(PREFIX_KEY) else "")
    load = [
        "## Loading it",
        "With etymon:",
        _code('import etymon\n\nmodel = etymon.load("path/to/this/folder")'),
    ]
    if base:
        load.insert(
            1, f"Here are low-rank adapters and heads. The model that they belong to is `{_line(base)}`."
        )
    if architecture is None:
        load.append("Transformers has no class for this model: do not open it there, it would be misread.")
    else:
        opens = f'from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained("path/to/this/folder")'
        if base:
            opens = f"from peft import PeftModel\n{opens}".replace('"path/to/this/folder"', json.dumps(base))
            opens += '\nmodel = PeftModel.from_pretrained(model, "path/to/this/folder")'
        load += ["With PEFT:" if base else "With Transformers:", _code(opens)]
    family = model.family
    parts = [
        f'---\nlibrary_name: "{"peft" if base else "etymon"}"\ntags:\n- "etymon"\n- "{family.name}"\n---',
        f"# {family.title} by etymon",
        f"A {family.name} model with {model.parameter_count():,} parameters, trained "
        f"with etymon on the objective *{_line(objective)}*.",
        *load,
        "## Data",
        str(last.get("data", "")).strip() or "Not stated.",
        *(["## Seen", _table(seen)] if (seen := _seen(last)) else []),
        "## Measured",
        _table(last.get("metrics")) or "Nothing was measured: treat the quality of this model as unknown.",
        "## Training",
        _table(last.get("training")) or "Not stated.",
        "## Shape",
        _table(shape),
        "## Tokenizer",
        _table(_tokenizer(model, history)) or "None.",
        "## Licence and limits",
        "Licence: not stated; ask the author before using it. A language model repeats the errors and biases of its text, and what was not measured above was not checked.",
    ]
    return "\n\n".join(parts) + "\n"


def _seen(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, tokens and words of the last run. `words` are those of the text, counted once an epoch; `words read` those of all
    samples."""
    return {name: value for name, value in entry.get("seen", {}).items() if name != "ended"}


def _tokenizer(model: Model, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if model.tokenizer is None:
        return {}
    growths = ((entry["grown"], entry["data"]) for entry in history if "grown" in entry)
    told = [f"from {grown['from']:,} to {grown['to']:,} tokens on {data}" for grown, data in growths]
    known = {"kind": model.tokenizer.kind, "size": model.tokenizer.size}
    return known | ({"grown": ", then ".join(told)} if told else {})


def _table(rows: Mapping[str, Any] | None) -> str:
    if not rows:
        return ""
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        lines.append(f"| {_cell(str(name).replace('_', ' '))} | {_cell(_value(value))} |")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return "none" if value is None else str(value)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
