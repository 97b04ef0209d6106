"""From what a user types (a folder or a Hugging Face hub id) to a folder on this machine."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from etymon.checkpoints.sentences import MODULES, PROMPTS, READING
from etymon.checkpoints.weights import ADAPTERS, INDEX, WHOLE
from etymon.errors import EtymonError
from etymon.files import read_json

# What we read, and nothing else: repositories also carry TensorFlow, Flax, ONNX and Core ML copies.
WANTED = [
    "config.json",
    "adapter_config.json",
    "history.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "token_counts.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    MODULES,
    PROMPTS,
    READING,
]
PICKLES = ["pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_model.bin"]
SUBFOLDERS = ["*/*"]  # a pattern's * also matches slashes
# The folder of the tokenizer that reads the source, where a model has two.
SOURCE = "source"


def resolve(name_or_folder: str | os.PathLike[str], *, revision: str | None = None) -> Path:
    """The folder of a model: a local one as it is, or a hub repository, downloaded into the hub's cache.

    HF_HUB_OFFLINE (only what is in the cache), HF_ENDPOINT and HF_HUB_CACHE are honoured as they are at the
    time of the call.
    """
    name = os.fspath(name_or_folder)
    if not name.strip():
        raise EtymonError(
            "the name of the model is empty; give a folder or a hub id such as openai-community/gpt2",
            code="no-model",
        )
    folder = Path(name).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise EtymonError(
                f"{name} is a local folder and has no revisions; leave out the revision {revision!r}"
            )
        return folder
    if folder.exists():
        raise EtymonError(f"{name} is a file; give the folder it is in", code="no-model")
    if not isinstance(name_or_folder, str) or _looks_like_path(name):
        raise EtymonError(f"no such folder: {name}{_similar(name)}", code="no-model")
    return _download(name, revision, _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE"))


# A hub id has at most one slash: whatever else looks like a path is one, and no request is sent for it.
def _looks_like_path(name: str) -> bool:
    separators = {os.sep, os.altsep or os.sep}
    if name in (".", "..") or name.startswith("~") or Path(name).is_absolute():
        return True
    if any(name.startswith(dots + separator) for dots in (".", "..") for separator in separators):
        return True
    return sum(name.count(separator) for separator in separators) > 1


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}


def _download(name: str, revision: str | None, offline: bool) -> Path:
    # Imported here: it costs a tenth of a second that local folders need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The bases of the hub's own error: OSError, and whatever its HTTP client raises in mid-transfer.
    transfer_errors = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    endpoint = os.environ.get("HF_ENDPOINT") or None

    def fetch(patterns: list[str], revision: str | None, ignored: list[str] | None = SUBFOLDERS) -> Path:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=os.environ.get("HF_HUB_CACHE") or None,
            local_files_only=offline,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            endpoint=endpoint,
            library_name="etymon",
        )
        return Path(folder)

    try:
        folder = fetch(WANTED, revision)
        if not any((folder / name).exists() for name in (WHOLE, INDEX, ADAPTERS)):
            # The snapshot's name is its commit: the same revision for sure.
            folder = fetch(PICKLES, folder.name)
        if (folder / "config.json").is_file() and read_json(folder / "config.json").get("source_vocabulary"):
            fetch([f"{SOURCE}/token*.json"], folder.name, None)
        if (folder / MODULES).is_file():
            fetch(["*_Pooling/config.json"], folder.name, None)
        return folder
    # The order matters: the later kinds include the earlier ones.
    except HFValidationError as error:
        raise EtymonError(
            f"{name!r} is neither a folder here nor a possible hub id (owner/name); check the spelling",
            code="no-model",
        ) from error
    except LocalEntryNotFoundError as error:
        # It was reached, and looking into the cache did not help.
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _access_error(name, error.__cause__.response.status_code) from error
        if offline:
            raise EtymonError(
                f"{name} is no folder here{_similar(name)} and not complete in the local cache, and "
                "offline mode is on; "
                "go online once (HF_HUB_OFFLINE=0) or give a local folder",
                code="no-model",
            ) from error
        raise EtymonError(
            f"{name} is no folder here{_similar(name)} and not complete in the local cache, and "
            f"{endpoint or 'the hub'} "
            "cannot be reached; check the name or the connection",
            code="no-model",
        ) from error
    except GatedRepoError as error:
        raise EtymonError(
            f"{name} is gated; accept its terms on its hub page, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise EtymonError(
            f"there is no model {name}: no such folder here{_similar(name)} and no such repository on "
            "the hub; check the "
            "spelling, or log in with `hf auth login` if it is private",
            code="no-model",
        ) from error
    except RevisionNotFoundError as error:
        raise EtymonError(f"{name} has no revision {revision!r}; give a branch, a tag or a commit") from error
    except HfHubHTTPError as error:
        raise _access_error(name, error.response.status_code) from error
    except transfer_errors as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EtymonError(f"downloading {name} failed ({reason}); run the same again to go on") from error


def _similar(name: str) -> str:
    """What a folder here is called almost alike, for the message."""
    path = Path(name).expanduser()
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    close = get_close_matches(path.name, [each.name for each in beside if each.is_dir()], n=1)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""


def _access_error(name: str, status: int) -> EtymonError:
    if status in (401, 403):
        return EtymonError(
            f"the hub refused access to {name}; check the spelling, or log in with `hf auth login` if it "
            "is private"
        )
    return EtymonError(f"the hub answered {status} when asked for {name}; try again later")
