"""`etymon evaluate`: how good a model is at a task, on a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.settings import (
    ComputeOptions,
    JsonOptions,
    ModelLike,
    Notify,
    Words,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import INPUT_COLUMNS, TARGET_COLUMNS, TableOptions, task_options
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.tables.table import Table
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.task import Task


@dataclass(frozen=True)
class Evaluated:
    scores: dict[str, MetricScore]
    predictions: list[dict[str, Any]]
    """What `etymon predict` gives, a record a row."""
    rows: int


@settings
class EvaluateOptions(TableOptions, ComputeOptions, JsonOptions):
    model: ModelLike = argument("folder or hub id of a model")
    task_options: dict[str, Any] = group(task_options(), f"{TARGET_COLUMNS} {INPUT_COLUMNS}")
    metric: Words = option((), "accuracy, f1, matthews, pearson, bleu, chrf, rougeL ... (the task's own)")
    decoding: dict[str, Any] = group(DecodingSettings, "beams", beams=4)
    resamples: int = option(1000, "of the rows, for the confidence intervals; 0 for none", ge=0)
    on_note: Notify | None = option(None, "is told what was left out or cut", seen_by="python")


@verb(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluated:
    """It answers every row. The task, its columns and its prefix are those that it was fine-tuned with,
    unless you say otherwise.
    """
    from etymon.files import atomic_write
    from etymon.tables.formats import WRITTEN, write_table
    from etymon.tables.table import read_table, rows_or_paths
    from etymon.tasks import task_for
    from etymon.tasks.language_model import LanguageModel
    from etymon.tasks.task import ignore_note
    from etymon.verbs.load_inputs import load_model, require_writable

    rows, out = [] if options.data is None else rows_or_paths(options.data), options.out
    require_writable(out, read=rows)
    if options.data is None:
        raise EtymonError("there are no rows to score on: give --data with a table or two parallel files")
    model = load_model(options.model, options)
    task = task_for(model, options.task, options.task_options)
    metrics = list(options.metric or task.default_metrics)
    task.check_metrics(metrics)
    table = read_table(rows, options.column_names, options)
    task.texts(table)  # refuses rows that cannot be used, before any work
    # By its ending. Any other file has a line a row, as scripts that compare lines (sacreBLEU) read them.
    is_table = out is not None and Path(out).suffix.lower() in WRITTEN
    if is_table:
        task.require_free_names(table)
    # An encoder-decoder gives no likelihood of a text, only the loss of what its objective predicts.
    has_likelihood = isinstance(task, LanguageModel) and not model.encoder_decoder
    predictions: list[Any] = []
    if has_likelihood or not isinstance(task, LanguageModel):
        decoding = DecodingSettings(**options.decoding)
        predictions = task.predict(model, table, decoding, options.on_note or ignore_note)
    # The loss of a language model is scored with its likelihoods; that of other tasks is the objective's.
    scored = [name for name in metrics if name != "loss" or has_likelihood]
    scores = task.score(predictions, table, scored, options.resamples)
    scores = {name: scores[name] if name in scores else _loss(model, task, table) for name in metrics}
    records = [task.record(prediction) for prediction in predictions]
    if out is not None and is_table:
        merged = [{**row, **record} for row, record in zip(table.rows, records)]
        write_table(out, merged, options.on_note, options.raw_cells, options.bom)
    elif out is not None:
        with atomic_write(out) as file:
            file.writelines(" ".join(str(record["prediction"]).split()) + "\n" for record in records)
    return Evaluated(scores, records, len(table))


def _loss(model: Model, task: Task, table: Table) -> MetricScore:
    """Bits per target, as validations tell them."""
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.task import value_to_minimise
    from etymon.training.feeding import validation_slices
    from etymon.training.unit import TrainingUnit
    from etymon.training.unit import evaluate as measured

    examples: Any = task.encode(table)
    figures = measured(TrainingUnit(model, task).eval(), list(validation_slices(task, examples, 0, rows=1)))
    return MetricScore(value_to_minimise("loss")(figures) or 0.0, falls=True, rows=len(table))


def present(result: Evaluated, options: EvaluateOptions) -> None:
    if options.json:
        return print_json(result.scores, ascii=True)
    for name, score in result.scores.items():
        interval = "" if score.low is None else f"  95% from {score.low:.2f} to {score.high:.2f}"
        say(f"{align_left(name, 8)} {score.value:.2f}{interval}  {score.counted}  {score.signature}".rstrip())
