"""The arms of `benchmarks.recipes`: each a few settings of `etymon pretrain`, one thing otherwise than its neighbour."""

from __future__ import annotations

from typing import Any

ROTARY = "shape.position_kind=rotary"
NO_DROPOUT = ("shape.dropout=0.0", "shape.attention_dropout=0.0")
WIDER = "shape.deviation=0.06"
MORE_MASKS = "options.density=0.3"
MASKED = {"objective": "masked"}


def arm(family: str, *settings: str, **asked: Any) -> dict[str, Any]:
    """What pocket sizes did before, with some settings otherwise."""
    return {"family": family, "recipe": "muon", "set": settings, **asked}


# Why does a masked model stall? BERT with one thing otherwise.
CAUSES: dict[str, dict[str, Any]] = {
    "bert": arm("bert", **MASKED),
    "bert-nsp": arm("bert"),
    "bert-rotary": arm("bert", ROTARY, **MASKED),
    "bert-relative-key": arm("bert", "shape.position_kind=relative_key", **MASKED),
    "bert-relative-bias": arm("bert", "shape.position_kind=relative_bias", **MASKED),
    "bert-no-dropout": arm("bert", *NO_DROPOUT, **MASKED),
    "bert-warmup": arm("bert", **MASKED, warmup=0.4),
    "bert-slower": arm("bert", **MASKED, learning_rate=1e-3),
    "bert-adamw": arm("bert", **MASKED, optimiser="adamw", learning_rate=1e-3),
    "bert-deviation": arm("bert", WIDER, **MASKED),
    "bert-density": arm("bert", MORE_MASKS, **MASKED),
    "bert-short": arm("bert", **MASKED, length=32, batch=64),
    "bert-small-batch": arm("bert", **MASKED, batch=16),
    # All of the recipe but rotary positions.
    "bert-learned-16-30": arm("bert", *NO_DROPOUT, MORE_MASKS, **MASKED, batch=16),
}
# What to add to rotary positions.
BEST = (ROTARY, *NO_DROPOUT, MORE_MASKS)
LEVERS: dict[str, dict[str, Any]] = {
    "bert-rotary-16": arm("bert", ROTARY, *NO_DROPOUT, **MASKED, batch=16),
    "bert-rotary-16-30": arm("bert", *BEST, **MASKED, batch=16),
    "bert-rotary-16-40": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.4", **MASKED, batch=16),
    "bert-rotary-16-50": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.5", **MASKED, batch=16),
    "bert-rotary-deviation": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, batch=16
    ),
    "bert-rotary-deviation-12": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", "shape.deviation=0.12", **MASKED, batch=16
    ),
    "bert-rotary-deviation-32": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED),
    "bert-rotary-deviation-15": arm("bert", ROTARY, *NO_DROPOUT, WIDER, **MASKED, batch=16),
    "bert-rotary-deviation-128": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, length=128, batch=8
    ),
    "bert-learned-deviation": arm("bert", *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, batch=16),
    "roberta-deviation": arm("roberta", ROTARY, *NO_DROPOUT, WIDER, "options.density=0.4", batch=16),
    "distilbert-deviation": arm("distilbert", ROTARY, *NO_DROPOUT, WIDER, "options.density=0.4", batch=16),
    "albert-deviation": arm(
        "albert", ROTARY, WIDER, "options.density=0.4", "options.masking=bert", **MASKED, batch=16
    ),
    "electra-deviation": arm("electra", ROTARY, *NO_DROPOUT, WIDER, batch=16),
    "electra-deviation-masked-first": arm(
        "electra",
        ROTARY,
        *NO_DROPOUT,
        WIDER,
        "phases=[{share: 0.5, objective: masked, options: {density: 0.4}}, {share: 0.5, objective: replaced}]",
        batch=16,
    ),
    "xlnet-deviation": arm("xlnet", "shape.dropout=0.0", WIDER, "options.predict=3", batch=16),
    "bert-rotary-32-30": arm("bert", *BEST, **MASKED),
    "bert-rotary-8-30": arm("bert", *BEST, **MASKED, batch=8),
    "bert-rotary-128-30": arm("bert", *BEST, **MASKED, length=128, batch=8),
    "bert-rotary-short-30": arm("bert", *BEST, **MASKED, length=32, batch=32),
    "bert-rotary-16-30-8e-3": arm("bert", *BEST, **MASKED, batch=16, learning_rate=8e-3),
    "bert-rotary-16-30-2e-3": arm("bert", *BEST, **MASKED, batch=16, learning_rate=2e-3),
    "bert-rotary-16-30-nsp": arm("bert", *BEST, batch=16),
    "bert-rotary-decay": arm(
        "bert",
        ROTARY,
        *NO_DROPOUT,
        **MASKED,
        batch=16,
    )
    | {
        "set": (
            ROTARY,
            *NO_DROPOUT,
            "phases=[{share: 0.6, options: {density: 0.4}}, {share: 0.4, options: {density: 0.2}}]",
        )
    },
    "bert-hybrid": {"family": "bert", "recipe": "hybrid", "set": (MORE_MASKS,), "batch": 16},
    "bert-causal-first": {"family": "bert", "recipe": "causal-first", "set": (), "batch": 16},
    "roberta": arm("roberta"),
    "roberta-rotary": arm("roberta", *BEST, batch=16),
    "albert": arm("albert"),
    "albert-rotary": arm("albert", ROTARY, MORE_MASKS, "options.masking=bert", **MASKED, batch=16),
    "albert-rotary-ngram": arm("albert", ROTARY, MORE_MASKS, "options.masking=ngram", **MASKED, batch=16),
    "albert-rotary-2e-3": arm(
        "albert", ROTARY, MORE_MASKS, "options.masking=bert", **MASKED, batch=16, learning_rate=2e-3
    ),
    "distilbert": arm("distilbert"),
    "distilbert-rotary": arm("distilbert", *BEST, batch=16),
    "electra": arm("electra"),
    "electra-rotary": arm("electra", ROTARY, *NO_DROPOUT, batch=16),
    "electra-rotary-30": arm("electra", *BEST, batch=16),
    "electra-masked-first": arm(
        "electra",
        ROTARY,
        *NO_DROPOUT,
        "phases=[{share: 0.5, objective: masked, options: {density: 0.3}}, {share: 0.5, objective: replaced}]",
        batch=16,
    ),
    "electra-wide": arm(
        "electra", *BEST, "generator.dim=128", "generator.heads=2", "generator.inner_dim=512", batch=16
    ),
    "xlnet": arm("xlnet"),
    "xlnet-no-dropout": arm("xlnet", "shape.dropout=0.0", batch=16),
    "xlnet-third": arm("xlnet", "shape.dropout=0.0", "options.predict=3", batch=16),
    "xlnet-single": arm("xlnet", "shape.dropout=0.0", "options.predict=3", "options.longest=1", batch=16),
    "xlnet-masked": arm("xlnet", "shape.dropout=0.0", MORE_MASKS, **MASKED, batch=16),
}
# Attention that begins at neighbours, and cross-attention that begins at equal words.
NEAR, MATCH = "shape.neighbours=1.0", "shape.matches=8.0"
GENERATOR = ("generator.dim=128", "generator.heads=4", "generator.inner_dim=512")
FIRST = "objective: masked, options: {density: 0.4}"
SUMMARY = "objective: masked, options: {density: 0.4, summary: 1.0}"
TURNED = ("shape.position_kind=rotary", "shape.neighbours=2.0")
BESIDE = "options: {masked: {density: 0.4, summary: 1.0}}"
DENSE = ("options.density=0.5", "options.mean_span=2.0")
SHORT = {"length": 128, "batch": 8}
LONG = {"length": 128, "batch": 16}


