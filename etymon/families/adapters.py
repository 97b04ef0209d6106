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
from etymon.checkpoints.peft import MERGE_THERE, Adapter, exported, ours, plain, read_adapters
from etymon.config import strict
from etymon.errors import EtymonError
from etymon.families.checkpoint import extra_heads, head_of, name_map
from etymon.families.family import Architecture, Family
from etymon.families.loading import HISTORY, load, load_tokenizer, model_folder, read_note, read_shape
from etymon.families.model import Model
from etymon.families.special_tokens import leave_out_unusable_ids, reading_settings
from etymon.nn.features import FeatureSettings
from etymon.nn.layers import Linear
from etymon.nn.lora import LoraSettings, adapters, attach, merge, trained_heads

TASK_TYPES = {"classification": "SEQ_CLS", "tagging": "TOKEN_CLS", "span": "QUESTION_ANS"}
"""PEFT's names for what a model with this head alone does."""


def adapter_files(
    model: Model, names: NameMap, architecture: Architecture
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Config and weights of a PEFT folder, and what else we have to know."""
    assert model.lora is not None
    _check_base(model)
    parts = adapters(model)
    kept = {name: tensor.detach() for name, tensor in model.stored_tensors().items()}
    found = {
        name: Adapter(kept[f"{name}.lora_a"], kept[f"{name}.lora_b"], part.alpha)
        for name, part in parts.items()
    }
    usual = Adapter(torch.empty(model.lora.rank, 0), torch.empty(0, 0), model.lora.alpha)
    base = {name: tensor for name, tensor in kept.items() if ".lora_" not in name}
    config, weights = exported(names, base, found, model.lora_heads, architecture.prefix, usual)
    config |= {
        "peft_type": "LORA",
        "task_type": _task_type(model),
        "base_model_name_or_path": _base(model),
        "r": model.lora.rank,
        "lora_alpha": plain(model.lora.alpha),
        "lora_dropout": model.lora.dropout,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
    }
    told: dict[str, Any] = {
        "lora": {**asdict(model.lora), "modules": list(found)},
        "labels": list(model.labels),
    }
    features = None if model.features is None else asdict(model.features)
    told |= {"carried": model.carried, "generation": model.generation}
    return config, weights, {**told, "features": features}


def _base(model: Model) -> str:
    """PEFT wants the model's own folder, not that of the run around it."""
    return str(model_folder(model.lora_base)) if Path(model.lora_base).is_dir() else model.lora_base


def _check_base(model: Model) -> None:
    if not model.lora_base:
        raise EtymonError(
            "adapters are saved beside their base, and nobody said where that is: adapt(..., base=...)"
        )
    shape = model.shape
    if Path(model.lora_base).is_dir():
        with suppress(EtymonError):  # a config.json that was read with keys passed over
            shape = model.family.settled(read_shape(model.lora_base)[1])
    if shape != model.shape:
        raise EtymonError(
            f"the model has another shape than its base {model.lora_base}: save it without adapters, and adapt that"
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
    found, note = read_adapters(folder), read_note(folder)
    base, revision = found.config["base_model_name_or_path"], found.config.get("revision")
    try:
        family, shape = read_shape(base, revision=revision)
    except EtymonError as error:
        raise EtymonError(
            f"{folder} holds adapters of {base}, which cannot be opened ({error}): bring it back, or write where it is "
            "into adapter_config.json; a merged model (etymon convert) needs no base"
        ) from error
    stored = _heads(family, family.names(shape), found.config, found.heads, note)
    if labels is None:
        labels = note.get("labels") or _counted(family.names(shape), found.heads, stored)
    if features is None and note.get("features"):
        features = strict(FeatureSettings, note["features"], str(folder / HISTORY))
    asked = stored if heads is None else heads
    # Only what was opened once has adapters: parts of the base that its heads do not need are no surprise.
    options |= {"revision": revision, "partial": True}
    model = load(base, heads=asked, labels=labels, features=features, **options)
    merge(model)  # where the base has adapters itself
    family = model.family
    stored = model.head_names if stored is None else stored
    names = name_map(family, model.shape, extra_heads(found.heads))
    # Parameters that the folder may speak of: other heads may have been asked for.
    known = tuple(f"heads.{head}." for head in family.with_required(stored))
    kept = {
        name: tensor for name, tensor in model.stored_tensors().items() if name.startswith(("body.", *known))
    }
    trained = _fill_heads(model, names, kept, found.heads, folder)
    trained |= {name for name in trained_heads(model) if not name.startswith(known)}
    matrices = ours(names, kept, found.matrices, note.get("lora", {}).get("modules", ()))
    _check(model, matrices, folder)
    last = dict.fromkeys(name.rpartition(".")[2] for name in matrices)
    settings = {
        "rank": found.config.get("r", 8),
        "alpha": found.config.get("lora_alpha", 8),
        "dropout": found.config.get("lora_dropout", 0.0),
        "targets": note.get("lora", {}).get("targets") or list(last),
    }
    # Adapters of heads are merged, for heads are stored whole.
    whole = tuple(f"{name}." for name in matrices if name.startswith("heads."))
    trained |= {name for name in kept if name.startswith(whole)}
    ranks = {name: (adapter.rank, adapter.alpha) for name, adapter in matrices.items()}
    if revision is not None:  # a base is one name: that of the folder, where it is not the hub's latest
        base = str(model_folder(base, revision=revision))
    attach(model, ranks, strict(LoraSettings, settings, str(folder / ADAPTER_CONFIG)), base, sorted(trained))
    with torch.no_grad():
        for name, part in adapters(model).items():
            part.lora_a.copy_(matrices[name].a_rD)
            part.lora_b.copy_(matrices[name].b_Fr)
    merge(model, under="heads.")
    model.history = list(note.get("history", model.history))
    model.carried = note.get("carried", model.carried)
    model.generation = note.get("generation", model.generation)
    leave_out_unusable_ids(model, folder)
    reading = reading_settings(model, stored, model.history)
    model.tokenizer = load_tokenizer(family, folder, model.shape.vocabulary, reading) or model.tokenizer
    return model


def _heads(
    family: Family, names: NameMap, config: Mapping[str, Any], found: Iterable[str], note: Mapping[str, Any]
) -> frozenset[str] | None:
    """The heads of a folder: as we noted, as its task or else its tensors say; None if those of the base are meant."""
    if "heads" in note:
        return frozenset(note["heads"])
    for head, task in TASK_TYPES.items():
        if config.get("task_type") == task and head in family.heads:
            return frozenset({head})
    present = frozenset(known for name in found if (known := head_of(names, name)) is not None)
    return present - {family.heads[head].after for head in present} or None


def _counted(names: NameMap, found: Mapping[str, Tensor], heads: frozenset[str] | None) -> list[str] | None:
    """Labels without names, as many as a foreign head tells apart."""
    for head in (heads or frozenset()) & {"classification", "tagging"}:
        (place,) = names.groups([f"heads.{head}.linear.weight"])
        for name, tensor in found.items():
            if names.canonical(name, {place}) == place:
                return [f"LABEL_{number}" for number in range(len(tensor))]
    return None


def _fill_heads(
    model: Model, names: NameMap, kept: Mapping[str, Tensor], found: Mapping[str, Tensor], folder: Path
) -> set[str]:
    """Copies heads in; gives the names of all that the base has not, or not so."""
    filled: set[str] = set()

    def fill(name: str, tensor: Tensor) -> None:
        kept[name].copy_(tensor)
        filled.add(name)

    groups = names.groups(kept)
    wanted = {name: tensor.shape for name, tensor in kept.items() if name.startswith("heads.")}
    with torch.no_grad():
        result = names.read(found, wanted, fill)
    strangers = [name for name in result.unexpected if head_of(names, name) is None]
    # The base's words once more, under the name of a head that is tied to them, are fine; other words are not.
    for name, tensor in found.items():
        source = names.ties.get(names.canonical(name, set(names.ties)), "")
        if source in groups and groups[source][1][0].startswith("body."):
            row, parts = groups[source]
            if not torch.equal(row.joined([kept[part] for part in parts]), tensor):
                strangers.append(name)
    if strangers:
        raise EtymonError(
            f"{folder} holds more than adapters and heads of {model.family.title} ({strangers[0]}): {MERGE_THERE}"
        )
    if result.misshapen:
        raise EtymonError(f"the heads in {folder} are of another size: {result.problems()}")
    model.new_heads = tuple(
        head for head in model.new_heads if not any(name.startswith(f"heads.{head}.") for name in filled)
    )
    new = tuple(f"heads.{head}." for head in model.new_heads)
    return filled | {name for name in wanted if name.startswith(new)}


def _check(model: Model, matrices: Mapping[str, Adapter], folder: Path) -> None:
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
                f"the adapter of {name} in {folder} is for a matrix of {sizes}, not of {tuple(part.weight.shape)}: "
                "it belongs to another base"
            )
