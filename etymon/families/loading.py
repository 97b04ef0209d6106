"""Building and loading models. Every checkpoint is a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from etymon.checkpoints import bilm
from etymon.checkpoints.folder import ADAPTER_CONFIG, is_verifying, read_config, verified, verifying
from etymon.checkpoints.hub import SOURCE, resolve
from etymon.checkpoints.keys import check_history
from etymon.checkpoints.peft import read_adapter_config
from etymon.checkpoints.sentences import read_sentences
from etymon.checkpoints.settings import pass_over
from etymon.checkpoints.weights import open_weights
from etymon.config import did_you_mean, strict
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.checkpoint import (
    LABELLING,
    extra_heads,
    fill,
    fill_int8,
    name_map,
    recognise_family,
    require_finite,
    stored_heads,
    stored_labels,
    unnamed_labels,
)
from etymon.families.family import Family
from etymon.families.memory import require_stored, require_weights
from etymon.families.model import FEATURES_KEY, Model
from etymon.families.special_tokens import leave_out_unusable_ids, reading_settings
from etymon.files import read_json
from etymon.nn.features import FeatureSettings
from etymon.nn.initialise import align
from etymon.text.framing import ReadingSettings
from etymon.text.tokenizer import Tokenizer

HISTORY = "history.json"
"""Beside the published files: which heads the folder holds and how it was trained."""
MEMBERS = ("model", "discriminator", "generator")
"""Where a run keeps the models that it trained, the one that is meant first."""
GENERATION = "generation_config.json"
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model",
)  # fmt: skip


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
    """A new model with first values: a published or pocket size, with the given fields of its shape changed. With `features`,
    its task heads read those."""
    known = get_family(family) if isinstance(family, str) else family
    heads = frozenset(known.architectures[0].heads if heads is None else heads)
    chosen = shape_of(known, size, **(shape or {}))
    require_weights(known, chosen, heads, labels, features, f"to build {known.title} of this shape")
    return Model(known, chosen, heads, labels, features).initialise(seed)


def shape_of(family: Family, size: str | None = None, **changed: Any) -> Any:
    """The shape of a size, the first one unless told, with any field changed by name."""
    size = size or next(iter(family.sizes))
    if size not in family.sizes:
        raise EtymonError(f"{family.title} has no size {size!r}: {did_you_mean(size, family.sizes)}")
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

    Everything must fit. Asking for other `heads` than the checkpoint's is fine: those that it lacks are initialised
    and listed in `model.new_heads`, and so are those for other `labels` than it was trained for. With other `features` than its own, task heads start anew and read those. With `partial`,
    missing and unexpected weights are tolerated as well. `family` is for a folder that does not say what it is.
    `ignore_config_keys` are passed over in its `config.json`, whatever they say. `quantize` rounds the weights to eight bits, for inference on a processor.
    With `verify`, a file that is not what we saved is refused, and so are weights that are NaN or infinite.
    """
    folder, verify = model_folder(name, revision=revision), verify and is_verifying()
    with pass_over(ignore_config_keys), verifying(verify), verified(folder) if verify else nullcontext():
        model = _read(folder, heads, labels, features, family, partial, seed)
    if verify:
        require_finite(model, folder)
    return _placed(model, quantize, device)


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
    config, where = _config(folder), str(folder / "config.json")
    published = bilm.published(folder)
    weights = open_weights(folder) if published is None else bilm.read_weights(published)
    family = recognise_family(config, lambda: weights, where, family)
    stored = stored_heads(family, config, _note(folder), weights)
    told = {**config, "model_type": family.model_type}
    fields, carried = family.settings.read(told, where, stored)
    shape: Any = strict(family.shape, fields, where)
    require_stored(family, shape, weights, where)
    own_features = carried.pop(FEATURES_KEY, None)
    held = (
        family if own_features is None else family.with_features(strict(FeatureSettings, own_features, where))
    )
    chosen = heads is not None or features is not None
    learnt, known = stored_labels(family, config, weights, stored), stored
    if labels is None or set(labels) == set(learnt):
        labels = learnt  # in the order of the outputs
    elif not _same_outputs(labels, learnt, carried):
        known, chosen = family.with_required(stored) - LABELLING, True  # these know other labels
    wanted = stored if heads is None else frozenset(heads)
    require_weights(held, shape, wanted, labels, features, f"to open {folder}")
    model = Model(held, shape, wanted, labels, features)
    known = known if model.features == held.features else known - model.family.reading_features
    model.shape = family.settled(shape)
    model.carried, model.generation = carried, _generation(folder)
    leave_out_unusable_ids(model, folder)
    model.history = read_history(folder)
    model.sentences = read_sentences(folder)
    if model.int8:
        fill_int8(model, weights, folder)
    else:
        fill(
            model, weights, name_map(held, shape, extra_heads(weights)), known, folder, chosen, partial, seed
        )
    reading = reading_settings(model, stored, model.history)
    model.tokenizer = _tokenizer(family, folder, shape.vocabulary, reading)
    if published is not None:  # letters are read, whatever words are known
        model.tokenizer = Tokenizer.of_words(family.tokenizer.specials, family.framing)
    model.source_tokenizer = _tokenizer(family, folder / SOURCE, model.source_vocabulary)
    if getattr(shape, "source_vocabulary", None) and model.tokenizer and not model.source_tokenizer:
        raise EtymonError(
            f"{folder} has no {SOURCE}/tokenizer.json, and the model reads sources with a tokenizer of its own: put it there"
        )
    return model


