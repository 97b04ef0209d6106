"""`etymon score`: how likely a model finds a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from etymon.verbs.options import Quantize

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.likelihood import Score


def score(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    texts: Annotated[
        Sequence[str] | str, "texts to score (T5: sources); - reads lines from standard input"
    ] = (),
    *,
    file: Annotated[Path | None, "a file to score, as one text"] = None,
    lines: Annotated[bool, "every line of the file is a text of its own"] = False,
    target: Annotated[Sequence[str] | str, "score this given the text; one for all texts, or one each"] = (),
    overlap: Annotated[int | None, "tokens that windows over a long text share (half the positions)"] = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: Quantize = None,
) -> list[Score]:
    """Measure how likely a model finds a text.

    A decoder (GPT-2) gives the log-likelihood, bits per byte and perplexity, long texts in overlapping windows. An
    encoder (BERT) gives the pseudo-log-likelihood, each token predicted from all others. T5 scores a target given a text.
    """
    from etymon.generation.likelihood import score_texts
    from etymon.verbs.opening import opened, texts_of

    asked = texts_of(texts, file, lines=lines)
    targets = [target] if isinstance(target, str) else list(target)
    if len(targets) == 1:
        targets *= len(asked)
    return score_texts(opened(model, device, quantize), asked, targets or None, overlap=overlap)


def present(
    result: list[Score],
    tokens: Annotated[bool, "show every token's log-probability"] = False,
    json: Annotated[bool, "print a JSON record a text"] = False,
) -> None:
    if json:
        from dataclasses import asdict
        from json import dumps

        for one in result:
            print(dumps(asdict(one), ensure_ascii=False))
        return
    for one in result:
        bits = "" if one.bits_per_byte is None else f"  bits per byte {one.bits_per_byte:.4f}"
        pseudo = "pseudo-" if one.kind == "pseudo-likelihood" else ""
        shown = " ".join(one.text.split())
        print(
            f"{pseudo}log-likelihood {one.log_likelihood:.4f}  tokens {one.tokens}{bits}  "
            f"{pseudo}perplexity {one.perplexity:.4g}  {shown if len(shown) <= 60 else shown[:57] + '...'}"
        )
        if tokens:
            for piece, log_prob in zip(one.pieces, one.log_probs, strict=True):
                print(f"{log_prob:10.4f}  {piece}")
