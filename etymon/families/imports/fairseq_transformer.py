"""The Transformer of fairseq (`transformer`, `transformer_wmt_en_de` and others), whose names are ours, too.

Its words are those of `dict.SRC.txt` and `dict.TGT.txt`, which other programs have cut: no tokenizer comes
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.imports.foreign import Pieces, same

SIZES = {"heads": "attention_heads", "inner_dim": "ffn_embed_dim"}
COUNTERS = ("version", "embed_positions._float_tensor")
"""Of releases and types; no weights."""


def is_transformer(weights: Mapping[str, Tensor]) -> bool:
    """Whether both sides count their places by sinusoids, of which files hold a counter at most."""
    return "decoder.layers.0.encoder_attn.q_proj.weight" in weights and (
        "encoder.embed_positions.weight" not in weights
    )


def read_transformer(
    weights: Mapping[str, Tensor], settings: Mapping[str, Any], path: Path
) -> tuple[Pieces, dict[str, Any]]:
    """The weights by our names, and the configuration."""
    sides = ("encoder", "decoder")
    try:
        sizes = {name: {settings[f"{side}_{theirs}"] for side in sides} for name, theirs in SIZES.items()}
        layers, decoder_layers = settings["encoder_layers"], settings["decoder_layers"]
        source, words = (weights[f"{side}.embed_tokens.weight"] for side in sides)
    except KeyError as error:
        raise EtymonError(f"{path} is no Transformer of fairseq: it lacks {error}") from error
    before = {bool(settings.get(f"{side}_normalize_before")) for side in sides}
    unequal = [name for name, values in sizes.items() if len(values) > 1]
    if unequal or len(before) > 1 or source.shape[1] != words.shape[1]:
        differing = ", ".join(unequal) or "norms or widths"
        raise EtymonError(
            f"{path} has other {differing} in its decoder than in its encoder, which is not built here"
        )
    # Each of these would be another model.
    for key in ("no_scale_embedding", "layernorm_embedding", "adaptive_input", "adaptive_softmax_cutoff"):
        if settings.get(key):
            raise EtymonError(f"{path} has {key} = {settings[key]!r}, which is not built here")
    pieces: Pieces = {name: (name, same) for name in weights if not name.endswith(COUNTERS)}
    # Copies of one table: whether sides and output share theirs is for the numbers to say.
    is_shared = source.shape == words.shape and torch.equal(source, words)
    if is_shared:
        del pieces["encoder.embed_tokens.weight"]
    output = next(
        (name for name in ("decoder.output_projection.weight", "decoder.embed_out") if name in weights), None
    )
    is_tied = output is None or torch.equal(weights[output], words)
    if output is not None:
        del pieces[output]
        if not is_tied:
            pieces["output_projection.weight"] = (output, same)
    config = {
        "model_type": "transformer",
        "vocabulary": len(words),
        "source_vocabulary": None if is_shared else len(source),
        "dim": words.shape[1],
        "layers": layers,
        "decoder_layers": decoder_layers,
        **{name: next(iter(values)) for name, values in sizes.items()},
        "norm": "before" if before == {True} else "after",
        "attention_bias": True,
        "activation": settings.get("activation_fn") or "relu",
        "sinusoid_layout": "fairseq",
        "dropout": float(settings.get("dropout") or 0.0),
        "attention_dropout": float(settings.get("attention_dropout") or 0.0),
        "inner_dropout": float(settings.get("activation_dropout") or 0.0),
        "norm_epsilon": 1e-5,
        "tied": is_tied,
        # fairseq begins a target with the end of a sentence.
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    return pieces, config