def _same_outputs(labels: Sequence[str], learnt: Sequence[str], carried: Mapping[str, Any]) -> bool:
    """Whether outputs may stand for other labels: they have no names of their own, or the only one is a number."""
    number = len(learnt) == 1 and carried.get("problem_type") == "regression"
    return len(labels) == len(learnt) and (number or learnt == unnamed_labels(len(learnt)))


def _placed(model: Model, quantize: str | None, device: str | torch.device) -> Model:
    if quantize is not None:
        model.quantized()
    if model.int8 and torch.device(device).type != "cpu":
        raise EtymonError(f"weights of eight bits are for a processor, not for {device}: say --device cpu")
    align(model)
    return model.to(device).eval()


def _tokenizer(
    family: Family, folder: Path, words: int, reading: ReadingSettings | None = None
) -> Tokenizer | None:
    if not any((folder / file).is_file() for file in TOKENIZER_FILES):
        return None
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > words:
        raise EtymonError(
            f"the tokenizer in {folder} has {tokenizer.size} ids, but the model has only {words} word vectors: "
            "they do not belong together"
        )
    if set(family.framing.roles) <= set(tokenizer.roles):
        tokenizer.framing = family.framing
    if reading is not None:
        tokenizer.forget_reading(reading)
    return tokenizer


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
    config, where = _config(folder), str(folder / "config.json")
    family = recognise_family(config, lambda: open_weights(folder), where)
    told = {**config, "model_type": family.model_type}
    return family, strict(family.shape, family.settings.read(told, where, heads=frozenset())[0], where)


def _config(folder: Path) -> dict[str, Any]:
    """A folder's `config.json`, or what it would be of a published ELMo, which knows no words but marks."""
    if (published := bilm.published(folder)) is None:
        return read_config(folder)
    elmo = get_family("elmo")
    words = len(elmo.tokenizer.specials)
    return {"model_type": elmo.model_type, "vocabulary": words, **bilm.read_shape(published)}


def model_folder(name: str | Path, *, revision: str | None = None, head: str | None = None) -> Path:
    """The model's folder behind a path, a run's folder or a hub id. Of several models in a run's folder, the first one that has
    the `head`, if one does: an ELECTRA's vocabulary is the generator's."""
    folder = resolve(str(name), revision=revision)
    files = ("config.json", ADAPTER_CONFIG)
    places = [
        place
        for place in (folder, *(folder / member for member in MEMBERS))
        if any((place / file).is_file() for file in files)
    ]
    first = (*places, folder)[0]
    if head is None or first == folder:
        return first
    return next((place for place in places if head in _note(place).get("heads", ())), first)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """How the model in a folder was trained, as far as it was told."""
    return list(_note(folder).get("history", []))


def _generation(folder: Path) -> dict[str, Any] | None:
    return read_json(folder / GENERATION) if (folder / GENERATION).is_file() else None


def _note(folder: Path) -> dict[str, Any]:
    found = read_json(folder / HISTORY) if (folder / HISTORY).is_file() else {}
    if "etymon" not in found:
        return {}  # others have files of this name, too
    check_history(found, str(folder / HISTORY))
    # Null says nothing, here and in an entry.
    told = {key: value for key, value in found.items() if value is not None}
    if "history" in told:
        told["history"] = [
            {key: value for key, value in entry.items() if value is not None} for entry in told["history"]
        ]
    return told
