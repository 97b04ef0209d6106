"""`etymon prompt`: in-context learning, from no example to many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from etymon.display import align_left, cut
from etymon.files import atomic_write, json_text
from etymon.report.inline import Inline
from etymon.settings import (
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Spelling,
    WeightOptions,
    Words,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings
from etymon.verbs import terminal
from etymon.verbs.terminal import clear_line, print_json
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.lab.prompt import PromptAnswer, PromptOutcome
    from etymon.report.page import Cell, Section


@dataclass(frozen=True)
class Prompted(Inline):
    """What came of a task: an outcome for every number of shots."""

    outcomes: list[PromptOutcome]
    notes: list[str]

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import ReportTable

        rows: list[list[Cell]] = []
        for outcome in self.outcomes:
            low, high = outcome.interval or (None, None)
            share = None if outcome.accuracy is None else f"{outcome.accuracy:.1%}"
            ends = None if low is None else f"{low:.1%} to {high:.1%}"
            rows.append([outcome.shots, len(outcome.answers), outcome.shortened, share, ends])
        header = ["shots", "queries", "shortened", self.outcomes[0].metric, "95% interval"]
        yield ReportTable(header, rows)


def _numbers(shots: Any) -> Any:
    """`16` and `0,1,16` as numbers."""
    if not isinstance(shots, str | int):
        return shots
    try:
        return tuple(int(part) for part in str(shots).split(","))
    except ValueError:
        raise ValueError("expected 16, or 0,1,16") from None


@settings
class PromptOptions(WeightOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    task: Annotated[Any, Spelling("str | Path | Mapping[str, Any]", str)] = argument(
        "a task file (docs/prompting.md)"
    )
    shots: Annotated[
        tuple[int, ...] | None, BeforeValidator(_numbers), Spelling("str | int | Sequence[int] | None", str)
    ] = option(None, "examples to show: 16, or several: 0,1,16")
    set: Words = option((), "give a key of the task file another value: normalise=sum")
    limit: int | None = option(None, "ask only the first N queries", ge=1)
    drop: bool = option(True, "leave out a prompt's first examples where there is no room for all")
    out: PathText = option(None, "a .jsonl file for the answers, one record each")
    show: int = option(10, "answers to print for each number of shots", seen_by="command line")
    on_note: Notify | None = option(None, "is told what was left out", seen_by="python")
    on_progress: Callable[[int, int, int], None] | None = option(
        None, "is told the number of shots, of queries done and of all queries", seen_by="python"
    )


@verb(PromptOptions)
def prompt(options: PromptOptions) -> Prompted:
    """Nothing is trained. The model reads an instruction and as many examples as `--shots` says; then choices
    are scored, or answers are written. Examples that queries share are read once. With labels, accuracy and
    its 95% interval are given.
    """
    from etymon.generation.prompting import Prompter
    from etymon.lab.prompt import PromptRun
    from etymon.lab.prompt_task import open_task
    from etymon.verbs.load_inputs import load_model, require_writable

    require_writable(options.out)
    # Before --set, which can override anything, the shots too.
    overrides = [] if options.shots is None else [f"shots={list(options.shots)}"]
    task = open_task(options.task, [*overrides, *options.set], options)
    # The task was read before the model: a mistyped column is told in a second, not after gigabytes.
    prompter = Prompter(load_model(options.model, options, head="vocabulary"))
    # One run for all numbers of shots: what their prompts have in common is computed once.
    run = PromptRun(prompter, task, options.drop, options.limit, options.on_progress)
    outcomes = [run.outcome(shots) for shots in task.shots]
    notes = task.notes + run.notes
    if options.on_note is not None:
        for note in notes:
            options.on_note(note)
    if options.out is not None:
        # When all are there: half a file of answers would be taken for a whole one.
        with atomic_write(options.out) as file:
            for outcome in outcomes:
                file.writelines(json_text(answer) + "\n" for answer in outcome.answers)
    return Prompted(outcomes, notes)


def on_progress(shots: int, done: int, total: int) -> None:
    terminal.on_progress(f"shots {shots}: {done} of {total} queries")


def present(result: Prompted, options: PromptOptions) -> None:
    out, show = options.out, options.show
    clear_line()
    if options.json:
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
    metric = result.outcomes[0].metric
    print(f"{'shots':>6}  {'queries':>8}  {'shortened':>9}  {metric:>11}  {'95% interval':>15}")
    for outcome in result.outcomes:
        figures = f"{'':>11}  {'no labels':>15}"
        if outcome.accuracy is not None and outcome.interval is not None:
            low, high = outcome.interval
            figures = f"{outcome.accuracy:>11.1%}  {f'{low:.1%} - {high:.1%}':>15}"
        print(f"{outcome.shots:>6}  {len(outcome.answers):>8}  {outcome.shortened:>9}  {figures}")


def _line(answer: PromptAnswer) -> str:
    verdict = {True: "right", False: "wrong", None: ""}[answer.correct]
    text = f"{answer.query:>5}  {align_left(verdict, 5)}  {_short(answer.answer)}"
    # Answers without a label are neither right nor wrong.
    if answer.correct is False:
        text += f"  (it is {' or '.join(map(_short, answer.labels))})"
    if answer.choices:
        choices = (f"{_short(choice.text)} {choice.log_prob:.3f}" for choice in answer.choices)
        text += f"  [{', '.join(choices)}]"
    return text


def _short(text: str) -> str:
    return cut(" ".join(text.split()), 40)
