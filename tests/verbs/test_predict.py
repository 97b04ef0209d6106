"""`etymon predict` and `etymon evaluate`: what is asked, what is said, and answers that are read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.data.tables import Table, read_table
from etymon.families.saving import save
from tests.tasks.heads import CHOICES, SEVERAL, TABLE, begun

WORDS = read_table(
    [{"tokens": ["The", "river"], "tags": ["D", "N"]}, {"tokens": ["A", "letter"], "tags": ["D", "N"]}]
)
CONTEXT = "The captain crossed the river [1] in winter."
QUESTIONS = read_table(
    [
        {"question": "Who?", "context": CONTEXT, "answers": {"text": ["The captain"], "answer_start": [0]}},
        {"question": "What?", "context": CONTEXT, "answers": [{"text": "river", "answer_start": 24}, "the river"]},
        {"question": "How?", "context": CONTEXT, "answers": []},
    ]
)  # fmt: skip
Saved = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """The folder of a model that was tied to a task and has learnt nothing."""

    def folder(task: str = "classify", table: Table = TABLE, **options: Any) -> Path:
        known, model = begun("bert", task, table, **options)
        model.history = [{"task": known.described()}]
        save(model, tmp_path / "model")
        return tmp_path / "model"

    return folder


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("task", "table", "column"),
    [("classify", SEVERAL, "label"), ("choose", CHOICES, "label"), ("tag", WORDS, "tags"), ("answer", QUESTIONS, "answers")],
)  # fmt: skip
def test_what_is_written_can_be_learnt_and_judged_by(
    task: str, table: Table, column: str, ending: str, saved: Saved, tmp_path: Path
) -> None:
    model = saved(task, table, **({"multi_label": True} if task == "classify" else {}))
    rows = [
        row for row in table.rows if task != "answer" or ending != ".parquet" or row["question"] == "Who?"
    ]
    out = tmp_path / f"out{ending}"
    found = etymon.predict(model, data=rows, out=out)
    before, after = (etymon.evaluate(model, data=data, resamples=0) for data in (rows, out))
    assert {name: score.value for name, score in after.scores.items()} == {
        name: score.value for name, score in before.scores.items()
    }, "the columns of the table itself"
    assert [one["prediction"] for one in after.predictions] == [one.prediction for one in found]
    judged = etymon.evaluate(model, data=out, resamples=0, **{column: "prediction"})
    assert {score.value for score in judged.scores.values()} == {100.0}


def test_an_answer_that_looks_like_json_is_one(saved: Saved) -> None:
    known, _ = begun("bert", "answer", QUESTIONS)
    cells = ["[1]", "[]", json.dumps(["river", "winter"]), '{"text": "river", "answer_start": 24}']
    table = read_table([{**QUESTIONS.rows[0], "answers": cell} for cell in cells])
    assert known.given(table) == [
        [("[1]", 30)],
        [],
        [("river", 24), ("winter", 37)],
        [("river", 24)],
    ]
