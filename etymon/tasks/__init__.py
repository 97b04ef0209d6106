"""The tasks, by name: an explicit table, and nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from etymon.config import did_you_mean, strict
from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.tasks.task import Task

REGISTRY = {
    "text2text": "etymon.tasks.text2text:Text2Text",
}


def task_class(name: str) -> type[Task]:
    """The class of that name: whether a family can do it can be asked before there is a model."""
    if name not in REGISTRY:
        raise EtymonError(f"there is no task {name!r}: {did_you_mean(name, REGISTRY)}")
    module, member = REGISTRY[name].split(":")
    found: type[Task] = getattr(import_module(module), member)
    return found


def get_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of that name with its options: the columns that it reads, and how."""
    kind = task_class(name)
    return kind(strict(kind.Options, options, f"the options of the task {name!r}"))


def task_of(model: Model, changes: Mapping[str, Any] | None = None) -> Task | None:
    """The task that a model was last fine-tuned for, ready for it; None if there was none. `changes` are options."""
    for entry in reversed(model.history):
        known = entry.get("task")
        if len(several := entry.get("tasks", {})) == 1:  # of a mixture's, the only one
            (known,) = several.values()
        if known is not None:
            task = get_task(known["name"], {**known["options"], **(changes or {})})
            task.limits = dict(known["limits"])
            task.bind(model)
            return task
    return None