def now(family: str, *settings: str, **asked: Any) -> dict[str, Any]:
    """The pocket recipe, with some settings otherwise."""
    return {"family": family, "recipe": "pocket", "set": settings, **asked}


# Recipes of encoder-decoders before attention began at neighbours.
BEFORE = ("shape.neighbours=0.0", "shape.matches=0.0")
TEXTS = ("options.noise=masking", "options.density=0.3")
BIASED = ("shape.position_kind=relative_bias", NEAR, MATCH)
WHOLE = {"objective": "denoising", **SHORT}
SPANS = {"objective": "span-corruption", **SHORT}
STARTS: dict[str, dict[str, Any]] = {
    "bert-far": now("bert", "shape.neighbours=0.0", length=64, batch=16),
    "bert-near": now("bert", NEAR, length=64, batch=16),
    "bert-nearer": now("bert", "shape.neighbours=2.0", length=64, batch=16),
    "bert-bias-near": now("bert", "shape.position_kind=relative_bias", NEAR, length=64, batch=16),
    "bert-summary": now("bert", "options.summary=1.0", length=64, batch=16),
    "bert-summary-3": now("bert", "options.summary=0.3", length=64, batch=16),
    "albert-summary": now("albert", "options.summary=1.0", length=64, batch=16),
    "roberta-summary": now("roberta", "options.summary=1.0", length=64, batch=16),
    "electra-summary": now(
        "electra",
        f"phases=[{{share: 0.5, {SUMMARY}}}, {{share: 0.5}}]",
        length=64,
        batch=16,
    ),
    "electra-summary-75": now(
        "electra",
        f"phases=[{{share: 0.75, {SUMMARY}}}, {{share: 0.25}}]",
        length=64,
        batch=16,
    ),
    "electra-beside": now(
        "electra",
        f"phases=[{{share: 0.5, {SUMMARY}}}, {{share: 0.5, objective: 'masked=0.5,replaced=0.5', {BESIDE}}}]",
        length=64,
        batch=16,
    ),
    "albert-rotary-summary": now("albert", *TURNED, "options.summary=1.0", length=64, batch=16),
    "roberta-rotary-summary": now("roberta", *TURNED, "options.summary=1.0", length=64, batch=16),
    "electra-rotary-75": now(
        "electra", *TURNED, f"phases=[{{share: 0.75, {SUMMARY}}}, {{share: 0.25}}]", length=64, batch=16
    ),
    "bert-bias-summary": now("bert", "shape.position_kind=relative_bias", NEAR, length=64, batch=16),
    "xlnet-far": now("xlnet", "shape.neighbours=0.0", length=64, batch=16),
    "xlnet-near": now("xlnet", NEAR, length=64, batch=16),
    "xlnet-near-half": now("xlnet", NEAR, "options.predict=2", length=64, batch=16),
    "t5-near-match": now("t5", NEAR, MATCH, objective="span-corruption", **LONG),
    "t5-dense": now("t5", *BEFORE, *DENSE, **SPANS),
    "t5-dense-near-match": now("t5", NEAR, MATCH, *DENSE, **SPANS),
    "t5-text": now("t5", *BEFORE, *TEXTS, **WHOLE),
    "t5-text-near-match": now("t5", NEAR, MATCH, *TEXTS, **WHOLE),
    "t5-phases": now("t5", **SHORT),
    "bart-learned": now("bart", "shape.position_kind=learned", "shape.deviation=0.02", *BEFORE, **SHORT),
    "bart-rotary": now("bart", ROTARY, WIDER, *BEFORE, **SHORT),
    "bart-near-match": now("bart", ROTARY, WIDER, NEAR, MATCH, **SHORT),
    "bart-bias-near-match": now("bart", *BIASED, WIDER, **SHORT),
    "transformer-sinusoidal": now("transformer", "shape.position_kind=sinusoidal", *BEFORE, **SHORT),
    "transformer-bias-near-match": now("transformer", *BIASED, **SHORT),
    "electra-near": now("electra", NEAR, length=64, batch=16),
    "electra-near-wide": now("electra", NEAR, *GENERATOR, length=64, batch=16),
    "electra-near-wide-70": now(
        "electra", NEAR, *GENERATOR, f"phases=[{{share: 0.7, {FIRST}}}, {{share: 0.3}}]", length=64, batch=16
    ),
}
# Pocket sizes as they are.
POCKET: dict[str, dict[str, Any]] = {
    f"{family}-pocket": now(family, length=64, batch=16)
    for family in ("bert", "roberta", "albert", "distilbert", "electra", "xlnet")
} | {f"{family}-pocket": now(family, **SHORT) for family in ("t5", "bart", "transformer")}
ARMS = CAUSES | LEVERS | STARTS | POCKET
