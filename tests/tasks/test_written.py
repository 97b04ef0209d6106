"""Answers that are written, as T5 does it: what is asked for, and what is understood of what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import load
from etymon.families.saving import save
from etymon.tables.table import Table, read_table
from etymon.tasks import get_task, task_for, task_of
from etymon.tasks.text2text import WrittenTask
from etymon.training.unit import TrainingUnit
from tests import tiny
from tests.tasks.heads import NUMBERS, PAIRS, SEVERAL, TABLE


def written(name: str, table: Table, family: str = "t5", **options: Any) -> tuple[WrittenTask, Any]:
    known = get_family(family)
    task = get_task(name, options, known)
    assert isinstance(task, WrittenTask) and task.fit(known).way == "text-to-text"
    assert task.labels(table) == (), "no head is built for them"
    model = tiny.model(family, task.heads).eval()
    task.bind(model, 48)
    return task, model


def answered(
    task: WrittenTask, model: Any, table: Table, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What it makes of these texts."""
    monkeypatch.setattr(task.writing, "predict", lambda *_: texts)
    return task.predict(model, table)


def test_texts_are_named_and_labels_are_written() -> None:
    task, _ = written("classify", PAIRS, second="second", prefix="pairs ")
    asked = task.texts(PAIRS)
    assert asked["source"][0] == "pairs second: A bridge. text: The captain crossed the river."
    assert asked["target"] == ["a", "b", "a"]
    examples = task.encode(PAIRS, learn=True)
    assert len(examples) == 3 and task.limits["length"] >= max(
        len(examples.example(n)["source"]) for n in range(3)
    )


def test_what_is_no_label_is_none_and_counted_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = written("classify", TABLE, free_text=True)
    answers = answered(task, model, TABLE, ["bad", " good", "nonsense"], monkeypatch)
    assert [one.label for one in answers] == ["bad", "good", None]
    assert task.score(answers, TABLE, ["accuracy"])["accuracy"].value == pytest.approx(200 / 3)
    assert [task.record(one) for one in answers] == [{"prediction": label} for label in ("bad", "good", None)]
    assert task.format_row(TABLE, 2, answers[2]).endswith("-> None\n(so-so)")


def losses(task: WrittenTask, model: Any, table: Table, texts: list[str]) -> np.ndarray:
    """What training would charge for each of these texts in every row: another way to their probabilities."""
    found = np.empty((len(table), len(texts)))
    for row, source in enumerate(task.texts(table)["source"]):
        for place, text in enumerate(texts):
            asked = read_table([{"source": source, "target": text}])
            examples = task.writing.encode(asked)
            prepared = task.collate([[examples.example(0)]])
            with torch.no_grad():
                found[row, place] = float(task.loss(TrainingUnit(model, task), prepared)["loss"].sum)
    return found


@pytest.mark.parametrize("family", ["t5", "bart", "transformer", "rnn", "gpt2", "gptj"])
def test_labels_are_as_likely_as_the_loss_of_writing_them(family: str) -> None:
    labels = ["good", "good one", "so-so", "a bridge in winter", "b"]  # some go on from others
    rows = [{"text": f"The captain crossed {n} rivers", "label": label} for n, label in enumerate(labels, 1)]
    table = read_table(rows)
    task, model = written("classify", table, family, way="text")
    assert task.chooses and not task.writes_text
    expected = np.exp(-losses(task, model, table, list(task.label_names)))
    expected /= expected.sum(1, keepdims=True)
    for answer, shares in zip(task.predict(model, table), expected, strict=True):
        assert list(answer.probabilities) == list(task.label_names)
        np.testing.assert_allclose(list(answer.probabilities.values()), shares, rtol=1e-3)
        assert answer.label == task.label_names[int(shares.argmax())]


def test_every_row_chooses_among_its_own_choices() -> None:
    rows = [
        {"text": "the river", "choices": ["a", "b"], "label": 0},
        {"text": "a letter", "choices": ["a", "b", "c", "d"], "label": 3},
        {"text": "the garden", "choices": ["a", "b"], "label": 1},
    ]
    table = read_table(rows)
    task, model = written("choose", table)
    answers = task.predict(model, table)
    for number, answer in enumerate(answers):
        row, texts = table.at([number]), [f"choice{n + 1}" for n in range(len(rows[number]["choices"]))]
        expected = np.exp(-losses(task, model, row, texts)[0])
        np.testing.assert_allclose(answer.probabilities, expected / expected.sum(), rtol=2e-4)
        assert answer.number == expected.argmax()


