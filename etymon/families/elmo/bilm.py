"""ELMo as bilm-tf and AllenNLP publish it: `options.json` beside an HDF5 file with TensorFlow's weights.

These are no relabellings: there, the forget gates get a one at run time, highways say how much is *not*
carried, and the row of the character table for no word at all is left out. So weights come and go this way,
and gradients do not. Names and layout on our side are AllenNLP's. The softmax over words is in no such
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.files import atomic_folder, read_json, write_json

WORDS, LAYERS = "_elmo_lstm._token_embedder.", "_elmo_lstm._elmo_lstm."
WAYS = ("forward", "backward")
KEYS = {
    "lstm": {"cell_clip", "proj_clip", "use_skip_connections", "n_layers", "projection_dim", "dim"},
    "char_cnn": {
        "embedding", "filters", "n_highway", "n_characters", "max_characters_per_token", "activation",
    },
}  # fmt: skip
"""The options of a published ELMo, by section."""
GATES = (0, 2, 1, 3)
"""TensorFlow's input, candidate, forget, output as ours, and back again."""


def find_files(folder: Path) -> tuple[Path, Path] | None:
    """The two files of a published ELMo, if the folder holds one."""
    options, weights = sorted(folder.glob("*options.json")), sorted(folder.glob("*.hdf5"))
    return (options[0], weights[0]) if len(options) == len(weights) == 1 else None


def read_weights(files: tuple[Path, Path]) -> dict[str, Tensor]:
    with _open_hdf5(files[1], "r") as file:
        try:
            return dict(_from_published(file, read_shape(files)))
        except (KeyError, ValueError) as error:
            raise EtymonError(f"{files[1]} does not fit {files[0].name}: {error.args[0]}") from error


