"""`etymon prompt`: in-context learning, from no example to many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.verbs.options import Quantize, opens_models
from etymon.verbs.terminal import clear_line, print_json
from etymon.verbs.terminal import on_progress as tell

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.lab.prompt import PromptAnswer, PromptOutcome


@dataclass(frozen=True)
class Prompted:
    """What came of a task: an outcome for every number of shots."""

    outcomes: list[PromptOutcome]
    notes: list[str]


@opens_models
def prompt(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    task: Annotated[str | Path | Mapping[str, Any], "a task file (docs/prompting.md)"],
    *,
    shots: Annotated[str | int | Sequence[int] | None, "examples to show: 16, or several: 0,1,16"] = None,
    set: Annotated[Sequence[str] | None, "override a key of the task file: normalise=sum"] = None,
    limit: Annotated[int | None, "ask only the first so many queries"] = None,
    drop: Annotated[bool, "leave out a prompt's first examples where there is no room for all"] = True,
    errors: Annotated[
        Literal["strict", "replace", "skip"], "records that cannot be read: refuse, put U+FFFD, or leave out"
    ] = "strict",
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: Quantize = None,
    out: Annotated[Path | None, "a .jsonl file for the answers, one record each"] = None,
    on_note: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> Prompted:
    """Show a model examples of a task and let it answer.

    Nothing is trained. Choices are scored, or answers are written, behind an instruction and as many examples as `--shots`
    says; examples that queries share are read once. With labels, accuracy and its 95% interval are given.
    """
    from etymon.generation.prompting import Prompter
    from etymon.lab.prompt import PromptRun
    from etymon.lab.prompt_task import open_task
    from etymon.verbs.opening import opened, writable

    if limit is not None and limit < 1:
        raise EtymonError(f"limit is {limit}: ask at least 1 query")
    writable(out)
    asked = [] if shots is None else [f"shots={_listed(shots)}"]
    read = open_task(task, [*asked, *(set or ())], errors)
    run = PromptRun(
        Prompter(opened(model, device, quantize, head="vocabulary")), read, drop, limit, on_progress
    )
    outcomes = [run.outcome(number) for number in read.shots]
    notes = read.notes + run.notes
    for note in notes if on_note is not None else ():
        on_note(note)  # type: ignore[misc]
    if out is not None:
        _write(Path(out), outcomes)
    return Prompted(outcomes, notes)


def _listed(shots: str | int | Sequence[int]) -> list[int]:
    parts = shots.split(",") if isinstance(shots, str) else [shots] if isinstance(shots, int) else shots
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise EtymonError(f"cannot read the shots {shots!r}: write 16, or 0,1,16") from None


def _write(path: Path, outcomes: Sequence[PromptOutcome]) -> None:
    from etymon.files import atomic_write, json_text

    with atomic_write(path) as file:
        for outcome in outcomes:
            for answer in outcome.answers:
                file.write(json_text(answer) + "\n")


def on_progress(shots: int, done: int, total: int) -> None:
    tell(f"shots {shots}: {done} of {total} queries")


def present(
    result: Prompted,
    out: Path | None,
    show: Annotated[int, "answers to print for each number of shots"] = 10,
    json: Annotated[bool, "print everything as one JSON record"] = False,
) -> None:
    clear_line()
    if json:
        records = [outcome.summary() | {"answers": outcome.answers} for outcome in result.outcomes]
        return print_json({"outcomes": records, "notes": result.notes})
    for outcome in result.outcomes if show > 0 else ():
        print(f"shots {outcome.shots}")
        for answer in outcome.answers[:show]:
            print(_line(answer))
        if len(outcome.answers) > show:
            rest = f"all in {out}" if out is not None else "--show more, or all with --out answers.jsonl"
            print(f"  and {len(outcome.answers) - show} more ({rest})")
        print()
    print(
        f"{'shots':>6}  {'queries':>8}  {'shortened':>9}  {result.outcomes[0].metric:>11}  {'95% interval':>15}"
    )
    for outcome in result.outcomes:
        figures = f"{'':>11}  {'no labels':>15}"
        if outcome.accuracy is not None and outcome.interval is not None:
            low, high = outcome.interval
            figures = f"{outcome.accuracy:>11.1%}  {f'{low:.1%} - {high:.1%}':>15}"
        print(f"{outcome.shots:>6}  {len(outcome.answers):>8}  {outcome.shortened:>9}  {figures}")


def _line(answer: PromptAnswer) -> str:
    verdict = {True: "right", False: "wrong", None: ""}[answer.correct]
    text = f"{answer.query:>5}  {verdict:<5}  {_short(answer.answer)}"
    if answer.correct is False:
        text += f"  (it is {' or '.join(map(_short, answer.labels))})"
    if answer.choices:
        text += "  [" + ", ".join(f"{_short(one.text)} {one.log_prob:.3f}" for one in answer.choices) + "]"
    return text


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= 40 else shown[:37] + "..."
