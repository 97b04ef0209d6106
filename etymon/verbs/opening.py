"""What the verbs that use a model share: opening it, and reading texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etymon.errors import EtymonError

if TYPE_CHECKING:
    import torch

    from etymon.families.model import Model


def opened(
    model: str | Path | Model, device: str | None = None, quantize: Literal["int8"] | None = None
) -> Model:
    """A model with its tokenizer: loaded from a folder or hub id, or the one that was given."""
    import torch

    from etymon.families.loading import load

    target = None if device is None else _device(device)
    if isinstance(model, str | Path):
        where = str(model)
        usual = "cuda" if torch.cuda.is_available() and quantize is None else "cpu"
        chosen = load(model, device=target or usual, quantize=quantize)
    else:
        where = f"this {model.family.title}"
        chosen = model if target is None else model.to(target)
    if chosen.tokenizer is None:
        raise EtymonError(f"{where} has no tokenizer, so it cannot read text: put its tokenizer.json there")
    return chosen


def _device(name: str) -> torch.device:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise EtymonError(f"there is no device {name!r} here: say cpu, or cuda where there is one") from error
    return torch.device(name)


def texts_of(texts: str | Sequence[str], file: str | Path | None = None, *, lines: bool = True) -> list[str]:
    """Texts as given; "-" alone stands for the lines of standard input. `file` adds its lines, or itself as one."""
    if isinstance(texts, str):
        texts = [texts]
    if list(texts) == ["-"]:
        texts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    found = list(texts)
    if file is not None:
        try:
            content = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise EtymonError(f"cannot read {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise EtymonError(f"{file} is not UTF-8 text (byte {error.start}): convert it first") from error
        found += [line for line in content.splitlines() if line.strip()] if lines else [content]
    if not found:
        raise EtymonError("there is no text: give some, or - to read lines from standard input")
    return found
