"""Language modelling on the rows of a table: a model goes on learning as it was pretrained, on short texts
of a field of its own.

Texts follow one another as the documents of a corpus do. Adapts a model before a task, or instead of one
(ULMFiT; Gururangan et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.generation import likelihood
from etymon.generation.text import tokenizer_of
from etymon.objectives import get_objective, objective_class
from etymon.objectives.objective import MicroBatch, Objective, Term, Unit, check_fit
from etymon.sampling.examples import pack_bundles, pad_rows, unpack_bundle
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import LanguageModelOptions
from etymon.tables.table import Table
from etymon.tasks.reading import require_one_tokenizer
from etymon.tasks.scores import MetricScore, bootstrap
from etymon.tasks.task import Fit, Notify, Task, ignore_note
from etymon.text.store import Split

USUAL_LENGTH = 256
"""Tokens of a sample, where the model itself has no smaller limit: as in pretraining."""


class LanguageModel(Task):
    name = "language-model"
    Options = LanguageModelOptions
    metrics = ("bits_per_byte", "bits_per_character")
    record_fields = ("prediction", "kind", "bits_per_byte", "perplexity", "tokens")
    heads = frozenset({"vocabulary"})
    options: LanguageModelOptions
    is_causal: bool
    """Whether the family reads from left to right, and so tells how likely a text is (`fit`, `bind`)."""
    objective: Objective
    """What it does, bound to a model."""

    def fit(self, family: Family) -> Fit:
        kind, self.is_causal = self._kind(family), "causal" in family.capabilities
        check_fit(kind, family)
        # Streams carry memory from segment to segment, and a second model (a teacher, ELECTRA's generator)
        # comes with a run of its own: rows of a table have neither.
        if kind.streaming or kind.needs_teacher or kind.companions:
            raise EtymonError(
                f"the objective {kind.name!r} cannot be learnt from rows: leave it out, or give it a "
                "run of its own (etymon pretrain)"
            )
        return Fit("native", kind.heads)

    def _kind(self, family: Family) -> type[Objective]:
        """The class of its objective."""
        if self.options.objective is not None:
            return objective_class(self.options.objective)
        if "causal" in family.capabilities:
            return objective_class("causal")
        if objective_class(family.objective).streaming:
            raise EtymonError(
                f"{family.title} learns from long texts that it reads as streams, not from rows: "
                f"etymon pretrain {family.name} --from MODEL --data TEXT goes on with it"
            )
        # A family that learnt otherwise (ELECTRA) can still fill masks, if it reads both ways.
        return objective_class("masked" if "bidirectional" in family.capabilities else family.objective)

    @property
    def default_metrics(self) -> tuple[str, ...]:
        # Both: those of the loss, which are of rows side by side, have the same names.
        return self.metrics if self.is_causal else ("loss",)

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        if set(metrics) - {"loss"} and not self.is_causal:
            raise EtymonError(
                "bits of a text need a model that reads from left to right, which this family's are "
                "not: say --metric loss"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.options.text,)

    def texts(self, table: Table) -> dict[str, list[str]]:
        return {"text": table.texts(self.options.text)}

    # --- tied to a model

    def bind(self, model: Model, length: int | None = None) -> None:
        kind, self.is_causal = self._kind(model.family), "causal" in model.capabilities
        require_one_tokenizer(model)
        tokenizer, room = tokenizer_of(model), model.positions
        length = length or self.limits.get("length") or USUAL_LENGTH
        self.limits["length"] = length if room is None else min(length, room)
        options = family_options(model.family, kind)
        self.objective = get_objective(kind.name, tokenizer, self.limits["length"], **options)
        self.tokenizer, self.heads = tokenizer, self.objective.heads
        self.skips_heads = self.objective.skips_heads or "two-stream" in model.capabilities
        self.likelihood, self.perplexities = self.objective.likelihood, self.objective.perplexities

    def bind_for_training(self, model: Model, length: int | None, *, frozen: bool) -> None:
        self.bind(model, length)
        model.reads_prefix = "prefix" in self.objective.requires

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Any:
        """A split of the texts, which objectives over text read."""
        split = Split.of_texts(self.texts(table)["text"], self.tokenizer)
        for number in np.flatnonzero(split.sizes == 0):
            raise EtymonError(
                f"{table.places[number]}: column {self.options.text!r} has no tokens; leave the row out"
            )
        if not len(self.objective.plan(split, 0, 0, shuffle=False)):
            raise EtymonError(
                f"the texts of {table.description} are too short for a single sample: give more"
            )
        return split

    # --- training

    def plan(self, split: Any, seed: int, epoch: int, *, shuffle: bool = True) -> np.ndarray:
        """Bundles of as many samples as have `batch_tokens` tokens, or of `batch_rows`."""
        # A sample of an objective is one row of tokens; a batch of a task is several.
        many = self.batch_rows or max(1, self.batch_tokens // self.limits["length"])
        return pad_rows(pack_bundles(self.objective.plan(split, seed, epoch, shuffle=shuffle), many))

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> list[Any]:
        return [self.objective.prepare(split, each, rng) for each in unpack_bundle(row)]

    def collate(self, examples: Sequence[list[Any]]) -> MicroBatch:
        return self.objective.collate([example for bundle in examples for example in bundle])

    def loss(self, unit: Unit, prepared: MicroBatch) -> dict[str, Term]:
        return self.objective.loss(unit, prepared)

    # --- use

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[likelihood.Score]:
        """How likely every text is by itself, as `etymon score` tells."""
        if model.encoder_decoder:
            raise EtymonError(
                f"{model.family.title} tells how likely a target is given a source, not a text alone: "
                "there is nothing to predict"
            )
        return likelihood.score_texts(model, self.texts(table)["text"])

    def score(
        self,
        predictions: Sequence[likelihood.Score],
        table: Table,
        metrics: Sequence[str],
        resamples: int = 0,
    ) -> dict[str, MetricScore]:
        """Bits of all texts together, by the byte, by the character, or, as `loss`, by the token."""
        # Sums first, then their ratio, so that a long text counts as much as it has bytes.
        bits = np.array([-text.log_likelihood / math.log(2) for text in predictions])
        sizes = np.array([(text.bytes, len(text.text), text.tokens) for text in predictions])
        places = {"bits_per_byte": 0, "bits_per_character": 1, "loss": 2}
        return {metric: _ratio(bits, sizes[:, places[metric]], resamples) for metric in metrics}

    def record(self, prediction: likelihood.Score) -> dict[str, Any]:
        fields = {name: getattr(prediction, name) for name in self.record_fields[1:]}
        given = {name: value for name, value in fields.items() if value is not None}
        return {"prediction": prediction.log_likelihood, **given}

    def format_row(self, table: Table, number: int, prediction: likelihood.Score) -> str:
        bits = "" if prediction.bits_per_byte is None else f", {prediction.bits_per_byte:.3f} bits per byte"
        kind = prediction.kind.replace("likelihood", "log-likelihood")
        return f"{prediction.text}\n-> {kind} {prediction.log_likelihood:.2f}{bits}"


def family_options(family: Family, kind: type[Objective]) -> dict[str, Any]:
    """As the family itself was trained, as far as an objective has the same options."""
    available = {option.name for option in fields(kind.Options)}
    return {name: value for name, value in family.recipe.options.items() if name in available}


def _ratio(above: np.ndarray, below: np.ndarray, resamples: int) -> MetricScore:
    """Of two sums over rows."""
    ones = np.ones(len(above), np.int64)
    value = float(above.sum() / below.sum())
    return bootstrap(ones, lambda drawn: (drawn @ above) / (drawn @ below), resamples, value, falls=True)
