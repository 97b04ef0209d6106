"""`etymon context`: how much context a model makes use of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.errors import EtymonError
from etymon.verbs.options import opens_models
from etymon.verbs.terminal import clear_line, print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.lab.context import Contexts


@opens_models
def context(
    models: Annotated[
        Sequence[str | Path | Model] | str | Path | Model,
        "folders or hub ids of decoders; together they are a group",
    ],
    *,
    data: Annotated[
        Sequence[str | Path] | str | Path, "text that the models have not seen: files, folders or globs"
    ] = (),
    longest: Annotated[int, "tokens of the longest context"] = 512,
    step: Annotated[
        int | None, "measure at every so many tokens (published: 100) instead of at 1, 2, 4, ..."
    ] = None,
    targets: Annotated[int, "pieces of text to predict, evenly spread"] = 1000,
    memory: Annotated[
        int | None, "tokens that families with a memory remember; 0 for one pass (the model's own)"
    ] = None,
    segment: Annotated[int | None, "tokens that they read at once (256)"] = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    out: Annotated[Path | None, "a folder for results.json and report.html"] = None,
    on_progress: Callable[[str], None] | None = None,
) -> Contexts:
    """Measure loss by context length, and how much context each model makes use of.

    The same pieces of text are predicted from exactly 1, 2, 4, ... tokens before them, in bits per byte, which compare across
    tokenizers. The relative effective context length (RECL) of Transformer-XL's authors is given for the group of models.
    """
    from etymon.lab.context import context_lengths, measure, write_results
    from etymon.verbs.opening import opened, writable
    from etymon.verbs.reading import text_files

    given = [models] if not isinstance(models, Sequence) or isinstance(models, str) else list(models)
    if not given:
        raise EtymonError("there is no model to measure: give at least one")
    if segment is not None and segment < 1:
        raise EtymonError(f"segments of {segment} tokens cannot be")
    writable(None if out is None else Path(out) / "report.html")
    lengths, files = context_lengths(longest, step), text_files(data, max_document=None)
    files.list_files()  # refuses what is not there before any model is read
    found = measure(
        [opened(model, device) for model in given],
        [str(model) if isinstance(model, str | Path) else model.family.name for model in given],
        files.documents(),
        lengths,
        targets=targets,
        memory=memory,
        segment=segment,
        on_progress=on_progress or (lambda what: None),
    )
    if out is not None:
        write_results(found, Path(out))
    return found


def present(
    result: Contexts, out: Path | None, json: Annotated[bool, "print the results as JSON"] = False
) -> None:
    from etymon.lab.context import report_lines

    clear_line()
    if json:
        return print_json(result)
    print(*report_lines(result), sep="\n")
    if out is not None:
        print(f"{Path(out) / 'report.html'} has the curves; results.json is beside it")
