"""`etymon context`: how much context a model makes use of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.settings import (
    ComputeOptions,
    Files,
    JsonOptions,
    Notify,
    PathText,
    Spelling,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.lab.context import Contexts


@settings
class ContextOptions(ComputeOptions, EncodingSettings, JsonOptions):
    models: Annotated[Any, Spelling("Sequence[str | Path | Model] | str | Path | Model", list[str])] = (
        argument("folders or hub ids of decoders; together they are a group")
    )
    data: Files = option((), "text that the models have not seen: files, folders or globs")
    longest: int = option(512, "tokens of the longest context")
    step: int | None = option(None, "measure every N tokens (published: 100) instead of at 1, 2, 4, ...")
    targets: int = option(1000, "pieces of text to predict, evenly spread")
    memory: int | None = option(
        None, "tokens that families with a memory remember; 0 for one pass (the model's own)"
    )
    segment: int | None = option(None, "tokens that such families read at once (256)", ge=1)
    out: PathText = option(None, "a folder for results.json and report.html")
    on_progress: Notify | None = option(None, "is told what is being measured", seen_by="python")


@verb(ContextOptions)
def context(options: ContextOptions) -> Contexts:
    """The same pieces of text are predicted from exactly 1, 2, 4, ... tokens before them, in bits per byte,
    which can be compared across tokenizers. For the whole group of models it gives the relative effective
    context length (RECL) of Transformer-XL's authors.
    """
    from etymon.lab.context import context_lengths, measure, write_results
    from etymon.settings.reading import FileOptions
    from etymon.verbs.load_inputs import load_model, require_writable, text_files

    models = options.models
    # A single one may stand for itself; a text is a sequence, too, of letters.
    if not isinstance(models, Sequence) or isinstance(models, str):
        models = [models]
    if not models:
        raise EtymonError("there is no model to measure: give at least one")
    require_writable(None if options.out is None else Path(options.out) / "report.html")
    lengths, files = (
        context_lengths(options.longest, options.step),
        text_files(FileOptions(data=options.data, **options.reader_options)),
    )
    files.list_files()  # refuses what is not there before any model is read
    # Relative context is of a group: models that are measured apart cannot be compared by it.
    contexts = measure(
        [load_model(model, options) for model in models],
        [str(model) if isinstance(model, str | Path) else model.family.name for model in models],
        files.documents(),
        lengths,
        targets=options.targets,
        memory=options.memory,
        segment=options.segment,
        on_progress=options.on_progress or (lambda message: None),
    )
    if options.out is not None:
        write_results(contexts, Path(options.out))
    return contexts


def present(result: Contexts, options: ContextOptions) -> None:
    from etymon.lab.context import report_lines

    clear_line()
    if options.json:
        return print_json(result)
    print(*report_lines(result, result_text), sep="\n")
    if options.out is not None:
        say(f"{Path(options.out) / 'report.html'} has the curves; results.json is beside it")
