"""The tasks, by name; nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from etymon.config import strict
from etymon.errors import EtymonError
from etymon.registry import TASKS as REGISTRY

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model
    from etymon.tasks.task import Task

HEADS = {
    "classification": "classify",
    "choice": "choose",
    "tagging": "tag",
    "span": "answer",
    "conditional_span": "answer",
}
"""The task that a published model of such a head was made for."""


def task_class(name: str) -> type[Task]:
    """The class of that name."""
    return REGISTRY.find(name)


def get_task(name: str, options: Mapping[str, Any], family: Family) -> Task:
    """The task of that name with its options (the columns that it reads, and how), as the family does it."""
    kind = task_class(name)
    task: Any = kind(strict(kind.Options, options, f"the options of the task {name!r}"))
    way = getattr(task.options, "way", "head")
    # T5 was published with every task as text to text, so `auto` writes there; tags, a label for every word,
    # have no text that could be checked word by word and keep their head.
    if way == "text" or (way == "auto" and "written answers" in family.capabilities and task.writable):
        return import_module("etymon.tasks.text2text").WrittenTask(task)
    return task


def _last_tasks(model: Model) -> dict[str, Any]:
    """What the model was last fine-tuned for, by name: the tasks of a mixture, or one without a name. Empty
    if it was not."""
    for entry in reversed(model.history):
        if tasks := {"": entry["task"]} if entry.get("task") else entry.get("tasks", {}):
            return tasks
    return {}


def task_of(model: Model, changes: Mapping[str, Any] | None = None, name: str | None = None) -> Task | None:
    """The task that a model was last fine-tuned for, ready for it; None if there was none. Of a mixture's it
    is the one of that `name`, its own or that of the kind, or the only one. `changes` are options."""
    chosen = [entry for member, entry in _last_tasks(model).items() if name in (None, member, entry["name"])]
    if len(chosen) != 1:
        return None
    (entry,) = chosen
    task: Any = get_task(entry["name"], {**entry["options"], **(changes or {})}, model.family)
    inner = getattr(task, "task", task)
    # A model that writes its labels has no head to name them, and a head that tasks share names all of
    # theirs: the history knows those of this task.
    inner.label_names = tuple(entry.get("labels", ()))
    inner.outputs = tuple(entry["outputs"]) if "outputs" in entry else None
    task.limits.update(entry["limits"])
    task.bind(model)
    return task


def task_for(model: Model, name: str | None, options: Mapping[str, Any]) -> Task:
    """The task that a model is to do: the named one, the one that it was fine-tuned for, or what its heads
    are for."""
    if (task := task_of(model, options, name)) is not None:
        return task
    title = model.family.title
    several = {member: entry["name"] for member, entry in _last_tasks(model).items() if member}
    if several and name in (None, *several.values()):
        raise EtymonError(
            f"this {title} has learnt several tasks: say which one (--task {' or '.join(several)})",
            code="not-finetuned",
        )
    name = name or next((HEADS[head] for head in sorted(model.head_names) if head in HEADS), None)
    if name is None:
        able = [kind for kind in ("text2text", "language-model") if _fits(kind, model)]
        which = f"say which task it is to do (--task {' or '.join(able)}), or " if able else ""
        raise EtymonError(
            f"this {title} was not fine-tuned for a task: {which}fine-tune it first (etymon finetune)",
            code="not-finetuned",
        )
    # Transformers, too, takes a head with one output for regression.
    if name == "classify" and len(model.labels) == 1:
        name = "regress"
    defaults: dict[str, Any] = {}
    # Tasks that only a text answers have no `way`.
    if hasattr(task_class(name).Options(), "way") and model.head_names & set(HEADS):
        defaults["way"] = "head"
    # XLNet was published with both: `XLNetForQuestionAnsweringSimple` has a plain span head.
    if name == "answer" and "span" in model.head_names:
        defaults["head"] = "span"
    # One label or several: the head is the same, and only `problem_type` in config.json tells.
    if name == "classify" and model.carried.get("problem_type") == "multi_label_classification":
        defaults["multi_label"] = True
    task = get_task(name, {**defaults, **options}, model.family)
    if missing := task.fit(model.family).heads - set(model.heads):
        raise EtymonError(
            f"this {title} has no {' and no '.join(sorted(missing))} head, which the task {name!r} needs: "
            "fine-tune it first",
            code="not-finetuned",
        )
    task.bind(model)
    return task


def _fits(name: str, model: Model) -> bool:
    """Whether a model can do a task as it is."""
    try:
        return get_task(name, {}, model.family).fit(model.family).heads <= set(model.heads)
    except EtymonError:
        return False
