"""One map of parameter names a family, as data, read in both directions.

A row relabels: it renames, transposes, and splits or joins along the output axis. It never changes a value,
so weights, gradients and optimiser moments all travel through the same map.

Patterns: `{}` stands for a number (kept), a final `*` for the rest of the name (kept).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from etymon.files import some

# Of norms, in files of TensorFlow's days.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Row:
    """`ours` and `theirs` name the same numbers; several of ours are joined, in order, into one of theirs.

    `transposed` says that their matrices are stored `[in, out]`, `lifted` that their vectors are stored `[1,
    out]`, and `their_shape` that their matrices have further axes, all but the first of which are one of
    ours.
    """

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False
    lifted: bool = False
    their_shape: tuple[int, ...] = ()

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Their tensor, out of ours."""
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        if self.lifted:
            return whole[None]
        whole = whole.T.contiguous() if self.transposed and whole.dim() == 2 else whole
        return whole.reshape(self.their_shape) if self.their_shape else whole

    def split(self, whole: Tensor) -> list[Tensor]:
        """Our tensors, out of theirs; of a tensor that has another form, as they are, for the caller to
        compare shapes."""
        if self.their_shape and whole.dim() == len(self.their_shape):
            whole = whole.flatten(1)
        if self.transposed and whole.dim() == 2:
            whole = whole.T
        if self.lifted and whole.dim() == 2 and len(whole) == 1:
            whole = whole[0]
        return list(whole.chunk(len(self.ours)))


def rows(table: Mapping[str, str], *, transposed: bool = False) -> list[Row]:
    """Rows from a table ours -> theirs."""
    return [Row((ours,), theirs, transposed) for ours, theirs in table.items()]


