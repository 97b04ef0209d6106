"""Distillation (DistilBERT, section 2): a student learns the distributions and hidden states of a frozen
teacher beside the ordinary objective.

`soft` weighs T^2 KL(teacher || student) at temperature T, over all tokens or (`everywhere` off) over the
targets of the ordinary loss; `hard` the ordinary loss; `cosine` 1 - cos of the last hidden states. The
defaults are the published ones. `attention` adds what MiniLM transfers (Wang et al. 2020): the last layer's
attention distributions and the relations among its values.

Legend: N tokens, R rows, H heads, T longest row, D width, K width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.nn.batch import Batch
from etymon.nn.trace import Trace, trace
from etymon.nn.vocabulary import Context
from etymon.objectives.causal import CausalBatch, CausalLM, CausalOptions
from etymon.objectives.masked import MaskedBatch, MaskedLM, PackedOptions, SchemeName
from etymon.objectives.objective import Term, Unit
from etymon.settings import option, settings
from etymon.settings.distillation import DistillationSettings, EncoderDistillationSettings
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Teaching:
    """What is learned from the teacher, whatever the ordinary objective is."""

    options: DistillationSettings
    everywhere: bool = True
    """Whether distributions are compared at every token, or at targets alone."""

    def counts(self, targets: int, tokens: int) -> dict[str, float]:
        return {"soft": tokens if self.everywhere else targets, "cosine": tokens, "attention": tokens}

    def terms(
        self, unit: Unit, micro: Any, ordinary: Callable[[Any, Any, Tensor], dict[str, Term]]
    ) -> dict[str, Term]:
        """The terms of the ordinary objective, which makes them of a model, a slice and its hidden states,
        and the teacher's."""
        options, batch = self.options, micro.batch
        # Attention is only traced if it is to be learned: that costs the fast path.
        follow: Any = trace if options.attention else nullcontext
        with follow(unit.model) as student_trace, follow(unit.teacher) as teacher_trace:
            student_ND, _ = unit.model.hidden(batch)
            with torch.no_grad():
                teacher_ND, _ = unit.teacher.hidden(batch)
        terms = {
            # Metrics keep their weight of 0.
            name: replace(term, weight=term.weight * options.hard)
            for name, term in ordinary(unit.model, micro, student_ND).items()
        }
        if options.soft:
            places = None if self.everywhere else micro.at
            index = torch.arange(len(student_ND), device=student_ND.device) if places is None else places
            head = unit.teacher.heads["vocabulary"]

            # The teacher's logits by chunks of positions: all at once, they would be tokens x vocabulary once
            # more.
            @torch.no_grad()
            def teacher_logits(part: slice) -> Tensor:
                return head.logits(teacher_ND, index[part], Context(batch))

            divergence = unit.model.heads["vocabulary"].divergence(
                student_ND, places, teacher_logits, options.temperature
            )
            terms["soft"] = Term(divergence, options.soft)
        if options.cosine:
            # A student of another width is compared through a projection, which is trained and then dropped.
            projected_ND = student_ND
            if "projection" in unit.bridges:
                projected_ND = unit.bridges["projection"](student_ND)
            distances_N = 1 - F.cosine_similarity(projected_ND, teacher_ND, dim=-1)
            terms["cosine"] = Term(distances_N.sum(), options.cosine)
        if options.attention:
            sides = (
                _relations(unit.teacher, teacher_trace, batch),
                _relations(unit.model, student_trace, batch),
            )
            parts = [_divergence(*pair) for pair in zip(*sides, strict=True)]
            terms["attention"] = Term(torch.stack(parts).sum(), options.attention)
        return terms


@settings
class DistilledMaskedOptions(PackedOptions, EncoderDistillationSettings):
    masking: SchemeName = option("rare", "how tokens are chosen and shown")


class DistilledMasked(MaskedLM):
    """Masked language modelling with a teacher; rare words are masked more often, as DistilBERT did."""

    name = "distilled-masked"
    needs_teacher = True

    Options = DistilledMaskedOptions

    def __init__(
        self, tokenizer: Tokenizer, length: int, options: DistilledMaskedOptions | None = None
    ) -> None:
        super().__init__(tokenizer, length, options)
        self.teaching = Teaching(self.options, self.options.everywhere)

    def _counts(self, masked: int, tokens: int, rows: int) -> dict[str, float]:
        return {**super()._counts(masked, tokens, rows), **self.teaching.counts(masked, tokens)}

    def loss(self, unit: Unit, micro: MaskedBatch) -> dict[str, Term]:
        return self.teaching.terms(unit, micro, self.terms)


class DistilledCausal(CausalLM):
    """Language modelling with a teacher."""

    name = "distilled-causal"
    needs_teacher = True

    Options = DistillationSettings

    def __init__(
        self, tokenizer: Tokenizer, length: int, options: DistillationSettings | None = None
    ) -> None:
        super().__init__(tokenizer, length, CausalOptions())
        self.teaching = Teaching(options or DistillationSettings())

    def collate(self, examples: Any) -> CausalBatch:
        micro = super().collate(examples)
        micro.counts |= self.teaching.counts(micro.tokens, micro.tokens)
        return micro

    def loss(self, unit: Unit, micro: CausalBatch) -> dict[str, Term]:
        return self.teaching.terms(unit, micro, self.terms)


def _relations(model: Any, states: Trace, batch: Batch) -> tuple[Tensor, Tensor]:
    """The last layer's attention `[R, H, T, T]`, and how alike its values are, as distributions of the same
    shape."""
    stack = model.body.stack
    layer, x_ND = stack.layers[stack.schedule[-1]], states.hidden[-2]
    if layer.norm_first:
        x_ND = layer.attention_norm(x_ND)
    attention_RHTT = states.attention[-1]
    # Value relations (MiniLM, section 3.2) need no equal widths: both sides are tokens x tokens.
    v_NHK = layer.attention.value(x_ND).view(len(x_ND), attention_RHTT.shape[1], -1)
    v_RHTK = batch.layout.pad(v_NHK).transpose(1, 2)
    scores_RHTT = v_RHTK @ v_RHTK.transpose(-1, -2) / math.sqrt(v_RHTK.shape[-1])
    visible = batch.layout.real[:, None, None, :].expand_as(scores_RHTT)
    if "causal" in model.capabilities:
        visible = visible.tril()
    relation_RHTT = scores_RHTT.masked_fill(~visible, -math.inf).softmax(-1)
    return attention_RHTT, relation_RHTT.masked_fill(~batch.layout.real[:, None, :, None], 0.0)


def _divergence(teacher_RHTT: Tensor, student_RHTT: Tensor) -> Tensor:
    """KL(teacher || student) of every query, the mean over heads, summed over queries; blank cells are zero
    on both sides."""
    # Hidden cells have probability 0 on both sides: the clamp makes their logarithms finite, and 0 times that
    # is 0.
    tiny = torch.finfo(student_RHTT.dtype).tiny
    ratio = teacher_RHTT.clamp(min=tiny).log() - student_RHTT.clamp(min=tiny).log()
    return (teacher_RHTT * ratio).sum() / teacher_RHTT.shape[1]
