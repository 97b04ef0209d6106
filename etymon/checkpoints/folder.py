"""A model folder as a whole: its config, writing it in one piece, and whether its files are still what was
saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from etymon.checkpoints.keys import ConfigKeys
from etymon.checkpoints.weights import ADAPTERS, SHARD_SIZE, WHOLE, write_weights
from etymon.config import check_keys
from etymon.errors import EtymonError
from etymon.files import atomic_folder, finite, holds, read_json, sha256, some, write_json
from etymon.plugin_settings import note_records, read_records
from etymon.plugins import PluginRecord
from etymon.registry import TABLES

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
# The names of the files that we wrote, which a later save may replace, and digests of some.
MANIFEST = "etymon.json"
EXPORT_RECORD = "export.json"
"""In the folder of an export, which is for another runtime."""
# Files with a digest in the manifest: those that nobody edits by hand, and whose damage would not be seen. A
# configuration or a card may be edited, and Transformers writes a tokenizer anew.
DIGESTED = "*.safetensors"
# Keys that Transformers and PEFT write into every configuration, and we into none.
FOREIGN_KEYS = {"transformers_version", "auto_mapping"}

_is_on: ContextVar[bool] = ContextVar("whether models are verified", default=True)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The config.json of a model folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise EtymonError(f"no such folder: {folder}", code="no-model")
    if not (folder / CONFIG).is_file():
        raise EtymonError(
            f"no {CONFIG} in {folder}, but {holds(folder)}; give the folder of a saved model", code="no-model"
        )
    # Before anything of it is understood: without its plugin, it would be a family that nobody knows.
    recognise_plugins(folder)
    config = read_json(folder / CONFIG)
    check_keys(ConfigKeys, config, str(folder / CONFIG))
    return config


def write_model_folder(
    folder: str | os.PathLike[str],
    *,
    config: dict[str, Any],
    weights: Mapping[str, torch.Tensor] | None,
    generation_config: dict[str, Any] | None = None,
    card: str = "",
    tokenizer_saver: Callable[[Path], None] | None = None,
    extra: Mapping[str, Callable[[Path], object]] | None = None,
    adapters: bool = False,
    plugins: Sequence[Mapping[str, str]] = (),
) -> None:
    """Write a Hugging Face model folder; it appears complete or not at all, and an older one of ours is
    replaced.

    Without `weights` (None), they are kept elsewhere. `adapters` says that config and weights are those of
    adapters, which have files of their own. `tokenizer_saver` is given the folder. `extra` maps names to
    functions that are given `folder/name`, and write a file or a folder there. `plugins` are records of what
    the model was made with, beside what is built in.
    """
    # A link would be replaced by a folder, and "." has no name to put things beside.
    folder = Path(os.path.realpath(folder))
    ensure_replaceable(folder)
    with atomic_folder(folder) as aside:
        try:
            write_json(aside / (ADAPTER_CONFIG if adapters else CONFIG), finite(config))
            if weights is not None:
                write_weights(aside, weights, None if adapters else SHARD_SIZE)
            if adapters:
                (aside / WHOLE).rename(aside / ADAPTERS)
            if generation_config is not None:
                write_json(aside / "generation_config.json", finite(generation_config))
            if card:
                (aside / "README.md").write_text(card, encoding="utf-8", newline="\n")
            if tokenizer_saver is not None:
                tokenizer_saver(aside)
            for name, save in (extra or {}).items():
                if (aside / name).exists():
                    raise ValueError(f"{name} is already part of the model folder")
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                save(aside / name)
            names = _files(aside)
            digests = {name: sha256(aside / name) for name in names if fnmatch(Path(name).name, DIGESTED)}
            manifest: dict[str, Any] = {"files": [*names, MANIFEST], "sha256": digests}
            write_json(aside / MANIFEST, manifest | ({"plugins": list(plugins)} if plugins else {}))
        except EtymonError as error:  # speak of the folder that was asked for, not of the one beside it
            raise EtymonError(str(error).replace(str(aside), str(folder)), code=error.code) from error


def ensure_replaceable(folder: str | os.PathLike[str]) -> None:
    """Refuse a target that holds anything we did not write. Ask before the long work, not after it."""
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise EtymonError(f"{folder} is a file, and a folder is to be written there; give another name")
    if not any(folder.iterdir()):
        return
    if not (folder / MANIFEST).is_file():
        raise EtymonError(
            f"{folder} was not written by etymon ({holds(folder)}) and is left alone; give another folder",
            code="folder-taken",
        )
    foreign = sorted(set(_files(folder)) - set(read_json(folder / MANIFEST).get("files", ())))
    if foreign:
        raise EtymonError(
            f"{folder} also holds files that etymon did not write ({some(foreign, 5)}); move them or "
            "give another folder",
            code="folder-taken",
        )


def checksums(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The SHA-256 digest of every file below `folder`, by its path inside (with forward slashes), sorted.

    `folder` was written just now: digests that its model folders hold already are taken from there.
    """
    names = _files(Path(folder))
    saved: dict[str, str] = {}
    for manifest in (Path(name) for name in names if Path(name).name == MANIFEST):
        digests = saved_digests(Path(folder) / manifest.parent)
        saved |= {(manifest.parent / name).as_posix(): digest for name, digest in digests.items()}
    return {name: saved.get(name) or sha256(Path(folder, name)) for name in names}


