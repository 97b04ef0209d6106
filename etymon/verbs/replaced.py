"""`etymon replaced`: which tokens of a text a discriminator takes for replaced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etymon.settings import ComputeOptions, JsonOptions, ModelLike, Notify, Texts, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import print_json, result_text
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.generation.replaced import Inspection


@settings
class ReplacedOptions(ComputeOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("folder or hub id of a discriminator (ELECTRA)")
    texts: Texts = argument("texts to look at; - reads lines from standard input", ())
    file: Path | None = option(None, "a file with a text a line")
    batch_size: int = option(32, "texts that are computed together", ge=1)
    threshold: float = option(
        0.5, "mark tokens that were replaced with more than this probability", seen_by="command line"
    )
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")


@verb(ReplacedOptions)
def replaced(options: ReplacedOptions) -> list[Inspection]:
    """A discriminator (ELECTRA, or any encoder trained with the objective `replaced`) gives every token the
    probability that it is not the one that stood there.
    """
    from etymon.generation.replaced import inspect_texts
    from etymon.verbs.load_inputs import load_model, read_texts

    texts = read_texts(options.texts, options.file, on_note=options.on_note, how=options)
    name = str(options.model) if isinstance(options.model, str | Path) else "this model"
    return inspect_texts(load_model(options.model, options), texts, name, options.batch_size)


def present(result: list[Inspection], options: ReplacedOptions) -> None:
    if options.json:
        return print_json(*result)
    for number, inspection in enumerate(result):
        if number:
            print()
        print(inspection.text)
        for token in inspection.tokens:
            mark = f"  {result_text('replaced')}" if token.probability > options.threshold else ""
            print(f"{token.probability:8.2%}  {token.token.strip()}{mark}")
