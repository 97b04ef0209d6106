"""Files to repositories of the Hugging Face hub: a commit a revision, and nothing that is there already."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
ON = {"1", "ON", "YES", "TRUE"}
REPLACED = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "curves.png", "run.yaml")
"""Names of a former upload that would mislead beside a new one: removed from a revision that has them no
more."""


@dataclass(frozen=True)
class UploadRevision:
    """A branch, and the files that it is to have."""

    name: str
    files: Mapping[str, Path | bytes]
    """By their names in the repository."""

    def sizes(self) -> dict[str, int]:
        return {
            name: len(content) if isinstance(content, bytes) else content.stat().st_size
            for name, content in sorted(self.files.items())
        }


@dataclass(frozen=True)
class UploadedRevision:
    """What became of one."""

    name: str
    files: int
    bytes: int
    commit: str | None
    """None: everything was there already, and there is no new commit."""


def require_repository_name(name: str) -> None:
    """Refuses a name that the hub would refuse, before anything is done."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise EtymonError(f"{name!r} is no possible name of a repository: {_first_line(error)}") from error
    if "/" not in name:
        raise EtymonError(f"{name!r} does not say whose it is: give owner/name, as in ada/{name}")


def require_revision_name(name: str) -> None:
    """Refuses what git would refuse as a branch."""
    if not re.fullmatch(r"(?!.*(\.\.|//|@\{|\.lock$|\.lock/))[\w][\w./+-]*[\w+-]|\w", name):
        raise EtymonError(f"{name!r} is no possible name of a branch: use letters, digits, dots and dashes")


def hub_token() -> str | None:
    """The token of the environment (HF_TOKEN) or of the hub's own login."""
    from huggingface_hub import get_token

    return get_token()


def upload(
    repository: str,
    revisions: Sequence[UploadRevision],
    *,
    private: bool,
    message: str,
    on_revision: Callable[[UploadedRevision], object] = lambda done: None,
) -> str:
    """Makes the repository if there is none, and the revisions in their order, and returns its address.

    What has arrived stays when a later part fails: the same call goes on, and the hub takes nothing twice.
    """
    from huggingface_hub import HfApi

    token = hub_token()
    if token is None:
        raise EtymonError(
            "there is no token for the hub: log in with `hf auth login`, "
            "or set HF_TOKEN to one that may write"
        )
    if any(os.environ.get(name, "").upper() in ON for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        raise EtymonError("offline mode is on (HF_HUB_OFFLINE), and an upload needs the hub: switch it off")
    # `HfApi` has the endpoint of its import; here it is the one of the call.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token, library_name="etymon")
    with _refusals(repository), _quiet():
        api.whoami()  # a token that is not valid would otherwise look like a missing repository
        # None leaves the owner's usual choice, and False would make it public.
        address = str(api.create_repo(repository, private=private or None, exist_ok=True))
        for revision in revisions:
            if revision.name != MAIN:  # which every repository has from the beginning
                api.create_branch(repository, branch=revision.name, exist_ok=True)
            on_revision(_commit(api, repository, revision, message))
    return address


def _commit(api: HfApi, repository: str, revision: UploadRevision, message: str) -> UploadedRevision:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    # A branch may have been begun from a main one with other files.
    present = api.list_repo_files(repository, revision=revision.name)
    stale = [
        name
        for name in present
        if name not in revision.files and any(fnmatch(name, pattern) for pattern in REPLACED)
    ]
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
        for name, content in sorted(revision.files.items())
    ]
    operations += [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in stale]
    before = api.repo_info(repository, revision=revision.name).sha
    made = api.create_commit(repository, operations, commit_message=message, revision=revision.name)
    sizes = revision.sizes()
    # Without a difference the library makes no commit, and gives the last one.
    commit = None if made.oid == before else made.oid
    return UploadedRevision(revision.name, len(sizes), sum(sizes.values()), commit)


@contextmanager
def _quiet() -> Iterator[None]:
    """The library's own warnings, of commits without a difference, are said here in other words."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _refusals(repository: str) -> Iterator[None]:
    """The library's errors as one line each."""
    from huggingface_hub.errors import HfHubHTTPError

    # The bases of the hub's own error: OSError, and whatever its HTTP client raises in mid-transfer.
    transfer_errors: tuple[type[Exception], ...] = tuple(
        base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)
    )
    # A failed thread is a RuntimeError, an answer that is none of the hub's a ValueError.
    failures: tuple[type[Exception], ...] = (*transfer_errors, RuntimeError, ValueError)
    try:
        yield
    except EtymonError:
        raise
    except failures as error:
        # A thread that sends a large file wraps what it met.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if status in (401, 403):
            raise EtymonError(
                f"the hub refused the upload to {repository} ({status}): check that the name is yours "
                "and that the token may write (hf auth login)"
            ) from error
        if status == 413 or status == 507:
            raise EtymonError(
                f"the hub has no room for {repository} ({status}): {_first_line(cause)}"
            ) from error
        reason = f"it answered {status}" if status else _first_line(cause)
        raise EtymonError(
            f"uploading to {repository} failed ({reason}); run the same again to go on: what has arrived is "
            "not sent twice"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
