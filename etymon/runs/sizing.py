"""`--size auto`: shape, batch, length and rate of a run, chosen for its budget and its text by a scaling law.

The shapes on offer are the family's pocket size, wider or narrower by whole heads and deeper or shallower in
proportion. Each would read as many tokens as its counted operations allow; the law says what loss that comes
to, and the lowest wins. What was chosen and why is in run.yaml, so that a resumed run need not choose again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn.precision import DTYPES, Precision, choose_precision
from etymon.runs.folder import Job
from etymon.runs.memory import TOKENS_A_STEP, Plan, with_vocabulary
from etymon.runs.planning import TOKENS_A_WORD, measured_utilisation
from etymon.runs.run import USUAL_BUDGET
from etymon.runs.run_file import RunFile
from etymon.runs.scaling_laws import ScalingCurve, curve_for
from etymon.runs.size_ladder import (
    FEWEST_SAMPLES,
    LADDER,
    POCKET_STEP,
    Ladder,
    SizeCandidate,
    batch_tokens,
    expected_loss,
    learning_rate,
)
from etymon.runs.text_data import TextBeginning, TextData
from etymon.text.languages import LanguageText
from etymon.text.sources import PreparedText, TextSource
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.budgets import Budget, parse_budget
from etymon.training.progress import format_count
from etymon.training.speed import matmul_peak

AUTO = "auto"
CHOSEN = ("length", "batch", "learning_rate")
"""Beside the shape, where nobody has given them."""
SHORTEST = 32
"""Tokens of a sample, where a step has few."""
BYTES_A_TOKEN = 4.0
"""Assumed of tokenizers that have yet to be trained."""
TRAINING = 0.9
"""Of a time budget: the rest is for validations."""


# --- how much text, how much work


def count_text(source: TextSource, file: RunFile) -> tuple[float, str]:
    """About how many tokens a text has to train on, and how that is known."""
    if isinstance(source, LanguageText):
        parts = [count_text(part, file) for part in source.sources.values()]
        return sum(tokens for tokens, _ in parts), parts[0][1]
    if isinstance(source, PreparedText):
        return float(TokenStore.open(source.folder).summary.train.tokens), "counted"
    beginning = TextBeginning(source)
    tokenizer = None
    if file.tokenizer is not None and file.kind is None:
        tokenizer = Tokenizer.load(file.tokenizer)
    # Only the beginning of large files is read: the choice hardly moves with a tenth more text.
    size, sample = 0, ""
    for document in beginning.documents():
        size += len(document.text.encode())
        sample = sample or document.text[:100_000]
    whole = size / beginning.share() * (1 - file.validation)
    sampled = max(1, len(sample.encode()))
    if tokenizer is not None:
        return whole * len(tokenizer.encode(sample)) / sampled, "by a sample"
    if file.kind in ("byte", "character"):
        return whole * (len(sample) / sampled if file.kind == "character" else 1.0), "counted"
    return whole / BYTES_A_TOKEN, f"at {BYTES_A_TOKEN:g} bytes a token"


def measured_precision(plan: Plan) -> Precision:
    """What `auto` will stand for in a run of this shape on this processor."""
    with torch.device("meta"):
        model = Model(plan.family, plan.shape, plan.heads)
    return choose_precision(model, torch.device("cpu"))[0]


def operations_a_second(plan: Plan) -> float:
    """Of real steps on this processor."""
    peak = matmul_peak(dtype=DTYPES[plan.precision])
    footprint = plan.footprint()
    share = measured_utilisation(plan, footprint, peak)
    if share is None:
        raise EtymonError("--size auto cannot time this model here: give the budget as operations (20Tflops)")
    return share * peak


# --- the choice


def choose_size(
    file: RunFile, source: TextSource | None, note: Callable[[str], None], *, device: str | None = None
) -> RunFile:
    """The run's file with shape, batch, length and rate in place of the size `auto`; notes say why."""
    file = _before_choice(file)
    budget = parse_budget(file.budget or USUAL_BUDGET)
    _require_choice(file, budget, device)
    # Nothing is written: a folder that nobody has, so that no earlier run stands in the way.
    data = TextData(Job(Path(gettempdir()) / f"etymon-size-{uuid4().hex}", file), None)
    curve, ladder = curve_for(data.model_plan.family), Ladder(data)
    text, source_of_count = (None, "") if source is None else count_text(source, file)
    limits: dict[str, Any] = {"text_tokens": text}
    # More parameters than the text is worth learn it by heart.
    if text is not None:
        limits["worth"] = ladder.best_for_tokens(curve.law, text).parameters
    chosen, tokens, speed = _choose(data, ladder, curve, budget, limits)
    sizing = _record(data, ladder, curve, budget, limits, chosen, tokens, speed)
    sizing |= _settings(data, chosen, tokens)
    for line in describe(sizing, source_of_count):
        note(line)
    return sized_as(file, sizing)