def test_a_model_that_would_write_sentinels_still_answers_with_a_label() -> None:
    task, model = written("classify", TABLE)
    with torch.no_grad():  # nothing is as likely as the first sentinel
        head = model.heads["vocabulary"]
        head.weight[model.tokenizer.sentinels[0]] = 50 * head.weight.abs().max()
    free, _ = written("classify", TABLE, free_text=True)
    assert all(one.label in task.label_names for one in task.predict(model, TABLE))
    assert not any(one.label in task.label_names for one in free.predict(model, TABLE))


def test_answers_do_not_depend_on_the_other_rows() -> None:
    table = read_table(
        [{"text": "The river " * n, "label": ["good", "bad", "so-so"][n % 3]} for n in range(1, 8)]
    )
    task, model = written("classify", table)
    together = task.predict(model, table)
    for number, answer in enumerate(together):
        (alone,) = task.predict(model, table.at([number]))
        assert alone.label == answer.label
        assert alone.probabilities == pytest.approx(answer.probabilities, rel=1e-4)


def test_free_text_is_refused_where_a_head_answers() -> None:
    bert = get_family("bert")
    with pytest.raises(EtymonError, match="free_text is for answers that are written"):
        get_task("classify", {"free_text": True}, bert).fit(bert)


LONG = "the captain crossed the river in winter and opened the window. " * 8


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_of_a_long_row_the_longest_text_alone_is_cut(family: str) -> None:
    row = {"before": LONG, "text": "the answer", "choices": ["the garden", "a letter"], "label": 0}
    table, told = read_table([row, {**row, "choices": ["a letter", "the garden"]}]), list[str]()
    task, model = written("choose", table, family, context="before", way="text")
    task.bind(model, 64)
    examples = task.encode(table, told.append, learn=True)
    one, two = (examples.example(number)["source"] for number in range(2))
    assert not np.array_equal(one, two) and 50 <= len(one) <= 64
    assert told == [
        "2 of 2 rows are longer than 64 tokens, and their longest texts are cut (finetune --length)"
    ]
    text, _ = task.source_texts(table, task.writing.room_for_sources, told.append)
    assert told[0] == told[1] and text.startswith("question: the captain")
    assert text.endswith(" the answer choice1: the garden choice2: a letter")


def test_texts_of_a_long_row_are_cut_to_the_same_length() -> None:
    table = read_table([{"text": LONG, "second": LONG + LONG, "label": label} for label in "ab"])
    task, _ = written("classify", table, second="second")
    asked, _ = task.source_texts(table, 48)
    second, text = asked.removeprefix("second: ").split(" text: ")
    assert second == text and LONG.startswith(text) and 44 <= len(task.writing.sources([asked])[0]) <= 48


def test_a_published_model_is_asked_for_labels_that_nobody_taught_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("t5", frozenset({"vocabulary"})).eval()
    task: Any = task_for(model, "classify", {"prefix": "sst2 "})
    answers = answered(task, model, TABLE, ["bad", " good", "nonsense"], monkeypatch)
    assert [one.label for one in answers] == ["bad", "good", "nonsense"]
    assert task.score(answers, TABLE, ["accuracy"])["accuracy"].value == pytest.approx(200 / 3)
    several: Any = task_for(model, "classify", {"multi_label": True})
    answers = answered(several, model, SEVERAL, ["long | old", "|", "nonsense"], monkeypatch)
    assert several.score(answers, SEVERAL, ["accuracy"])["accuracy"].value == pytest.approx(200 / 3)


def test_a_label_is_known_as_the_tokenizer_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_table([{"text": "The river", "label": "Good-bye"}, {"text": "A letter", "label": "Bad"}])
    task, model = written("classify", table, "gpt1", way="text", free_text=True)
    words = model.tokenizer
    texts = [words.decode(words.encode(str(row["label"]))) for row in table.rows]
    assert "Good-bye" not in texts
    assert [one.label for one in answered(task, model, table, texts, monkeypatch)] == ["Good-bye", "Bad"]
    alike = read_table([{"text": "The river", "label": "Good"}, {"text": "A letter", "label": "good"}])
    with pytest.raises(
        EtymonError, match="of the labels Good, good, this model's tokenizer writes some in the same way"
    ):
        written("classify", alike, "gpt1", way="text")


