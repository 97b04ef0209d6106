"""Building and loading models. Every checkpoint is a Hugging Face folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from etymon.checkpoints.folder import ADAPTER_CONFIG, CONFIG, is_verifying, read_config, verified, verifying
from etymon.checkpoints.hub import SOURCE, resolve
from etymon.checkpoints.keys import check_history
from etymon.checkpoints.peft import read_adapter_config
from etymon.checkpoints.sentences import read_sentences
from etymon.checkpoints.settings import pass_over
from etymon.checkpoints.sharded import is_sharded
from etymon.checkpoints.weights import open_weights
from etymon.config import did_you_mean, strict
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.checkpoint import (
    extra_heads,
    fill,
    fill_from_parts,
    fill_int8,
    name_map,
    recognise_family,
    require_finite,
    stored_heads,
    stored_labels,
    unnamed_labels,
)
from etymon.families.family import LABELLED_HEADS, Family
from etymon.families.imports import ForeignModel, find_foreign
from etymon.families.memory import check_weight_count, require_weights
from etymon.families.model import FEATURES_KEY, Model
from etymon.families.special_tokens import leave_out_unusable_ids, reading_settings
from etymon.files import read_json
from etymon.nn.features import FeatureSettings
from etymon.nn.initialise import align
from etymon.text.framing import ReadingSettings
from etymon.text.tokenizer import Tokenizer

logger = logging.getLogger("etymon.families")
# Beside the published files: which heads the folder holds and how it was trained.
HISTORY = "history.json"
# Where a run keeps the models that it trained, the main one first.
MEMBERS = ("model", "discriminator", "generator")
GENERATION = "generation_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)


def build(
    family: str | Family,
    size: str | None = None,
    *,
    shape: Mapping[str, Any] | None = None,
    heads: Iterable[str] | None = None,
    labels: Sequence[str] = ("LABEL_0", "LABEL_1"),
    features: FeatureSettings | None = None,
    seed: int = 0,
) -> Model:
    """A new model with first values: a published or pocket size, with the given fields of its shape changed.
    With `features`, its task heads read those."""
    family = get_family(family) if isinstance(family, str) else family
    heads = frozenset(family.architectures[0].heads if heads is None else heads)
    full_shape = shape_of(family, size, **(shape or {}))
    require_weights(family, full_shape, heads, labels, features, f"to build {family.title} of this shape")
    return Model(family, full_shape, heads, labels, features).initialise(seed)


def shape_of(family: Family, size: str | None = None, **changed: Any) -> Any:
    """The shape of a size, the first one by default, with any field changed by name."""
    size = size or next(iter(family.sizes))
    if size not in family.sizes:
        names = did_you_mean(size, family.sizes)
        raise EtymonError(f"{family.title} has no size {size!r}: {names}", code="unknown-name")
    return strict(family.shape, {**family.sizes[size], **changed}, f"the shape of {family.title}")


def load(
    name: str | Path,
    *,
    heads: Iterable[str] | None = None,
    labels: Sequence[str] | None = None,
    features: FeatureSettings | None = None,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    family: str | Family | None = None,
    ignore_config_keys: Sequence[str] = (),
    partial: bool = False,
    quantize: Literal["int8"] | None = None,
    verify: bool = True,
    seed: int = 0,
) -> Model:
    """A model from a folder or a hub id, in evaluation mode, with its tokenizer where the folder has one.

    Everything must fit. Asking for other `heads` than the checkpoint's is fine: those that it lacks are
    initialised and listed in `model.new_heads`, and so are those for other `labels` than it was trained for.
    With other `features` than its own, task heads start anew and read those. With `partial`, missing and
    unexpected weights are tolerated as well. `family` is for a folder that does not say what it is.
    `ignore_config_keys` are passed over in its `config.json`. `quantize` rounds weights to eight bits, for
    inference on a processor. `verify` refuses files that are not what we saved, and weights not finite.
    """
    folder, verify = model_folder(name, revision=revision), verify and is_verifying()
    with pass_over(ignore_config_keys), verifying(verify), verified(folder) if verify else nullcontext():
        model = _read(folder, heads, labels, features, family, partial, seed)
    if verify:
        require_finite(model, folder)
    if quantize is not None:
        model.quantize()
    if model.int8 and torch.device(device).type != "cpu":
        raise EtymonError(f"weights of eight bits are for a processor, not for {device}: say --device cpu")
    # Kernels give the same bits only from equally aligned memory, and mapped files lie anywhere.
    align(model)
    return model.to(device).eval()


def _read(
    folder: Path,
    heads: Iterable[str] | None,
    labels: Sequence[str] | None,
    features: FeatureSettings | None,
    family: str | Family | None,
    partial: bool,
    seed: int,
) -> Model:
    """The model in a folder, or with adapters the one that they were made for."""
    if (folder / ADAPTER_CONFIG).is_file():
        from etymon.families.adapters import load_adapted  # which stands on this file

        return load_adapted(folder, heads=heads, labels=labels, features=features, seed=seed)

    # What the folder says of itself, and what its weights say.
    foreign = find_foreign(folder, heads)
    config, where, note = _config(folder, foreign), str(folder / CONFIG), read_note(folder)
    in_parts = foreign is None and is_sharded(folder.parent)
    weights: Mapping[str, torch.Tensor] = {}
    if foreign is not None:
        weights = foreign.open_weights()
        if foreign.note:
            logger.warning("%s", foreign.note)
    elif not in_parts:
        weights = open_weights(folder)
    family = recognise_family(config, lambda: weights, where, family)
    stored = stored_heads(family, config, note, weights)
    shape, carried = _read_shape(family, config, where, stored)
    if not in_parts:
        check_weight_count(family, shape, weights, where)
    stored_features = carried.pop(FEATURES_KEY, None)
    if stored_features is not None:
        family = family.with_features(strict(FeatureSettings, stored_features, where))

    # Heads whose weights are taken from the folder: not those for other labels, or for other features.
    usable, is_choice = stored, heads is not None or features is not None
    learnt_labels = stored_labels(family, config, weights, stored)
    if labels is None or set(labels) == set(learnt_labels):
        labels = learnt_labels  # in the order of the outputs
    elif not _same_outputs(labels, learnt_labels, carried):
        usable, is_choice = family.with_required(stored) - LABELLED_HEADS, True
    head_names = stored if heads is None else frozenset(heads)
    require_weights(family, shape, head_names, labels, features, f"to open {folder}")
    model = Model(family, shape, head_names, labels, features)
    if model.features != family.features:
        usable -= model.family.feature_heads
    model.shape = family.shape_after_loading(shape)
    model.carried = carried
    model.generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else None
    leave_out_unusable_ids(model, folder)
    model.history = list(note.get("history", []))
    model.sentences = read_sentences(folder)
    if model.int8:
        fill_int8(model, weights, folder)
    elif in_parts:
        fill_from_parts(model, folder, usable, seed)
    else:
        names = name_map(family, shape, extra_heads(weights))
        fill(model, weights, names, usable, folder, is_choice, partial, seed)

    reading = reading_settings(model, stored, model.history)
    if foreign is None:
        model.tokenizer = load_tokenizer(family, folder, shape.vocabulary, reading)
    else:
        with foreign.tokenizer_folder(folder) as place:
            model.tokenizer = load_tokenizer(family, place, shape.vocabulary, reading)
    if foreign is not None and foreign.reads_letters:  # no words come with such files, and none are needed
        model.tokenizer = Tokenizer.of_words(family.tokenizer.specials, family.framing)
    model.source_tokenizer = load_tokenizer(family, folder / SOURCE, model.source_vocabulary)
    if getattr(shape, "source_vocabulary", None) and model.tokenizer and not model.source_tokenizer:
        raise EtymonError(
            f"{folder} has no {SOURCE}/tokenizer.json, and the model reads sources with a tokenizer of "
            "its own: put it there"
        )
    return model


def _same_outputs(labels: Sequence[str], learnt: Sequence[str], carried: Mapping[str, Any]) -> bool:
    """Whether outputs may stand for other labels: they have no names, or the only one is a number."""
    is_number = len(learnt) == 1 and carried.get("problem_type") == "regression"
    return len(labels) == len(learnt) and (is_number or learnt == unnamed_labels(len(learnt)))


def load_tokenizer(
    family: Family, folder: Path, words: int, reading: ReadingSettings | None = None
) -> Tokenizer | None:
    """The tokenizer in a model folder, framing texts as its family does; None if there is none."""
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        return None
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > words:
        raise EtymonError(
            f"the tokenizer in {folder} has {tokenizer.size} ids, but the model has only {words} word "
            "vectors: they do not belong together"
        )
    if set(family.framing.roles) <= set(tokenizer.roles):
        tokenizer.framing = family.framing
    if reading is not None:
        tokenizer.forget_reading(reading)
    return tokenizer


# --- what a folder says without its weights


def read_shape(name: str | Path, *, revision: str | None = None) -> tuple[Family, Any]:
    """Family and shape of the model behind a path, a run's folder or a hub id, without its weights."""
    folder = model_folder(name, revision=revision)
    bases: list[Path] = []
    while (folder / ADAPTER_CONFIG).is_file():  # a base may have adapters itself
        if folder.resolve() in bases:
            raise EtymonError(
                f"the adapters in {folder} are their own base: name another one in {ADAPTER_CONFIG}"
            )
        bases.append(folder.resolve())
        base = read_adapter_config(folder)
        folder = model_folder(base["base_model_name_or_path"], revision=base.get("revision"))
    config, where = _config(folder, find_foreign(folder)), str(folder / CONFIG)
    family = recognise_family(config, lambda: open_weights(folder), where)
    return family, _read_shape(family, config, where, frozenset())[0]


