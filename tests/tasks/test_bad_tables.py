"""Tables with a mistake: one line that names the file and the row, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon import cli
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.saving import save
from etymon.tables.formats import write_table
from etymon.tables.table import read_table
from etymon.tasks import get_task
from tests.tasks.heads import TABLE, begun
from tests.verbs.small_runs import with_test_sizes

Row = dict[str, Any]
Run = Callable[..., tuple[int, str]]
TEXTS: list[Row] = [
    {"text": f"The {word} opened.", "label": "ab"[n % 2]}
    for n, word in enumerate("river letter window garden".split())
]
CHOICES: list[Row] = [{"text": "The river", "choices": ["opened", "wanted"], "label": 0} for _ in range(4)]
QUESTIONS: list[Row] = [
    {"id": n, "question": "Who opened?", "context": "The window opened.", "answers": "The window"}
    for n in range(4)
]
WORDS: list[Row] = [{"tokens": ["The", "river"], "tags": ["D", "N"]} for _ in range(4)]
NUMBERS: list[Row] = [{"text": "The river", "label": 0.5 * n} for n in range(4)]
GOOD = {"classify": TEXTS, "regress": NUMBERS, "choose": CHOICES, "answer": QUESTIONS, "tag": WORDS}
CASES: dict[str, tuple[str, Row, str]] = {
    "no text": ("classify", {"txt": "The river", "label": "a"}, r"FILE, line 5: no column 'text'; did you mean 'txt'"),
    "no label": ("classify", {"text": "The river", "labl": "a"}, r"FILE, line 5: no column 'label'; did you mean 'labl'"),
    "an empty text": ("classify", {"text": "  ", "label": "a"}, r"FILE, line 5: column 'text' is empty"),
    "nothing for a text": ("classify", {"text": None, "label": "a"}, r"FILE, line 5: column 'text' holds nothing, not a text"),
    "a number for a text": ("classify", {"text": 5, "label": "a"}, r"FILE, line 5: column 'text' holds a int, not a text"),
    "an empty label": ("classify", {"text": "The river", "label": " "}, r"FILE, line 5: column 'label' has no label"),
    "nothing for a label": ("classify", {"text": "The river", "label": None}, r"FILE, line 5: column 'label' has no label"),
    "numbers and texts": ("classify", {"text": "The river", "label": 1}, r"FILE, line 5: column 'label' holds a number, and FILE, line 1 a text"),
    "a fraction and texts": ("classify", {"text": "The river", "label": 0.5}, r"FILE, line 5: column 'label' holds a number, and FILE, line 1 a text"),
    "a list": ("classify", {"text": "The river", "label": ["a", "b"]}, r"FILE, line 5: column 'label' holds several labels: say --multi-label"),
    "no number": ("regress", {"text": "The river", "label": "high"}, r"FILE, line 5: column 'label' holds 'high', not a number"),
    "a truth value": ("regress", {"text": "The river", "label": True}, r"FILE, line 5: column 'label' holds True, not a number"),
    "not a number": ("regress", {"text": "The river", "label": "nan"}, r"FILE, line 5: column 'label' holds 'nan', not a finite number"),
    "nothing for a number": ("regress", {"text": "The river", "label": None}, r"FILE, line 5: column 'label' holds None, not a number"),
    "a choice out of range": ("choose", {**CHOICES[0], "label": 2}, r"FILE, line 5: column 'label' holds '2', which is none of its 2 choices"),
    "a choice below": ("choose", {**CHOICES[0], "label": -2}, r"FILE, line 5: column 'label' holds '-2', which is none of its 2 choices"),
    "a hidden choice": ("choose", {**CHOICES[0], "label": -1}, r"FILE, line 5: column 'label' holds -1, so what is right is not known: fill it in, .* etymon predict"),
    "nothing for a choice": ("choose", {**CHOICES[0], "choices": ["a", "None"], "label": None}, r"FILE, line 5: column 'label' holds nothing, so what is right is not known"),
    "no list of choices": ("choose", {**CHOICES[0], "choices": "a, b"}, r"FILE, line 5: column 'choices' is no list of two choices or more"),
    "one choice": ("choose", {**CHOICES[0], "choices": ["a"]}, r"FILE, line 5: column 'choices' is no list of two choices or more"),
    "an empty choice": ("choose", {**CHOICES[0], "choices": ["a", " "]}, r"FILE, line 5: column 'choices' is no list of two choices or more"),
    "an id twice": ("answer", {**QUESTIONS[0], "id": 2}, r"FILE, line 5: the id '2' is also that of FILE, line 3"),
    "unequal tags": ("tag", {"tokens": ["The", "river"], "tags": ["D"]}, r"FILE, line 5: 2 words in column 'tokens', and 1 tags in column 'tags': give every word one tag, or leave the row out"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """One command line in this process: exit code and standard error."""

    def command(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as leaving:
            cli.main([str(argument) for argument in arguments])
        return int(leaving.value.code or 0), capsys.readouterr().err

    return command


def wrote(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def assert_refused(code: int, error: str, reason: str, path: Path) -> None:
    assert code == 2
    (line,) = error.strip().splitlines()
    assert re.search(reason.replace("FILE", re.escape(str(path))), line), line


def command(family: str, task: str, out: Path, *more: object) -> list[object]:
    return [
        "finetune", family, "--from-scratch", "--size", "test", "--task", task, "--out", out, "--steps", 1,
        "--progress", "silent", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_row_that_cannot_be_used_is_named(case: str, family: str, tmp_path: Path, run: Run) -> None:
    task, row, reason = CASES[case]
    path, out = wrote(tmp_path / "rows.jsonl", [*GOOD[task], row]), tmp_path / "run"
    assert_refused(*run(*command(family, task, out, "--train", path)), reason, path)
    assert not out.exists()
    # The same of a table to validate on, and of rows that the program holds.
    good = wrote(tmp_path / "good.jsonl", GOOD[task])
    if "and texts" not in case:  # which is asked of what is learnt
        assert_refused(*run(*command(family, task, out, "--train", good, "--validation", path)), reason, path)
        assert not out.exists()
    with pytest.raises(EtymonError, match=reason.replace("FILE, line", "row")) as refused:
        etymon.finetune(
            family,
            from_scratch=True,
            size="test",
            task=task,
            train=[*GOOD[task], row],
            out=out,
            progress="silent",
        )
    assert "\n" not in str(refused.value) and not out.exists()


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_one_label_teaches_nothing(family: str, tmp_path: Path, run: Run) -> None:
    path = wrote(tmp_path / "rows.jsonl", [{**row, "label": "a"} for row in TEXTS])
    reason = "FILE: column 'label' holds one label only, 'a': there is nothing to learn"
    assert_refused(*run(*command(family, "classify", tmp_path / "run", "--train", path)), reason, path)
    path = wrote(tmp_path / "rows.jsonl", [{**row, "label": ""} for row in TEXTS])
    reason = "FILE: column 'label' holds no label: there is nothing to learn"
    more = ("--train", path, "--multi-label")
    assert_refused(*run(*command(family, "classify", tmp_path / "run", *more)), reason, path)
    assert not (tmp_path / "run").exists()


def test_the_line_of_a_csv_is_named(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"The river\nopened.",a\nA letter,b\n,a\n', encoding="utf-8")
    reason = "FILE, line 5: column 'text' is empty"
    assert_refused(*run(*command("bert", "classify", tmp_path / "run", "--train", path)), reason, path)
    path.write_text("text,label\nA letter,b\nThe river\n", encoding="utf-8")
    assert_refused(
        *run(*command("bert", "classify", tmp_path / "run", "--train", path)), "FILE, line 3", path
    )


def test_rows_without_a_label_say_so_in_many_ways() -> None:
    values = [None, float("nan"), "", "|", [], [None], "long|old"]
    table = read_table([{"text": "A letter.", "label": value} for value in values])
    task: Any = get_task("classify", {"multi_label": True}, get_family("bert"))
    assert task.labels(table) == ("long", "old")
    assert task.row_labels(table) == [()] * 6 + [("long", "old")]
    with pytest.raises(EtymonError, match="row 2: column 'label' has no label"):
        get_task("classify", {}, get_family("bert")).labels(table.at([1]))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_whole_number_is_one_label_in_every_kind_of_file(
    several: bool, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows{ending}"
    write_table(path, [{"text": "A letter.", "label": value} for value in (1.0, 2.0, -1.0)])
    task: Any = get_task("classify", {"multi_label": several}, get_family("bert"))
    assert task.labels(read_table(path)) == ("-1", "1", "2")
    write_table(path, [{"text": "A letter.", "label": value} for value in (0.5, 10.0, 4.5)])
    assert task.labels(read_table(path)) == ("0.5", "4.5", "10")
    write_table(path, [{"text": "A letter.", "label": value / 7} for value in range(30)])
    with pytest.raises(
        EtymonError, match=r"column 'label' holds 25 different numbers such as 0\.14.*: .* --task regress"
    ):
        task.labels(read_table(path))
    task.label_names = ("1.0", "0.5")  # as a published model may call them
    write_table(path, [{"text": "A letter.", "label": value} for value in (1.0, 0.5)])
    assert task.row_labels(read_table(path)) == [("1.0",), ("0.5",)]


def test_numbers_of_rows_are_no_labels(tmp_path: Path) -> None:
    path, task = tmp_path / "rows.csv", get_task("classify", {}, get_family("bert"))
    write_table(path, [{"text": "A letter.", "label": value} for value in range(40)])
    with pytest.raises(
        EtymonError, match=r"holds another label in every row, such as '0' and '1': .* with --label"
    ):
        task.labels(read_table(path))
    write_table(path, [{"text": "A letter.", "label": value // 2} for value in range(60)])
    assert len(task.labels(read_table(path))) == 30


@pytest.mark.parametrize("way", ["head", "text"])
def test_an_unknown_label_at_evaluation_is_named(way: str, tmp_path: Path, run: Run) -> None:
    task, model = begun("t5", way=way)
    model.history = [{"task": task.describe()}]
    save(model, tmp_path / "model")
    rows = [*map(dict, TABLE.rows), {"text": "A letter.", "label": "god"}]
    path = wrote(tmp_path / "test.jsonl", rows)
    reason = "FILE, line 4: label 'god' is none of those that were learnt; did you mean 'good'"
    assert_refused(*run("evaluate", tmp_path / "model", "--data", path), reason, path)
    path = wrote(tmp_path / "test.jsonl", [{"text": "A letter."}])
    assert_refused(
        *run("evaluate", tmp_path / "model", "--data", path), "FILE, line 1: no column 'label'", path
    )
    assert len(etymon.predict(tmp_path / "model", data=rows)) == 4, "what is right need not be known"
