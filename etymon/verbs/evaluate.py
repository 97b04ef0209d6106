"""`etymon evaluate`: how good a model is at a task, on a table, or at all parts of a suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.report.inline import Inline
from etymon.settings import (
    ComputeOptions,
    Files,
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Words,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import INPUT_COLUMNS, TARGET_COLUMNS, TableOptions, task_options
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.lab.suites import SuiteResult
    from etymon.report.page import Section
    from etymon.tables.table import Table
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.task import Task


@dataclass(frozen=True)
class Evaluated(Inline):
    scores: dict[str, MetricScore]
    predictions: list[dict[str, Any]]
    """What `etymon predict` gives, a record a row."""
    rows: int

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import score_table

        yield score_table({"this model": self.scores})


@settings
class EvaluateOptions(TableOptions, ComputeOptions, JsonOptions):
    model: ModelLike = argument("folder or hub id of a model")
    task_options: dict[str, Any] = group(task_options(), f"{TARGET_COLUMNS} {INPUT_COLUMNS}")
    metric: Words = option((), "accuracy, f1, matthews, pearson, bleu, chrf, rougeL ... (the task's own)")
    decoding: dict[str, Any] = group(DecodingSettings, "beams", beams=4)
    suite: str | None = option(
        None,
        "score a suite instead of one table: blimp, glue, probing, lm, or a YAML file of parts "
        "(docs/evaluation.md)",
    )
    suite_data: PathText = option(
        None,
        "folder of the suite's files (the variable ETYMON_SUITES, or this folder); nothing is downloaded",
    )
    beside: Files = option((), "with --suite: more models to score, a row each; may be repeated")
    milestones: bool = option(False, "with --suite: also score every milestone of a run")
    budget: str | None = option(
        None, "with --suite: budget of each fine-tuning: 2m, 500steps (the suite's own)"
    )
    resamples: int = option(
        1000, "how often to resample the rows for the confidence intervals; 0: no intervals", ge=0
    )
    on_note: Notify | None = option(None, "is told what was left out or cut", seen_by="python")
    on_progress: Notify | None = option(None, "is told how far a suite has come", seen_by="python")


@verb(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluated | SuiteResult:
    """Every row is answered. Task, columns and prefix are those that the model was fine-tuned with, unless
    you say otherwise. With --suite, every part of a suite is scored; finished parts are kept in OUT
    (runs/suite-NAME), and the same command goes on after a stop.
    """
    if options.suite is not None:
        return _evaluate_suite(options)
    if options.beside or options.milestones or options.budget is not None:
        raise EtymonError("--beside, --milestones and --budget are for a suite: say --suite NAME")
    from etymon.files import atomic_write
    from etymon.tables.formats import WRITTEN, write_table
    from etymon.tables.table import read_table, rows_or_paths
    from etymon.tasks import task_for
    from etymon.tasks.language_model import LanguageModel
    from etymon.tasks.metrics import check_metrics, score_answers
    from etymon.tasks.task import ignore_note
    from etymon.verbs.load_inputs import load_model, require_writable

    rows, out = [] if options.data is None else rows_or_paths(options.data), options.out
    require_writable(out, read=rows)
    if options.data is None:
        raise EtymonError(
            "there are no rows to score on: give --data with a table or two parallel files", code="no-data"
        )
    model = load_model(options.model, options)
    task = task_for(model, options.task, options.task_options)
    metrics = list(options.metric or task.default_metrics)
    check_metrics(task, metrics)
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
    scores = score_answers(task, predictions, table, scored, options.resamples)
    scores = {name: scores[name] if name in scores else _loss(model, task, table) for name in metrics}
    records = [task.record(prediction) for prediction in predictions]
    if out is not None and is_table:
        merged = [{**row, **record} for row, record in zip(table.rows, records)]
        write_table(out, merged, options.on_note, options.raw_cells, options.bom)
    elif out is not None:
        with atomic_write(out) as file:
            file.writelines(" ".join(str(record["prediction"]).split()) + "\n" for record in records)
    return Evaluated(scores, records, len(table))


def _evaluate_suite(options: EvaluateOptions) -> SuiteResult:
    from etymon.lab.model_rows import list_models
    from etymon.lab.suite_tables import write_suite
    from etymon.lab.suites import read_suite, run_suite
    from etymon.verbs.load_inputs import load_model, require_writable

    name = read_suite(str(options.suite))[0]
    if options.data is not None or options.task is not None:
        raise EtymonError("a suite names its tasks and data: leave --data and --task out")
    out = Path(options.out or Path("runs") / f"suite-{name}")
    require_writable(out / "results.json")
    result = run_suite(
        list_models([options.model, *options.beside], options.milestones),
        str(options.suite),
        out,
        data=None if options.suite_data is None else Path(options.suite_data),
        budget=options.budget,
        how=options,
        open_model=lambda model: load_model(model, options),
        on_progress=options.on_progress or (lambda message: None),
        on_note=options.on_note or (lambda message: None),
    )
    write_suite(result)
    return result


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


def present(result: Evaluated | SuiteResult, options: EvaluateOptions) -> None:
    if not isinstance(result, Evaluated):
        from etymon.lab.suite_tables import table_lines

        clear_line()
        if options.json:
            return print_json(result, ascii=True)
        print(*table_lines(result, result_text), sep="\n")
        return say(
            f"{Path(result.folder) / 'results.json'} and the tables beside it (.md, .tex, report.html)"
        )
    if options.json:
        return print_json(result.scores, ascii=True)
    for name, score in result.scores.items():
        interval = "" if score.low is None else f"  95% from {score.low:.2f} to {score.high:.2f}"
        say(f"{align_left(name, 8)} {score.value:.2f}{interval}  {score.counted}  {score.signature}".rstrip())
