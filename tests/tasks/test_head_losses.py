"""What must hold exactly of the losses of tasks with a head: slices, padding, formulas, teachers, features that are kept."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.features import FeatureSettings
from etymon.tables.table import read_table
from etymon.tasks.head_task import TEACHER
from etymon.training.unit import TrainingUnit
from tests.tasks.heads import (
    CHOICES,
    PAIRS,
    SEVERAL,
    TABLE,
    TWO,
    assert_equal_gradients,
    begun,
    gradients_of,
    loss_of,
    padded,
    scores_of,
    slices,
)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found).detach(), torch.as_tensor(expected).detach(), atol=1e-5, rtol=1e-5
    )


# ------------------------------------------------------------ how the work is laid out


@pytest.mark.parametrize("family", ["bert", "gpt1", "gptj", "xlnet", "bart", "t5"])
def test_padding_changes_nothing(family: str) -> None:
    task, model = begun(family, way="head")
    (ragged,) = slices(task, TABLE)
    rows = task.encode_texts(TABLE)
    order = np.argsort([len(rows.example(n)["ids"]) for n in range(len(TABLE))], kind="stable").tolist()
    filled = padded(task, TABLE.at(order), pad=7)
    batch = Batch.of_rectangle(
        filled["input_ids"], filled["attention_mask"], segments_RT=filled["token_type_ids"]
    )
    length = filled["input_ids"].shape[1]
    places = torch.zeros(3, dtype=torch.long) if family == "bert" else filled["attention_mask"].sum(1) - 1
    rectangle = replace(ragged, batch=batch, at=torch.arange(3) * length + places)
    assert rectangle.batch.layout.tokens > ragged.batch.layout.tokens
    loss = loss_of(task, model, [ragged])
    found = gradients_of(model)
    close(loss_of(task, model, [rectangle]), loss)
    assert_equal_gradients(gradients_of(model), found)


@pytest.mark.parametrize(
    ("family", "name", "table", "options"),
    [
        ("bert", "classify", TABLE, {}),
        ("bert", "classify", TWO, {"class_weights": "balanced", "smoothing": 0.2}),
        ("bert", "classify", SEVERAL, {"multi_label": True, "class_weights": "balanced"}),
        ("gpt1", "classify", TABLE, {"language_model": 0.5, "r_drop": 2.0}),
        ("gpt2", "classify", PAIRS, {"second": "second", "symmetric": True}),
        ("bert", "choose", CHOICES, {"r_drop": 1.0}),
        ("gpt1", "choose", CHOICES, {"language_model": 0.5}),
    ],
)
def test_slices_add_up_to_a_step(family: str, name: str, table: Any, options: dict[str, Any]) -> None:
    task, model = begun(family, name, table, **options)
    loss = loss_of(task, model, slices(task, table))
    found = gradients_of(model)
    close(loss_of(task, model, slices(task, table, [0], [1, 2])), loss)
    assert_equal_gradients(gradients_of(model), found)


# ------------------------------------------------------------ formulas


def test_smoothing_is_a_share_for_all_labels_in_training_alone() -> None:
    task, model = begun("bert", smoothing=0.3)
    prepared = slices(task, TABLE)
    logs = scores_of(task, model, TABLE).log_softmax(-1)
    right = torch.from_numpy(task.targets(TABLE)[:, 0])
    plain = -logs[range(3), right].mean()
    close(loss_of(task, model, prepared), 0.7 * plain - 0.3 * logs.mean())
    with torch.no_grad():
        close(task.loss(TrainingUnit(model, task), prepared[0])["loss"].sum / 3, plain)


def test_balanced_labels_count_by_how_rare_they_are() -> None:
    task, model = begun("bert", table=TWO, class_weights="balanced")
    prepared = slices(task, TWO)
    assert task.weights == pytest.approx([2, 1])  # one bad row, two good ones
    logs = scores_of(task, model, TWO).log_softmax(-1)
    weights, right = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([0, 1, 1])
    expected = -(weights * logs[range(3), right]).sum() / weights.sum()
    close(loss_of(task, model, prepared), expected)
    (common,) = slices(task, TWO, [1])
    close(loss_of(task, model, [common]), -logs[1, 1])  # alone, a row is as much of a step as a rare one
    dropped, _ = begun("bert", table=TWO, class_weights="balanced", r_drop=1.0)
    assert slices(dropped, TWO, [0])[0].counts == {"loss": 2.0, "r_drop": 1.0}, (
        "two passes are compared row by row"
    )


def test_smoothing_gives_no_more_to_rare_labels() -> None:
    task, model = begun("bert", table=TWO, class_weights="balanced", smoothing=0.3)
    prepared = slices(task, TWO)
    logs = scores_of(task, model, TWO).log_softmax(-1)
    weights, right = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([0, 1, 1])
    losses = -0.7 * logs[range(3), right] - 0.3 * logs.mean(-1)
    close(loss_of(task, model, prepared), (weights * losses).sum() / weights.sum())


def test_only_dropout_that_acts_counts_for_r_drop() -> None:
    """GPT-2's shape has a rate for heads of words, and none for the one that classifies."""
    _, model = begun("gpt2")
    model.shape = replace(model.shape, head_dropout=0.1)
    assert not Model(model.family, model.shape, frozenset({"classification"}), ("a", "b")).drops
    assert Model(model.family, model.shape, frozenset({"tagging"}), ("a", "b")).drops
    assert begun("bert", dropout=0.1)[1].drops and not begun("bert")[1].drops


