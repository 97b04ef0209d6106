"""Checkpoints of the original TensorFlow code: BERT, ALBERT, ELECTRA, XLNet, T5 and GPT-2.

What a checkpoint is follows from the names of its variables, its sizes from the configuration beside it, or
where its authors published none (T5, ELECTRA), from the variables themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from etymon.checkpoints.bundle import Bundle, find_bundle
from etymon.errors import EtymonError
from etymon.families.imports.foreign import (
    ForeignModel,
    NameRule,
    Pieces,
    refuse_unknown,
    same,
    translate,
    weights_of,
)
from etymon.families.imports.tensorflow_names import (
    ALBERT,
    BERT,
    ELECTRA,
    ELECTRA_GENERATOR,
    GPT2,
    T5,
    XLNET,
)
from etymon.files import read_json, some

# Of the optimiser: a mean or a factor of a variable, under its name.
SLOT = re.compile(
    r".*/(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?|Momentum|Adafactor)"
    r"|.*_slot_(v|vr|vc|m)|global_step|beta[12]_power|.*/(loss_scale|good_steps)"
)
CONFIGS = ("*config.json", "discriminator.json", "hparams.json")
"""Beside a checkpoint, in this order; `generator.json` is the other model of an ELECTRA."""
NO_CONFIGS = {"tokenizer_config.json", "generation_config.json"}
HEAD_WIDTH = 64
"""Of all published ELECTRAs, which came without a configuration."""


@dataclass(frozen=True)
class TensorFlowKind:
    """One family's checkpoints."""

    title: str
    sign: str
    """A variable that every one of them has, and those of no kind before it."""
    rules: list[NameRule]
    config: Callable[[Bundle, dict[str, Any], Path], dict[str, Any]]
    """`config.json` from the variables, the published configuration and the folder."""
    tokenizer: tuple[tuple[str, str], ...]
    """Patterns of published files, and the names that they have on the hub."""
    scopes: tuple[str, ...] = ("",)
    """How the names of its variables begin; others belong to `beside`, a model in the same file."""
    beside: str = ""
    configs: tuple[str, ...] = CONFIGS


def read_tensorflow(folder: Path, heads: Collection[str] | None = None) -> ForeignModel | None:
    """The TensorFlow checkpoint in a folder, if there is one."""
    prefix = find_bundle(folder)
    if prefix is None:
        return None
    bundle = Bundle(prefix)
    kind = next((kind for kind in KINDS if kind.sign in bundle.entries), None)
    if kind is None:
        names = [name for name in bundle.entries if not SLOT.fullmatch(name)]
        raise EtymonError(
            f"{bundle.index} is a TensorFlow checkpoint of no family that is read here (it has "
            f"{some(names, 3)}): BERT, ALBERT, ELECTRA, XLNet, T5 and GPT-2 are"
        )
    # The file has both models of an ELECTRA, and only the generator has a vocabulary.
    if kind is DISCRIMINATOR and heads is not None and "vocabulary" in heads:
        kind = GENERATOR
    weights = [name for name, entry in bundle.entries.items() if entry.is_float and not SLOT.fullmatch(name)]
    chosen = [name for name in weights if name.startswith(kind.scopes)]
    counts = {
        "training (optimiser slots, global step)": len(bundle.entries) - len(weights),
        kind.beside: len(weights) - len(chosen),
    }
    aside = [f"{count:,} variables of {owner}" for owner, count in counts.items() if count]
    pieces, unknown = translate(chosen, kind.rules)
    refuse_unknown(unknown, bundle.index, kind.title)
    config = kind.config(bundle, _published_config(folder, kind.configs), folder)
    if kind.sign == XLNET_SIGN:
        pieces = _by_layer(pieces, config)
    stored = [bundle.index, *bundle.shards]
    files: dict[str, Path | str] = {}
    for pattern, name in kind.tokenizer:
        if matches := sorted(folder.glob(pattern)):
            files.setdefault(name, matches[0])
    return ForeignModel(
        f"TensorFlow's {kind.title}",
        config,
        partial(weights_of, pieces, bundle.__getitem__, stored),
        stored,
        files,
        f"{bundle.index}: left aside {' and '.join(aside)}" if aside else "",
    )


def _published_config(folder: Path, patterns: tuple[str, ...]) -> dict[str, Any]:
    for pattern in patterns:
        paths = [path for path in sorted(folder.glob(pattern)) if path.name not in NO_CONFIGS]
        if len(paths) > 1:
            raise EtymonError(
                f"{folder} has several configurations ({some([path.name for path in paths], 3)}): leave "
                "only that of this checkpoint there"
            )
        if paths:
            return read_json(paths[0])
    return {}


# --- the configuration of each


def _given(published: dict[str, Any], folder: Path, name: str, model_type: str) -> dict[str, Any]:
    if not published:
        raise EtymonError(
            f"{folder} has a TensorFlow checkpoint, but no {name}, which says its sizes: put it there"
        )
    return {**published, "model_type": model_type}


