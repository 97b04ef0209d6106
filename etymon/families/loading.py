"""Building, loading and saving models. Every checkpoint is a Hugging Face folder, in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch

import etymon
from etymon.checkpoints import bilm
from etymon.checkpoints.documents import read_json, write_json
from etymon.checkpoints.folder import ADAPTER_CONFIG, read_config, write_model_folder
from etymon.checkpoints.hub import resolve
from etymon.checkpoints.names import NameMap, rows
from etymon.checkpoints.peft import read_adapter_config
from etymon.checkpoints.weights import open_weights
from etymon.config import did_you_mean, strict
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError
from etymon.families import family_of, get_family
from etymon.families.cards import card
from etymon.families.family import Family
from etymon.families.model import FEATURES_KEY, TOKEN_KEYS, Model
from etymon.nn.features import FeatureSettings
from etymon.nn.int8 import shrink
from etymon.nn.int8 import stored as stored_int8

HISTORY = "history.json"
"""Beside the published files: which heads the folder holds and how it was trained."""
OWN_TYPE = "etymon-"
"""Before the `model_type` of a folder whose maths Transformers does not have, so that it does not open it."""
BRANCH_ENDS = ("attention.output.", "cross.output.", "feed_forward.outer.")
"""The last maps of a layer's parts, into which a residual scale can be multiplied."""
MEMBERS = ("model", "discriminator")
"""Where a run keeps the model that it trained."""
OWN_PARTS = {
    "heads.vocabulary.pointer.*": "etymon_heads.vocabulary.pointer.*",
    "body.embeddings.words.tables.{}.*": "etymon_words.tables.{}.*",
    "body.embeddings.words.maps.{}.*": "etymon_words.maps.{}.*",
}
"""Parts that any decoder may have and few published ones have."""
SOURCE = "source"
"""Where the tokenizer of the source lies, if it has one of its own."""
GENERATION = "generation_config.json"
FORCED_KEYS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


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
    heads = known.architectures[0].heads if heads is None else heads
    return Model(known, shape_of(known, size, **(shape or {})), heads, labels, features).initialise(seed)


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
    ignore_config_keys: Sequence[str] = (),
    partial: bool = False,
    quantize: Literal["int8"] | None = None,
    seed: int = 0,
) -> Model:
    """A model from a folder or a hub id, in evaluation mode, with its tokenizer where the folder has one.

    Everything must fit. Asking for other `heads` than the checkpoint's is fine: those that it lacks are initialised
    and listed in `model.new_heads`. With other `features` than its own, task heads start anew and read those. With `partial`,
    missing and unexpected weights are tolerated as well. `quantize` rounds the weights to eight bits, for inference on a processor.
    """
    folder = model_folder(name, revision=revision)
    if (folder / ADAPTER_CONFIG).is_file():
        from etymon.families.adapters import load_adapted  # which stands on this file

        options: dict[str, Any] = {"seed": seed, "ignore_config_keys": ignore_config_keys}
        model = load_adapted(folder, heads=heads, labels=labels, features=features, **options)
        return _placed(model, quantize, device)
    config = _config(folder)
    family = family_of(str(config.get("model_type", "")).removeprefix(OWN_TYPE))
    where = str(folder / "config.json")
    fields, carried = family.settings.read({**_decoding(folder), **config}, where, ignore_config_keys)
    shape: Any = strict(family.shape, fields, where)
    published = bilm.published(folder)
    weights = open_weights(folder) if published is None else bilm.read_weights(published)
    stored = _stored_heads(family, config, _note(folder), shape, weights, where)
    told = carried.pop(FEATURES_KEY, None)
    held = family if told is None else family.featured(strict(FeatureSettings, told, where))
    chosen = heads is not None or features is not None
    if labels is None:
        names = carried.get(
            "id2label", {str(i): f"LABEL_{i}" for i in range(int(config.get("num_labels", 2)))}
        )
        labels = [str(names[key]) for key in sorted(names, key=int)]
    model = Model(held, shape, stored if heads is None else heads, labels, features)
    known = stored if model.features == held.features else stored - model.family.reading_features
    model.shape = family.settled(shape)
    model.carried = carried
    model.history = read_history(folder)
    if model.int8:
        _fill_int8(model, weights, folder)
    else:
        _fill(model, weights, _name_map(held, shape, stored), known, folder, chosen, partial, seed)
    model.tokenizer = _tokenizer(family, folder, shape.vocabulary)
    if published is not None:  # letters are read, whatever words are known
        model.tokenizer = Tokenizer.of_words(family.tokenizer.specials, family.framing)
    model.source_tokenizer = _tokenizer(family, folder / SOURCE, model.source_vocabulary)
    return _placed(model, quantize, device)


def _placed(model: Model, quantize: str | None, device: str | torch.device) -> Model:
    if quantize is not None:
        model.quantized()
    if model.int8 and torch.device(device).type != "cpu":
        raise EtymonError(f"weights of eight bits are for a processor, not for {device}: say --device cpu")
    return model.to(device).eval()


