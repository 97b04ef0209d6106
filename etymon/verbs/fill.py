"""`etymon fill`: fill the blanks of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etymon.display import align_left
from etymon.settings import JsonOptions, ModelLike, Notify, Texts, WeightOptions, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.generation.fill import Filling


@settings
class FillOptions(WeightOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    texts: Texts = argument("texts with blanks: [MASK], <mask> or ___; - reads lines from standard input")
    top_k: int = option(5, "how many fillings of a blank to show")
    max_new_tokens: int | None = option(
        None, "T5, BART: most tokens to write, in all spans together or in the text"
    )
    batch_size: int = option(32, "texts that are computed together", ge=1)
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")


@verb(FillOptions)
def fill(options: FillOptions) -> list[Filling]:
    """An encoder (BERT and its relatives) gives every blank its likeliest tokens; T5 writes a span into
    each by beam search, and BART the whole text. Of several blanks, the last line is the text with all of
    them filled.
    """
    from etymon.generation.fill import fill_texts
    from etymon.verbs.load_inputs import load_model, read_texts

    # Of a run's models the one with a vocabulary: ELECTRA's generator fills, its discriminator cannot.
    texts = read_texts(options.texts, on_note=options.on_note, how=options)
    return fill_texts(
        load_model(options.model, options, head="vocabulary"),
        texts,
        top_k=options.top_k,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size,
    )


def present(result: list[Filling], options: FillOptions) -> None:
    if options.json:
        return print_json(*result)
    for number, filling in enumerate(result):
        if number:
            print()
        for blank, candidates in enumerate(filling.blanks, 1):
            if len(filling.blanks) > 1:
                say(f"blank {blank}")
            for candidate in candidates:
                text = align_left(candidate.text, 20)
                print(f"{candidate.probability:8.2%}  {text}  {candidate.sentence}".rstrip())
        if len(filling.blanks) > 1:
            # Words that are the likeliest one by one need not go together: here they stand together.
            say(f"filled    {filling.filled}")
