"""Validation: figures of held-out data during a run, and the evaluation of the trained model at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from etymon.families.model import Model
from etymon.objectives.objective import MicroBatch, Objective
from etymon.runs.asking import AskedSample, ask_samples
from etymon.runs.folder import Job
from etymon.text.languages import LanguageSplit
from etymon.training.distributed import World
from etymon.training.feeding import Feed, validation_slices
from etymon.training.shards import fully_gathered, root_gathered
from etymon.training.unit import TrainingUnit, averages, evaluate

if TYPE_CHECKING:
    from etymon.sampling.examples import Examples
    from etymon.settings.decoding import DecodingSettings
    from etymon.tables.table import Table
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.task import Task

VALIDATION_SAMPLES = 512
"""Of the validations during a run; the last one reads everything."""
MIXTURE_SAMPLES = 128
"""The same of each text of a mixture."""
FEW_ROWS, MANY_ROWS, FEW_TOKENS = 200, 1000, 32_768
"""Rows that the validations of a task answer during a run: a few, or, where a head answers, up to many with
not too many tokens. When the run is over, all are answered."""
RESAMPLES, FEW_RESAMPLES = 1000, 200
"""Of rows, for intervals of the last scores; and for the standard errors of those during a run."""
SHOWN_ANSWERS = 3
SAMPLE_TOKENS = 60
"""Tokens of a text that the model writes to show itself."""


def error_name(metric: str) -> str:
    """The name of the standard error of a metric among the figures of a validation."""
    return f"{metric}_error"


Log = Callable[[dict[str, Any]], None]
"""Writes a record into the run's metrics."""


@dataclass
class PhasePlan:
    """A phase of a run as it will be trained."""

    share: float
    """Of the run's steps."""
    length: int
    feed: Feed
    store: Any = None
    """The `TokenStore` of text."""

    @property
    def objective(self) -> Objective:
        return self.feed.objective


@dataclass
class Evaluation:
    """How good the trained model is: figures and, of a task, answers to all validation rows and scores."""

    metrics: dict[str, Any] = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)
    scores: dict[str, MetricScore] = field(default_factory=dict)
    beside: dict[str, dict[str, MetricScore]] = field(default_factory=dict)
    """The same scores of the baselines, and of the model on texts with typos."""
    questions: list[AskedSample] = field(default_factory=list)
    """Of pretraining: questions that were asked from the first validation on, and the answers of now."""


