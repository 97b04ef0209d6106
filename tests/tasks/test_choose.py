"""Multiple choice: any number of choices a row, and every way to say which one is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.nn.features import FeatureSettings
from etymon.tables.table import read_table
from etymon.tasks import get_task
from etymon.tasks.choose import ChoicePrediction, Choose
from tests.tasks.heads import CHOICES, begun, gradients_of, loss_of, slices


def made(**options: Any) -> Choose:
    task = get_task("choose", options, get_family("bert"))
    assert isinstance(task, Choose)
    return task


@pytest.mark.parametrize("family", ["bert", "gpt1", "elmo"])
def test_every_row_is_a_softmax_over_its_own_choices(family: str) -> None:
    features = FeatureSettings(cells=4, dropout=0.0) if family == "elmo" else None
    task, model = begun(family, "choose", CHOICES, features=features)
    answers = task.predict(model, CHOICES)
    assert [len(one.probabilities) for one in answers] == [3, 2, 4]
    assert all(sum(one.probabilities) == pytest.approx(1.0, abs=1e-5) for one in answers)
    losses = []
    for number, row in enumerate(CHOICES.rows):
        (alone,) = task.predict(model, CHOICES.at([number]))
        assert alone.probabilities == pytest.approx(answers[number].probabilities, abs=1e-5)
        losses.append(F.nll_loss(torch.tensor([alone.probabilities]).log(), torch.tensor([row["label"]])))
    loss = loss_of(task, model, slices(task, CHOICES))
    torch.testing.assert_close(loss, torch.stack(losses).mean(), atol=1e-5, rtol=1e-5)
    assert all(gradient.isfinite().all() for gradient in gradients_of(model).values())
    right = sum(one.number == row["label"] for one, row in zip(answers, CHOICES.rows)) / 3
    assert task.score(answers, CHOICES, ["accuracy"])["accuracy"].value == pytest.approx(100 * right)


def test_dropped_passes_of_rows_with_fewer_choices_have_finite_gradients() -> None:
    task, model = begun("bert", "choose", CHOICES, r_drop=4.0, dropout=0.4)
    torch.manual_seed(0)
    (prepared,) = slices(task, CHOICES)
    assert torch.isfinite(loss_of(task, model, [prepared]))
    found = gradients_of(model)
    assert len(found) > 20 and all(gradient.isfinite().all() for gradient in found.values())
    plain, _ = begun("bert", "choose", CHOICES)
    torch.manual_seed(0)
    loss_of(plain, model, slices(plain, CHOICES))
    name = "heads.choice.linear.weight"
    assert not torch.allclose(gradients_of(model)[name], found[name], atol=1e-4)


@pytest.mark.parametrize(
    ("label", "first", "right"),
    [
        (1, 0, 1), (1, 1, 0), ("2", 0, 2), ("2", 1, 1), (2.0, 0, 2), ("B", 0, 1), ("c", 1, 2),
        ("a river", 0, 1), (" the garden ", 0, 2), (12, 0, 3), ("12", 0, 3),
    ],
)  # fmt: skip
def test_what_is_right_is_a_number_a_letter_or_the_choice_itself(label: Any, first: int, right: int) -> None:
    row = {"text": "The captain", "choices": ["a bridge", "a river", "the garden ", 12], "label": label}
    assert made(first=first).right_choices(read_table([row])) == [right]


def test_of_a_long_context_the_beginning_is_cut() -> None:
    row = {
        "before": "The captain crossed the river. " * 20,
        "choices": ["the garden", "a letter"],
        "label": 0,
    }
    table = read_table([{**row, "text": text} for text in ("What was crossed", "Who opened the window")])
    task, model = begun("bert", "choose", table, context="before")
    told: list[str] = []
    examples = task.encode(table, told.append)
    one, two = (model.tokenizer.decode(examples.example(n)["ids"]) for n in range(2))
    assert "what was crossed the garden" in one and "who opened the window the garden" in two
    assert examples.example(0)["lengths"].tolist() == [48, 48] and told


def test_numbers_that_are_choices_too_are_not_guessed() -> None:
    rows = [{"text": "1 + 1", "choices": ["1", "2", "3"], "label": 1}]
    assert made().right_choices(read_table(rows)) == [1], "what is no text is a number"
    rows = [{"text": "1 + 1", "a": "1", "b": "2", "c": "3", "label": label} for label in ("3", "1")]
    task = made(choices=["a", "b", "c"])
    with pytest.raises(
        EtymonError, match=r"^row 2: column 'label' holds '1', which is a choice and counts another one"
    ):
        task.right_choices(read_table(rows))
    assert made(choices=["a", "b", "c"], first=1).right_choices(read_table(rows)) == [2, 0], (
        "both mean the same"
    )


def test_equal_choices_are_told_apart_by_number_or_letter() -> None:
    row = {"text": "The captain", "choices": ["a river", "a bridge", "a river "]}
    with pytest.raises(
        EtymonError, match=r"^row 2: column 'label' holds 'a river', which is several choices: say"
    ):
        made().right_choices(read_table([{**row, "label": label} for label in ("a bridge", "a river")]))
    with pytest.raises(EtymonError, match=r"holds 'a', which is several choices"):
        made().right_choices(read_table([{"text": "The captain", "choices": ["a", "a", "b"], "label": "a"}]))
    assert made().right_choices(read_table([{**row, "label": label} for label in (2, "C", "a bridge")])) == [
        2,
        2,
        1,
    ]


def test_columns_of_choices_are_lists_of_them() -> None:
    listed = made(context="before").pairs(
        read_table([{"before": "In winter", "text": "it", "choices": ["opened", "closed"], "label": 0}])
    )
    row = {"before": "In winter", "text": "it", "one": "opened", "two": "closed", "label": 0}
    task = made(context="before", choices=["one", "two"])
    assert (
        task.pairs(read_table([row])) == listed == [[("In winter it", "opened"), ("In winter it", "closed")]]
    )
    assert (
        task.columns == ("text", "before", "one", "two", "label") and task.input_columns == task.columns[:-1]
    )


def test_records_count_as_the_table_does() -> None:
    task = made(first=1)
    row = {"text": "The captain", "choices": ["a bridge", "a river"], "label": 2}
    table = read_table([row])
    assert task.record(ChoicePrediction(1, (0.2, 0.8))) == {"prediction": 2, "probabilities": [0.2, 0.8]}
    assert task.format_row(table, 0, ChoicePrediction(0)) == "The captain\n-> a bridge\n(a river)"
    assert task.target_texts(table) == ["choice2"]
    assert task.parse_texts(["choice1", " choice2", "choice0", "river", "choice9"]) == [
        ChoicePrediction(0), ChoicePrediction(1), ChoicePrediction(None), ChoicePrediction(None), ChoicePrediction(8),
    ]  # fmt: skip
    twice = read_table([row] * 2)
    assert (
        task.score([ChoicePrediction(8), ChoicePrediction(None)], twice, ["accuracy"])["accuracy"].value == 0
    )
