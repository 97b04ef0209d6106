"""Checkpoints as their authors published them, before the hub: recognised by their files, and read as the
Hugging Face folder that they would be.

Each reader is a function of a folder: a `ForeignModel` if its files are there, None if they are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from etymon.checkpoints.folder import CONFIG
from etymon.checkpoints.weights import MODEL_FILES
from etymon.families import REGISTRY, get_family
from etymon.families.imports.fairseq import read_fairseq
from etymon.families.imports.foreign import ForeignModel
from etymon.families.imports.openai_arrays import read_openai_arrays
from etymon.families.imports.tensorflow import read_tensorflow
from etymon.families.imports.transfo_xl import read_transfo_xl

__all__ = ["ForeignModel", "find_foreign"]


def find_foreign(folder: Path, heads: Iterable[str] | None = None) -> ForeignModel | None:
    """The model in a folder that is not of Hugging Face's layout; None if no reader knows its files. `heads`
    are those that were asked for: of two models in one file, the one that has them is taken."""
    # Whoever has put today's files beside the old ones means today's.
    if any((folder / name).exists() for name in MODEL_FILES):
        return None
    wanted = None if heads is None else frozenset(heads)
    for reader in READERS:
        if (model := reader(folder, wanted)) is not None:
            return model
    return None


def read_own_layout(folder: Path, heads: Collection[str] | None = None) -> ForeignModel | None:
    """The files of a family that has a layout of its own (ELMo's), which can also be written."""
    if (folder / CONFIG).exists():
        return None
    for family in map(get_family, REGISTRY):
        layout = family.layout
        if layout is None or (files := layout.find_files(folder)) is None:
            continue
        # The only words of such files are marks.
        words = len(family.tokenizer.specials)
        config = {"model_type": family.model_type, "vocabulary": words, **layout.read_shape(files)}
        return ForeignModel(
            f"{family.title}'s files", config, partial(layout.read_weights, files), files, reads_letters=True
        )
    return None


READERS = (read_own_layout, read_tensorflow, read_openai_arrays, read_fairseq, read_transfo_xl)