def test_gpt1_drops_before_it_classifies() -> None:
    _, model = begun("gpt1", dropout=0.5)
    assert float(model.heads["classification"].dropout.rate) == 0.5
    x = torch.ones(2, model.shape.dim)
    assert not torch.equal(model.heads["classification"](x)[0], model.heads["classification"](x)[1])


@pytest.mark.parametrize("name", ["classify", "choose"])
def test_r_drop(name: str) -> None:
    """Without dropout both passes say the same; with it, the losses of both are averaged, and the divergence is added."""
    table = TABLE if name == "classify" else CHOICES
    plain, model = begun("bert", name, table)
    loss = loss_of(plain, model, slices(plain, table))
    found = gradients_of(model)
    for weight in (0.0, 3.0):
        task, model = begun("bert", name, table, r_drop=weight)
        close(loss_of(task, model, slices(task, table)), loss)
        assert_equal_gradients(gradients_of(model), found)
    task, model = begun("bert", name, table, r_drop=3.0, dropout=0.3)
    (prepared,) = slices(task, table)
    torch.manual_seed(2)
    one, two = (task.task_logits(model, prepared).detach() for _ in range(2))
    torch.manual_seed(2)
    found_loss = loss_of(task, model, [prepared])
    mean = (task.criterion(one, prepared) + task.criterion(two, prepared)) / 2
    p, q = (each.softmax(-1) for each in (one, two))
    kl = sum(F.kl_div(a.clamp_min(1e-30).log(), b, reduction="sum") for a, b in ((p, q), (q, p))) / 2
    assert kl > 1e-4
    close(found_loss, (mean + 3.0 * kl) / 3)
    assert all(gradient.isfinite().all() for gradient in gradients_of(model).values())
    model.eval()
    assert set(task.loss(TrainingUnit(model, task), prepared)) == {"loss"}, "judged by the loss alone"
    _, without = begun("bert", name, table)
    with pytest.raises(EtymonError, match="this model has none: leave --r-drop out"):
        task.bind_for_training(without, 48, frozen=False)


@pytest.mark.parametrize(
    "option",
    [{"r_drop": -1.0}, {"language_model": -0.5}, {"teaching": 1.5}, {"temperature": 0.0}, {"smoothing": 1.0}],
)
def test_weights_that_cannot_be_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(
        EtymonError, match=rf"the options of the task 'classify': {next(iter(option))} is"
    ) as refused:
        begun("gpt1", **option)
    assert "\n" not in str(refused.value)


# ------------------------------------------------------------ GPT-1's ways


def test_gpt1_reads_start_delimiter_and_extract() -> None:
    task, model = begun("gpt1", table=PAIRS, second="second")
    words = model.tokenizer
    assert words is not None
    start, middle, extract = (words.id(role) for role in ("begin", "separator", "class"))
    assert [words.tokens[n] for n in (start, middle, extract)] == ["_start_", "_delimiter_", "_classify_"]
    for number, row in enumerate(PAIRS.rows):
        one, two = (words.encode(row[name]).tolist() for name in ("text", "second"))
        assert task.encode_texts(PAIRS).example(number)["ids"].tolist() == [
            start,
            *one,
            middle,
            *two,
            extract,
        ]
    alone, _ = begun("gpt1")
    ids = alone.encode_texts(TABLE).example(1)["ids"].tolist()
    assert ids == [start, *words.encode("A letter.").tolist(), extract]


