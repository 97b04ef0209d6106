"""`etymon tasks`: which family does which task, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from etymon.errors import EtymonError
from etymon.verbs.terminal import print_json


@dataclass(frozen=True)
class Cell:
    """`way` is `native`, `text-to-text` or `refused`."""

    family: str
    task: str
    way: str
    reason: str = ""


def tasks(
    family: Annotated[str | None, "of this family alone"] = None,
) -> list[Cell]:
    """Which family does which fine-tuning task: by a head of its own, by writing the answer, or not at all and why."""
    from etymon.families import REGISTRY as FAMILIES
    from etymon.families import get_family
    from etymon.tasks import REGISTRY

    chosen = FAMILIES if family is None else [get_family(family).name]
    return [cell(each, task) for each in chosen for task in REGISTRY]


def cell(family: str, task: str) -> Cell:
    """How a family does a task."""
    from etymon.families import get_family
    from etymon.tasks import get_task

    known = get_family(family)
    try:
        return Cell(family, task, get_task(task, {}, known).fit(known).way)
    except EtymonError as error:
        return Cell(family, task, "refused", str(error))


def present(result: list[Cell], json: Annotated[bool, "print JSON"] = False) -> None:
    if json:
        return print_json(result, ascii=True)
    names = list(dict.fromkeys(cell.task for cell in result))
    print(f"{'':<16}" + "".join(f"{name:<16}" for name in names).rstrip())
    for family in dict.fromkeys(cell.family for cell in result):
        own = {cell.task: cell.way for cell in result if cell.family == family}
        print(f"{family:<16}" + "".join(f"{own[name]:<16}" for name in names).rstrip())
    if reasons := dict.fromkeys(f"{cell.task}: {cell.reason}" for cell in result if cell.reason):
        print()
        print(*reasons, sep="\n")