@dataclass
class TextValidator:
    """Validation on held-out text: a sample, all of it after the last step, and a text by the model."""

    job: Job
    unit: TrainingUnit
    phases: Sequence[PhasePlan]
    log: Log
    _slices: dict[int, dict[str, Sequence[MicroBatch]]] = field(default_factory=dict)
    _first: tuple[int, dict[str, Any]] | None = None
    """The phase and the figures before the first step: measuring a time budget needs them, then the run."""

    def validate(self, step: int, phase: int, is_last: bool) -> dict[str, Any]:
        """Returns figures of held-out data after `step` steps, the last of them of phase number `phase`."""
        if not is_last and phase not in self._slices:
            self._slices = {phase: self._read(phase, VALIDATION_SAMPLES)}  # earlier phases do not come back
        slices = self._read(phase, None) if is_last else self._slices[phase]
        if not any(map(len, slices.values())):
            # Not an error: a small text may be wanted whole for training.
            if step == 0:
                self.job.note("no text is held out: only the training loss will tell how good the model is")
            return {}
        is_first = step == 0 and not is_last
        if is_first and self._first is not None and self._first[0] == phase:
            figures = dict(self._first[1])
        else:
            figures = self._evaluate(phase, slices)
        if is_first:
            self._first = phase, dict(figures)
        model: Any = self.unit.model
        world, text = self.job.world, None
        if world.first or world.is_sharded:
            with root_gathered(self.unit, decoding=True):
                text = sample_text(model, self.job.file.seed, of_fixed_length=world.is_sharded)
        if world.first and text:
            self.log({"step": step, "sample": text})
        return figures

    def evaluate(self, phase: int, metrics: dict[str, Any], is_restored: bool) -> Evaluation:
        """Returns the evaluation of the trained model, whose last validation gave `metrics`.

        `is_restored`: it is not the model that was validated last, but an earlier and better one.
        """
        # The last validation read everything already, unless another model has taken its place since.
        if is_restored:
            metrics = self._evaluate(phase, self._read(phase, None))
        feed, store = self.phases[phase].feed, self.phases[phase].store
        return Evaluation(metrics, questions=ask_samples(self.job, self.unit, feed, store))

    def try_few(self) -> None:
        """Validates a few samples, to see that it works."""
        last = len(self.phases) - 1
        self._evaluate(last, self._read(last, self.phases[-1].feed.rows))

    def extra_cost(self) -> float:
        """Returns how much more the last validation reads than the others, in multiples of one of those."""
        phase = self.phases[-1]
        samples = len(phase.objective.plan(phase.store.validation, self.job.file.seed, 0, shuffle=False))
        return max(0.0, samples / VALIDATION_SAMPLES - 1)

    def _read(self, number: int, most: int | None) -> dict[str, Sequence[MicroBatch]]:
        """Returns slices of the validation text, by language if there are several, else under ""."""
        phase = self.phases[number]
        split: Any = phase.store.validation
        objective: Any = phase.objective
        parts, inner = {"": split}, objective
        if isinstance(split, LanguageSplit):
            parts, inner = split.parts, objective.inner
            most = None if most is None else -(-most // len(parts))
        rows, slices, seed = phase.feed.rows, phase.feed.slices, self.job.file.seed
        return {
            code: validation_slices(inner, part, seed, rows=rows, slices=slices, most=most)
            for code, part in parts.items()
        }

    def _evaluate(self, phase: int, slices: Mapping[str, Sequence[MicroBatch]]) -> dict[str, Any]:
        """Returns the figures of a text, or of each language, and their mean: the largest language must not
        decide alone which model is best."""
        self.unit.objective = self.phases[phase].objective
        by_language = {
            code: evaluate(self.unit, part, self.job.world) for code, part in slices.items() if len(part)
        }
        if "" in slices:
            return by_language.get("", {})
        shared = set.intersection(*map(set, by_language.values())) if by_language else set()
        # A mean of perplexities says nothing.
        means = {
            name: sum(figures[name] for figures in by_language.values()) / len(by_language)
            for name in next(iter(by_language.values()), {})
            if name in shared and not name.endswith("_perplexity")
        }
        named = {
            f"{code}/{name}": value for code, part in by_language.items() for name, value in part.items()
        }
        return means | named


def sample_text(model: Model, seed: int, of_fixed_length: bool = False) -> str | None:
    """Returns a short text by the model, the same for a seed; None if it cannot write.

    It does not end early if it is to be `of_fixed_length`: processes that share a model call it as often.
    """
    if "causal" not in model.capabilities or model.tokenizer is None or "vocabulary" not in model.heads:
        return None
    from etymon.generation import DecodingSettings, generate_texts  # which few objectives need

    # One position is for the token that begins a text.
    room = min(SAMPLE_TOKENS, (model.positions or SAMPLE_TOKENS) - 1)
    settings = DecodingSettings(
        max_new_tokens=room,
        min_new_tokens=room if of_fixed_length else 0,
        sample=True,
        temperature=0.8,
        top_k=40,
        seed=seed,
    )
    return generate_texts(model, [""], settings)[0].text


@dataclass
class TaskRows:
    """The rows of a task, encoded."""

    train: Examples
    validation: Examples | None
    table: Table | None
    """The validation rows themselves; None if there are none."""

    @classmethod
    def encode(cls, task: Task, train: Table, held_out: Table | None, note: Callable[[str], None]) -> Self:
        """Returns the rows as `task` reads them, once it is bound to a model."""
        train_rows = task.encode(train, note, learn=True)
        return cls(train_rows, None if held_out is None else task.encode(held_out), held_out)

    def count_during_run(self, writes: bool) -> int:
        """Returns how many validation rows are answered during the run, by a head or (`writes`) as text."""
        if self.table is None or self.validation is None:
            return 0
        count = FEW_ROWS
        if not writes:
            cheap = FEW_TOKENS * len(self.table) // max(int(self.validation.sizes.sum()), 1)
            count = max(FEW_ROWS, min(MANY_ROWS, cheap))
        return min(count, len(self.table))


@dataclass
class TaskValidator:
    """Validation of a task: its loss, and scores of the model's answers."""

    job: Job
    unit: TrainingUnit
    task: Task
    rows: TaskRows
    metrics: Sequence[str]
    log: Log
    baseline_rows: Table | None = None
    """Training rows of the baselines that are scored at the end, beside the model; None: no baselines."""
    _noted_step: int | None = None

    def __post_init__(self) -> None:
        self.scored = [name for name in self.metrics if name != "loss"]
        table = self.rows.table
        if table is not None:
            # The same rows at every validation, so that the best model can be told.
            places = np.linspace(0, len(table) - 1, self.rows.count_during_run(self.task.writes_text))
            self.few = table.at(places.astype(int).tolist())
            self._few_examples = self.task.encode(self.few)

    def _score(self, answers: Sequence[Any], table: Table, resamples: int = 0) -> dict[str, MetricScore]:
        from etymon.tasks.metrics import score_answers  # which pretraining has no use for

        return score_answers(self.task, answers, table, self.scored, resamples)

    def validate(self, step: int, phase: int, is_last: bool) -> dict[str, Any]:
        job, scores = self.job, dict.fromkeys([*self.scored, *map(error_name, self.scored)], 0.0)
        if self.rows.table is None:
            if step == 0:
                job.note("no rows are held out: only the training loss will tell how good the model is")
            return {}
        # Texts end where they end: processes could not stay in step, so each has the whole model meanwhile.
        with fully_gathered(self.unit):
            figures, answers = self._answer(self._few_examples, self.few, job.world)
        if self.scored and job.world.first:
            # With errors: the luckiest validation is not to be taken for the best.
            values = self._score(answers, self.few, FEW_RESAMPLES)
            scores = {name: score.value for name, score in values.items()}
            scores |= {error_name(name): score.standard_error for name, score in values.items()}
            for place in range(min(SHOWN_ANSWERS, len(self.few))):
                self.log({"step": step, "sample": self.task.format_row(self.few, place, answers[place])})
        scores = job.world.add(scores)  # only the first process has answered
        if self.scored and step != self._noted_step:  # measuring a time budget validates once more
            self._noted_step = step
            listed = ", ".join(f"{name} {scores[name]:.2f}" for name in self.scored)
            unit = "byte" if "bits_per_byte" in figures else "target"
            loss = figures[f"bits_per_{unit}"]
            job.note(f"step {step:,}: {listed}, a loss of {loss:.3f} bits per {unit}")
        return figures | scores

    def evaluate(self, phase: int, metrics: dict[str, Any], is_restored: bool) -> Evaluation:
        # One process answers all rows: decoding does not share out as slices of a loss do.
        with fully_gathered(self.unit), self.job.world.first_alone() as is_first:
            return self.evaluate_alone() if is_first else Evaluation()

    def evaluate_alone(self) -> Evaluation:
        """Returns loss and scores over all validation rows, computed by this process alone."""
        from etymon.settings.decoding import DecodingSettings

        table, examples, beams = self.rows.table, self.rows.validation, self.job.file.beams
        if table is None or examples is None:
            return Evaluation()
        if self.scored and self.task.writes_text and len(table) > len(self.few):
            # Minutes, for thousands of rows.
            self.job.note(f"writing the answers of all {len(table):,} validation rows")
        figures, answers = self._answer(examples, table, World(), DecodingSettings(beams=beams))
        if not self.scored:
            return Evaluation(figures)
        scores = self._score(answers, table, RESAMPLES)
        figures |= {name: score.value for name, score in scores.items()}
        beside: dict[str, dict[str, MetricScore]] = {}
        if self.baseline_rows is not None and scores:
            # Here, for it needs libraries that pretraining has no use for.
            from etymon.runs.task_report import compare_with_baselines

            model: Any = self.unit.model
            beside = compare_with_baselines(
                self.task, model, self.baseline_rows, table, list(scores), RESAMPLES, beams, self.job.note
            )
        return Evaluation(figures, answers, scores, beside)

    def try_few(self) -> None:
        if self.scored and self.rows.table is not None:
            model: Any = self.unit.model
            few = self.few.at(range(min(2, len(self.few))))
            self._score(self.task.predict(model, few), few)

    def extra_cost(self) -> float:
        # Each beam is decoded like a row of its own.
        rows = 0 if self.rows.table is None else len(self.rows.table)
        return self.job.file.beams * rows / max(self.rows.count_during_run(self.task.writes_text), 1)

    def _answer(
        self, examples: Any, table: Table, world: World, decoding: DecodingSettings | None = None
    ) -> tuple[dict[str, Any], list[Any]]:
        """Returns the loss of rows and, if they are scored, the answers (of the first process only)."""
        model: Model = self.unit.model  # type: ignore[assignment]
        self.unit.objective = self.task
        both = self.task.evaluate(model, examples, table) if self.scored and world.size == 1 else None
        if both is not None:
            answers, loss = both  # a head gives both in one pass
            return averages({"loss": loss}, {"loss": 1.0}, None), answers
        # Loss and answers apart: processes share the loss, and texts have to be decoded.
        slices = list(validation_slices(self.task, examples, self.job.file.seed, rows=1))
        figures = evaluate(self.unit, slices, world)
        return figures, self.task.predict(model, table, decoding) if self.scored and world.first else []


@dataclass
class MixtureValidator:
    """Each part of a mixture on its own held-out data; `bits_per_target` is the mean over them."""

    job: Job
    unit: TrainingUnit
    tasks: Mapping[str, TaskValidator]
    texts: Mapping[str, tuple[Objective, Any]]
    """The objective and the held-out text of parts that are no tasks."""
    names: Sequence[str]
    """Of all parts, in the order of the mixture."""

    def __post_init__(self) -> None:
        self._slices = {
            name: validation_slices(objective, split, self.job.file.seed, rows=8, most=MIXTURE_SAMPLES)
            for name, (objective, split) in self.texts.items()
        }

    def validate(self, step: int, phase: int, is_last: bool) -> dict[str, Any]:
        return self._merge({name: task.validate(step, phase, is_last) for name, task in self.tasks.items()})

    def evaluate(self, phase: int, metrics: dict[str, Any], is_restored: bool) -> Evaluation:
        with fully_gathered(self.unit), self.job.world.first_alone() as is_first:
            if not is_first:
                return Evaluation()
            parts = {name: task.evaluate_alone() for name, task in self.tasks.items()}
            scores = {
                f"{name}/{metric}": score
                for name, part in parts.items()
                for metric, score in part.scores.items()
            }
            figures = {name: part.metrics for name, part in parts.items()}
            return Evaluation(self._merge(figures, World(device=self.job.world.device)), scores=scores)

    def try_few(self) -> None:
        for validator in self.tasks.values():
            validator.try_few()

    def extra_cost(self) -> float:
        return 0.0

    def _merge(
        self, task_figures: Mapping[str, dict[str, Any]], world: World | None = None
    ) -> dict[str, Any]:
        """Returns the figures of tasks and texts under `name/figure`, the loss of each as `name/bits`."""
        merged: dict[str, Any] = {}
        for name in self.names:
            if name in self.tasks:
                figures = dict(task_figures[name])
            else:
                self.unit.objective, slices = self.texts[name][0], self._slices[name]
                figures = evaluate(self.unit, slices, world or self.job.world) if slices else {}
            bits = figures.pop("bits_per_target", figures.get("bits_per_byte"))
            merged |= {f"{name}/{key}": value for key, value in figures.items()}
            if bits is not None:
                merged[f"{name}/bits"] = bits
        # Parts of any size count the same, or the largest would decide which model is best.
        losses = [value for key, value in merged.items() if key.endswith("/bits")]
        return merged | ({"bits_per_target": sum(losses) / len(losses)} if losses else {})


Validator = TextValidator | TaskValidator | MixtureValidator
"""What a run validates by; all three have the methods of `TextValidator`."""