def sized_as(file: RunFile, sizing: dict[str, Any]) -> RunFile:
    """The file with what was chosen before."""
    file = _before_choice(file)
    settings = {name: sizing[name] for name in CHOSEN if name in sizing}
    return replace(file, **settings, shape={**file.shape, **sizing["shape"]}, sizing=sizing).check()


def _before_choice(file: RunFile) -> RunFile:
    """The file as it was before an earlier run chose its size, at the size that shapes are scaled from."""
    chosen = file.sizing
    family = get_family(file.family)
    size = "pocket" if "pocket" in family.sizes else next(iter(family.sizes))
    # What somebody has changed since stays: only what still is as it was chosen is chosen again.
    kept = {
        name: value for name, value in file.shape.items() if chosen.get("shape", {}).get(name, ...) != value
    }
    again: dict[str, Any] = {
        name: None for name in CHOSEN if name in chosen and getattr(file, name) == chosen[name]
    }
    return replace(file, size=size, shape=kept, sizing={}, **again)


def _require_choice(file: RunFile, budget: Budget, device: str | None) -> None:
    if file.start is not None or file.teacher is not None:
        raise EtymonError("a model to go on or to learn from decides about the size: leave --size auto out")
    if scaled := sorted({"dim", "layers", "heads", "cells"} & file.shape.keys()):
        raise EtymonError(f"--size auto chooses {' and '.join(scaled)}: leave that out, or name a size")
    if file.phases:
        raise EtymonError(
            "phases have lengths and batches of their own, which --size auto chooses: name a size"
        )
    if budget.unit == "steps":
        raise EtymonError(
            "--size auto chooses how many samples a step has: give the budget as a time (10m), operations "
            "(20Tflops), words, tokens or epochs"
        )
    # Each process would measure another speed, and build another model.
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if budget.unit == "seconds" and (several or place != "cpu"):
        raise EtymonError(
            "--size auto measures the speed of one process on a processor: give the budget as operations "
            "(20Tflops), words or tokens"
        )


def _choose(
    data: TextData, ladder: Ladder, curve: ScalingCurve, budget: Budget, limits: Mapping[str, Any]
) -> tuple[SizeCandidate, float, float | None]:
    """The best shape, the tokens that it will read, and the operations a second where they were measured."""
    if budget.unit in ("words", "tokens", "epochs"):
        text = limits["text_tokens"]
        if budget.unit == "epochs" and text is None:
            raise EtymonError("--size auto needs the text for a budget of epochs: give --data")
        each = {"words": TOKENS_A_WORD, "tokens": 1.0, "epochs": text or 0.0}[budget.unit]
        tokens = budget.amount * each
        return ladder.best_for_tokens(curve.law, tokens, **limits), tokens, None
    operations, speed = budget.amount, None
    chosen = ladder.at(POCKET_STEP)
    for _ in range(2):
        if budget.unit == "seconds":
            # Small models are slower by the operation: what was chosen is timed again.
            plan = data.memory_plan()
            assert chosen is not None, "the pocket size is on offer"
            shape = with_vocabulary(chosen.shape, data.model_plan.vocabulary)
            plan = replace(plan, shape=shape, samples=list(plan.samples)[:1])
            if data.file.precision == "auto":
                plan = replace(plan, precision=measured_precision(plan))
            speed = operations_a_second(plan)
            operations = TRAINING * speed * budget.amount
        before = chosen
        chosen = ladder.best_for_operations(curve.law, operations, **limits)
        if budget.unit == "flops" or before == chosen:
            break
    assert chosen is not None
    return chosen, operations / chosen.operations, speed


