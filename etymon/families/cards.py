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
    family, stated = model.family, last.get("license")
    licence = f"Licence: {stated}." if stated else "Licence: not stated; ask the author before using it."
    parts = [
        _front_matter(model, history, bool(base)),
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
        _table({k: v for k, v in (last.get("training") or {}).items() if v not in (None, [])})
        or "Not stated.",
        "## Shape",
        _table(shape),
        "## Tokenizer",
        _table(_tokenizer(model, history)) or "None.",
        "## Licence and limits",
        f"{licence} A language model repeats the errors and biases of its text, and what was not measured above was not checked.",
    ]
    return "\n\n".join(parts) + "\n"


PIPELINES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}
"""The hub's names for what a task head does."""


def pipeline(model: Model) -> str | None:
    """What the hub calls the model's use; None where it has no word for it, as for a discriminator."""
    if model.sentences.files:
        return "sentence-similarity"
    for head, name in PIPELINES.items():
        if head in model.asked:
            return name
    if "vocabulary" not in model.asked:
        return None if "replaced" in model.asked else "feature-extraction"
    if model.encoder_decoder:
        return "text2text-generation"
    return "text-generation" if "causal" in model.capabilities else "fill-mask"


def _front_matter(model: Model, history: Sequence[Mapping[str, Any]], adapters: bool) -> str:
    """What the hub reads. Licence, languages and data sets are what the author stated; the licence is that of this model, and so
    not what an earlier one in its history had."""
    last: Mapping[str, Any] = history[-1] if history else {}
    fields: dict[str, Any] = {
        "library_name": "peft" if adapters else "etymon",
        "tags": ["etymon", model.family.name],
    }
    fields["license"] = last.get("license") or "unknown"
    for name in ("language", "datasets"):
        if stated := list(dict.fromkeys(value for entry in history for value in entry.get(name) or ())):
            fields[name] = stated
    if (use := pipeline(model)) is not None:
        fields["pipeline_tag"] = use
    lines = []
    for name, value in fields.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"- {json.dumps(part)}" for part in value)]
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return "\n".join(["---", *lines, "---"])


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
