"""GPT-1 as OpenAI published it: all weights in a row, cut into `params_0.npy` to `params_9.npy`, and their
shapes in `params_shapes.json`."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.imports.foreign import ForeignModel
from etymon.files import read_any_json, read_json

SHAPES = "params_shapes.json"
HEAD_WIDTH = 64
"""Of the published model; the files do not say how many heads there are."""
LAYER = (
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_1.weight",
    "ln_1.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
)
"""The arrays of a layer in their order, which is all that tells them apart."""


def read_openai_arrays(folder: Path, heads: Collection[str] | None = None) -> ForeignModel | None:
    """The GPT-1 in a folder, if there is one."""
    if not (folder / SHAPES).is_file():
        return None
    shapes = _shapes(folder / SHAPES)
    paths = _parts(folder)
    positions, width = shapes[0]
    published = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    count = published.get("n_head")
    if count is None and width % HEAD_WIDTH:
        raise EtymonError(
            f"{folder / SHAPES} does not say how many attention heads a width of {width} has: "
            "put a config.json with n_head beside it"
        )
    config = {
        **published,
        "model_type": "openai-gpt",
        "vocab_size": shapes[1][0],
        "n_positions": positions,
        "n_embd": width,
        "n_layer": (len(shapes) - 2) // len(LAYER),
        "n_head": count or width // HEAD_WIDTH,
    }
    files: dict[str, Path | str] = {}
    for pattern, name in (("encoder_bpe*.json", "vocab.json"), ("vocab*.bpe", "merges.txt")):
        if matches := sorted(folder.glob(pattern)):
            files[name] = matches[0]
    return ForeignModel("OpenAI's GPT-1", config, partial(_weights, shapes, paths), paths, files)


def _shapes(path: Path) -> list[tuple[int, ...]]:
    value: Any = read_any_json(path)
    is_right = isinstance(value, list) and all(
        isinstance(shape, list) and shape and all(isinstance(n, int) and 0 < n < 1 << 32 for n in shape)
        for shape in value
    )
    # Positions, words, and twelve arrays a layer; fewer or more would be another model.
    is_right = is_right and len(value) > 2 and (len(value) - 2) % len(LAYER) == 0
    if not is_right or [len(shape) for shape in value[:2]] != [2, 2] or value[0][1] != value[1][1]:
        raise EtymonError(f"{path} is not the list of shapes of a GPT-1: download it again")
    return [tuple(shape) for shape in value]


def _parts(folder: Path) -> list[Path]:
    """The arrays in the order of their numbers, none of which may be missing."""
    numbers = {path.stem.removeprefix("params_"): path for path in folder.glob("params_*.npy")}
    paths = [numbers[str(number)] for number in range(len(numbers)) if str(number) in numbers]
    if not paths or len(paths) != len(numbers):
        raise EtymonError(
            f"{folder} has {SHAPES}, but not all of params_0.npy, params_1.npy and so on beside it"
        )
    return paths


def _weights(shapes: list[tuple[int, ...]], paths: list[Path]) -> dict[str, Tensor]:
    arrays = []
    for path in paths:
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise EtymonError(f"{path} is damaged or no array; download or copy it again") from error
        if array.ndim != 1 or array.dtype != np.float32:
            raise EtymonError(f"{path} holds {array.dtype} of shape {array.shape}, not a row of float32")
        # Parts end anywhere: a matrix may begin in one and end in the next.
        arrays.append(array)
    whole = torch.from_numpy(np.concatenate(arrays))
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != len(whole):
        raise EtymonError(
            f"{paths[0].parent} has {len(whole):,} weights, and {SHAPES} speaks of {sum(sizes):,}: "
            "they do not belong together, or a part is missing"
        )
    names = ["transformer.positions_embed.weight", "transformer.tokens_embed.weight"]
    for layer in range((len(shapes) - 2) // len(LAYER)):
        names += [f"transformer.h.{layer}.{part}" for part in LAYER]
    weights = {}
    for name, shape, values in zip(names, shapes, whole.split(sizes), strict=True):
        # Matrices are convolutions of width one, `[1, in, out]`.
        weights[name] = values.reshape(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)
    return weights
