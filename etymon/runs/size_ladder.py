"""The shapes that `--size auto` chooses from: the pocket size of a family, wider or narrower by whole heads
and deeper or shallower in proportion, each with its counted operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from etymon.errors import EtymonError
from etymon.families.loading import shape_of
from etymon.families.memory import body_parameters
from etymon.nn.footprint import available_memory
from etymon.objectives import get_objective
from etymon.runs.memory import (
    Plan,
    matching_choice,
    stand_in_slices,
    stand_in_tokenizer,
    with_vocabulary,
)
from etymon.runs.scaling_laws import ScalingLaw, effective_parameters, effective_tokens
from etymon.runs.text_data import TextData
from etymon.training.memory import step_footprint, without_values

LADDER = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
"""Heads of the shapes on offer; of families without heads, quarters of the pocket size."""
POCKET_STEP = 4
FIXED_DIMS = ("head_dim", "rotary_dim", "letter_dim")
USUAL_STEP_TOKENS = 1e6
"""Tokens of a run whose step is the recipe's: recipes were chosen at 10 to 100 Tflop."""
BATCH_SLOPE = 0.4
"""Steps grow with the tokens of a run (Bergsma et al. 2025 find 0.38)."""
RATE_SLOPE = 0.7
"""Wider models take smaller rates: GPT-2's, tuned at widths of 256 and 384, are 0.004 and 0.003."""
FEWEST_SAMPLES = 4
STEPPING = 16
"""Tokens of the samples by which models that go through a text step by step are counted."""
BYTES_A_PARAMETER = 20
"""Weights, gradients, two moments, and as much again while the optimiser steps."""


@dataclass(frozen=True)
class SizeCandidate:
    """A shape on offer."""

    step: int
    """Of the ladder."""
    shape: Any
    fields: dict[str, int]
    """What it has otherwise than the pocket size."""
    parameters: float
    """Without those of words."""
    operations: float
    """A token."""


@dataclass
class Ladder:
    """The shapes on offer for a run; each is counted when somebody asks for it."""

    data: TextData
    """Of the run at its pocket size."""
    _counted: dict[int, SizeCandidate | None] = field(default_factory=dict)

    def at(self, step: int) -> SizeCandidate | None:
        """The shape at a step; None if the family cannot have it, or it would not fit into memory."""
        if step not in self._counted:
            try:
                self._counted[step] = self._count(step)
            except EtymonError:  # a shape that the family refuses
                self._counted[step] = None
        return self._counted[step]

    def _count(self, step: int) -> SizeCandidate | None:
        plan, file = self.data.model_plan, self.data.file
        changed = scaled_fields(plan.shape, step)
        shape = shape_of(plan.family, file.size, **{**plan.recipe.shape, **file.shape, **changed})
        whole = with_vocabulary(shape, plan.vocabulary)
        memory_plan = replace(self.data.memory_plan(), shape=whole)
        # Words cost operations, too, and are in those; but they do not make a model think longer.
        parameters = body_parameters(plan.family, whole, memory_plan.heads)
        if BYTES_A_PARAMETER * parameters > available_memory():
            return None
        return SizeCandidate(step, shape, changed, parameters, operations_a_token(memory_plan))

    def best(self, law: ScalingLaw, tokens: Callable[[SizeCandidate], float], **limits: Any) -> SizeCandidate:
        """The shape with the lowest expected loss, if each reads so many tokens."""

        def expected(step: int) -> float:
            shape = self.at(step)
            return float("inf") if shape is None else expected_loss(law, shape, tokens(shape), **limits)

        # Too small and too large are both worse: walking downhill from the pocket size finds the best, and
        # only the shapes on the way are counted.
        place = LADDER.index(POCKET_STEP)
        while True:
            nearby = [other for other in (place, place - 1, place + 1) if 0 <= other < len(LADDER)]
            lowest = min(nearby, key=lambda other: expected(LADDER[other]))
            if lowest == place:
                break
            place = lowest
        chosen = self.at(LADDER[place])
        if chosen is None:
            raise EtymonError(
                f"--size auto has no shape of {self.data.model_plan.family.title} that would fit: name a size"
            )
        return chosen

    def best_for_operations(self, law: ScalingLaw, operations: float, **limits: Any) -> SizeCandidate:
        """The same for a budget of operations: larger shapes read less. Scarce text asks for no larger one."""

        def tokens(shape: SizeCandidate) -> float:
            return operations / shape.operations

        free = self.best(law, tokens)
        if limits.get("text_tokens") is None:
            return free
        # After very many passes the law finds nothing left to learn and would spend the rest on parameters,
        # which would only learn the text by heart.
        return min(free, self.best(law, tokens, **limits), key=lambda shape: shape.step)

    def best_for_tokens(self, law: ScalingLaw, tokens: float, **limits: Any) -> SizeCandidate:
        """The largest shape that would be chosen for the operations that it takes to read so many tokens:
        those of a larger one would be better spent on more text."""
        chosen: SizeCandidate | None = None
        for step in LADDER:
            shape = self.at(step)
            if shape is None:
                continue
            # From below: the first shape that is too large ends it, and larger ones are never counted.
            best = self.best_for_operations(law, tokens * shape.operations, **limits)
            if chosen is not None and best.step < step:
                break
            chosen = shape
        assert chosen is not None, "the pocket size is on offer"
        return chosen


