"""Checkpoints of fairseq: a `.pt` file with settings and weights, beside its `dict.txt`.

Tokens of RoBERTa and BART are GPT-2's under other numbers: `dict.txt` lists GPT-2's ids in the order of
fairseq's, behind four special tokens. With `encoder.json` and `vocab.bpe` beside it the tokenizer comes too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.imports.fairseq_settings import fairseq_settings, is_fairseq_name
from etymon.families.imports.fairseq_transformer import COUNTERS, is_transformer, read_transformer
from etymon.families.imports.foreign import (
    ForeignModel,
    NameRule,
    Pieces,
    refuse_unknown,
    same,
    translate,
    weights_of,
)
from etymon.families.imports.pickles import load_pickle, names_in_pickle
from etymon.files import read_json

PARTS = {"weight": ("weight", same), "bias": ("bias", same)}
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
NAMES = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")


def _layers(theirs: str, hub: str, parts: Mapping[str, str]) -> list[NameRule]:
    return [NameRule(f"{theirs}{ours}.*", f"{hub}{other}.*", leaves=PARTS) for ours, other in parts.items()]


_IN_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
ROBERTA = [
    NameRule("embed_tokens.weight", "roberta.embeddings.word_embeddings.weight"),
    NameRule("embed_positions.weight", "roberta.embeddings.position_embeddings.weight"),
    # Its two names, of releases before and after 0.10.
    NameRule("emb_layer_norm.*", "roberta.embeddings.LayerNorm.*", leaves=PARTS),
    NameRule("layernorm_embedding.*", "roberta.embeddings.LayerNorm.*", leaves=PARTS),
    *_layers("layers.{}.", "roberta.encoder.layer.{}.", _IN_LAYER),
    NameRule("lm_head.weight", "lm_head.decoder.weight"),
    NameRule("lm_head.bias", "lm_head.bias"),
    NameRule("lm_head.dense.*", "lm_head.dense.*", leaves=PARTS),
    NameRule("lm_head.layer_norm.*", "lm_head.layer_norm.*", leaves=PARTS),
    NameRule("classification_heads.~.dense.*", "classifier.dense.*", leaves=PARTS),
    NameRule("classification_heads.~.out_proj.*", "classifier.out_proj.*", leaves=PARTS),
]
# Called alike on the hub.
_SEQ2SEQ = {
    name: name
    for name in (
        *(f"{block}.{letter}_proj" for block in ("self_attn", "encoder_attn") for letter in "qkv"),
        *("self_attn.out_proj", "encoder_attn.out_proj", "self_attn_layer_norm", "encoder_attn_layer_norm"),
        *("fc1", "fc2", "final_layer_norm"),
    )
}
BART = [
    *(
        NameRule(f"{side}.embed_{kind}.weight", f"model.{side}.embed_{kind}.weight")
        for side in ("encoder", "decoder")
        for kind in ("tokens", "positions")
    ),
    *(
        NameRule(f"{side}.layernorm_embedding.*", f"model.{side}.layernorm_embedding.*", leaves=PARTS)
        for side in ("encoder", "decoder")
    ),
    *(
        rule
        for side in ("encoder", "decoder")
        for rule in _layers(f"{side}.layers.{{}}.", f"model.{side}.layers.{{}}.", _SEQ2SEQ)
    ),
    NameRule("decoder.output_projection.weight", "lm_head.weight"),
    NameRule("classification_heads.~.dense.*", "classification_head.dense.*", leaves=PARTS),
    NameRule("classification_heads.~.out_proj.*", "classification_head.out_proj.*", leaves=PARTS),
]


def read_fairseq(folder: Path, heads: Collection[str] | None = None) -> ForeignModel | None:
    """The fairseq checkpoint in a folder, if there is one."""
    paths = [folder / name for name in NAMES if (folder / name).is_file()]
    dictionary = folder / "dict.txt"
    if not paths or not any(folder.glob("dict*.txt")):
        return None
    path = paths[0]
    state = load_pickle(path, [name for name in names_in_pickle(path) if is_fairseq_name(name)])
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise EtymonError(f"{path} is beside a dict.txt, but has no weights under 'model' as fairseq's have")
    # Beside weights there may be counters and the like, which are no tensors.
    weights = {str(name): tensor for name, tensor in state["model"].items() if isinstance(tensor, Tensor)}
    settings = fairseq_settings(state, path)
    weights = _split_projections(weights)
    if is_transformer(weights):
        title, (pieces, config) = "Transformer", read_transformer(weights, settings, path)
    elif "decoder.layers.0.encoder_attn.q_proj.weight" in weights:
        title, (pieces, config) = "BART", _bart(weights, settings, path)
    else:
        title, (pieces, config) = "RoBERTa", _roberta(weights, settings, path)
    note = f"{path}: left aside the optimiser's state" if state.get("last_optimizer_state") else ""
    # A Transformer's words were cut by other programs, and its lists alone make no tokenizer.
    has_words = dictionary.is_file() and title != "Transformer"
    files = _tokenizer_files(folder, dictionary, config) if has_words else {}
    open_weights = partial(weights_of, pieces, weights.__getitem__, [path])
    return ForeignModel(f"fairseq's {title}", config, open_weights, [path], files, note)


def _split_projections(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Query, key and value of releases before 0.9, which had one matrix for all three, by themselves."""
    result = {}
    for name, tensor in weights.items():
        if "in_proj_" not in name:
            result[name] = tensor
            continue
        before, _, kind = name.rpartition("in_proj_")
        for letter, part in zip("qkv", tensor.chunk(3), strict=True):
            result[f"{before}{letter}_proj.{kind}"] = part
    return result


