"""`etymon predict`: a fine-tuned model's answers to texts, or to the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.files import json_text
from etymon.verbs import options
from etymon.verbs.terminal import print_json

if TYPE_CHECKING:
    from etymon.families.model import Model


@dataclass(frozen=True)
class Predicted:
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


@options.opens_models
def predict(
    model: Annotated[str | Path | Model, "folder or hub id of a fine-tuned model"],
    texts: Annotated[list[str] | str, "texts to answer; - reads lines from standard input"] = (),  # type: ignore[assignment]
    *,
    data: Annotated[options.Rows, "a table, instead of texts"] = None,
    task: Annotated[str | None, "what to answer (what the model was fine-tuned for)"] = None,
    text: options.Text = None,
    second: options.Second = None,
    context: options.Context = None,
    choices: options.Choices = None,
    tokens: options.Tokens = None,
    question: options.Question = None,
    source: options.Source = None,
    prefix: options.Prefix = None,
    columns: options.Columns = None,
    beams: Annotated[int, "of answers that are written"] = 1,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    out: Annotated[
        Path | None, "a file for the answers: .jsonl, .csv, .tsv or .parquet, rows and all"
    ] = None,
    raw_cells: options.RawCells = False,
    on_note: Callable[[str], None] | None = None,
) -> list[Predicted]:
    """Answer texts or the rows of a table with a fine-tuned model.

    The task and its columns are those that the model was fine-tuned with, unless you say otherwise; a published model answers
    as its class does. What is right need not be known. Rows of similar length are read together; their order stays.
    """
    asked = dict(locals())
    from etymon.generation.settings import DecodingSettings
    from etymon.tables.table import read_table, rows_or_paths
    from etymon.tables.writing import WRITTEN, write_table
    from etymon.tasks import task_for
    from etymon.tasks.task import ignore_note
    from etymon.verbs.opening import opened, texts_of, writable

    given = [] if data is None else rows_or_paths(data)
    writable(out, *WRITTEN, read=given)
    chosen = opened(model, device)
    known = task_for(chosen, task, options.task_options(asked))
    if data is None:
        wanted = known.input_columns
        if len(wanted) > 1:
            raise EtymonError(
                f"the task {known.name!r} reads the columns {', '.join(wanted)}: give a table (--data), not single texts"
            )
        given = [{wanted[0]: each} for each in texts_of(texts, on_note=on_note)]
    elif texts:
        raise EtymonError("give texts or --data, not both")
    table = read_table(given, () if columns is None else columns.split(","))
    known.require_free_names(table)
    answers = known.predict(chosen, table, DecodingSettings(beams=beams), on_note or ignore_note)
    found = [Predicted(row, known.record(answer)) for row, answer in zip(table.rows, answers, strict=True)]
    if out is not None:
        write_table(out, [one.told for one in found], on_note, raw_cells)
    return found


def present(
    result: list[Predicted],
    out: Path | None,
    json: Annotated[bool, "a JSON record a row"] = False,
) -> None:
    if out is not None:
        print(f"{len(result):,} answers in {out}")
        return
    if json:
        return print_json(*(one.told for one in result))
    for one in result:
        shares = one.answer.get("probabilities")
        sure = f"\t{max(shares.values() if isinstance(shares, dict) else shares):.3f}" if shares else ""
        given = one.prediction
        print(f"{json_text(given) if isinstance(given, list | dict) else given}{sure}")