def read_shape(files: tuple[Path, Path]) -> dict[str, Any]:
    """The fields of our shape."""
    path = files[0]
    options = read_json(path)
    try:
        lstm, letters = options["lstm"], options["char_cnn"]
        shape = {
            "letter_dim": letters["embedding"]["dim"],
            "filters": " ".join(f"{width}x{number}" for width, number in letters["filters"]),
            "activation": letters["activation"],
            "highways": letters.get("n_highway") or 0,
            "word_length": letters["max_characters_per_token"],
            "dim": lstm["projection_dim"],
            "cells": lstm["dim"],
            "layers": lstm["n_layers"],
            "cell_clip": lstm.get("cell_clip"),
            "projection_clip": lstm.get("proj_clip"),
            "skip_connections": bool(lstm.get("use_skip_connections")),
        }
        wanted = {
            "char_cnn.activation": (letters["activation"], ("relu", "tanh")),
            "char_cnn.n_characters": (letters["n_characters"], (261, 262)),
            "char_cnn.max_characters_per_token": (letters["max_characters_per_token"], (50,)),
        }
        for section, keys in KEYS.items():  # another key would be another model, unless it is switched off
            strange = {key: value for key, value in options[section].items() if key not in keys and value}
            wanted |= {f"{section}.{key}": (value, (False,)) for key, value in strange.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise EtymonError(f"{path} is not the options of a published ELMo: it lacks {error}") from error
    for key, (value, supported) in wanted.items():
        if value not in supported:
            choices = ", ".join(map(repr, supported))
            raise EtymonError(f"{path} has {key} = {value!r}, which is not supported (known: {choices})")
    return {
        name: float(value) if "clip" in name and value is not None else value for name, value in shape.items()
    }


def _from_published(file: Any, shape: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    def tensor(name: str) -> Tensor:
        return torch.from_numpy(np.asarray(file[name][...], np.float32))

    # The file has 261 letters; ours begin with a row of zeros for what is no word at all.
    letters = tensor("char_embed")
    yield f"{WORDS}_char_embedding_weights", torch.cat([torch.zeros(1, letters.shape[1]), letters])
    for i in range(len(shape["filters"].split())):
        # TensorFlow's `[1, width, letter, filter]` is PyTorch's `[filter, letter, width]`.
        yield f"{WORDS}char_conv_{i}.weight", tensor(f"CNN/W_cnn_{i}")[0].permute(2, 1, 0).contiguous()
        yield f"{WORDS}char_conv_{i}.bias", tensor(f"CNN/b_cnn_{i}")
    for i in range(shape["highways"]):
        for ours, theirs in (("weight", "W"), ("bias", "b")):
            transform, carry = (
                _transpose(tensor(f"CNN_high_{i}/{theirs}_{part}")) for part in ("transform", "carry")
            )
            # There the gate says how much is transformed, here how much is carried: the other sign.
            yield f"{WORDS}_highways._layers.{i}.{ours}", torch.cat([transform, -carry])
    yield f"{WORDS}_projection.weight", tensor("CNN_proj/W_proj").T.contiguous()
    yield f"{WORDS}_projection.bias", tensor("CNN_proj/b_proj")
    for number, way in enumerate(WAYS):
        for layer in range(shape["layers"]):
            theirs, ours = _cell(number, layer), f"{LAYERS}{way}_layer_{layer}."
            matrix, bias = _reorder_gates(tensor(f"{theirs}W_0").T), _reorder_gates(tensor(f"{theirs}B"))
            # TensorFlow adds it to the forget gates whenever it runs them.
            bias.chunk(4)[1].add_(1.0)
            # One matrix reads the input and then the state.
            yield f"{ours}input_linearity.weight", matrix[:, : -shape["dim"]].contiguous()
            yield f"{ours}state_linearity.weight", matrix[:, -shape["dim"] :].contiguous()
            yield f"{ours}state_linearity.bias", bias
            yield f"{ours}state_projection.weight", tensor(f"{theirs}W_P_0").T.contiguous()


def write(folder: str | Path, shape: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """`options.json` and `lm_weights.hdf5` of a shape and weights in AllenNLP's names; the folder appears
    whole."""
    options = {
        "lstm": {
            "cell_clip": shape["cell_clip"], "proj_clip": shape["projection_clip"],
            "use_skip_connections": shape["skip_connections"],
            "n_layers": shape["layers"], "projection_dim": shape["dim"], "dim": shape["cells"],
        },
        "char_cnn": {
            "embedding": {"dim": shape["letter_dim"]},
            "filters": [[int(part) for part in pair.split("x")] for pair in shape["filters"].split()],
            "n_highway": shape["highways"], "n_characters": 262,
            "max_characters_per_token": shape["word_length"], "activation": shape["activation"],
        },
    }  # fmt: skip
    with atomic_folder(Path(folder)) as aside:
        write_json(aside / "options.json", options)
        with _open_hdf5(aside / "lm_weights.hdf5", "w") as file:
            for name, value in _to_published(shape, weights):
                file.create_dataset(name, data=value.detach().float().cpu().contiguous().numpy())


def _to_published(shape: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield "char_embed", weights[f"{WORDS}_char_embedding_weights"][1:]
    for i in range(len(shape["filters"].split())):
        yield f"CNN/W_cnn_{i}", weights[f"{WORDS}char_conv_{i}.weight"].permute(2, 1, 0)[None]
        yield f"CNN/b_cnn_{i}", weights[f"{WORDS}char_conv_{i}.bias"]
    for i in range(shape["highways"]):
        for ours, theirs in (("weight", "W"), ("bias", "b")):
            transform, carry = weights[f"{WORDS}_highways._layers.{i}.{ours}"].chunk(2)
            yield f"CNN_high_{i}/{theirs}_transform", _transpose(transform)
            yield f"CNN_high_{i}/{theirs}_carry", -_transpose(carry)
    yield "CNN_proj/W_proj", weights[f"{WORDS}_projection.weight"].T
    yield "CNN_proj/b_proj", weights[f"{WORDS}_projection.bias"]
    for number, way in enumerate(WAYS):
        for layer in range(shape["layers"]):
            theirs, ours = _cell(number, layer), f"{LAYERS}{way}_layer_{layer}."
            matrix = torch.cat([weights[f"{ours}{part}_linearity.weight"] for part in ("input", "state")], 1)
            bias = weights[f"{ours}state_linearity.bias"].clone()
            bias.chunk(4)[1].sub_(1.0)
            yield f"{theirs}W_0", _reorder_gates(matrix).T
            yield f"{theirs}B", _reorder_gates(bias)
            yield f"{theirs}W_P_0", weights[f"{ours}state_projection.weight"].T


def _cell(way: int, layer: int) -> str:
    return f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"


def _transpose(part: Tensor) -> Tensor:
    return part.T if part.dim() == 2 else part


def _reorder_gates(gates: Tensor) -> Tensor:
    return torch.cat([gates.chunk(4)[place] for place in GATES])


@contextmanager
def _open_hdf5(path: Path, mode: str) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise EtymonError(
            "published files of ELMo need h5py: pip install 'etymon[elmo]'", code="missing-package"
        ) from error
    try:
        file = h5py.File(path, mode)
    except OSError as error:
        raise EtymonError(f"{path} is no HDF5 file, or is damaged") from error
    with file:
        yield file