@pytest.mark.parametrize(
    "own", [{"smoothing": 0.1}, {"class_weights": "balanced"}, {"r_drop": 1.0}, {"symmetric": True}]
)
def test_what_only_a_head_can_do_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(EtymonError, match=f"{next(iter(own))} is for a head, and T5 writes its answers"):
        written("classify", TABLE, **own)


@pytest.mark.parametrize("name", ["classify", "regress"])
def test_what_a_family_has_for_its_heads_is_no_hindrance(name: str) -> None:
    known = get_family("gpt1")
    own = known.task_options(name, ["language_model"])
    assert own
    get_task(name, {**own, "way": "text"}, known).fit(known)


def test_several_labels_in_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = written("classify", SEVERAL, multi_label=True)
    assert task.texts(SEVERAL)["target"] == ["long | old", "|", "long"]
    assert len(task.encode(SEVERAL)) == 3, "a row without a label has something to write as well"
    answers = answered(task, model, SEVERAL, ["old | long", "|", "long | nonsense"], monkeypatch)
    assert [one.label for one in answers] == [("old", "long"), (), ("long", "nonsense")]
    scores = task.score(answers, SEVERAL, ["micro_f1", "accuracy"])
    assert scores["accuracy"].value == pytest.approx(200 / 3), "what is no label is wrong"
    assert scores["micro_f1"].value == pytest.approx(100 * 6 / 7)
    assert task.format_row(SEVERAL, 2, answers[2]).endswith("-> long, nonsense\n(long)")
    assert task.record(answers[0]) == {"prediction": ["old", "long"]}


def test_numbers_are_multiples_of_a_fifth(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [2.57, 0, 5, 3.14, -0.05, "4.9", 1.3]
    table = read_table([{"text": "A letter", "label": value} for value in values])
    task, model = written("regress", table)
    assert task.texts(table)["target"] == [f"{np.round(float(value) * 5) / 5 + 0.0:.1f}" for value in values]
    assert task.texts(table)["target"][:4] == ["2.6", "0.0", "5.0", "3.2"]
    halves = read_table([{"text": "A letter", "label": value} for value in (0.3, 0.5, 0.7, 1.9, 2.3, 4.3)])
    assert task.texts(halves)["target"] == ["0.4", "0.4", "0.8", "2.0", "2.4", "4.4"], "as T5 was taught"
    texts = ["2.6", " 3.0 ", "three", "", "nan", "inf", "-0.4"]
    answers = answered(task, model, table, texts, monkeypatch)
    assert [one.value for one in answers] == [2.6, 3.0, -1.0, -1.0, -1.0, -1.0, -0.4]
    assert task.score(answers, table, ["mse"])["mse"].value > 1


@pytest.mark.parametrize(
    ("name", "table", "labels"), [("classify", TABLE, ["bad", "good", "so-so"]), ("regress", NUMBERS, [])]
)
def test_labels_are_kept_with_the_model(name: str, table: Table, labels: list[str], tmp_path: Path) -> None:
    task, model = written(name, table, prefix="sst2 ")
    task.encode(table, learn=True)
    told = task.describe()
    assert told["labels"] == labels and told["options"]["prefix"] == "sst2 " and told["limits"] == task.limits
    model.history = [{"task": told}]
    save(model, tmp_path / "model")
    opened = load(tmp_path / "model")
    for again in (task_of(opened), task_for(opened, name, {}), task_for(opened, None, {})):
        assert (
            isinstance(again, WrittenTask) and again.label_names == tuple(labels) and again.describe() == told
        )
    changed = task_of(opened, {"text": "sentence"})
    assert changed is not None and changed.options.text == "sentence" and changed.label_names == tuple(labels)  # type: ignore[attr-defined]


def test_rows_that_cannot_be_are_refused_before_anything_is_written() -> None:
    task, _ = written("classify", TABLE)
    strange = read_table([TABLE.rows[0], {"text": "A letter", "label": "god"}])
    for refuse in (task.texts, task.encode):
        with pytest.raises(
            EtymonError, match=r"^row 2: label 'god' is none of those that were learnt; did you mean 'good'"
        ):
            refuse(strange)
