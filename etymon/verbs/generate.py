"""`etymon generate`: go on from a prompt, or answer a source text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.display import cut
from etymon.errors import EtymonError
from etymon.settings import (
    Files,
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Spelling,
    Texts,
    WeightOptions,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.decoding import DecodingSettings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.generation.text import Generation

SAMPLING = {"temperature", "top_k", "top_p", "min_p", "typical_p"}
"""Options that turn sampling on."""


@settings
class GenerateOptions(WeightOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    prompts: Texts = argument("what to go on from (T5: source texts); - reads lines from standard input")
    decoding: dict[str, Any] = group(DecodingSettings)
    draft: Annotated[Any, Spelling("str | Path | Model | None", str)] = option(
        None, "a smaller model with the same tokenizer that guesses ahead: the same texts, sooner"
    )
    report: bool = option(
        False, "compare ways of decoding on the prompts: how much they repeat, vary and copy"
    )
    data: Files = option(
        (), "with --report: the training text, if it is not found beside the model; may be repeated"
    )
    out: PathText = option(None, "with --report: an .html file for it")
    batch_size: int = option(32, "prompts that are decoded together")
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")
    on_text: Notify | None = option(
        None, "is told a single prompt's text, piece by piece as it comes", seen_by="python"
    )
    on_progress: Notify | None = option(None, "is told how far a report is", seen_by="python")


@verb(GenerateOptions)
def generate(options: GenerateOptions) -> list[Generation]:
    """Without options it always takes the likeliest token. `--temperature 0.8 --top-k 40` draws at random,
    `--beams 4` searches, `--penalty-alpha 0.6 --top-k 4` searches contrastively, `--choice " yes" --choice "
    no"` picks one. Several prompts are computed together, and none changes the text of another. Only the new
    text is printed; with one prompt, while it is written.
    """
    from etymon.generation import generate_texts
    from etymon.verbs.load_inputs import load_model, read_texts, require_writable

    model, draft, decoding = options.model, options.draft, options.decoding
    if "draft_tokens" in decoding and draft is None:
        raise EtymonError("draft_tokens is for a draft model: give one (--draft), or leave it out")
    # Whoever gives a temperature wants to sample; a contrastive search uses top_k otherwise.
    sample = bool(SAMPLING & decoding.keys()) and not decoding.get("penalty_alpha")
    decoding_settings = DecodingSettings(**{"sample": sample, **decoding})
    # Before any model is opened: a missing file or an empty prompt is told at once.
    texts = read_texts(options.prompts, on_note=options.on_note, how=options)
    if options.report:
        from etymon.lab import compare_decoding

        if decoding_settings.choices or draft is not None:
            raise EtymonError("a report compares ways of decoding: leave out choices and the draft")
        require_writable(options.out)
        comparison = compare_decoding.compare(
            load_model(model, options),
            texts,
            decoding_settings,
            data=[str(path) for path in options.data],
            how=options,
            folder=Path(model) if isinstance(model, str | Path) else None,
            batch_size=options.batch_size,
            on_progress=options.on_progress or (lambda message: None),
        )
        if options.out is not None:
            name = str(model) if isinstance(model, str | Path) else f"this {model.family.title}"
            compare_decoding.write(comparison, Path(options.out), name)
        return comparison
    if options.data or options.out is not None:
        raise EtymonError("data and out are for a report: ask for it (--report), or leave them out")
    on_text, listener = options.on_text, None
    # JSON is printed whole; of several texts, the pieces would be mixed up.
    if on_text is not None and len(texts) == 1 and decoding_settings.returns == 1 and not options.json:

        def listener(prompt: int, number: int, piece: str) -> None:
            on_text(piece)

    return generate_texts(
        load_model(model, options),
        texts,
        decoding_settings,
        listener,
        batch_size=options.batch_size,
        draft=None if draft is None else load_model(draft, options),
    )


def on_text(piece: str) -> None:
    # In a pipe the text is printed once, by `present`.
    if sys.stdout.isatty():
        print(piece, end="", flush=True)


def present(result: list[Generation], options: GenerateOptions) -> None:
    if options.report:
        _present_report(result, options)
    elif options.json:
        print_json(*map(_record, result))
    elif len(result) == 1:
        print("" if sys.stdout.isatty() else result[0].text)  # a terminal has seen it already
        _print_log_probs(result[0])
    else:
        for number, generation in enumerate(result):
            heading = " ".join(generation.prompt.split())
            print(f"{'' if number == 0 else chr(10)}--- {cut(heading, 100)}\n{generation.text}")
            _print_log_probs(generation)


def _record(generation: Any) -> dict[str, Any]:
    from dataclasses import asdict

    # What was not asked for is not in the record.
    return {name: value for name, value in asdict(generation).items() if value is not None}


def _print_log_probs(generation: Generation) -> None:
    for piece, log_prob in zip(generation.pieces or [], generation.token_log_probs or [], strict=True):
        print(f"{log_prob:10.4f}  {piece}")


def _present_report(result: list[Generation], options: GenerateOptions) -> None:
    from etymon.lab.compare_decoding import Comparison

    assert isinstance(result, Comparison)
    clear_line()
    if options.json:
        return print_json(*map(_record, result.ways))
    print(*result.lines(result_text), sep="\n")
    if options.out is not None:
        say(f"{options.out} has it with the texts")
