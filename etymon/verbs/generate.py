"""`etymon generate`: go on from a prompt, or answer a source text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.verbs.options import Quantize

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.text import Generation


def generate(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    prompts: Annotated[
        list[str] | str, "what to go on from (T5: source texts); - reads lines from standard input"
    ],
    *,
    max_new_tokens: Annotated[int | None, "at most so many new tokens (64, or the room that is left)"] = None,
    min_new_tokens: Annotated[int, "at least so many new tokens"] = 0,
    sample: Annotated[bool | None, "draw tokens at random (on if a sampling option is given)"] = None,
    temperature: Annotated[float | None, "sampling: below 1 is safer, above 1 wilder"] = None,
    top_k: Annotated[int | None, "sampling: only from the K likeliest tokens"] = None,
    top_p: Annotated[
        float | None, "sampling: only from the likeliest tokens that hold this probability"
    ] = None,
    beams: Annotated[int, "search with so many beams"] = 1,
    length_penalty: Annotated[float, "beams: above 0 favours long texts, below 0 short ones"] = 1.0,
    early_stopping: Annotated[bool, "beams: stop at the first finished texts"] = False,
    returns: Annotated[int, "texts a prompt (sampling or beams)"] = 1,
    no_repeat_ngram: Annotated[int, "never repeat so many tokens in a row"] = 0,
    repetition_penalty: Annotated[float, "above 1 makes tokens that were there less likely"] = 1.0,
    stop: Annotated[Sequence[str], "end before this string; may be repeated"] = (),
    seed: Annotated[int, "of the draws: the same seed gives the same text"] = 0,
    batch_size: Annotated[int, "prompts that are decoded together"] = 32,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: Quantize = None,
    on_text: Callable[[str], None] | None = None,
) -> list[Generation]:
    """Write on from a prompt.

    Greedy unless told otherwise; `--temperature 0.8 --top-k 40` samples, `--beams 4` searches. Several prompts are
    one batch, and a text does not depend on the others. Only new text is printed, as it comes when there is one prompt.
    """
    from etymon.generation import DecodingSettings, generate_texts
    from etymon.verbs.opening import opened, texts_of

    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in sampling.items() if value is not None}
    settings = DecodingSettings(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        sample=bool(given) if sample is None else sample,
        **given,  # type: ignore[arg-type]
        beams=beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        returns=returns,
        no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty,
        stop=stop,  # type: ignore[arg-type]
        seed=seed,
    )
    asked = texts_of(prompts)
    listener = None
    if on_text is not None and len(asked) == 1 and returns == 1:
        hear = on_text

        def listener(prompt: int, number: int, piece: str) -> None:
            hear(piece)

    return generate_texts(opened(model, device, quantize), asked, settings, listener, batch_size=batch_size)


def on_text(piece: str, *, json: bool) -> None:
    if sys.stdout.isatty() and not json:
        print(piece, end="", flush=True)


def present(result: list[Generation], json: Annotated[bool, "print a JSON record a text"] = False) -> None:
    if json:
        from dataclasses import asdict
        from json import dumps

        for one in result:
            print(dumps(asdict(one), ensure_ascii=False))
    elif len(result) == 1:
        print("" if sys.stdout.isatty() else result[0].text)  # a terminal has seen it already
    else:
        for number, one in enumerate(result):
            heading = " ".join(one.prompt.split())
            print(f"{'' if number == 0 else chr(10)}--- {heading[:100]}\n{one.text}")
