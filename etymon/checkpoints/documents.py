"""JSON documents on disk, and what to say when they are missing or broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.files import atomic_write


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in the file `path`."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EtymonError(f"no such file: {path}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise EtymonError(
            f"{path} is not valid JSON ({error.msg} at {where}); correct or replace it"
        ) from error
    except UnicodeDecodeError as error:
        raise EtymonError(f"{path} is not UTF-8 text; replace it") from error
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
    if not isinstance(value, dict):
        raise EtymonError(
            f"{path} holds a JSON {type(value).__name__} where an object was expected; replace it"
        )
    return value


def write_json(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write `value` the way Transformers writes its configs: two spaces, sorted keys, a last newline.

    Numbers that JSON does not have (NaN, infinity) are a ValueError: other readers would choke on them.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text + "\n")


def holds(folder: Path, limit: int = 8) -> str:
    """What is in `folder`, for an error message: "it holds: a, b, c and 4 more"."""
    names = sorted(entry.name for entry in os.scandir(folder))
    if not names:
        return "it is empty"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"it holds: {', '.join(names[:limit])}{more}"
