"""What a checkpoint of another layout is read as, and how its names become the hub's."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from etymon.checkpoints.weights import Weights
from etymon.errors import EtymonError
from etymon.files import some

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ForeignModel:
    """A checkpoint of another layout as the Hugging Face folder that it would be."""

    kind: str
    """What it is, in a few words."""
    config: dict[str, Any]
    """As `config.json` would have it."""
    open_weights: Callable[[], Mapping[str, Tensor]]
    """Tensors by the hub's names, each read when it is asked for."""
    weight_files: Sequence[Path]
    """Where they lie."""
    files: Mapping[str, Path | str] = field(default_factory=dict)
    """The files of its tokenizer by the names that they have in a Hugging Face folder: where each lies, or
    what it says."""
    note: str = ""
    """What was left aside; empty if nothing was."""
    reads_letters: bool = False
    """Whether it needs no list of words, and brings none."""

    @contextmanager
    def tokenizer_folder(self, source: Path) -> Iterator[Path]:
        """A folder with the tokenizer's files under their usual names, as long as it is needed."""
        with tempfile.TemporaryDirectory(prefix="etymon-tokenizer-") as place:
            try:
                for name, content in self.files.items():
                    data = content.encode() if isinstance(content, str) else content.read_bytes()
                    (Path(place) / name).write_bytes(data)
                yield Path(place)
            except OSError as error:
                raise EtymonError(f"cannot read {error.filename}: {error.strerror}") from error
            except EtymonError as error:  # speak of the folder that was given, not of the one beside it
                raise EtymonError(str(error).replace(place, str(source))) from error


# --- names


def same(tensor: Tensor) -> Tensor:
    return tensor


def transpose(tensor: Tensor) -> Tensor:
    """TensorFlow's matrices are `[in, out]`, the hub's `[out, in]`."""
    return tensor.T.contiguous() if tensor.dim() == 2 else tensor


LEAVES: dict[str, tuple[str, Change]] = {
    "kernel": ("weight", transpose),
    "bias": ("bias", same),
    "gamma": ("weight", same),
    "beta": ("bias", same),
}
"""The last part of a name in TensorFlow: what it is on the hub, and what becomes of the numbers."""


@dataclass(frozen=True)
class NameRule:
    """`{}` stands for a number, which is kept. A final `*` stands for one of `leaves`, which say what becomes
    of it. `~` stands for anything within one part of a name, which is not kept."""

    theirs: str
    hub: str
    change: Change = same
    leaves: Mapping[str, tuple[str, Change]] = field(default_factory=lambda: LEAVES)

    def apply(self, name: str) -> tuple[str, Change] | None:
        """The hub's name and what to do with the tensor; None where the rule does not fit."""
        escaped = re.escape(self.theirs).replace(r"\{\}", r"(\d+)").replace("\\~", "~").replace("~", "[^/]+")
        if escaped.endswith(r"\*"):
            escaped = escaped.removesuffix(r"\*") + f"(?P<leaf>{'|'.join(self.leaves)})"
        match = re.fullmatch(escaped, name)
        if match is None:
            return None
        leaf = match.groupdict().get("leaf")
        # Without leading zeros: T5 counts its blocks as block_000.
        numbers = [str(int(part)) for part in match.groups() if part is not None and part != leaf]
        hub, change = self.hub.removesuffix("*"), self.change
        for number in numbers:
            hub = hub.replace("{}", number, 1)
        if leaf is None:
            return hub, change
        hub_leaf, change = self.leaves[leaf]
        return hub + hub_leaf, change


Pieces = dict[str, tuple[str, Change]]
"""The hub's name -> the stored name, and what to do with what is read."""


def translate(stored: Iterable[str], rules: Sequence[NameRule]) -> tuple[Pieces, list[str]]:
    """What the rules make of stored names, and those that no rule knows."""
    pieces: Pieces = {}
    unknown = []
    # The first rule that fits wins. Rules are few, and are compiled once (`re` keeps them).
    for name in stored:
        result = next(filter(None, (rule.apply(name) for rule in rules)), None)
        if result is None:
            unknown.append(name)
        else:
            pieces[result[0]] = (name, result[1])
    return pieces, unknown


def weights_of(pieces: Pieces, read: Callable[[str], Tensor], files: Sequence[Path]) -> Weights:
    """Tensors by the hub's names out of what `read` gives by the stored ones."""

    def reader(hub: str) -> Tensor:
        name, change = pieces[hub]
        return change(read(name))

    return Weights(dict.fromkeys(pieces, reader), list(files))


def refuse_unknown(unknown: Sequence[str], where: Path, title: str) -> None:
    if unknown:
        raise EtymonError(
            f"{where} has weights that no {title} has: {some(sorted(unknown), 3)}; it is of another kind, "
            "or of code that is not known here"
        )
