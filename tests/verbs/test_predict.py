"""`etymon predict` and `etymon evaluate`: what is asked, what is said, and answers that are read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.tables.formats import write_table
from etymon.tables.table import Table, read_table
from tests.tasks.heads import CHOICES, SEVERAL, TABLE, begun
from tests.verbs.small_runs import with_test_sizes

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

    def folder(
        task: str = "classify", table: Table = TABLE, *, family: str = "bert", length: int | None = None, **options: Any
    ) -> Path:  # fmt: skip
        known, model = begun(family, task, table, **options)
        known.bind(model, length)
        model.history = [{"task": known.describe()}]
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
    assert known.right_answers(table) == [
        [("[1]", 30)],
        [],
        [("river", 24), ("winter", 37)],
        [("river", 24)],
    ]


LONG = "the captain crossed the river in winter and opened the window " * 20


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("bert", {}, "cut 2 texts of 3 rows to {} tokens (finetune --length)"),
        ("t5", {"way": "text"}, "2 of 3 rows are longer than {} tokens, and their longest texts are cut (finetune --length)"),
    ],
)  # fmt: skip
def test_texts_that_are_cut_are_told_once_and_apart_from_the_answers(
    family: str, options: dict[str, Any], reason: str, saved: Saved, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:  # fmt: skip
    model = saved(family=family, length=24, **options)
    data = tmp_path / "long.jsonl"
    write_table(data, [{"text": text, "label": "good"} for text in (LONG, "A letter.", LONG)])
    for verb in ("predict", "evaluate"):
        with pytest.raises(SystemExit):
            cli.main([verb, str(model), "--data", str(data)])
        shown = capsys.readouterr()
        (told,) = [line for line in shown.err.splitlines() if "cut" in line]
        assert told == f"etymon: note: {reason.format(24)}"
        assert "cut" not in shown.out and shown.out
    with pytest.raises(SystemExit):
        cli.main(["predict", str(model), "A letter."])
    assert "cut" not in capsys.readouterr().err


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_sources_that_are_cut_are_told(family: str, saved: Saved) -> None:
    table, told = read_table([{"source": LONG, "target": "A letter."}]), list[str]()
    etymon.predict(saved("text2text", table, family=family, length=48), data=table.rows, on_note=told.append)
    assert told == ["1 of 1 texts in 'source' are longer than 48 tokens and are cut (finetune --length)"]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([5], "text 1 is a int, not a text"),
        (["A letter.", None], "text 2 is a NoneType, not a text"),
        ([{"text": "A letter."}], "text 1 is a dict, not a text"),
        ({"text": ["A letter."]}, "texts are given as a list of them, not as a dict"),
        (5, "texts are given as a list of them, not as a int"),
    ],
)
def test_what_is_no_text_is_refused(texts: Any, reason: str, saved: Saved) -> None:
    with pytest.raises(EtymonError, match=f"^{reason}$"):
        etymon.predict(saved(), texts)


@pytest.mark.parametrize("framed", [False, True])
def test_columns_of_the_program_are_learnt_from_resumed_and_answered(framed: bool, tmp_path: Path) -> None:
    texts = [f"The {word} opened." for word in "river letter window garden".split()]
    columns: Any = {"text": texts, "label": np.array([0, 1, 0, 1], np.float32)}
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(texts)]
    held = columns_as_rows(columns)
    columns = pytest.importorskip("pandas").DataFrame(columns) if framed else columns
    options: dict[str, Any] = {"task": "classify", "from_scratch": True, "size": "test", "vocabulary": 300, "steps": 1, "out": tmp_path / "run", "progress": "silent"}  # fmt: skip
    with with_test_sizes():
        done = etymon.finetune("bert", train=columns, validation=columns, **options)
        assert etymon.load(done.folder).labels == ("0", "1")
        with pytest.raises(EtymonError, match=r"are not those that the run in .* began with"):
            etymon.finetune("bert", train=rows[:3], validation=columns, resume=True, **options)
        again = etymon.finetune("bert", train=columns, validation=iter(held), resume=True, **options)  # fmt: skip
    assert again.metrics["accuracy"] == done.metrics["accuracy"]
    assert len(etymon.predict(done.folder, data=columns)) == 4
    found = (etymon.evaluate(done.folder, data=data, resamples=0).scores for data in (columns, rows))
    assert len({scores["accuracy"].value for scores in found}) == 1


def columns_as_rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def test_nothing_that_was_given_is_replaced(saved: Saved, tmp_path: Path) -> None:
    model, data = saved(), tmp_path / "rows.csv"
    for column in ("prediction", "probabilities"):
        write_table(data, [{"text": "A letter.", column: "good"}])
        with pytest.raises(
            EtymonError, match=rf"rows\.csv: the column '{column}' would be replaced by .*: rename it"
        ):
            etymon.predict(model, data=data)
        write_table(data, [{"text": "A letter.", "label": "good", column: "good"}])
        with pytest.raises(EtymonError, match=f"the column '{column}' would be replaced"):
            etymon.evaluate(model, data=data, out=tmp_path / "answers.csv")
        etymon.evaluate(model, data=data)  # which writes nothing
    write_table(data, [{"text": "A letter.", "label": "good"}])
    before = data.read_bytes()
    (tmp_path / "inside").mkdir()
    for verb in (etymon.predict, etymon.evaluate):
        with pytest.raises(
            EtymonError, match=r"cannot write .*rows\.csv: it is the table that is read, give another"
        ):
            verb(model, data=[data], out=tmp_path / "inside" / ".." / "rows.csv")
    assert data.read_bytes() == before


def test_breaks_that_a_table_cannot_hold_are_told(saved: Saved, tmp_path: Path) -> None:
    told: list[str] = []
    etymon.predict(saved(), ["A letter.\nA river."], out=tmp_path / "out.tsv", on_note=told.append)
    assert len(told) == 1 and "line breaks of 1 cells are spaces" in told[0]


def test_the_name_of_a_file_is_a_text_and_that_is_said(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text,label\nThe river,a\n", encoding="utf-8")
    for name, is_said in (("rows.csv", True), ("other.csv", False)):
        with pytest.raises(SystemExit):
            cli.main(["predict", str(folder), name])
        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 1
        assert ("rows.csv is read as a text, and not the file of that name" in told.err) is is_said


def test_a_column_that_is_read_unless_told_is_named_with_its_option(saved: Saved) -> None:
    with pytest.raises(
        EtymonError, match=r"no column 'text'; choose from Message, Kind, and name it with --text"
    ):
        etymon.predict(saved(), data=[{"Message": "The river", "Kind": "a"}])
