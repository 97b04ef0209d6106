"""Models with adapters: the folder of what was learnt, beside a base that stays where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.checkpoints.folder import ADAPTER_CONFIG
from etymon.checkpoints.names import NameMap
from etymon.checkpoints.peft import (
    MERGE_THERE,
    Adapter,
    Adapters,
    export_adapters,
    our_adapters,
    plain,
    read_adapters,
)
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families.checkpoint import extra_heads, head_of, name_map, unnamed_labels
from etymon.families.family import LABELLED_HEADS, Architecture, Family
from etymon.families.loading import HISTORY, load, load_tokenizer, model_folder, read_note, read_shape
from etymon.families.model import Model
from etymon.families.special_tokens import leave_out_unusable_ids, reading_settings
from etymon.nn.features import FeatureSettings
from etymon.nn.layers import Linear
from etymon.nn.lora import LoraSettings, adapters, attach, merge, trained_heads

# PEFT's names for what a model with this head alone does.
TASK_TYPES = {"classification": "SEQ_CLS", "tagging": "TOKEN_CLS", "span": "QUESTION_ANS"}


def adapter_files(
    model: Model, names: NameMap, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Config and weights of a PEFT folder, and entries of our own note that PEFT has no place for."""
    assert model.lora is not None
    _check_base(model)
    tensors = {name: tensor.detach() for name, tensor in model.stored_tensors().items()}
    matrices = {
        name: Adapter(tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"], part.alpha)
        for name, part in adapters(model).items()
    }
    base = {name: tensor for name, tensor in tensors.items() if ".lora_" not in name}
    rank, alpha = model.lora.rank, model.lora.alpha
    config, weights = export_adapters(
        names, base, matrices, model.lora_heads, architecture.prefix, rank, alpha
    )
    # PEFT wants the model's own folder, not that of the run around it.
    is_folder = Path(model.lora_base).is_dir()
    config |= {
        "peft_type": "LORA",
        "task_type": _task_type(model),
        "base_model_name_or_path": str(model_folder(model.lora_base)) if is_folder else model.lora_base,
        "r": rank,
        "lora_alpha": plain(alpha),
        "lora_dropout": model.lora.dropout,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
    }
    note = {
        "lora": {**asdict(model.lora), "modules": list(matrices)},
        "labels": list(model.labels),
        "carried": model.carried,
        "generation": model.generation,
        "features": None if model.features is None else asdict(model.features),
    }
    return config, weights, note


def _check_base(model: Model) -> None:
    if not model.lora_base:
        raise EtymonError(
            "adapters are saved beside their base, and nobody said where that is: adapt(..., base=...)"
        )
    shape = model.shape
    if Path(model.lora_base).is_dir():
        with suppress(EtymonError):  # a config.json that was read with keys passed over
            shape = model.family.shape_after_loading(read_shape(model.lora_base)[1])
    if shape != model.shape:
        raise EtymonError(
            f"the model has another shape than its base {model.lora_base}: save it without adapters, and "
            "adapt that"
        )


def _task_type(model: Model) -> str | None:
    if len(model.head_names) != 1:
        return None if model.head_names else "FEATURE_EXTRACTION"
    (head,) = model.head_names
    if head == "vocabulary" and model.encoder_decoder:
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if head == "vocabulary" and "causal" in model.capabilities else TASK_TYPES.get(head)


def load_adapted(
    folder: Path,
    *,
    heads: Iterable[str] | None = None,
    labels: Sequence[str] | None = None,
    features: FeatureSettings | None = None,
    **options: Any,
) -> Model:
    """The base of a folder of adapters, with these and their heads on it. Options are those of `load`."""
    stored, note = read_adapters(folder), read_note(folder)
    base, revision = stored.config["base_model_name_or_path"], stored.config.get("revision")
    try:
        family, shape = read_shape(base, revision=revision)
    except EtymonError as error:
        raise EtymonError(
            f"{folder} holds adapters of {base}, which cannot be opened ({error}): bring it back, or "
            "write where it is "
            "into adapter_config.json; a merged model (etymon convert) needs no base"
        ) from error
    stored_heads = _stored_heads(family, family.names(shape), stored, note)
    if labels is None:
        labels = note.get("labels") or _unnamed_labels(family.names(shape), stored.heads, stored_heads)
    if features is None and note.get("features"):
        features = strict(FeatureSettings, note["features"], str(folder / HISTORY))
    # Only what was opened once has adapters: parts of the base that its heads do not need are no surprise.
    options |= {"revision": revision, "partial": True}
    chosen = stored_heads if heads is None else heads
    model = load(base, heads=chosen, labels=labels, features=features, **options)
    merge(model)  # where the base has adapters itself
    family = model.family
    stored_heads = model.head_names if stored_heads is None else stored_heads

    # Heads, which are stored whole. The folder may speak of the body and of its heads: others may have been
    # asked for.
    names = name_map(family, model.shape, extra_heads(stored.heads))
    its_heads = tuple(f"heads.{head}." for head in family.with_required(stored_heads))
    tensors = {
        name: tensor
        for name, tensor in model.stored_tensors().items()
        if name.startswith(("body.", *its_heads))
    }
    trained = _fill_heads(model, names, tensors, stored.heads, folder)
    trained |= {name for name in trained_heads(model) if not name.startswith(its_heads)}

    # Adapters, of heads as well: those are merged, for heads are stored whole.
    lora = note.get("lora", {})
    matrices = our_adapters(names, tensors, stored.matrices, lora.get("modules", ()))
    _check_sizes(model, matrices, folder)
    last_names = dict.fromkeys(name.rpartition(".")[2] for name in matrices)
    settings = {
        "rank": stored.config.get("r", 8),
        "alpha": stored.config.get("lora_alpha", 8),
        "dropout": stored.config.get("lora_dropout", 0.0),
        "targets": lora.get("targets") or list(last_names),
    }
    merged_heads = tuple(f"{name}." for name in matrices if name.startswith("heads."))
    trained |= {name for name in tensors if name.startswith(merged_heads)}
    ranks = {name: (adapter.rank, adapter.alpha) for name, adapter in matrices.items()}
    if revision is not None:  # a base is one name: that of the folder, where it is not the hub's latest
        base = str(model_folder(base, revision=revision))
    attach(model, ranks, strict(LoraSettings, settings, str(folder / ADAPTER_CONFIG)), base, sorted(trained))
    with torch.no_grad():
        for name, part in adapters(model).items():
            part.lora_a.copy_(matrices[name].a_rD)
            part.lora_b.copy_(matrices[name].b_Fr)
    merge(model, under="heads.")

    for name in ("carried", "generation"):
        setattr(model, name, note.get(name, getattr(model, name)))
    model.history = list(note.get("history", model.history))
    leave_out_unusable_ids(model, folder)
    reading = reading_settings(model, stored_heads, model.history)
    model.tokenizer = load_tokenizer(family, folder, model.shape.vocabulary, reading) or model.tokenizer
    return model


def _stored_heads(
    family: Family, names: NameMap, stored: Adapters, note: Mapping[str, Any]
) -> frozenset[str] | None:
    """The heads of a folder: as we noted, as its task or else its tensors say; None where it has the
    base's."""
    if "heads" in note:
        return frozenset(note["heads"])
    for head, task in TASK_TYPES.items():
        if stored.config.get("task_type") == task and head in family.heads:
            return frozenset({head})
    present = frozenset(filter(None, (head_of(names, name) for name in stored.heads)))
    return present - {family.heads[head].after for head in present} or None


def _unnamed_labels(
    names: NameMap, stored: Mapping[str, Tensor], heads: frozenset[str] | None
) -> list[str] | None:
    """Labels without names, as many as a foreign head tells apart; None if it has no such head."""
    for head in (heads or frozenset()) & LABELLED_HEADS:
        (place,) = names.groups([f"heads.{head}.linear.weight"])
        for name, tensor in stored.items():
            if names.canonical(name, {place}) == place:
                return unnamed_labels(len(tensor))
    return None


def _fill_heads(
    model: Model, names: NameMap, tensors: Mapping[str, Tensor], stored: Mapping[str, Tensor], folder: Path
) -> set[str]:
    """Copies heads in; gives the names of all that the base has not, or not so."""
    filled: set[str] = set()

    def fill(name: str, tensor: Tensor) -> None:
        tensors[name].copy_(tensor)
        filled.add(name)

    groups = names.groups(tensors)
    shapes = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("heads.")}
    with torch.no_grad():
        result = names.read(stored, shapes, fill)
    strangers = [name for name in result.unexpected if head_of(names, name) is None]
    # The base's words once more, under the name of a head that is tied to them, are fine; other words are
    # not.
    for name, tensor in stored.items():
        source = names.ties.get(names.canonical(name, set(names.ties)), "")
        if source in groups and groups[source][1][0].startswith("body."):
            row, parts = groups[source]
            if not torch.equal(row.join([tensors[part] for part in parts]), tensor):
                strangers.append(name)
    if strangers:
        raise EtymonError(
            f"{folder} holds more than adapters and heads of {model.family.title} ({strangers[0]}): "
            f"{MERGE_THERE}"
        )
    if result.misshapen:
        raise EtymonError(f"the heads in {folder} are of another size: {result.problems()}")
    model.new_heads = tuple(
        head for head in model.new_heads if not any(name.startswith(f"heads.{head}.") for name in filled)
    )
    new = tuple(f"heads.{head}." for head in model.new_heads)
    return filled | {name for name in shapes if name.startswith(new)}


def _check_sizes(model: Model, matrices: Mapping[str, Adapter], folder: Path) -> None:
    """Refuses adapters of what is no linear map, and those of another size."""
    for name, adapter in matrices.items():
        part = model.get_submodule(name)
        if not isinstance(part, Linear):
            raise EtymonError(
                f"{folder} has an adapter of {name}, which is no linear map here: {MERGE_THERE}"
            )
        sizes = (adapter.b_Fr.shape[0], adapter.a_rD.shape[1])
        if sizes != part.weight.shape or adapter.b_Fr.shape[1] != adapter.rank:
            raise EtymonError(
                f"the adapter of {name} in {folder} is for a matrix of {sizes}, not of "
                f"{tuple(part.weight.shape)}: "
                "it belongs to another base"
            )