def _tokenizer(family: Family, folder: Path, words: int) -> Tokenizer | None:
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
    return tokenizer


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
    architecture = _best_architecture(family, model.asked)
    names = _name_map(family, model.shape, model.asked)
    named = {name: tensor.detach() for name, tensor in model.kept().items()}
    scale = shape.get("residual_scale", 1.0)
    own = any(shape[row.ours] != row.unless for row in family.settings.unpublished(shape))
    foreign = family.expressible(model.shape) and not own and (fold or scale == 1.0)
    foreign = foreign and not model.int8
    if foreign and scale != 1.0:
        ends = (name for name in named if any(end in name for end in BRANCH_ENDS))
        named |= {name: named[name] * scale for name in ends}
        shape["residual_scale"] = 1.0
    tokens = _token_ids(model)
    forced = {key: model.carried[key] for key in FORCED_KEYS if model.carried.get(key) is not None}
    config = {
        "architectures": [architecture.name] if foreign else [],
        "model_type": family.model_type if foreign else OWN_TYPE + family.model_type,
        **model.carried,
        **tokens,
        **family.settings.write(shape),  # last: the shape knows best what its weights mean
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
    if model.asked & {"classification", "tagging"}:
        config["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        config["label2id"] = {label: number for number, label in enumerate(model.labels)}
    if model.features is not None and model.asked & family.reading_features:
        config[FEATURES_KEY] = asdict(model.features)
    past = [_finite(entry) for entry in (model.history if history is None else history)]
    extra: dict[str, Callable[[Path], None]] = {HISTORY: lambda path: write_json(path, note)}
    if model.source_tokenizer is not None:
        extra[SOURCE] = model.source_tokenizer.save
    note = {"etymon": etymon.__version__, "heads": sorted(model.asked), "history": past}
    adapted, writes = model.lora is not None, "vocabulary" in model.asked and "state" in family.capabilities
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
        generation_config={**tokens, **forced} if writes and not adapted else None,
        card=card(model, shape, architecture.name if foreign else None, past, base),
        tokenizer_saver=None if model.tokenizer is None else model.tokenizer.save,
        extra=extra,
        adapters=adapted,
    )


def write_published(model: Model, folder: str | Path) -> None:
    """Writes an ELMo as bilm-tf and AllenNLP read it, without its heads."""
    if model.family.model_type != "elmo" or model.int8:
        raise EtymonError(f"only an ELMo of whole weights has bilm-tf's files, not this {model.family.title}")
    weights = {name: tensor.detach() for name, tensor in model.kept().items() if name.startswith("body.")}
    bilm.write(folder, model.shape_fields(), model.family.names(model.shape).export(weights))


def read_shape(name: str | Path, *, revision: str | None = None) -> tuple[Family, Any]:
    """Family and shape of the model behind a path, a run's folder or a hub id, without its weights."""
    folder = model_folder(name, revision=revision)
    if (folder / ADAPTER_CONFIG).is_file():
        base = read_adapter_config(folder)
        return read_shape(base["base_model_name_or_path"], revision=base.get("revision"))
    config = _config(folder)
    family = family_of(str(config.get("model_type", "")).removeprefix(OWN_TYPE))
    where = str(folder / "config.json")
    return family, strict(family.shape, family.settings.read(config, where, ())[0], where)


def _config(folder: Path) -> dict[str, Any]:
    """A folder's `config.json`, or what it would be of a published ELMo, which knows no words but marks."""
    if (published := bilm.published(folder)) is None:
        return read_config(folder)
    elmo = get_family("elmo")
    words = len(elmo.tokenizer.specials)
    return {"model_type": elmo.model_type, "vocabulary": words, **bilm.read_shape(published)}


def model_folder(name: str | Path, *, revision: str | None = None) -> Path:
    """The model's folder behind a path, a run's folder or a hub id."""
    folder = resolve(str(name), revision=revision)
    places = (folder, *(folder / member for member in MEMBERS))
    files = ("config.json", ADAPTER_CONFIG)
    return next((place for place in places if any((place / file).is_file() for file in files)), folder)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """How the model in a folder was trained, as far as it was told."""
    return list(_note(folder).get("history", []))


def _decoding(folder: Path) -> dict[str, Any]:
    """What `generation_config.json` says of the tokens that a text begins and ends with."""
    path = folder / GENERATION
    found = read_json(path) if path.is_file() else {}
    return {key: found[key] for key in FORCED_KEYS if found.get(key) is not None}


def _note(folder: Path) -> dict[str, Any]:
    found = read_json(folder / HISTORY) if (folder / HISTORY).is_file() else {}
    return found if "etymon" in found else {}  # others have files of this name, too


def _finite(value: Any) -> Any:
    """The same value with None for what JSON has no number for: a run may well have seen an infinite loss."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fill(
    model: Model,
    weights: Mapping[str, torch.Tensor],
    names: NameMap,
    stored: frozenset[str],
    folder: Path,
    chosen: bool,
    partial: bool,
    seed: int,
) -> None:
    """Copies the weights in, and refuses whatever does not fit."""
    family, parameters = model.family, model.kept()
    # Other heads than the checkpoint's were asked for: those it lacks start anew, those it has beyond are left out.
    absent = set(model.heads) - family.with_required(stored)
    new = {name for name in absent if any(ours.startswith(f"heads.{name}.") for ours in parameters)}
    fresh = tuple(f"heads.{name}." for name in new)
    wanted = {name: parameter.shape for name, parameter in parameters.items() if not name.startswith(fresh)}
    with torch.no_grad():
        result = names.read(weights, wanted, lambda name, tensor: parameters[name].copy_(tensor))
    groups = names.groups(wanted)
    # Buffers have a first value: old files do without them.
    result.missing = [name for name in result.missing if parameters[groups[name][1][0]].requires_grad]
    # A head that only serves others (BERT's pooler) is often stored with classes that have no use for it.
    serving = {head.after for head in family.heads.values() if head.after is not None}
    spare = serving - set(model.heads) if not chosen else set(family.heads)
    result.unexpected = [name for name in result.unexpected if _head_of(names, name) not in spare]
    if partial:
        new |= {
            groups[name][1][0].split(".")[1]
            for name in result.missing
            if groups[name][1][0].startswith("heads.")
        }
        missing_body = [name for name in result.missing if not groups[name][1][0].startswith("heads.")]
        result.missing, result.unexpected = missing_body, []
    if problems := result.problems():
        hint = "" if result.misshapen or result.conflicting else " (partial=True tolerates unexpected names)"
        raise EtymonError(f"the weights in {folder} do not fit {model.family.title}: {problems}{hint}")
    model.initialise(seed, only=sorted(new))
    model.new_heads = tuple(sorted(new))


def _fill_int8(model: Model, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Weights of eight bits lie under our own names."""
    try:
        shrink(model, model.shape.vocabulary, lambda name: weights[name])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    except KeyError as error:
        raise EtymonError(
            f"the eight-bit weights in {folder} have no {error.args[0]}: ask for the heads that it was stored with"
        ) from error


def _head_of(names: NameMap, stored: str) -> str | None:
    """The head that a stored name belongs to, whatever prefix it has or lacks."""
    for prefix in names.other_prefixes:
        stored = stored.removeprefix(prefix)
    return names.head_of(stored) or names.head_of(names.prefix + stored)


def _name_map(family: Family, shape: Any, heads: frozenset[str]) -> NameMap:
    """The family's map; heads beyond the best published class get rows of our own."""
    names = family.names(shape)
    extra = heads - _best_architecture(family, heads).heads
    own = {f"heads.{name}.*": f"etymon_heads.{name}.*" for name in sorted(extra)}
    pointer, *others = rows(OWN_PARTS)
    return replace(names, rows=[pointer, *rows(own), *names.rows, *others])


def _best_architecture(family: Family, heads: frozenset[str]) -> Any:
    """The published class with the most of these heads and no other."""
    fitting = [known for known in family.architectures if known.heads <= heads]
    return max(fitting, key=lambda known: len(known.heads))


def _stored_heads(
    family: Family,
    config: Mapping[str, Any],
    history: Mapping[str, Any],
    shape: Any,
    weights: Mapping[str, torch.Tensor],
    where: str,
) -> frozenset[str]:
    """Which heads a folder holds: as our own note says, as its class says, or as its names say."""
    if "heads" in history:
        return frozenset(history["heads"])
    names = family.names(shape)
    present = frozenset(head for name in weights if (head := _head_of(names, name)) is not None)
    classes = config.get("architectures") or []
    if not classes:
        return present - {family.heads[name].after for name in present}
    candidates = [known for known in family.architectures if known.name == classes[0]]
    if not candidates:
        known = [architecture.name for architecture in family.architectures]
        raise EtymonError(f"{where} names the class {classes[0]!r}: {did_you_mean(classes[0], known)}")
    fitting = [known for known in candidates if known.heads <= present or len(candidates) == 1]
    found = (fitting or candidates)[0].heads
    # A file may hold more than its class: BERT's published ones name the masked model and have both its heads.
    fuller = [known.heads for known in family.architectures if found < known.heads <= present]
    return max(fuller, key=len, default=found)


def _token_ids(model: Model) -> dict[str, int]:
    ids = {key: model.token(role) for role, key in TOKEN_KEYS.items() if role != "decoder_start"}
    if model.family.decoder_start is not None:
        ids["decoder_start_token_id"] = model.token(model.family.decoder_start)
    return {key: value for key, value in ids.items() if value is not None}
