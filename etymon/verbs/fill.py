"""`etymon fill`: fill the blanks of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.verbs.options import Quantize, opens_models
from etymon.verbs.terminal import print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.fill import Filling


@opens_models
def fill(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    texts: Annotated[
        list[str] | str, "texts with blanks: [MASK], <mask> or ___; - reads lines from standard input"
    ],
    *,
    top_k: Annotated[int, "how many fillings of a blank to show"] = 5,
    max_new_tokens: Annotated[
        int | None, "T5, BART: at most so many tokens, of all spans or of the text"
    ] = None,
    batch_size: Annotated[int, "texts that are computed together"] = 32,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: Quantize = None,
    on_note: Callable[[str], None] | None = None,
) -> list[Filling]:
    """Fill the blanks of a text.

    An encoder (BERT and its relatives) gives every blank its likeliest tokens; T5 writes a span into each by beam search, and
    BART the whole text. Of several blanks, the last line is the text with all of them filled.
    """
    from etymon.generation.fill import fill_texts
    from etymon.verbs.opening import opened, texts_of

    asked = texts_of(texts, on_note=on_note)
    return fill_texts(
        opened(model, device, quantize, head="vocabulary"),
        asked,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )


def present(result: list[Filling], json: Annotated[bool, "print a JSON record a text"] = False) -> None:
    if json:
        return print_json(*result)
    for number, one in enumerate(result):
        if number:
            print()
        for blank, candidates in enumerate(one.blanks, 1):
            if len(one.blanks) > 1:
                print(f"blank {blank}")
            for candidate in candidates:
                print(f"{candidate.probability:8.2%}  {candidate.text:<20}  {candidate.sentence}".rstrip())
        if len(one.blanks) > 1:
            print(f"filled    {one.filled}")