def test_a_symmetric_answer_is_of_the_sum_of_both_orders() -> None:
    task, model = begun("gpt1", table=PAIRS, second="second", symmetric=True)
    turned = read_table([{**row, "text": row["second"], "second": row["text"]} for row in PAIRS.rows])
    found = scores_of(task, model, PAIRS)
    close(scores_of(task, model, turned), found)
    plain, _ = begun("gpt1", table=PAIRS, second="second")
    states = []
    with torch.no_grad():
        for table in (PAIRS, turned):
            examples = plain.encode_texts(table)
            each = [model.states(Batch.of([examples.example(n)["ids"]]))[-1] for n in range(len(PAIRS))]
            states.append(torch.stack(each))
        close(found, model.heads["classification"](states[0] + states[1]))
    assert not torch.allclose(scores_of(plain, model, PAIRS), scores_of(plain, model, turned), atol=1e-3)


def test_language_modelling_is_a_mean_over_rows_of_means_over_words() -> None:
    options = get_family("gpt1").task_options("classify", {"language_model"})
    assert options == {"language_model": 0.5}
    task, model = begun("gpt1", **options)
    (prepared,) = slices(task, TABLE)
    plain, _ = begun("gpt1")
    expected = []
    with torch.no_grad():
        examples = task.encode_texts(TABLE)
        for number in range(len(TABLE)):
            ids = torch.from_numpy(examples.example(number)["ids"].astype(np.int64))
            hidden, _ = model.hidden(Batch.of([ids.numpy()]))
            logits = model.heads["vocabulary"].logits(hidden)
            expected.append(F.cross_entropy(logits[:-1], ids[1:]))
        own = task.criterion(
            scores_of(task, model, TABLE), replace(prepared, targets=torch.from_numpy(task.targets(TABLE)))
        )
    close(loss_of(task, model, [prepared]), own / 3 + 0.5 * torch.stack(expected).mean())
    model.eval()
    assert set(task.loss(TrainingUnit(model, task), prepared)) == {"loss"}
    assert plain.heads == {"classification"} and task.heads == {"classification", "vocabulary"}


# ------------------------------------------------------------ teachers


def taught(
    options: dict[str, Any], table: Any = TABLE, turned: bool = False
) -> tuple[Any, Model, Any, Model]:
    """A student that follows a teacher of another family, which may know the labels in another order."""
    teacher_task, teacher = begun(
        "gpt2", table=table, seed=3, **{k: v for k, v in options.items() if k == "multi_label"}
    )
    if turned:
        teacher.labels = teacher_task.label_names = tuple(reversed(teacher_task.label_names))
    task, model = begun("bert", table=table, **options)
    task.follow_teacher(teacher, teacher_task, "the teacher")
    return teacher_task, teacher, task, model


@pytest.mark.parametrize("turned", [False, True])
def test_a_teacher_is_followed_by_the_divergence(turned: bool) -> None:
    teacher_task, teacher, task, model = taught({"teaching": 1.0, "temperature": 3.0}, turned=turned)
    said = scores_of(teacher_task, teacher, TABLE)
    said = said.flip(1) if turned else said
    found = scores_of(task, model, TABLE)
    p, q = (said / 3).softmax(-1), (found / 3).softmax(-1)
    expected = 9 * (p * (p.log() - q.log())).sum(-1).mean()
    assert expected > 1e-3
    close(loss_of(task, model, slices(task, TABLE)), expected)
    close(loss_of(task, model, slices(task, TABLE, [2], [0, 1])), expected)
    mixed = taught({"teaching": 0.25, "temperature": 3.0}, turned=turned)[2:]
    plain = F.cross_entropy(found, torch.from_numpy(task.targets(TABLE)[:, 0]))
    close(loss_of(*mixed, slices(mixed[0], TABLE)), 0.25 * expected + 0.75 * plain)
    model.eval()
    (prepared,) = slices(task, TABLE)
    terms = task.loss(TrainingUnit(model, task), prepared)
    assert set(terms) == {"loss"} and terms["loss"].weight == 1.0, "judged by the labels"