def scaled_fields(shape: Any, step: int) -> dict[str, int]:
    """The fields of a shape that is wider and deeper than the pocket size, or less so; heads stay as wide."""
    values = {part.name: getattr(shape, part.name) for part in fields(shape)}
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    factor = step / numbers.get("heads", POCKET_STEP)
    # What scales with width, and depth where there are heads: recurrent models are seldom deep.
    scaled = {
        name: max(1, round(value * factor))
        for name, value in numbers.items()
        if name in ("dim", "cells", "heads", "decoder_heads")
        or (name.endswith("_dim") and name not in FIXED_DIMS and name != "embedding_dim")
        or (name == "embedding_dim" and value == numbers.get("dim"))
        or (name in ("layers", "decoder_layers") and "heads" in numbers)
    }
    return {name: value for name, value in scaled.items() if value != numbers[name]}


def operations_a_token(plan: Plan) -> float:
    """Floating-point operations of training on a token, counted in steps whose tensors have no values."""
    tokenizer = stand_in_tokenizer(plan.family, plan.shape.vocabulary)
    shape = with_vocabulary(plan.shape, max(plan.shape.vocabulary, tokenizer.size))
    kinds = {repr((each.objective, sorted(each.options.items()), each.length)): each for each in plan.samples}
    counted = []
    for samples in kinds.values():
        # A step of a recurrent model costs the same at any length, and every one is computed.
        length = samples.length if plan.has_attention_layers() else min(samples.length, STEPPING)
        objective = get_objective(samples.objective, tokenizer, length, **samples.options)
        earlier, prepared, later = stand_in_slices(objective, tokenizer, length, FEWEST_SAMPLES)
        with without_values():
            unit = plan.build_unit(shape, objective, tokenizer)
        measured = step_footprint(unit, prepared, matching_choice(plan.optimiser, unit), 1, earlier, later)
        counted.append(measured.operations / measured.tokens)
    return sum(counted) / len(counted)


def expected_loss(
    law: ScalingLaw,
    shape: SizeCandidate,
    tokens: float,
    text_tokens: float | None = None,
    worth: float | None = None,
) -> float:
    """In nats a target, by a law for text that is not repeated and corrections for text that is."""
    return law.loss(effective_parameters(shape.parameters, worth), effective_tokens(tokens, text_tokens))


def batch_tokens(usual: int, tokens: float) -> float:
    """Tokens of a step in a run of so many; `usual` are the recipe's."""
    return float(usual * (tokens / USUAL_STEP_TOKENS) ** BATCH_SLOPE)


def learning_rate(usual: float, width: float) -> float:
    """The recipe's rate, for a model that is so many times as wide as the pocket size."""
    return usual if width <= 1 else float(f"{usual * width**-RATE_SLOPE:.2g}")