def _read_shape(
    family: Family, config: Mapping[str, Any], where: str, heads: frozenset[str]
) -> tuple[Any, dict[str, Any]]:
    """The shape that a configuration describes, and its values that are carried along."""
    fields, carried = family.settings.read({**config, "model_type": family.model_type}, where, heads)
    return strict(family.shape, fields, where), carried


def _config(folder: Path, foreign: ForeignModel | None) -> dict[str, Any]:
    """A folder's `config.json`, or what it would be of files of another layout."""
    return read_config(folder) if foreign is None else foreign.config


def model_folder(name: str | Path, *, revision: str | None = None, head: str | None = None) -> Path:
    """The model's folder behind a path, a run's folder or a hub id. Of several models in a run's folder, the
    first one that has the `head`, if one does: an ELECTRA's vocabulary is the generator's."""
    folder = resolve(str(name), revision=revision)
    places = [
        place
        for place in (folder, *(folder / member for member in MEMBERS))
        if any((place / file).is_file() for file in (CONFIG, ADAPTER_CONFIG))
    ]
    first = (*places, folder)[0]
    if head is None or first == folder:
        return first
    return next((place for place in places if head in read_note(place).get("heads", ())), first)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """How the model in a folder was trained, one entry a run; empty if nothing says so."""
    return list(read_note(folder).get("history", []))


def read_note(folder: Path) -> dict[str, Any]:
    """Our `history.json` of a folder without its nulls; empty if it is missing or somebody else's."""
    note = read_json(folder / HISTORY) if (folder / HISTORY).is_file() else {}
    if "etymon" not in note:
        return {}
    check_history(note, str(folder / HISTORY))
    entries = [_without_nulls(entry) for entry in note.get("history") or ()]
    return _without_nulls({**note, "history": entries or note.get("history")})


def _without_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