@dataclass
class Imported:
    """What did not fit when a checkpoint was read, by their names."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    conflicting: list[str] = field(default_factory=list)

    def problems(self) -> str:
        """One line that lists what does not fit; empty when all does."""
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "of another shape": self.misshapen,
            "stored twice with different values": self.conflicting,
        }
        return "; ".join(f"{kind}: {some(names)}" for kind, names in kinds.items() if names)


@dataclass(frozen=True)
class NameMap:
    """`prefix` is what their classes put before the names of the body. `ties` are stored copies (copy ->
    source): read when there, checked to be equal, not written. `stand_ins` may be read in place of a name
    that is absent. `copies` (copy -> source) are written beside their source for readers that want both, and
    passed over when read, whatever they hold. `tables` (name -> maker) follow from the shape, and nobody
    trains them: written for readers that want them, and compared where they are read. `ignored` are
    left-overs of old files.
    """

    rows: Sequence[Row]
    prefix: str = ""
    other_prefixes: Sequence[str] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def groups(self, ours: Iterable[str]) -> dict[str, tuple[Row, tuple[str, ...]]]:
        """Their name -> the row and our names behind it, for exactly the given parameters."""
        names = dict.fromkeys(ours)
        groups = {}
        for name in names:
            row, match = self._row(name)
            partners = tuple(_fill(pattern, match) for pattern in row.ours)
            # Parameters that are one of theirs make one group, under the first of them.
            if name == partners[0]:
                if not names.keys() >= {*partners}:
                    raise LookupError(
                        f"{name} is joined with parameters that the model does not have: {partners}"
                    )
                groups[_fill(row.theirs, match)] = (row, partners)
        return groups

    def export(self, ours: Mapping[str, Tensor], prefix: str | None = None) -> dict[str, Tensor]:
        """Their names and layout; `prefix` replaces the map's own on the names of the body."""
        theirs = {
            name: row.join([ours[part] for part in parts]) for name, (row, parts) in self.groups(ours).items()
        }
        for copy, source in self.copies.items():
            if source in theirs:
                theirs[copy] = theirs[source].clone()
        if prefix is None or prefix == self.prefix:
            return theirs
        return {self.with_prefix(name, prefix): tensor for name, tensor in theirs.items()}

    def export_tables(self, prefix: str | None = None) -> dict[str, Tensor]:
        """The tables that nobody trains, by their names."""
        made = {name: make() for name, make in self.tables.items()}
        return made if prefix is None else {self.with_prefix(name, prefix): t for name, t in made.items()}

    def read(
        self,
        stored: Mapping[str, Tensor],
        shapes: Mapping[str, torch.Size],
        fill: Callable[[str, Tensor], object],
    ) -> Imported:
        """Hands parameters (our names and shapes) to `fill`, out of a checkpoint in their layout; returns
        what did not fit."""
        result = Imported()
        groups = self.groups(shapes)
        mapped = {*groups, *self.ties, *self.copies, *self.tables}
        places = {}  # a name as the map has it -> the name in the file
        for name in stored:
            canonical = self.canonical(name, mapped)
            if not any(re.fullmatch(pattern, canonical) for pattern in self.ignored):
                places[canonical] = name
        # Copies are passed over, and so are no surprise.
        used = {copy for copy in self.copies if copy in places}
        for name in self.tables.keys() & places.keys():
            used.add(name)
            values, table = stored[places[name]].float(), self.tables[name]()
            if values.shape != table.shape or not torch.allclose(values, table, atol=1e-2):
                result.misshapen.append(f"{name}, which is not the table that the shape gives")
        for theirs, (row, parts) in groups.items():
            sources = [theirs, *(copy for copy, source in self.ties.items() if source == theirs)]
            sources += [self.stand_ins[theirs]] if theirs in self.stand_ins else []
            source = next((name for name in sources if name in places), None)
            if source is None:
                result.missing.append(theirs)
                continue
            used.add(source)
            whole = stored[places[source]]
            pieces = row.split(whole)
            if [piece.shape for piece in pieces] != [shapes[part] for part in parts]:
                # Without values: only the shape of the published tensor is wanted.
                needed = row.join([torch.empty(shapes[part], device="meta") for part in parts]).shape
                result.misshapen.append(f"{source} is {tuple(whole.shape)}, not {tuple(needed)}")
                continue
            for part, piece in zip(parts, pieces, strict=True):
                fill(part, piece)
        # A stored copy of a tied weight must be a copy: with other values, it is another model.
        for copy, source in self.ties.items():
            if copy in places and copy not in used:
                used.add(copy)
                if source in places and not torch.equal(stored[places[copy]], stored[places[source]]):
                    result.conflicting.append(f"{copy} and {source}")
        result.unexpected = [places[name] for name in places if name not in used]
        return result

    def ours_of(self, theirs: str) -> list[str]:
        """The patterns of ours that this name may stand for."""
        return [row.ours[0] for row in self.rows if _matcher(row.theirs).fullmatch(theirs)]

    def head_of(self, theirs: str) -> str | None:
        """Which head's parameter this is, if the map knows one."""
        for ours in self.ours_of(theirs):
            if ours.startswith("heads."):
                return ours.split(".")[1]
        source = {**self.ties, **self.copies}.get(theirs)
        return None if source is None else self.head_of(source)

    def _row(self, ours: str) -> tuple[Row, re.Match[str]]:
        # The first row that fits wins: rows for our own heads stand before a family's.
        for row in self.rows:
            for pattern in row.ours:
                if match := _matcher(pattern).fullmatch(ours):
                    return row, match
        raise LookupError(f"no row of the name map covers {ours}")

    def canonical(self, name: str, mapped: set[str]) -> str:
        """A stored name as the map has it: today's spelling, and its own prefix. `mapped` are names that need
        none."""
        for old, new in RENAMED.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in mapped:
            return name
        for other in self.other_prefixes:
            if name.startswith(other) and name.removeprefix(other) in mapped:
                return name.removeprefix(other)
        # Files of a bare body, the hub's gpt2 among them, have no prefix.
        if self.prefix and not name.startswith(self.prefix) and self.head_of(name) is None:
            return self.prefix + name
        return name

    def with_prefix(self, name: str, prefix: str) -> str:
        """Their name in a class that puts another prefix before the body's."""
        if self.head_of(name) is not None and not name.startswith(self.prefix or "\0"):
            return name
        return prefix + name.removeprefix(self.prefix)


# Patterns are few and short; Python caches compiled expressions by itself.
def _matcher(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\{\}", r"(\d+)")
    if escaped.endswith(r"\*"):
        escaped = escaped[: -len(r"\*")] + "(.*)"
    return re.compile(escaped)


def _fill(pattern: str, match: re.Match[str]) -> str:
    for value in match.groups():
        place = "{}" if "{}" in pattern else "*"
        pattern = pattern.replace(place, value, 1)
    return pattern
