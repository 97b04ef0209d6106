"""Saving models as Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import etymon
from etymon.checkpoints import bilm
from etymon.checkpoints.folder import write_model_folder
from etymon.checkpoints.hub import SOURCE
from etymon.checkpoints.settings import OWN_TYPE
from etymon.errors import EtymonError
from etymon.families.cards import card
from etymon.families.filling import best_architecture, name_map
from etymon.families.loading import HISTORY
from etymon.families.model import FEATURES_KEY, Model
from etymon.families.reading import reading_settings
from etymon.families.special_tokens import config_ids, generation_settings
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
    names = name_map(family, model.shape, model.asked - architecture.heads)
    named = {name: tensor.detach() for name, tensor in model.kept().items()}
    scale = shape.get("residual_scale", 1.0)
    own = any(shape[row.ours] != row.unless for row in family.settings.unpublished(shape))
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
    if model.asked & {"classification", "tagging"}:
        config["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        config["label2id"] = {label: number for number, label in enumerate(model.labels)}
    if model.features is not None and model.asked & family.reading_features:
        config[FEATURES_KEY] = asdict(model.features)
    past = [finite(entry) for entry in (model.history if history is None else history)]
    reading, tokenizer = reading_settings(model, model.asked, past), model.tokenizer
    if tokenizer is not None and reading.pad_token is not None and config.get("pad_token_id") is None:
        # Transformers finds the last token of a row by it.
        config["pad_token_id"] = tokenizer.tokens.index(reading.pad_token)
    extra: dict[str, Callable[[Path], None]] = {HISTORY: lambda path: write_json(path, note)}
    if model.source_tokenizer is not None:
        extra[SOURCE] = model.source_tokenizer.save
    note = {"etymon": etymon.__version__, "heads": sorted(model.asked), "history": past}
    if model.lora is None:
        extra |= {name: partial(_write, text) for name, text in model.sentences.files.items()}
    adapted, writes = model.lora is not None, "vocabulary" in model.asked and "state" in family.capabilities
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


def write_published(model: Model, folder: str | Path) -> None:
    """Writes an ELMo as bilm-tf and AllenNLP read it, without its heads."""
    if model.family.model_type != "elmo" or model.int8:
        raise EtymonError(f"only an ELMo of whole weights has bilm-tf's files, not this {model.family.title}")
    weights = {name: tensor.detach() for name, tensor in model.kept().items() if name.startswith("body.")}
    bilm.write(folder, model.shape_fields(), model.family.names(model.shape).export(weights))


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
