"""A GGUF file read back by gguf's own reader, and computed by our layers in the way that llama.cpp does.

This is what checks an export where llama.cpp is not installed: another reader finds every weight under its
name, and the sizes in the file are enough to make the model of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from etymon.exports.check import model_answers
from etymon.exports.gguf_tensors import ENCODERS, ROTARY_BERT, fill_model
from etymon.exports.target import STATES, CheckInputs
from etymon.families import get_family
from etymon.families.model import Model


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The metadata of a file by its keys, and its weights by their names, in float32."""
    from gguf import GGUFReader, dequantize

    # Once: of long lists the reader looks at every element.
    reader = GGUFReader(path)
    tensors = {
        tensor.name: torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))
        for tensor in reader.tensors
    }
    # Hundreds of thousands of bytes, each an object of its own there.
    skipped = ("tokenizer.ggml.precompiled_charsmap",)
    fields = {name: field.contents() for name, field in reader.fields.items() if name not in skipped}
    return fields, tensors


def read_model(path: Path) -> tuple[Model, str]:
    """The model in a file and the head that it was exported with."""
    fields, tensors = read_file(path)
    kind = fields["general.architecture"]
    sizes = {
        key.removeprefix(f"{kind}."): value for key, value in fields.items() if key.startswith(f"{kind}.")
    }
    shape: dict[str, Any] = {
        "vocabulary": len(tensors["token_embd.weight"]),
        "dim": sizes["embedding_length"],
        "layers": sizes["block_count"],
        "heads": sizes["attention.head_count"],
        "inner_dim": sizes["feed_forward_length"],
    }
    head = "vocabulary"
    if kind == "t5":
        # The scale of version 1.0 is in the norm before the matrix: what is left is one of version 1.1.
        tensors.setdefault("output.weight", tensors["token_embd.weight"])
        shape |= {
            "decoder_layers": sizes["decoder_block_count"],
            "head_dim": sizes["attention.key_length"],
            "buckets": sizes["attention.relative_buckets_count"],
            "feed_forward": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in tensors else "relu",
            "norm_epsilon": sizes["attention.layer_norm_rms_epsilon"],
            "tied": False,
        }
    else:
        shape |= {
            "positions": sizes["context_length"],
            "norm_epsilon": sizes["attention.layer_norm_epsilon"],
            # Not in the file: it is what llama.cpp computes, whatever the model had.
            "activation": "gelu_tanh",
        }
    if kind == "gpt2":
        shape["tied"] = "output.weight" not in tensors
    if kind == ROTARY_BERT:
        shape["position_kind"] = "rotary"
    if kind in ENCODERS:
        head = "classification" if "cls.output.weight" in tensors else STATES
        # DistilBERT has no segments: one of zeros adds nothing.
        tensors.setdefault("token_types.weight", torch.zeros(1, shape["dim"]))
        shape["segments"] = len(tensors["token_types.weight"])
    labels = sizes.get("classifier.output_labels", ["0", "1"])
    family = get_family("bert" if kind in ENCODERS else kind)
    model = Model(family, family.shape(**shape), () if head == STATES else (head,), labels).eval()
    fill_model(model, tensors, kind)
    return model, head


class ReadBackRunner:
    """Answers of the file's weights, by our own layers."""

    def __init__(self, path: Path) -> None:
        self.model, self.head = read_model(path)

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        return model_answers(self.model, self.head, inputs)