def _settings(data: TextData, chosen: SizeCandidate, tokens: float) -> dict[str, Any]:
    """Length, batch and rate for a shape that reads so many tokens, as far as nobody has given them."""
    file, plan = data.file, data.model_plan
    usual = plan.recipe.batch_tokens or TOKENS_A_STEP
    sized: dict[str, Any] = {}
    length = data.phases[0].length
    if file.batch is None:
        step = batch_tokens(usual, tokens)
        # A step of few samples sees few documents.
        while file.length is None and step < FEWEST_SAMPLES * length and length > SHORTEST:
            length //= 2
        samples = max(FEWEST_SAMPLES, round(step / length))
        sized["batch"] = max(1, -(-samples // file.slices)) * file.slices
    if file.length is None:
        sized["length"] = length
    if file.learning_rate is None and (file.optimiser or plan.recipe.optimiser) == plan.recipe.optimiser:
        sized["learning_rate"] = learning_rate(plan.recipe.learning_rate, chosen.shape.dim / plan.shape.dim)
    return sized


def _record(
    data: TextData,
    ladder: Ladder,
    curve: ScalingCurve,
    budget: Budget,
    limits: Mapping[str, Any],
    chosen: SizeCandidate,
    tokens: float,
    speed: float | None,
) -> dict[str, Any]:
    """What was chosen and why, as run.yaml keeps it."""
    operations, text = tokens * chosen.operations, limits["text_tokens"]
    is_fixed = budget.unit in ("words", "tokens", "epochs")

    def read(shape: SizeCandidate) -> float:
        return tokens if is_fixed else operations / shape.operations

    # How far the choice could be off: what other laws choose that fit the measurements as well.
    others = [
        ladder.best_for_tokens(refit, tokens, **limits)
        if is_fixed
        else ladder.best_for_operations(refit, operations, **limits)
        for refit in curve.refits
    ]
    widths = sorted(other.shape.dim for other in others)
    edge = len(widths) // 40  # 2.5%
    place = LADDER.index(chosen.step)
    nearby = [ladder.at(step) for step in LADDER[max(0, place - 1) : place + 2]]
    return {
        "curve": curve.family,
        "borrowed": curve.family != data.model_plan.family.name,
        "extrapolated": not curve.operations[0] <= operations <= 1.5 * curve.operations[1],
        "measured": [float(f"{each:.3g}") for each in curve.operations],
        "operations": float(f"{operations:.4g}"),
        "operations_a_second": speed and float(f"{speed:.3g}"),
        "text_tokens": text and round(text),
        "shape": dict(chosen.fields),
        "widths": [widths[edge], widths[-1 - edge]] if widths else [],
        "candidates": [
            {
                "dim": each.shape.dim,
                "layers": each.shape.layers,
                "parameters": round(each.parameters),
                "tokens": round(read(each)),
                "expected_loss": round(expected_loss(curve.law, each, read(each), **limits), 4),
                "chosen": each == chosen,
            }
            for each in nearby
            if each is not None
        ],
    }


def describe(sizing: Mapping[str, Any], source_of_count: str = "") -> list[str]:
    """The derivation of a choice, line by line."""
    speed, text = sizing["operations_a_second"], sizing["text_tokens"]
    low, high = sizing["measured"]
    work = f"{format_count(sizing['operations'])} operations"
    if speed:
        work += f" ({format_count(speed)} a second, measured here)"
    counted = (
        "" if text is None else f"; the text has about {format_count(text)} tokens {source_of_count}".rstrip()
    )
    whose = f"the curve of {sizing['curve']}"
    whose += ", a relative" if sizing["borrowed"] else ""
    beyond = "; this run is beyond that" if sizing["extrapolated"] else ""
    lines = [
        f"size auto: {work}{counted}",
        f"size auto: by {whose} (measured from {format_count(low)} to {format_count(high)} operations"
        f"{beyond})",
    ]
    for each in sizing["candidates"]:
        lines.append(
            f"size auto: {'-> ' if each['chosen'] else '   '}{each['dim']} wide, {each['layers']} layers, "
            f"{format_count(each['parameters'])} parameters beside words, {format_count(each['tokens'])} "
            f"tokens: loss {each['expected_loss']:.3f} expected"
        )
    if widths := sizing["widths"]:
        lines.append(
            f"size auto: other fits of the measurements choose widths from {widths[0]} to {widths[1]} (95%)"
        )
    chosen = [f"{name.replace('_', ' ')} {sizing[name]:g}" for name in CHOSEN if name in sizing]
    return [*lines, *([f"size auto: {', '.join(chosen)}"] if chosen else [])]