def test_processes_that_prepare_rows_get_neither_teacher_nor_cache() -> None:
    _, _, task, _ = taught({"teaching": 0.5})
    assert pickle.loads(pickle.dumps(task)).teacher is None and task.teacher is not None
    own = FeatureSettings(cells=4)
    frozen, _ = begun("bert", features=own, frozen=True, way="head")
    copy = pickle.loads(pickle.dumps(frozen))
    assert copy.cache is None and frozen.cache is not None
    assert copy.label_names == frozen.label_names


def test_of_several_labels_each_is_followed_by_itself() -> None:
    own = {"teaching": 1.0, "temperature": 2.0, "multi_label": True}
    teacher_task, teacher, task, model = taught(own, SEVERAL)
    p, q = ((scores_of(*each, SEVERAL) / 2).sigmoid() for each in ((teacher_task, teacher), (task, model)))
    expected = 4 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    close(loss_of(task, model, slices(task, SEVERAL)), expected)


def test_language_modelling_beside_a_task_needs_an_ordinary_softmax() -> None:
    with pytest.raises(EtymonError, match=r"needs an ordinary softmax, .*: set language_model to 0"):
        begun("transformer-xl", language_model=0.5)


def test_only_a_teacher_of_the_same_labels_can_be_followed() -> None:
    task, _ = begun("bert")
    other_task, other = begun("bert", table=TWO)
    with pytest.raises(
        EtymonError, match="knows the labels bad, good, and the table has bad, good, so-so"
    ) as refused:
        task.follow_teacher(other, other_task, "the teacher")
    assert "\n" not in str(refused.value)
    several, model = begun("bert", table=TABLE, multi_label=True)
    with pytest.raises(EtymonError, match="cannot follow"):
        task.follow_teacher(model, several, "the teacher")
    number, model = begun("bert", "regress", read_table([{"text": "a", "label": 1}]))
    with pytest.raises(EtymonError, match="cannot follow the teacher, which does 'classify'"):
        number.follow_teacher(other, other_task, "the teacher")
    assert TEACHER not in slices(task, TABLE)[0].counts


# ------------------------------------------------------------ features of a frozen body


@pytest.mark.parametrize(("family", "name"), [("elmo", "classify"), ("bert", "classify"), ("bert", "choose")])
def test_what_is_kept_of_a_frozen_body_changes_nothing(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLE if name == "classify" else CHOICES
    own = FeatureSettings(cells=4, place="both", dropout=0.0)
    task, model = begun(family, name, table, features=own, frozen=True, dropout=0.5, way="head")
    for parameter in model.body.parameters():
        parameter.requires_grad = False
    parts = slices(task, table, [2, 0], [1]), slices(task, table, [0], [1, 2])
    monkeypatch.setattr(task, "cache", None)
    uncached = [loss_of(task, model, part) for part in parts]
    expected = gradients_of(model)
    monkeypatch.undo()
    reads = []
    honest = model.layers
    monkeypatch.setattr(model, "layers", lambda batch: reads.append(batch.layout.rows) or honest(batch))
    for _ in range(2):
        for part, loss in zip(parts, uncached, strict=True):
            close(loss_of(task, model, part), loss)
        assert_equal_gradients(gradients_of(model), expected)
    # Another encoding of the table has other keys; within one, every row is read once.
    assert sum(reads) == 2 * sum(len(task.pairs(table.at([n]))[0]) for n in range(len(table)))


def test_the_penalty_is_added_once_a_step() -> None:
    own = FeatureSettings(cells=4, place="both", dropout=0.0, penalty=0.25)
    task, model = begun("bert", features=own, frozen=True)
    free, _ = begun("bert", features=replace(own, penalty=0.0), frozen=True)
    scalars = torch.cat([one for name, one in model.named_parameters() if ".scalars." in name])
    assert len(scalars) == 2 * 3
    plain = loss_of(free, model, slices(free, TABLE))
    for parts in ([[0, 1, 2]], [[0], [1, 2]], [[0], [1], [2]]):
        close(loss_of(task, model, slices(task, TABLE, *parts)), plain + 0.25 * scalars.square().sum())
    model.eval()
    assert set(task.loss(TrainingUnit(model, task), slices(task, TABLE)[0])) == {"loss"}
