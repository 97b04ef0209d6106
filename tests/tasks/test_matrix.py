"""Every family does every task that it is not refused: a step, a folder, and the same answers from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import REGISTRY as FAMILIES
from etymon.families import get_family
from etymon.families.loading import load
from etymon.families.saving import save
from etymon.objectives.objective import weighted_loss
from etymon.sampling.plans import key
from etymon.tables.table import read_table
from etymon.tasks import REGISTRY, get_task, task_for
from etymon.training.feeding import validation_slices
from etymon.training.unit import TrainingUnit, evaluate
from etymon.verbs.tasks import TasksOptions, present, task_cell, tasks
from tests import tiny

WORDS = "the captain crossed a river in winter and opened the window of the garden".split()
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [
        {"text": "The captain crossed the river.", "label": "good"},
        {"text": "The garden remembered winter and the bridge.", "label": "bad"},
        {"text": "A letter.", "label": "good"},
    ],
    "regress": [
        {"text": "The captain crossed the river.", "second": "A bridge.", "label": 1.5},
        {"text": "A letter.", "second": "The garden answered.", "label": -0.4},
    ],
    "choose": [
        {"text": "The captain crossed", "choices": ["the river.", "winter and the bridge.", "a"], "label": 1},
        {"text": "The garden", "choices": ["opened.", "followed the village."], "label": 0},
    ],
    "tag": [
        {"tokens": WORDS, "tags": ["A" if len(word) < 4 else "B" for word in WORDS]},
        {"tokens": ["winter", "opened"], "tags": ["B", "B"]},
    ],
    "answer": [
        {"id": "1", "question": "Who crossed the river?", "context": "In winter the captain crossed it.", "answers": "the captain"},
        {"id": "2", "question": "What opened?", "context": "The window opened.", "answers": "The window"},
    ],
    "text2text": [{"source": "The captain crossed the river.", "target": "A bridge."}, {"source": "A letter.", "target": "The garden."}],
    "language-model": [{"text": "The captain crossed the river."}, {"text": "The garden answered in winter, and the window opened."}],
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {"regress": {"second": "second"}}
CELLS = [(family, task) for family in FAMILIES for task in REGISTRY]


def begun(family: str, task: str, **options: Any) -> tuple[Any, Any, Any]:
    """A task with a tiny model that has never seen it."""
    known, table = get_family(family), read_table(ROWS[task])
    made: Any = get_task(task, {**OPTIONS.get(task, {}), **options}, known)
    heads = made.fit(known).heads
    labels = made.labels(table)
    model = tiny.model(family, heads, **({"labels": labels} if labels else {}))
    made.bind_for_training(model, 48, frozen=False)
    return made, model, table


@pytest.mark.parametrize(("family", "name"), CELLS)
def test_a_step_a_folder_and_the_same_answers(family: str, name: str, tmp_path: Path) -> None:
    if (found := task_cell(family, name)).way == "refused":
        with pytest.raises(EtymonError, match=r"\w"):
            begun(family, name)
        assert len(found.reason.splitlines()) == 1
        return
    task, model, table = begun(family, name)
    task.batch_tokens = 4096
    examples = task.encode(table, learn=True)
    unit = TrainingUnit(model, task).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(0)
    for epoch in range(2):
        for row in task.plan(examples, 0, epoch):
            prepared = task.collate([task.prepare(examples, row, key(epoch))])
            loss = weighted_loss(unit(prepared), prepared.counts)
            loss.backward()
            idle = [key for key, parameter in model.named_parameters() if parameter.grad is None]
            assert task.skips_heads or not idle, "processes would wait for their gradients"
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
    assert all(map(math.isfinite, losses))
    model.eval()
    model.history = [{"task": task.describe()}]
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    opened = task_for(again, None, {})
    assert opened.name == name
    if name == "language-model" and model.encoder_decoder:  # their likelihoods are those of targets
        with pytest.raises(EtymonError, match="nothing to predict"):
            opened.predict(again, table)
        return
    answers, expected = opened.predict(again, table), task.predict(model, table)
    assert len(answers) == len(table)
    records = [[one.record(answer) for answer in each] for one, each in ((opened, answers), (task, expected))]
    assert str(records[0]) == str(records[1])
    assert {name for record in records[0] for name in record} <= set(opened.record_fields)
    examples = task.encode(table)
    once = task.evaluate(model, examples, table)
    assert (once is None) == (
        found.way == "text-to-text" or "vocabulary" in task.heads or (family, name) == ("xlnet", "answer")
    )
    if once is not None:
        assert str([task.record(answer) for answer in once[0]]) == str(records[1])
        figures = evaluate(unit, list(validation_slices(task, examples, 0, rows=1)))
        assert once[1] == pytest.approx(figures["loss"], rel=1e-5)
    scores = opened.score(answers, table, opened.default_metrics)
    assert all(math.isfinite(score.value) for score in scores.values())
    assert opened.format_row(table, 0, answers[0])


def test_reasons_are_told_once_for_all_families(monkeypatch, capsys):
    cells = [cell for cell in tasks() if cell.family in ("gpt2", "bert", "roberta", "xlnet")]
    present(cells, TasksOptions())
    reasons = [line for line in capsys.readouterr().out.splitlines() if line.startswith("text2text: ")]
    assert len(reasons) == 1 and reasons[0].startswith("text2text: BERT, RoBERTa, XLNet cannot write a text")
    monkeypatch.setenv("ETYMON_LANGUAGE", "zh")
    present(cells, TasksOptions())
    assert "text2text: BERT, RoBERTa, XLNet 不能生成文本" in capsys.readouterr().out
