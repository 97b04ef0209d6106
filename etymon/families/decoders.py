"""What GPT-1, GPT-2, GPT-3 and GPT-J have in common: the shape, the body, the heads, and how these are
published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from etymon.checkpoints.names import NameMap, Row, rows
from etymon.checkpoints.settings import Field
from etymon.families.family import Head, Recipe, TokenizerChoice
from etymon.families.positions import Positions, check_positions
from etymon.families.shape import (
    ACTIVATION_NAMES,
    ActivationName,
    check_cutoffs,
    check_divisor,
    check_heads,
    shape_class,
)
from etymon.nn.adaptive import AdaptiveEmbedding, AdaptiveVocabulary
from etymon.nn.attention import Attention
from etymon.nn.blocks import Block, Body, FeedForward, Stack
from etymon.nn.embeddings import Embeddings
from etymon.nn.heads import Projection
from etymon.nn.initialise import COMMON, Filler, normal
from etymon.nn.layers import Embedding, LayerNorm, Rate
from etymon.nn.visibility import CausalRule, Rule
from etymon.nn.vocabulary import DenseVocabulary


@shape_class
class DecoderShape:
    vocabulary: PositiveInt = 50257
    positions: PositiveInt = 1024
    dim: PositiveInt = 768
    layers: PositiveInt = 12
    heads: PositiveInt = 12
    activation: ActivationName = "gelu_tanh"
    embedding_dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    residual_dropout: Rate = 0.1
    norm_epsilon: NonNegativeFloat = 1e-5
    deviation: NonNegativeFloat = 0.02
    tied: bool = True
    residual_scale: PositiveFloat = 1.0
    """What a layer's part adds is multiplied by it. Transformers has no such thing: saving folds it into the
    weights."""
    pointer: NonNegativeInt = 0
    """How many recent words a pointer may copy (0: there is none). Transformers has no such thing either."""

    cutoffs: tuple[PositiveInt, ...] = ()
    """Ids at which rarer words begin, for an adaptive softmax (none: a plain one). Nor has it this."""
    divisor: PositiveInt = 1
    """Word vectors are narrower by it from each cutoff to the next."""

    def __post_init__(self) -> None:
        if getattr(self, "head_dim", None) is None:
            check_heads(self.dim, self.heads)
        check_positions(getattr(self, "position_kind", "learned"), head_width(self))
        if self.pointer and self.cutoffs:
            raise ValueError("a pointer stands beside a plain softmax: leave pointer or cutoffs out")
        check_divisor(self)
        check_cutoffs(self, self.vocabulary)


POCKET = {
    "positions": 256, "embedding_dropout": 0.0, "attention_dropout": 0.0, "residual_dropout": 0.0,
}  # fmt: skip
SMALL_POCKET = {"vocabulary": 4096, "dim": 256, "layers": 4, "heads": 4, **POCKET}
CAPABILITIES = frozenset({"causal", "prefix", "state"})
# GPT-2's only special token stands between texts: it ends one and begins the next.
BYTE_BPE = TokenizerChoice("byte-bpe", {"begin": "<|endoftext|>", "end": "<|endoftext|>"})


def pocket_recipe(rate: float) -> Recipe:
    """Minutes, not weeks: Muon needed far fewer steps for the same loss (docs/lab-notes.md)."""
    return Recipe(
        name="pocket",
        why="As published, with Muon, which needs far fewer steps for the same loss.",
        learning_rate=rate,
        optimiser="muon",
        betas=(0.9, 0.95),
        weight_decay=0.1,
        schedule="cosine",
        warmup=0.05,
        final=0.1,
    )


# --- the body


def head_width(shape: Any) -> int:
    return getattr(shape, "head_dim", None) or shape.dim // shape.heads


def positions(shape: Any) -> Positions:
    return Positions(shape.position_kind, shape.heads, head_width(shape), shape.positions)


def layer_norm(shape: Any) -> LayerNorm:
    return LayerNorm(shape.dim, shape.norm_epsilon)


def attention(shape: Any, **options: Any) -> Attention:
    return Attention(shape.dim, shape.heads, dropout=shape.attention_dropout, **options)


def feed_forward(shape: Any) -> FeedForward:
    """Four times as wide inside, unless the shape has a field for it that says otherwise."""
    return FeedForward(shape.dim, getattr(shape, "inner_dim", None) or 4 * shape.dim, shape.activation)


def block(shape: Any, *, norm_first: bool, **options: Any) -> Block:
    """One layer; the options are those of its attention."""
    return Block(
        attention(shape, **options),
        feed_forward(shape),
        norms=(layer_norm(shape), layer_norm(shape)),
        norm_first=norm_first,
        dropout=shape.residual_dropout,
        residual_scale=shape.residual_scale,
    )


def decoder(
    shape: Any,
    layer: Callable[[int], nn.Module],
    rules: Rule | Sequence[Rule] = CausalRule(),  # noqa: B008  (a frozen value)
    *,
    places: Positions | None = None,
    norm: bool = True,
) -> Body:
    """Words, layers (`layer` makes one by its number, from 0), a last `norm`, and what `places` adds to
    these: a table of learned positions or a bias; None where only the layers tell positions."""
    words: Embedding | AdaptiveEmbedding = Embedding(shape.vocabulary, shape.dim)
    # Vectors of one width need no bins: the plain table serves an adaptive softmax as well.
    if shape.divisor > 1:
        words = AdaptiveEmbedding(shape.vocabulary, shape.dim, shape.cutoffs, divisor=shape.divisor)
    embeddings = Embeddings(
        words,
        positions=Embedding(shape.positions, shape.dim) if places and places.has_table else None,
        longest=shape.positions,
        dropout=shape.embedding_dropout,
    )
    layers = [layer(number) for number in range(shape.layers)]
    bias = None if places is None else places.bias(bidirectional=False)
    last_norm = layer_norm(shape) if norm else None
    return Body(embeddings, Stack(layers, rules, norm=last_norm, position_bias=bias))


# Section 2.3 of the GPT-2 paper: weights of residual layers are scaled by 1 / sqrt(N), N being their
# number.
def residual_initial(shape: Any) -> list[tuple[str, Filler]]:
    """GPT-2's first values: what is added to the residual path starts small, the smaller the more layers add
    to it."""
    residual = normal(shape.deviation / (2 * shape.layers) ** 0.5)
    return [
        ("*.attention.output.weight", residual),
        ("*.feed_forward.outer.weight", residual),
        # OpenAI's code has 0.01 for positions and 0.02 for words; Transformers has 0.02 for both.
        ("body.embeddings.positions.weight", normal(shape.deviation / 2)),
        *COMMON,
        ("*.weight", normal(shape.deviation)),
    ]


# --- heads


def vocabulary_head(bias: bool = False) -> Head:
    def build(shape: Any, body: nn.Module, labels: int) -> nn.Module:
        assert isinstance(body, Body)
        if getattr(shape, "cutoffs", ()):
            ties = [shape.tied] * (len(shape.cutoffs) + 1)
            return AdaptiveVocabulary(body.embeddings.words, shape.cutoffs, tied=shape.tied, tied_maps=ties)
        words = body.embeddings.words if shape.tied else Embedding(shape.vocabulary, shape.dim)
        assert isinstance(words, Embedding)
        return DenseVocabulary(words.weight, bias=bias)

    return Head(build)


def dropped(shape: Any, outputs: int) -> nn.Module:
    """A linear map behind the dropout of task heads, where a family has one."""
    return Projection(shape.dim, outputs, dropout=getattr(shape, "head_dropout", 0.0))


# GPT-2's. Heads that Transformers has no class for are there all the same, so that any task can be trained.
HEADS = {
    "vocabulary": vocabulary_head(),
    # Transformers' `score` has no bias, and reads the last token, which alone has seen all of a text.
    "classification": Head(lambda s, body, labels: Projection(s.dim, labels, bias=False), at="last"),
    "tagging": Head(lambda s, body, labels: dropped(s, labels)),
    "span": Head(lambda s, body, labels: Projection(s.dim, 2)),
    "choice": Head(lambda s, body, labels: dropped(s, 1), at="last"),
}


# --- as it is published

BODY = "transformer."
LAYER = "body.stack.layers.{}."
THEIRS = BODY + "h.{}."
NORM_NAMES = {
    LAYER + "attention_norm.*": THEIRS + "ln_1.*",
    LAYER + "feed_forward_norm.*": THEIRS + "ln_2.*",
    "body.stack.norm.*": BODY + "ln_f.*",
}
TABLE_NAMES = {
    "body.embeddings.words.weight": BODY + "wte.weight",
    "body.embeddings.positions.weight": BODY + "wpe.weight",
}
# Of positions that no published class of these families has.
POSITION_NAMES = {
    LAYER + "attention.relative.table.weight": THEIRS + "attn.distance_embedding.weight",
    "body.stack.position_bias.table.weight": BODY + "relative_attention_bias.weight",
}
HEAD_NAMES = {
    "heads.vocabulary.*": "lm_head.*",
    "heads.classification.linear.weight": "score.weight",
    "heads.tagging.linear.*": "classifier.*",
    "heads.span.linear.*": "qa_outputs.*",
    "heads.choice.linear.*": "multiple_choice_head.summary.*",
}
# GPT-1's and GPT-2's matrices are `[in, out]`, and query, key and value are one.
FUSED = [
    Row(
        tuple(LAYER + f"attention.{part}.*" for part in ("query", "key", "value")),
        THEIRS + "attn.c_attn.*",
        transposed=True,
    ),
    *rows(
        {
            LAYER + "attention.output.*": THEIRS + "attn.c_proj.*",
            LAYER + "feed_forward.inner.*": THEIRS + "mlp.c_fc.*",
            LAYER + "feed_forward.outer.*": THEIRS + "mlp.c_proj.*",
        },
        transposed=True,
    ),
]


def separate(prefix: str) -> dict[str, str]:
    """Query, key, value and output by themselves, as GPT-Neo and GPT-J name them."""
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return {LAYER + f"attention.{ours}.*": THEIRS + f"{prefix}{theirs}.*" for ours, theirs in parts.items()}


def name_map(shape: Any, table: Mapping[str, str], others: Sequence[Row] = ()) -> NameMap:
    """The table with the norms and the heads, and with rows that do more than rename."""
    words = table["body.embeddings.words.weight"]
    return NameMap(
        [*others, *rows({**NORM_NAMES, **POSITION_NAMES, **table, **HEAD_NAMES})],
        prefix=BODY,
        ties={"lm_head.weight": words} if shape.tied else {},
        # Causal masks: old files hold them as buffers of every layer.
        ignored=[r"transformer\.h\.\d+\.attn\.(attention\.)?(bias|masked_bias)"],
    )


KEYS = {
    "vocabulary": "vocab_size",
    "positions": "n_positions",
    "dim": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
    "residual_dropout": "resid_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
    "deviation": "initializer_range",
    "tied": "tie_word_embeddings",
}
ACTIVATION = Field("activation", "activation_function", ACTIVATION_NAMES)
# A decoder decodes, whether it says so or not.
IGNORED = ["is_decoder"]
