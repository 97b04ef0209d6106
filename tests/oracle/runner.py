"""From a case to a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import etymon
from etymon.families import family_of
from etymon.families.model import Model
from tests.oracle.case import Case
from tests.oracle.forward import run
from tests.oracle.generation import run_generations
from tests.oracle.inputs import Arguments
from tests.oracle.judge import Verdict, judge_gradients, judge_outputs


@dataclass
class Report:
    name: str
    status: str
    """`ok`, `FAIL` or `not built`."""
    problems: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    """The worst difference by kind: outputs, ragged, gradients (relative), scores."""

    def lines(self) -> list[str]:
        differences = "  ".join(f"{kind} {value:.1e}" for kind, value in self.worst.items())
        first = f"{self.name}  {self.status}  {differences}".rstrip()
        if self.status == "not built":
            return [f"{first}  ({'; '.join(self.problems)})"]
        return [first, *(f"    {line}" for line in self.problems)]


def is_built(case: Case) -> bool:
    try:
        family_of(case.model_type)
    except etymon.EtymonError:
        return False
    return True


def check(case: Case) -> Report:
    """Everything a case stores against what the library computes; whatever goes wrong is a problem, not a crash."""
    verdict = Verdict()
    try:
        if not is_built(case):
            return Report(case.name, "not built", [f"no family reads {case.model_type!r}"])
        case.open()
        model = etymon.load(case.folder)
        if case.model_type == "elmo":
            from tests.oracle.elmo import check_elmo

            check_elmo(case, model, verdict)
        else:
            _forward(case, model, verdict)
        run_generations(case, model, verdict)
    except Exception as error:  # a broken case must not hide the others
        verdict.problems.append(f"{type(error).__name__}: {error}")
    return Report(case.name, "FAIL" if verdict.problems else "ok", verdict.problems, verdict.worst)


def _forward(case: Case, model: Model, verdict: Verdict) -> None:
    done: dict[str, dict[str, Tensor]] = {}
    for call in case.calls:
        carried = {name: _carried(done, source) for name, source in (call.get("carry") or {}).items()}
        arguments = Arguments({**case.tensors(call), **carried})
        reading = run(model, arguments)
        done[call["name"]] = reading.outputs
        verdict.problems += [
            f"{call['name']}: the argument {name} is not understood" for name in sorted(arguments.untouched)
        ]
        judge_outputs(case, call, reading, verdict)
    if case.backward:
        losses = [done[case.backward["call"]][name] for name in case.backward["loss"]]
        torch.stack(losses).sum().backward()
        names = model.family.names(model.shape)
        judge_gradients(case, gradients(model), names.copies, verdict)
    elif case.gradients:
        verdict.problems.append("gradients are stored, but not of what")


def gradients(model: Model) -> dict[str, Tensor]:
    """All gradients in the reference's names and layout; a parameter that was not used has zeros."""
    ours = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    prefix = next(
        (known.prefix for known in model.family.architectures if known.heads == model.head_names), None
    )
    return model.family.names(model.shape).export(ours, prefix)


def _carried(done: dict[str, dict[str, Tensor]], source: str) -> Any:
    """An earlier call's output, detached; several parts come as a list."""
    call, _, name = source.partition(":")
    outputs = done[call]
    if name in outputs:
        return outputs[name].detach()
    return [value.detach() for key, value in outputs.items() if key.startswith(name + ".")]
