"""`etymon evaluate`: how good a model is at a task, on a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.tasks.scores import Score


@dataclass(frozen=True)
class Evaluated:
    scores: dict[str, Score]
    predictions: list[Any]
    rows: int


def evaluate(
    model: Annotated[str | Path | Model, "folder or hub id of a model"],
    *,
    data: Annotated[
        Sequence[str | Path] | Path | Sequence[Mapping[str, Any]] | None,
        "a table, or parallel text files: test.de test.en",
    ] = None,
    task: Annotated[str | None, "text2text (what the model was fine-tuned for)"] = None,
    source: Annotated[str | None, "text2text: the column that is read (as in training)"] = None,
    target: Annotated[str | None, "text2text: the column to compare with (as in training)"] = None,
    prefix: Annotated[str | None, "text2text: put before every source (as in training)"] = None,
    columns: Annotated[str | None, "names of the columns of files without a header: en,zh"] = None,
    metric: Annotated[
        Sequence[str] | str | None, "bleu, chrf, rouge1, rouge2, rougeL, exact (the task's own)"
    ] = None,
    beams: Annotated[int, "search with so many beams"] = 4,
    resamples: Annotated[int, "of the rows, for the confidence intervals; 0 for none"] = 1000,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
) -> Evaluated:
    """Score a model on a table, with confidence intervals.

    It answers every row. The task, its columns and its prefix are those that it was fine-tuned with, unless you say otherwise.
    """
    from etymon.data.tables import read_table
    from etymon.errors import EtymonError
    from etymon.generation.settings import DecodingSettings
    from etymon.tasks import get_task, task_class, task_of
    from etymon.tasks.scores import need_libraries
    from etymon.verbs.opening import opened

    if data is None:
        raise EtymonError("there are no rows to score on: give --data with a table or two parallel files")
    chosen = opened(model, device)
    given = {"source": source, "target": target, "prefix": prefix}
    options = {name: value for name, value in given.items() if value is not None}
    known = task_of(chosen, options)
    if known is None or task not in (None, known.name):
        if task is None:
            raise EtymonError(f"{model} was not fine-tuned: say which task it is to do (--task text2text)")
        task_class(task).fit(chosen.family)
        known = get_task(task, options)
        known.bind(chosen)
    metrics = [metric] if isinstance(metric, str) else list(metric or known.metrics[:1])
    known.check_metrics(metrics)
    need_libraries(metrics)
    table = read_table(data, () if columns is None else columns.split(","))
    known.texts(table)  # refuses rows that cannot be used, before any work
    predictions = known.predict(chosen, table, DecodingSettings(beams=beams))
    return Evaluated(known.score(predictions, table, metrics, resamples), predictions, len(table))


def present(
    result: Evaluated,
    out: Annotated[Path | None, "a file for the predictions, a line a row"] = None,
    json: Annotated[bool, "print JSON"] = False,
) -> None:
    from dataclasses import asdict
    from json import dumps

    from etymon.files import atomic_write

    if out is not None:
        with atomic_write(out) as file:
            file.writelines(" ".join(str(each).split()) + "\n" for each in result.predictions)
    if json:
        print(dumps({name: asdict(score) for name, score in result.scores.items()}))
        return
    for name, score in result.scores.items():
        interval = "" if score.low is None else f"  95% from {score.low:.2f} to {score.high:.2f}"
        print(f"{name:<8} {score.value:.2f}{interval}  {result.rows:,} rows  {score.signature}".rstrip())
