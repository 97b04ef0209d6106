"""Saving models as Hugging Face folders, with a model card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import etymon
from etymon.checkpoints.folder import write_model_folder
from etymon.checkpoints.hub import SOURCE
from etymon.checkpoints.settings import CODE_FILE, OWN_CODE, OWN_TYPE
from etymon.errors import EtymonError
from etymon.families.card import model_card
from etymon.families.checkpoint import best_architecture, name_map
from etymon.families.family import LABELLED_HEADS
from etymon.families.loading import HISTORY
from etymon.families.model import FEATURES_KEY, Model
from etymon.families.remote_code import auto_map, code_file, needs_code
from etymon.families.special_tokens import config_ids, generation_settings, reading_settings
from etymon.files import finite, write_json
from etymon.nn.int8 import int8_tensors
from etymon.plugin_settings import record_of

# The last maps of a layer's parts, into which a residual scale can be multiplied.
BRANCH_ENDS = ("attention.output.", "cross.output.", "feed_forward.outer.")


def save(
    model: Model,
    folder: str | Path,
    *,
    history: Sequence[Mapping[str, Any]] | None = None,
    fold: bool = True,
    with_weights: bool = True,
) -> None:
    """Writes the model as a Hugging Face folder. Heads that Transformers has no class for are kept under
    `etymon_heads`, which Transformers leaves aside and `load` reads back.

    A residual scale is folded into the weights, which gives an ordinary model that computes the same up to
    rounding. To train on exactly, `fold=False` keeps it; only etymon opens such a folder, or that of a shape
    that Transformers has no class for.

    Of a model with adapters only those and its heads are written, as PEFT keeps them: they need their base.
    Not `with_weights`, everything else is written: a sharded checkpoint has the weights in parts.
    """
    family, shape = model.family, asdict(model.shape)
    architecture = best_architecture(model)
    names = name_map(family, model.shape, model.head_names - architecture.heads)
    tensors = {name: tensor.detach() for name, tensor in model.stored_tensors().items()}
    past = [finite(entry) for entry in (model.history if history is None else history)]

    # Fields of our own that change the maths keep a folder from Transformers. The residual scale need not: it
    # is folded.
    scale = shape.get("residual_scale", 1.0)
    own_fields = {row.ours for row in family.settings.own_rows(shape) if shape[row.ours] != row.unless}
    own_fields -= {"neighbours", "matches"}  # first values alone
    for_transformers = (
        family.fits_transformers(model.shape)
        and own_fields <= ({"residual_scale"} if fold else set())
        and not model.int8
    )
    if for_transformers and scale != 1.0:
        ends = [name for name in tensors if any(end in name for end in BRANCH_ENDS)]
        tensors |= {name: tensors[name] * scale for name in ends}
        shape["residual_scale"] = 1.0

    config = {
        "architectures": [architecture.name] if for_transformers else [],
        "model_type": family.model_type if for_transformers else OWN_TYPE + family.model_type,
        **{key: value for key, value in model.carried.items() if key not in ("id2label", "label2id")},
        **config_ids(model),
        **family.settings.write(shape),  # last: the shape knows best what its weights mean
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    classes = {} if for_transformers and not needs_code(family) else auto_map(model)
    if classes:
        config[OWN_CODE] = classes
    # Only where a head has labels: Transformers counts a head's outputs by them, those of a span, too.
    if model.head_names & LABELLED_HEADS:
        config["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        config["label2id"] = {label: number for number, label in enumerate(model.labels)}
    if model.features is not None and model.head_names & family.feature_heads:
        config[FEATURES_KEY] = asdict(model.features)
    reading, tokenizer = reading_settings(model, model.head_names, past), model.tokenizer
    if tokenizer is not None and reading.pad_token is not None and config.get("pad_token_id") is None:
        # Transformers finds the last token of a row by it.
        config["pad_token_id"] = tokenizer.tokens.index(reading.pad_token)

    note = {"etymon": etymon.__version__, "heads": sorted(model.head_names), "history": past}
    extra: dict[str, Callable[[Path], object]] = {HISTORY: lambda path: write_json(path, note)}
    if classes and model.lora is None:
        extra[CODE_FILE] = partial(Path.write_text, data=code_file(classes), encoding="utf-8")
    if model.source_tokenizer is not None:
        extra[SOURCE] = model.source_tokenizer.save
    generation, base = None, ""
    if model.lora is not None:
        from etymon.families.adapters import adapter_files  # which needs PEFT's files alone

        config, adapters, adapter_note = adapter_files(model, names, architecture)
        # Copies: parameters that were gathered from several processes lie in one piece of memory.
        weights = {name: tensor.clone() for name, tensor in adapters.items()}
        note, base = {**note, **adapter_note}, config["base_model_name_or_path"]
    else:
        weights = None
        if with_weights:
            weights = int8_tensors(model) if model.int8 else names.export(tensors, architecture.prefix)
            if for_transformers:
                weights |= names.export_tables(architecture.prefix)
        writes_text = "vocabulary" in model.head_names and "state" in family.capabilities
        if writes_text or model.generation is not None:
            generation = generation_settings(model)
        for name, text in model.sentences.files.items():
            extra[name] = partial(Path.write_text, data=text, encoding="utf-8")
    write_model_folder(
        folder,
        config=config,
        weights=weights,
        generation_config=generation,
        card=model_card(model, shape, architecture.name if for_transformers else None, past, base),
        tokenizer_saver=None if tokenizer is None else partial(tokenizer.save, reading=reading),
        extra=extra,
        adapters=model.lora is not None,
        plugins=_plugin_records(model, past),
    )


def _plugin_records(model: Model, history: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The plugins that the family and all trainings of a model have come from."""
    family = record_of("family", model.family.name)
    records = [] if family is None else [asdict(family)]
    records += [record for entry in history for record in entry.get("plugins", ())]
    return [record for place, record in enumerate(records) if record not in records[:place]]


def save_published(model: Model, folder: str | Path) -> None:
    """Writes the model's body, without its heads, in the layout that its family was published in (ELMo's for
    bilm-tf)."""
    layout = model.family.layout
    if layout is None or model.int8:
        raise EtymonError(
            "only a family that was published in files of its own, with whole weights, has them: not this "
            f"{model.family.title}"
        )
    tensors = model.stored_tensors().items()
    body = {name: tensor.detach() for name, tensor in tensors if name.startswith("body.")}
    layout.write(folder, asdict(model.shape), model.family.names(model.shape).export(body))
