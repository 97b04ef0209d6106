"""`etymon tasks`: which family does which task, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.language import translated
from etymon.report.inline import InlineRow
from etymon.settings import JsonOptions, PluginOptions, option, settings
from etymon.verbs.terminal import print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.cells import Cell


@dataclass(frozen=True)
class TaskCell(InlineRow):
    """How a family does a task; `way` is `native`, `text-to-text` or `refused`."""

    family: str
    task: str
    way: str
    reason: str = ""

    def table_row(self) -> dict[str, Cell]:
        return {"family": self.family, "task": self.task, "way": self.way, "reason": self.reason}


@settings
class TasksOptions(PluginOptions, JsonOptions):
    family: str | None = option(None, "show this family alone")


@verb(TasksOptions)
def tasks(options: TasksOptions) -> list[TaskCell]:
    from etymon.families import REGISTRY as FAMILIES
    from etymon.families import get_family
    from etymon.tasks import REGISTRY

    families = FAMILIES if options.family is None else [get_family(options.family).name]
    return [task_cell(family, task) for family in families for task in REGISTRY]


def task_cell(name: str, task: str) -> TaskCell:
    """How a family does a task."""
    from etymon.families import get_family
    from etymon.tasks import get_task

    family = get_family(name)
    try:
        # What refuses here is what refuses `finetune`: the table cannot disagree with it.
        return TaskCell(name, task, get_task(task, {}, family).fit(family).way)
    except EtymonError as error:
        return TaskCell(name, task, "refused", str(error))


def present(result: list[TaskCell], options: TasksOptions) -> None:
    if options.json:
        return print_json(result, ascii=True)
    names = list(dict.fromkeys(cell.task for cell in result))
    print(" " * 16 + "".join(align_left(name, 16) for name in names).rstrip())
    for family in dict.fromkeys(cell.family for cell in result):
        ways = {cell.task: result_text(cell.way) for cell in result if cell.family == family}
        print("".join(align_left(text, 16) for text in [family, *(ways[name] for name in names)]).rstrip())
    print()
    say(
        "native: by a head, or by writing as the family always does; text-to-text: the model writes the answer"
    )
    for task, reason in shared_reasons(result):
        print(f"{task}: {translated(reason, 'message')}")


def shared_reasons(cells: list[TaskCell]) -> list[tuple[str, str]]:
    """Returns (task, reason) of what is refused, once for all families with the same reason."""
    from etymon.families import get_family

    titles: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.reason:
            title = get_family(cell.family).title
            # A reason begins with the family's name.
            titles.setdefault((cell.task, cell.reason.removeprefix(title)), []).append(title)
    return [(task, f"{', '.join(names)}{reason}") for (task, reason), names in titles.items()]
