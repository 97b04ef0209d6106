"""The model card: a README.md that says what a model is, what it was trained on and how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def model_card(
    *,
    title: str,
    family: str,
    parameters: int,
    shape: Mapping[str, Any],
    objective: str,
    data: str,
    training: Mapping[str, Any],
    metrics: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    usage: str,
    transformers_class: str | None = None,
    base: str = "",
) -> str:
    """README.md with front matter for the Hugging Face hub.

    `usage` is Python code that loads the model with etymon. `transformers_class` is the class that opens the
    same folder, or None where Transformers has none. Of adapters, `base` is the model that they belong to, and the class is its.
    Whatever was not given is said to be missing.
    """
    load = ["## Loading it", "With etymon:", _code(usage, "python")]
    if base:
        load.insert(
            1, f"Here are low-rank adapters and heads. The model that they belong to is `{_line(base)}`."
        )
    if transformers_class is None:
        load.append("Transformers has no class for this model: do not open it there, it would be misread.")
    else:
        opens = f'from transformers import {transformers_class}\n\nmodel = {transformers_class}.from_pretrained("path/to/this/folder")'
        if base:
            opens = f"from peft import PeftModel\n{opens}".replace('"path/to/this/folder"', json.dumps(base))
            opens += '\nmodel = PeftModel.from_pretrained(model, "path/to/this/folder")'
        load += ["With PEFT:" if base else "With Transformers:", _code(opens, "python")]
    parts = [
        f'---\nlibrary_name: "{"peft" if base else "etymon"}"\ntags:\n- "etymon"\n- {json.dumps(family)}\n---',
        f"# {_line(title)}",
        f"A {_line(family)} model with {parameters:,} parameters, trained "
        f"with etymon on the objective *{_line(objective)}*.",
        *load,
        "## Data",
        data.strip() or "Not stated.",
        "## Measured",
        _table(metrics) or "Nothing was measured: treat the quality of this model as unknown.",
        "## Training",
        _table(training) or "Not stated.",
        "## Shape",
        _table(shape) or "Not stated.",
        "## Tokenizer",
        _table(tokenizer) or "None.",
        "## Licence and limits",
        "Licence: not stated; ask the author before using it. A language model repeats the errors and biases of its text, and what was not measured above was not checked.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Mapping[str, Any]) -> str:
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


def _code(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"
