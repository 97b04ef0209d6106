"""`etymon evaluate`: how good a model is at a task, on a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.verbs import options
from etymon.verbs.terminal import print_json

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


@options.opens_models
def evaluate(
    model: Annotated[str | Path | Model, "folder or hub id of a model"],
    *,
    data: Annotated[
        options.Rows,
        "a table, or parallel text files: test.de test.en",
    ] = None,
    task: Annotated[str | None, "what to answer (what the model was fine-tuned for)"] = None,
    text: options.Text = None,
    second: options.Second = None,
    label: options.Label = None,
    context: options.Context = None,
    choices: options.Choices = None,
    tokens: options.Tokens = None,
    tags: options.Tags = None,
    entities: options.Entities = None,
    question: options.Question = None,
    answers: options.Answers = None,
    source: options.Source = None,
    target: options.Target = None,
    prefix: options.Prefix = None,
    columns: options.Columns = None,
    metric: Annotated[
        Sequence[str] | str | None, "accuracy, f1, matthews, pearson, bleu, chrf, rougeL ... (the task's own)"
    ] = None,
    beams: Annotated[int, "search with so many beams"] = 4,
    resamples: Annotated[int, "of the rows, for the confidence intervals; 0 for none"] = 1000,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    out: Annotated[
        Path | None,
        "a file for the predictions: a table with the rows (.jsonl, .csv, .tsv, .parquet), or a line a row",
    ] = None,
    raw_cells: options.RawCells = False,
    on_note: Callable[[str], None] | None = None,
) -> Evaluated:
    """Score a model on a table, with confidence intervals.

    It answers every row. The task, its columns and its prefix are those that it was fine-tuned with, unless you say otherwise.
    """
    asked = dict(locals())
    from etymon.files import atomic_write
    from etymon.generation.settings import DecodingSettings
    from etymon.tables.table import read_table, rows_or_paths
    from etymon.tables.writing import WRITTEN, write_table
    from etymon.tasks import task_for
    from etymon.tasks.language_model import LanguageModel
    from etymon.tasks.task import ignore_note
    from etymon.verbs.opening import opened, writable

    rows = [] if data is None else rows_or_paths(data)
    writable(out, read=rows)
    if resamples < 0:
        raise EtymonError(f"resamples cannot be fewer than 0, and {resamples} were asked for")
    if data is None:
        raise EtymonError("there are no rows to score on: give --data with a table or two parallel files")
    chosen = opened(model, device)
    known = task_for(chosen, task, options.task_options(asked))
    metrics = [metric] if isinstance(metric, str) else list(metric or known.default_metrics)
    known.check_metrics(metrics)
    table = read_table(rows, () if columns is None else columns.split(","))
    known.texts(table)  # refuses rows that cannot be used, before any work
    tabular = out is not None and Path(out).suffix.lower() in WRITTEN
    if tabular:
        known.require_free_names(table)
    # Of a text, an encoder-decoder tells the loss of what it is asked for alone.
    mute = isinstance(known, LanguageModel) and chosen.encoder_decoder
    decoding = DecodingSettings(beams=beams)
    predictions = [] if mute else known.predict(chosen, table, decoding, on_note or ignore_note)
    # How likely texts are is a loss that can be scored; of other tasks it is the objective's.
    likely = isinstance(known, LanguageModel) and not mute
    scored = [name for name in metrics if name != "loss" or likely]
    found = known.score(predictions, table, scored, resamples)
    scores = {name: found[name] if name in found else _loss(chosen, known, table) for name in metrics}
    records = [known.record(each) for each in predictions]
    if out is not None and tabular:
        write_table(out, [{**row, **each} for row, each in zip(table.rows, records)], on_note, raw_cells)
    elif out is not None:
        with atomic_write(out) as file:
            file.writelines(" ".join(str(each["prediction"]).split()) + "\n" for each in records)
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


def present(
    result: Evaluated,
    json: Annotated[bool, "print JSON"] = False,
) -> None:
    if json:
        return print_json(result.scores, ascii=True)
    for name, score in result.scores.items():
        interval = "" if score.low is None else f"  95% from {score.low:.2f} to {score.high:.2f}"
        print(f"{name:<8} {score.value:.2f}{interval}  {score.counted}  {score.signature}".rstrip())
