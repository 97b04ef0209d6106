"""`etymon generate`: go on from a prompt, or answer a source text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.verbs import options
from etymon.verbs.terminal import clear_line, print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.text import Generation

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""Options that turn sampling on."""


@options.opens_models
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
    top_k: Annotated[
        int | None, "sampling: only from the K likeliest tokens (contrastive: the candidates)"
    ] = None,
    top_p: Annotated[
        float | None, "sampling: only from the likeliest tokens that hold this probability"
    ] = None,
    min_p: Annotated[
        float | None, "sampling: only tokens with at least this share of the likeliest one's probability"
    ] = None,
    typical_p: Annotated[
        float | None,
        "sampling: only tokens about as surprising as expected, which together hold this probability",
    ] = None,
    penalty_alpha: Annotated[
        float | None, "contrastive search: how much likeness to what is there counts (0.6, with --top-k 4)"
    ] = None,
    choice: Annotated[
        Sequence[str],
        'only one of these strings can come out, right behind the prompt: " yes"; may be repeated',
    ] = (),
    beams: Annotated[int, "search with so many beams"] = 1,
    length_penalty: Annotated[float, "beams: above 0 favours long texts, below 0 short ones"] = 1.0,
    length_offset: Annotated[float, "beams: 5 makes it the penalty of the Transformer's paper"] = 0.0,
    early_stopping: Annotated[bool, "beams: stop at the first finished texts"] = False,
    returns: Annotated[int, "texts a prompt (sampling, beams or choices)"] = 1,
    no_repeat_ngram: Annotated[int, "never repeat so many tokens in a row"] = 0,
    repetition_penalty: Annotated[float, "above 1 makes tokens that were there less likely"] = 1.0,
    stop: Annotated[Sequence[str], "end before this string; may be repeated"] = (),
    window: Annotated[bool, "beyond the model's positions, go on from the last half of them"] = False,
    draft: Annotated[
        str | Path | Model | None,
        "a smaller model with the same tokenizer that runs ahead: the same texts, sooner",
    ] = None,
    draft_tokens: Annotated[int | None, "how many tokens the draft runs ahead (4)"] = None,
    log_probs: Annotated[bool, "also the log-probability of every token"] = False,
    report: Annotated[bool, "compare ways of decoding on the prompts: repetition, diversity, copies"] = False,
    data: Annotated[
        Sequence[str | Path] | str | Path,
        "report: the training text, if it is not found beside the model; repeatable",
    ] = (),
    out: Annotated[Path | None, "report: an .html file for it"] = None,
    seed: Annotated[int, "of the draws: the same seed gives the same text"] = 0,
    batch_size: Annotated[int, "prompts that are decoded together"] = 32,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: options.Quantize = None,
    on_note: Callable[[str], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Generation]:
    """Write on from a prompt.

    Greedy unless told otherwise; `--temperature 0.8 --top-k 40` samples, `--beams 4` searches, `--penalty-alpha 0.6
    --top-k 4` searches contrastively, `--choice " yes" --choice " no"` picks one. Several prompts are one batch, and a text does
    not depend on the others. Only new text is printed, as it comes when there is one prompt.
    """
    asked = dict(locals())
    from etymon.generation import generate_texts
    from etymon.verbs.opening import opened, texts_of, writable

    if draft_tokens is not None and draft is None:
        raise EtymonError("draft_tokens is for a draft model: give one (--draft), or leave it out")
    sampling = any(asked[name] is not None for name in SAMPLING) and not penalty_alpha
    settings = options.decoding(asked, sample=sampling if sample is None else sample, choices=choice)
    texts = texts_of(prompts, on_note=on_note)
    if report:
        from etymon.lab import compare_decoding as generation_report

        if choice or draft is not None:
            raise EtymonError("a report compares ways of decoding: leave out choices and the draft")
        writable(out)
        comparison = generation_report.compare(
            opened(model, device, quantize),
            texts,
            settings,
            data=[str(data)] if isinstance(data, str | Path) else [str(path) for path in data],
            folder=Path(model) if isinstance(model, str | Path) else None,
            batch_size=batch_size,
            on_progress=on_progress or (lambda what: None),
        )
        if out is not None:
            name = str(model) if isinstance(model, str | Path) else f"this {model.family.title}"
            generation_report.write(comparison, Path(out), name)
        return comparison
    if data or out is not None:
        raise EtymonError("data and out are for a report: ask for it (--report), or leave them out")
    listener = None
    if on_text is not None and len(texts) == 1 and returns == 1:

        def listener(prompt: int, number: int, piece: str) -> None:
            on_text(piece)

    return generate_texts(
        opened(model, device, quantize),
        texts,
        settings,
        listener,
        batch_size=batch_size,
        draft=None if draft is None else opened(draft, device, quantize),
    )


def on_text(piece: str, *, json: bool) -> None:
    if sys.stdout.isatty() and not json:
        print(piece, end="", flush=True)


def present(
    result: list[Generation],
    report: bool,
    out: Path | None,
    json: Annotated[bool, "print a JSON record a text (report: a way)"] = False,
) -> None:
    if report:
        _present_report(result, out, json)
    elif json:
        print_json(*map(_told, result))
    elif len(result) == 1:
        print("" if sys.stdout.isatty() else result[0].text)  # a terminal has seen it already
        _print_log_probs(result[0])
    else:
        for number, one in enumerate(result):
            heading = " ".join(one.prompt.split())
            print(f"{'' if number == 0 else chr(10)}--- {heading[:100]}\n{one.text}")
            _print_log_probs(one)


def _told(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {name: value for name, value in asdict(one).items() if value is not None}


def _print_log_probs(one: Generation) -> None:
    for piece, log_prob in zip(one.pieces or [], one.token_log_probs or [], strict=True):
        print(f"{log_prob:10.4f}  {piece}")


def _present_report(result: list[Generation], out: Path | None, json: bool) -> None:
    from etymon.lab.compare_decoding import Comparison

    assert isinstance(result, Comparison)
    clear_line()
    if json:
        return print_json(*map(_told, result.ways))
    print(*result.lines(), sep="\n")
    if out is not None:
        print(f"{out} has it with the texts")
