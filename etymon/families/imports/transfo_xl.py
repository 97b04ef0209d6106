"""Transformer-XL as its authors' PyTorch code saves it: `model.pt`, the pickled module itself.

The module is opened as inert stand-ins, and its sizes are read off it. In that code all layers share two
biases, and the entry of the head for a cluster of rarer words is counted from the end.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.imports.foreign import ForeignModel
from etymon.families.imports.pickles import StandIn, load_pickle, module_tensors

FILE = "model.pt"
CLASSES = [
    *(
        f"mem_transformer.{name}"
        for name in (
            "MemTransformerLM",
            "AdaptiveEmbedding",
            "PositionalEmbedding",
            "PositionwiseFF",
            "DecoderLayer",
            "RelPartialLearnableDecoderLayer",
            "RelPartialLearnableMultiHeadAttn",
            "RelLearnableDecoderLayer",
            "RelLearnableMultiHeadAttn",
            "MultiHeadAttn",
        )
    ),
    "utils.proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    "utils.adaptive_softmax.AdaptiveLogSoftmax",
    *(
        f"torch.nn.modules.{name}"
        for name in (
            "container.ModuleList",
            "container.ParameterList",
            "container.Sequential",
            "sparse.Embedding",
            "dropout.Dropout",
            "linear.Linear",
            "normalization.LayerNorm",
            "activation.ReLU",
        )
    ),
]
"""All that such a file is made of."""


def read_transfo_xl(folder: Path, heads: Collection[str] | None = None) -> ForeignModel | None:
    """The Transformer-XL in a folder, if there is one."""
    path = folder / FILE
    if not path.is_file() or any(folder.glob("dict*.txt")):  # fairseq's files have this name, too
        return None
    model = load_pickle(path, CLASSES)
    if not isinstance(model, StandIn) or not hasattr(model, "_modules"):
        return None
    # By the names of `state_dict`, which are the hub's without the prefix of its class.
    weights = dict(module_tensors(model))
    try:
        config = _config(model, weights)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise EtymonError(f"{path} is not a Transformer-XL of the original code: it lacks {error}") from error
    return ForeignModel("the original Transformer-XL", config, partial(dict, weights), [path])


def _config(model: Any, weights: dict[str, Tensor]) -> dict[str, Any]:
    modules = model._modules
    crit, words = modules["crit"], modules["word_emb"]
    layer = modules["layers"]._modules["0"]._modules
    attention, inner = layer["dec_attn"], layer["pos_ff"]
    if model.attn_type != 0:
        raise ValueError(f"the paper's attention (attn_type is {model.attn_type})")
    cutoffs = [int(cutoff) for cutoff in crit.cutoffs][:-1]  # behind which the code puts the vocabulary
    bins = range(len(cutoffs) + 1)

    def is_tied(output: str, table: str) -> bool:
        first, second = weights.get(output), weights.get(table)
        # Tied weights were one object, and come back as one piece of memory.
        return first is not None and second is not None and first.data_ptr() == second.data_ptr()

    maps = [
        is_tied(f"crit.out_projs.{i}", f"word_emb.emb_projs.{i if words.div_val > 1 else 0}") for i in bins
    ]
    return {
        "model_type": "transfo-xl",
        "vocab_size": model.n_token,
        "d_model": model.d_model,
        "d_embed": model.d_embed,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "d_head": model.d_head,
        "d_inner": inner.d_inner,
        "mem_len": model.mem_len,
        "clamp_len": model.clamp_len,
        "same_length": bool(model.same_length),
        "cutoffs": cutoffs,
        "div_val": words.div_val,
        "tie_word_embeddings": is_tied("crit.out_layers.0.weight", "word_emb.emb_layers.0.weight"),
        "tie_projs": maps,
        "pre_lnorm": bool(attention.pre_lnorm),
        "untie_r": False,
        "dropout": float(model._modules["drop"].p),
        "dropatt": float(attention._modules["dropatt"].p),
        # A text begins behind nothing, and clusters are counted from the end.
        "etymon_zero_start": False,
        "etymon_reversed_clusters": bool(cutoffs),
    }
