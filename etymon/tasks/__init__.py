"""The tasks, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from etymon.config import did_you_mean, strict
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model
    from etymon.tasks.task import Task

REGISTRY = {
    "classify": "etymon.tasks.classify:Classify",
    "regress": "etymon.tasks.regress:Regress",
    "choose": "etymon.tasks.choose:Choose",
    "tag": "etymon.tasks.tag:Tag",
    "answer": "etymon.tasks.answer:AnswerQuestion",
    "text2text": "etymon.tasks.text2text:Text2Text",
    "language-model": "etymon.tasks.language_model:LanguageModel",
}
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
    if name not in REGISTRY:
        raise EtymonError(f"there is no task {name!r}: {did_you_mean(name, REGISTRY)}")
    module, member = REGISTRY[name].split(":")
    return getattr(import_module(module), member)


def get_task(name: str, options: Mapping[str, Any], family: Family) -> Task:
    """The task of that name with its options (the columns that it reads, and how), as the family does it."""
    kind = task_class(name)
    task: Any = kind(strict(kind.Options, options, f"the options of the task {name!r}"))
    way = getattr(task.options, "way", "head")
    if way == "text" or (way == "auto" and family.name in task.written_by):
        from etymon.tasks.written import WrittenTask

        return WrittenTask(task)
    return task


def task_of(model: Model, changes: Mapping[str, Any] | None = None, name: str | None = None) -> Task | None:
    """The task that a model was last fine-tuned for, ready for it; None if there was none. Of a mixture's it is the one of that
    `name`, its own or that of the kind, or the only one. `changes` are options."""
    for entry in reversed(model.history):
        several = {"": entry["task"]} if entry.get("task") else entry.get("tasks", {})
        chosen = [known for own, known in several.items() if name in (None, own, known["name"])]
        if len(chosen) == 1:
            (known,) = chosen
            task: Any = get_task(known["name"], {**known["options"], **(changes or {})}, model.family)
            inner = getattr(task, "task", task)
            inner.label_names = tuple(known.get("labels", ()))
            inner.outputs = tuple(known["outputs"]) if "outputs" in known else None
            task.limits.update(known["limits"])
            task.bind(model)
            return task
        if several:
            break
    return None


def task_for(model: Model, name: str | None, options: Mapping[str, Any]) -> Task:
    """The task that a model is asked to do: the named one, the one that it was fine-tuned for, or what its heads are for."""
    if (known := task_of(model, options, name)) is not None:
        return known
    entries = [each for each in model.history if each.get("task") or each.get("tasks")]
    several: dict[str, Any] = entries[-1].get("tasks", {}) if entries else {}
    if several and name in (None, *(each["name"] for each in several.values())):
        raise EtymonError(
            f"this {model.family.title} has learnt several tasks: say which one (--task {' or '.join(several)})"
        )
    name = name or next((HEADS[head] for head in sorted(model.head_names) if head in HEADS), None)
    if name is None:
        able = [kind for kind in ("text2text", "language-model") if _fits(kind, model)]
        told = f"say which task it is to do (--task {' or '.join(able)}), or " if able else ""
        raise EtymonError(
            f"this {model.family.title} was not fine-tuned for a task: {told}fine-tune it first (etymon finetune)"
        )
    if name == "classify" and len(model.labels) == 1:
        name = "regress"
    published = (
        {"multi_label": True} if model.carried.get("problem_type") == "multi_label_classification" else {}
    )
    ways = hasattr(task_class(name).Options, "way")  # those of tasks that only a text answers have none
    own: dict[str, Any] = {"way": "head"} if ways and model.head_names & set(HEADS) else {}
    if name == "answer" and "span" in model.head_names:
        own["head"] = "span"
    task = get_task(name, {**own, **(published if name == "classify" else {}), **options}, model.family)
    missing = task.fit(model.family).heads - set(model.heads)
    if missing:
        raise EtymonError(
            f"this {model.family.title} has no {' and no '.join(sorted(missing))} head, which the task {name!r} needs: fine-tune it first"
        )
    task.bind(model)
    return task


def _fits(name: str, model: Model) -> bool:
    """Whether a model can do a task as it is."""
    try:
        return get_task(name, {}, model.family).fit(model.family).heads <= set(model.heads)
    except EtymonError:
        return False