def verify_checksums(folder: str | os.PathLike[str], manifest: Mapping[str, str]) -> None:
    """Raise an error that names the first file of `manifest` which is missing from `folder` or has
    changed."""
    for name, digest in manifest.items():
        try:
            problem = "" if sha256(Path(folder, name)) == digest else "is not what was saved"
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            problem = "is missing" if is_missing else f"cannot be read: {error.strerror}"
        if problem:
            raise EtymonError(
                f"the checkpoint {folder} is broken: {name} {problem}; use an older one", code="damaged-model"
            )


def _files(folder: Path) -> list[str]:
    """The paths of all files below a folder, with forward slashes, sorted. A link to a folder counts as a
    file."""
    names = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        names += [Path(parent, name).relative_to(folder).as_posix() for name in files + links]
    return sorted(names)


# --- whether its files are still what was saved


@contextmanager
def verifying(is_wanted: bool) -> Iterator[None]:
    """Within it, models are verified as they are opened, or not."""
    token = _is_on.set(is_wanted)
    try:
        yield
    finally:
        _is_on.reset(token)


def is_verifying() -> bool:
    """Whether models are to be verified as they are opened."""
    return _is_on.get()


@contextmanager
def verified(folder: Path) -> Iterator[None]:
    """Compares the files of a model folder with the digests that it was written with, while the body reads
    them.

    Threads do it, so that on a second core it takes no time of its own. A file that has changed is the error,
    whatever else the body may have met; a folder of somebody else has no digests, and nothing is compared.
    """
    digests = {name: digest for name, digest in saved_digests(folder).items() if (folder / name).is_file()}
    # Hashing leaves Python's lock alone, so threads run beside the reading of weights.
    with ThreadPoolExecutor(max(1, min(4, len(digests)))) as pool:
        actual = {name: pool.submit(sha256, folder / name) for name in digests}
        try:
            yield
        except Exception as error:
            # A changed file explains best whatever the reading met.
            _compare(folder, digests, actual, error)
            raise
        _compare(folder, digests, actual)


def _compare(
    folder: Path,
    digests: Mapping[str, str],
    actual: Mapping[str, Future[str]],
    cause: Exception | None = None,
) -> None:
    for name, digest in digests.items():
        try:
            changed = actual[name].result() != digest
        except OSError as error:
            raise EtymonError(f"cannot read {folder / name}: {error.strerror or error}") from error
        if changed:
            raise EtymonError(
                f"{folder / name} is not what was saved (its checksum differs from {MANIFEST}): copy the "
                "folder again; if it "
                f"was changed on purpose, say --no-verify (verify=False), or remove {MANIFEST}",
                code="damaged-model",
            ) from cause


def saved_plugins(folder: Path) -> list[PluginRecord]:
    """The plugins that a model was made with, as its manifest says; nothing of them is opened."""
    if not (folder / MANIFEST).is_file():
        return []
    return read_records(read_json(folder / MANIFEST).get("plugins", []), str(folder / MANIFEST))


def recognise_plugins(folder: Path) -> None:
    """Notes plugins of a model that have changed since it was saved. Refuses one whose family is not here: a
    folder brings no code."""
    records = saved_plugins(folder)
    # Asked for by name, so that what an opened plugin or an installed package has is there to be compared.
    missing = [
        record for record in records if record.kind in TABLES and record.name not in TABLES[record.kind]
    ]
    note_records(records, str(folder))
    for record in missing:
        if record.kind == "family":
            raise EtymonError(
                f"{folder} is a model of the family {record.name!r} of the plugin {record.source}, and a "
                f"folder brings no code: {record.advice}",
                code="plugin",
            )


def saved_digests(folder: Path) -> dict[str, str]:
    """The digests in a folder's manifest; none if it has no manifest or one of an older release, or if
    Transformers or PEFT have saved another model over ours."""
    if not (folder / MANIFEST).is_file():
        return {}
    for name in (CONFIG, ADAPTER_CONFIG):
        # Saved over by another library: the digests are those of files that are gone.
        if (folder / name).is_file() and FOREIGN_KEYS & read_json(folder / name).keys():
            return {}
    digests = read_json(folder / MANIFEST).get("sha256", {})
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise EtymonError(f"{folder / MANIFEST} is damaged: its sha256 is no table of digests; remove it")
    return digests
