"""Saving models as Hugging Face folders, with a model card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import etymon
from etymon.checkpoints.folder import write_model_folder
from etymon.checkpoints.hub import SOURCE
from etymon.checkpoints.settings import OWN_TYPE
from etymon.errors import EtymonError
from etymon.families.checkpoint import best_architecture, name_map
from etymon.families.loading import HISTORY
from etymon.families.model import FEATURES_KEY, PREFIX_KEY, Model
from etymon.families.special_tokens import config_ids, generation_settings, reading_settings
from etymon.files import finite, write_json
from etymon.nn.int8 import stored as stored_int8

LABEL_KEYS = ("id2label", "label2id")
"""Written where a head has labels: Transformers counts a head's outputs by them, those of a span, too."""
BRANCH_ENDS = ("attention.output.", "cross.output.", "feed_forward.outer.")
"""The last maps of a layer's parts, into which a residual scale can be multiplied."""


def save(
    model: Model,
    folder: str | Path,
    *,
    history: Sequence[Mapping[str, Any]] | None = None,
    fold: bool = True,
) -> None:
    """Writes the model as a Hugging Face folder. Heads that Transformers has no class for are kept under
    `etymon_heads`, which Transformers leaves aside and `load` reads back.

    A residual scale is folded into the weights, which gives an ordinary model that computes the same up to rounding.
    To train on exactly, `fold=False` keeps it; only etymon opens such a folder, or that of a shape that Transformers
    has no class for.

    Of a model with adapters only those and its heads are written, as PEFT keeps them: they need their base.
    """
    family, shape = model.family, model.shape_fields()
    architecture = best_architecture(model)
    names = name_map(family, model.shape, model.head_names - architecture.heads)
    named = {name: tensor.detach() for name, tensor in model.stored_tensors().items()}
    scale = shape.get("residual_scale", 1.0)
    own = any(
        shape[row.ours] != row.unless
        for row in family.settings.own_rows(shape)
        if row.ours != "residual_scale"
    )
    foreign = family.expressible(model.shape) and not own and (fold or scale == 1.0)
    foreign = foreign and not model.int8
    if foreign and scale != 1.0:
        ends = (name for name in named if any(end in name for end in BRANCH_ENDS))
        named |= {name: named[name] * scale for name in ends}
        shape["residual_scale"] = 1.0
    carried = {key: value for key, value in model.carried.items() if key not in LABEL_KEYS}
    config = {
        "architectures": [architecture.name] if foreign else [],
        "model_type": family.model_type if foreign else OWN_TYPE + family.model_type,
        **carried,
        **config_ids(model),
        **family.settings.write(shape),  # last: the shape knows best what its weights mean
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    if model.head_names & {"classification", "tagging"}:
        config["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        config["label2id"] = {label: number for number, label in enumerate(model.labels)}
    if model.features is not None and model.head_names & family.feature_heads:
        config[FEATURES_KEY] = asdict(model.features)
    past = [finite(entry) for entry in (model.history if history is None else history)]
    reading, tokenizer = reading_settings(model, model.head_names, past), model.tokenizer
    if tokenizer is not None and reading.pad_token is not None and config.get("pad_token_id") is None:
        # Transformers finds the last token of a row by it.
        config["pad_token_id"] = tokenizer.tokens.index(reading.pad_token)
    extra: dict[str, Callable[[Path], None]] = {HISTORY: lambda path: write_json(path, note)}
    if model.source_tokenizer is not None:
        extra[SOURCE] = model.source_tokenizer.save
    note = {"etymon": etymon.__version__, "heads": sorted(model.head_names), "history": past}
    if model.lora is None:
        extra |= {name: partial(_write, text) for name, text in model.sentences.files.items()}
    adapted, writes = (
        model.lora is not None,
        "vocabulary" in model.head_names and "state" in family.capabilities,
    )
    generates = writes or model.generation is not None
    base = ""
    if adapted:
        from etymon.families.adapters import adapter_files

        config, weights, told = adapter_files(model, names, architecture)
        note, base = {**note, **told}, config["base_model_name_or_path"]
    else:
        weights = stored_int8(model) if model.int8 else names.export(named, architecture.prefix)
    write_model_folder(
        folder,
        config=config,
        weights=weights,
        generation_config=generation_settings(model) if generates and not adapted else None,
        card=card(model, shape, architecture.name if foreign else None, past, base),
        tokenizer_saver=None if tokenizer is None else partial(tokenizer.save, reading=reading),
        extra=extra,
        adapters=adapted,
    )


def save_published(model: Model, folder: str | Path) -> None:
    """Writes the model's body, without its heads, in the layout that its family was published in (ELMo's for bilm-tf)."""
    layout = model.family.layout
    if layout is None or model.int8:
        raise EtymonError(
            f"only a family that was published in files of its own, with whole weights, has them: not this "
            f"{model.family.title}"
        )
    weights = {
        name: tensor.detach() for name, tensor in model.stored_tensors().items() if name.startswith("body.")
    }
    layout.write(folder, model.shape_fields(), model.family.names(model.shape).export(weights))


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


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
        if head in model.head_names:
            return name
    if "vocabulary" not in model.head_names:
        return None if "replaced" in model.head_names else "feature-extraction"
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