def _roberta(
    weights: dict[str, Tensor], settings: Mapping[str, Any], path: Path
) -> tuple[Pieces, dict[str, Any]]:
    short = {}
    for name in weights:
        plain = name
        # An encoder was called a decoder before release 0.10, and has its layers one level down.
        for prefix in ("decoder.", "encoder.", "sentence_encoder."):
            plain = plain.removeprefix(prefix)
        short[plain] = name
    short = {name: stored for name, stored in short.items() if name not in COUNTERS}
    pieces, unknown = translate(short, ROBERTA)
    refuse_unknown(unknown, path, "RoBERTa")
    result: Pieces = {hub: (short[name], change) for hub, (name, change) in pieces.items()}
    try:
        words, width = weights[short["embed_tokens.weight"]].shape
        rows = len(weights[short["embed_positions.weight"]])
        config = {
            "model_type": "roberta",
            "vocab_size": words,
            "hidden_size": width,
            "max_position_embeddings": rows,
            "num_hidden_layers": settings["encoder_layers"],
            "num_attention_heads": settings["encoder_attention_heads"],
            "intermediate_size": settings["encoder_ffn_embed_dim"],
            "hidden_act": settings.get("activation_fn") or "gelu",
            "hidden_dropout_prob": settings.get("dropout") or 0.0,
            "attention_probs_dropout_prob": settings.get("attention_dropout") or 0.0,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
        }
    except (KeyError, ValueError) as error:
        raise EtymonError(f"{path} is no RoBERTa of fairseq: it lacks {error}") from error
    # Transformers adds the vector of a segment to every word. There are none here: it is zero.
    table = short["embed_tokens.weight"]
    result["roberta.embeddings.token_type_embeddings.weight"] = (table, _zero_row)
    return result, config


def _zero_row(table: Tensor) -> Tensor:
    return torch.zeros(1, table.shape[1], dtype=table.dtype)


def _bart(
    weights: dict[str, Tensor], settings: Mapping[str, Any], path: Path
) -> tuple[Pieces, dict[str, Any]]:
    if settings.get("encoder_normalize_before") or settings.get("decoder_normalize_before"):
        raise EtymonError(f"{path} has norms before its parts, which are mBART's, and BART's are behind them")
    stored = [name for name in weights if not name.endswith(COUNTERS)]
    pieces, unknown = translate(stored, BART)
    refuse_unknown(unknown, path, "BART")
    try:
        words, width = weights["encoder.embed_tokens.weight"].shape
        # Two rows before the first position are none.
        rows = len(weights["encoder.embed_positions.weight"]) - 2
        config = {
            "model_type": "bart",
            "vocab_size": words,
            "d_model": width,
            "max_position_embeddings": rows,
            "scale_embedding": not settings.get("no_scale_embedding", False),
            "activation_function": settings.get("activation_fn") or "gelu",
            "dropout": settings.get("dropout") or 0.0,
            "attention_dropout": settings.get("attention_dropout") or 0.0,
            **{
                f"{side}_{hub}": settings[f"{side}_{theirs}"]
                for side in ("encoder", "decoder")
                for theirs, hub in (
                    ("layers", "layers"),
                    ("attention_heads", "attention_heads"),
                    ("ffn_embed_dim", "ffn_dim"),
                )
            },
        }
    except (KeyError, ValueError) as error:
        raise EtymonError(f"{path} is no BART of fairseq: it lacks {error}") from error
    pieces["final_logits_bias"] = ("encoder.embed_tokens.weight", _zero_bias)
    return pieces, config


def _zero_bias(table: Tensor) -> Tensor:
    return torch.zeros(1, len(table), dtype=table.dtype)


def _tokenizer_files(folder: Path, dictionary: Path, config: Mapping[str, Any]) -> dict[str, Path | str]:
    """GPT-2's tokenizer under fairseq's numbers, where GPT-2's files are there."""
    if not all((folder / name).is_file() for name in ("encoder.json", "vocab.bpe")):
        return {}
    gpt2 = {str(number): token for token, number in read_json(folder / "encoder.json").items()}
    tokens = list(SPECIALS)
    for line in dictionary.read_text(encoding="utf-8", errors="replace").splitlines():
        word = line.rpartition(" ")[0]
        # Words made up to fill a multiple of eight are no ids; they stay as they are.
        tokens.append(gpt2.get(word, word))
    # The mask is added by the task, behind all.
    tokens += ["<mask>"] if len(tokens) < config["vocab_size"] and "<mask>" not in tokens else []
    tokens = tokens[: config["vocab_size"]]
    if len(set(tokens)) != len(tokens):
        raise EtymonError(f"{dictionary} names a token twice, or does not belong to encoder.json")
    vocabulary = json.dumps({token: number for number, token in enumerate(tokens)}, ensure_ascii=False)
    return {"vocab.json": vocabulary, "merges.txt": folder / "vocab.bpe"}
