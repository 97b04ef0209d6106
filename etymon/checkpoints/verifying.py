"""Whether the files of a model folder are still what was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path

from etymon.errors import EtymonError
from etymon.files import read_json, sha256

MANIFEST = "etymon.json"
"""The names of the files that we wrote, which a later save may replace, and digests of some."""
DIGESTED = ("*.safetensors",)
"""Files with a digest in the manifest: those that nobody edits by hand, and whose damage would not be seen. A configuration
or a card may be edited, and Transformers writes a tokenizer anew."""
CONFIGS = ("config.json", "adapter_config.json")
FOREIGN = {"transformers_version", "auto_mapping"}
"""Keys that Transformers and PEFT write into every configuration, and we into none."""

_is_on: ContextVar[bool] = ContextVar("whether models are verified", default=True)


@contextmanager
def verifying(wanted: bool) -> Iterator[None]:
    """Within it, models are verified as they are opened, or not."""
    token = _is_on.set(wanted)
    try:
        yield
    finally:
        _is_on.reset(token)


def is_verifying() -> bool:
    """Whether models are to be verified as they are opened."""
    return _is_on.get()


@contextmanager
def verified(folder: Path) -> Iterator[None]:
    """Compares the files of a model folder with the digests that it was written with, while the body reads them.

    Threads do it, so that on a second core it takes no time of its own. A file that has changed is the error, whatever
    else the body may have met; a folder of somebody else has no digests, and nothing is compared.
    """
    digests = {name: digest for name, digest in saved_digests(folder).items() if (folder / name).is_file()}
    with ThreadPoolExecutor(max(1, min(4, len(digests)))) as pool:
        actual = {name: pool.submit(sha256, folder / name) for name in digests}
        try:
            yield
        except Exception as error:
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
                f"{folder / name} is not what was saved (its checksum differs from {MANIFEST}): copy the folder again; if it "
                f"was changed on purpose, say --no-verify (verify=False), or remove {MANIFEST}"
            ) from cause


def saved_digests(folder: Path) -> dict[str, str]:
    """The digests in a folder's manifest; none if it has no manifest or one of an older release, or if Transformers or PEFT
    have saved another model over ours."""
    if not (folder / MANIFEST).is_file():
        return {}
    for name in CONFIGS:
        if (folder / name).is_file() and FOREIGN & read_json(folder / name).keys():
            return {}
    digests = read_json(folder / MANIFEST).get("sha256", {})
    if not isinstance(digests, dict) or not all(isinstance(digest, str) for digest in digests.values()):
        raise EtymonError(f"{folder / MANIFEST} is damaged: its sha256 is no table of digests; remove it")
    return digests


def is_digested(name: str) -> bool:
    return any(fnmatch(Path(name).name, pattern) for pattern in DIGESTED)