def _bert(bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    return _given(published, folder, "bert_config.json", "bert")


def _albert(bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    return _given(published, folder, "albert_config.json", "albert")


def _electra(scope: str, bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The sizes of the discriminator (`scope` electra) or the generator, as the variables have them."""
    shapes = {name: entry.shape for name, entry in bundle.entries.items()}
    try:
        words, narrow = shapes[ELECTRA_SIGN]
        positions, segments = (
            shapes[f"electra/embeddings/{part}_embeddings"][0] for part in ("position", "token_type")
        )
        width, inner = shapes[f"{scope}/encoder/layer_0/intermediate/dense/kernel"]
    except (KeyError, ValueError, IndexError) as error:
        raise EtymonError(f"{bundle.index} lacks a variable of an ELECTRA's {scope}: {error}") from error
    heads = published.get("num_attention_heads") if published.get("hidden_size") == width else None
    if heads is None and width % HEAD_WIDTH:
        raise EtymonError(
            f"{bundle.index} does not say how many attention heads a width of {width} has: put a config.json "
            "with hidden_size and num_attention_heads beside it"
        )
    return {
        **published,
        "model_type": "electra",
        "vocab_size": words,
        "embedding_size": narrow,
        "max_position_embeddings": positions,
        "type_vocab_size": segments,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": _count(bundle, f"{scope}/encoder/layer_{{}}/"),
        "num_attention_heads": heads or width // HEAD_WIDTH,
    }


def _xlnet(bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    config = _given(published, folder, "xlnet_config.json", "xlnet")
    if "n_token" in config:
        config["vocab_size"] = config.pop("n_token")
    return config


def _gpt2(bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    # Today's names of what OpenAI's code calls otherwise.
    keys = {"n_vocab": "vocab_size", "n_ctx": "n_positions"}
    config = _given(published, folder, "hparams.json", "gpt2")
    return {keys.get(key, key): value for key, value in config.items()}


def _t5(bundle: Bundle, published: dict[str, Any], folder: Path) -> dict[str, Any]:
    """All sizes are in the variables; what they cannot say is the family's own (buckets reach 128 tokens)."""
    shapes = {name: entry.shape for name, entry in bundle.entries.items()}
    first = "encoder/block_000/layer_00"
    try:
        words, width = shapes["shared/embedding"]
        heads, buckets = shapes[f"{first}0/SelfAttention/relative_attention_bias"]
        inner = shapes[f"{first}0/SelfAttention/q"][-1]
        # Version 1.1 has two maps where version 1.0 has one.
        is_gated = f"{first}1/DenseReluDense/wi_0/kernel" in shapes
        wide = shapes[f"{first}1/DenseReluDense/{'wi_0' if is_gated else 'wi'}/kernel"][-1]
    except (KeyError, ValueError, IndexError) as error:
        raise EtymonError(f"{bundle.index} lacks a variable that every T5 has: {error}") from error
    return {
        "model_type": "t5",
        "vocab_size": words,
        "d_model": width,
        "d_kv": inner // max(1, heads),
        "d_ff": wide,
        "num_heads": heads,
        "num_layers": _count(bundle, "encoder/block_{}/"),
        "num_decoder_layers": _count(bundle, "decoder/block_{}/"),
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu" if is_gated else "relu",
        "tie_word_embeddings": "decoder/logits/kernel" not in shapes,
        **published,
    }


def _count(bundle: Bundle, pattern: str) -> int:
    matcher = re.compile(re.escape(pattern).replace(r"\{\}", r"(\d+)"))
    numbers = [int(match[1]) for name in bundle.entries if (match := matcher.match(name))]
    return max(numbers, default=-1) + 1


# --- what is more than a name


def _by_layer(pieces: Pieces, config: dict[str, Any]) -> Pieces:
    """XLNet's biases of all layers are one variable, with an axis for the layers where each has its own."""
    result: Pieces = {}
    layers = config.get("n_layer")
    if not isinstance(layers, int) or not 0 < layers < 10_000:
        raise EtymonError(f"xlnet_config.json has n_layer = {layers!r}, which is no number of layers")
    for hub, (name, _) in pieces.items():
        # Every other name has had its number filled in.
        if "{}" not in hub:
            result[hub] = pieces[hub]
            continue
        for layer in range(layers):
            has_axis = config.get("untie_r", True) or name.endswith("seg_embed")
            result[hub.format(layer)] = (name, _row(layer) if has_axis else same)
    return result


def _row(layer: int) -> Callable[[Tensor], Tensor]:
    def take(stacked: Tensor) -> Tensor:
        if not 0 <= layer < len(stacked):
            raise EtymonError(f"a bias of XLNet has {len(stacked)} layers, and xlnet_config.json has more")
        return stacked[layer].clone()

    return take


ELECTRA_SIGN = "electra/embeddings/word_embeddings"
XLNET_SIGN = "model/transformer/word_embedding/lookup_table"
WORDPIECE = (("vocab*.txt", "vocab.txt"),)
SENTENCEPIECE = (("*spiece*.model", "spiece.model"), ("sentencepiece.model", "spiece.model"))
DISCRIMINATOR = TensorFlowKind(
    "ELECTRA",
    ELECTRA_SIGN,
    ELECTRA,
    partial(_electra, "electra"),
    WORDPIECE,
    ("electra/", "discriminator_predictions/"),
    "the generator (--heads vocabulary takes it)",
)
# The two share their embeddings.
GENERATOR = TensorFlowKind(
    "ELECTRA",
    ELECTRA_SIGN,
    ELECTRA_GENERATOR,
    partial(_electra, "generator"),
    WORDPIECE,
    ("electra/embeddings/", "generator/", "generator_predictions/"),
    "the discriminator",
    ("generator.json", *CONFIGS),
)
# In this order: an ALBERT has all the embeddings of a BERT, under the same names.
KINDS = (
    TensorFlowKind(
        "GPT-2", "model/wte", GPT2, _gpt2, (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"))
    ),
    DISCRIMINATOR,
    TensorFlowKind(
        "ALBERT",
        "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel",
        ALBERT,
        _albert,
        (("*.model", "spiece.model"), *WORDPIECE),
    ),
    TensorFlowKind("BERT", "bert/embeddings/word_embeddings", BERT, _bert, WORDPIECE),
    TensorFlowKind("XLNet", XLNET_SIGN, XLNET, _xlnet, SENTENCEPIECE),
    TensorFlowKind("T5", "shared/embedding", T5, _t5, SENTENCEPIECE),
)
