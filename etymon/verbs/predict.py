"""`etymon predict`: a fine-tuned model's answers to texts, or to the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError
from etymon.files import json_text
from etymon.report.inline import InlineRow
from etymon.settings import (
    ComputeOptions,
    JsonOptions,
    ModelLike,
    Notify,
    Texts,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import INPUT_COLUMNS, TableOptions, task_options
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.cells import Cell


@dataclass(frozen=True)
class Predicted(InlineRow):
    """A row and the answer: `prediction`, and what the task tells beside it."""

    row: Mapping[str, Any]
    answer: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        """Both in one record."""
        return {**self.row, **self.answer}

    @property
    def prediction(self) -> Any:
        return self.answer["prediction"]

    def table_row(self) -> dict[str, Cell]:
        shares = self.answer.get("probabilities")
        sure = max(shares.values() if isinstance(shares, dict) else shares) if shares else None
        cells: dict[str, Cell] = {name: str(value) for name, value in self.row.items()}
        answer = self.prediction
        cells["prediction"] = answer if isinstance(answer, str | int | float) else json_text(answer)
        return cells if sure is None else {**cells, "probability": round(float(sure), 3)}


@settings
class PredictOptions(TableOptions, ComputeOptions, JsonOptions):
    model: ModelLike = argument("folder or hub id of a fine-tuned model")
    texts: Texts = argument("texts to answer; - reads lines from standard input", ())
    task_options: dict[str, Any] = group(task_options(), INPUT_COLUMNS)
    decoding: dict[str, Any] = group(DecodingSettings, "beams")
    on_note: Notify | None = option(None, "is told what was left out or cut", seen_by="python")


@verb(PredictOptions)
def predict(options: PredictOptions) -> list[Predicted]:
    """Task and columns are those that the model was fine-tuned with, unless you say otherwise; a published
    model answers as its class does. The right answers need not be in the table. Rows of similar length are
    read together; their order stays.
    """
    from etymon.tables.formats import WRITTEN, write_table
    from etymon.tables.table import read_table, rows_or_paths
    from etymon.tasks import task_for
    from etymon.tasks.task import ignore_note
    from etymon.verbs.load_inputs import load_model, read_texts, require_writable

    rows = [] if options.data is None else rows_or_paths(options.data)
    # Before hours of answers: a name that cannot be written, or one of the tables that are read.
    require_writable(options.out, *WRITTEN, read=rows)
    model = load_model(options.model, options)
    # Without --task the model's own: it was saved with the task and the columns of its fine-tuning.
    task = task_for(model, options.task, options.task_options)
    if options.data is None:
        # A text of its own has no column: which of two would it be?
        if len(task.input_columns) > 1:
            raise EtymonError(
                f"the task {task.name!r} reads the columns {', '.join(task.input_columns)}: give a table "
                "(--data), not single texts"
            )
        rows = [
            {task.input_columns[0]: text}
            for text in read_texts(options.texts, on_note=options.on_note, how=options)
        ]
    elif options.texts:
        raise EtymonError("give texts or --data, not both")
    table = read_table(rows, options.column_names, options)
    # Before any answer: a column called `prediction` would be lost in the file.
    task.require_free_names(table)
    answers = task.predict(model, table, DecodingSettings(**options.decoding), options.on_note or ignore_note)
    results = [Predicted(row, task.record(answer)) for row, answer in zip(table.rows, answers, strict=True)]
    if options.out is not None:
        write_table(
            options.out, [result.told for result in results], options.on_note, options.raw_cells, options.bom
        )
    return results


def present(result: list[Predicted], options: PredictOptions) -> None:
    if options.out is not None:
        say(f"{len(result):,} answers in {options.out}")
        return
    if options.json:
        return print_json(*(predicted.told for predicted in result))
    for predicted in result:
        shares = predicted.answer.get("probabilities")
        # How sure it is of what it answers; regression and written answers have no shares.
        sure = f"\t{max(shares.values() if isinstance(shares, dict) else shares):.3f}" if shares else ""
        answer = predicted.prediction
        print(f"{json_text(answer) if isinstance(answer, list | dict) else answer}{sure}")
