"""`etymon score`: how likely a model finds a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.errors import EtymonError
from etymon.verbs.options import Quantize, opens_models
from etymon.verbs.terminal import clear_line, print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.likelihood import Score


@opens_models
def score(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    texts: Annotated[
        Sequence[str] | str, "texts to score (T5: sources); - reads lines from standard input"
    ] = (),
    *,
    file: Annotated[Path | None, "a file to score, as one text"] = None,
    lines: Annotated[bool, "every line of the file is a text of its own"] = False,
    target: Annotated[Sequence[str] | str, "score this given the text; one for all texts, or one each"] = (),
    window: Annotated[
        int | None, "tokens of a long text that a decoder reads at once (as many as it learnt to)"
    ] = None,
    overlap: Annotated[int | None, "tokens that windows over a long text share (half of one)"] = None,
    memory: Annotated[
        int | None,
        "read a text once, in segments that remember this many tokens (Transformer-XL: its own memory)",
    ] = None,
    segment: Annotated[int | None, "tokens a segment, with --memory (256)"] = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    quantize: Quantize = None,
    on_note: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Score]:
    """Measure how likely a model finds a text.

    A decoder (GPT-2) gives the log-likelihood, bits per byte and perplexity, long texts in overlapping windows. An
    encoder (BERT) gives the pseudo-log-likelihood, each token predicted from all others. T5 scores a target given a text.
    Transformer-XL reads a text of any length once, in segments; with --memory a file is never held as a whole.
    """
    from etymon.generation.likelihood import check_memory, score_texts
    from etymon.verbs.opening import opened, texts_of

    if segment is not None and memory is None:
        raise EtymonError("segments need a memory: give --memory as well, or --overlap for windows")
    streamed = file if memory is not None and not lines else None
    asked = []
    if len(texts) or not streamed:
        asked = texts_of(texts, None if streamed else file, lines=lines, on_note=on_note)
    targets = [target] if isinstance(target, str) else list(target)
    count = len(asked) + (streamed is not None)
    if len(targets) == 1:
        targets *= count
    if targets and len(targets) != count:
        raise EtymonError(f"there are {count} texts and {len(targets)} targets: give a target for each")
    chosen = opened(model, device, quantize, head="vocabulary")
    own = targets[: len(asked)] or None
    reading: dict[str, Any] = {"window": window, "overlap": overlap, "memory": memory, "segment": segment}
    scores = score_texts(chosen, asked, own, **reading) if asked else []
    if streamed is not None and memory is not None:
        last = targets[-1] if targets else None
        windowed = window is not None or overlap is not None
        check_memory(chosen, memory, segment, windowed)
        scores.append(_score_file(chosen, Path(streamed), last, memory, segment, on_progress))
    return scores


def _score_file(
    model: Model,
    file: Path,
    target: str | None,
    memory: int,
    segment: int | None,
    tell: Callable[[str], None] | None,
) -> Score:
    """The score of a file, which is read in parts, or of a target given the file."""
    import numpy as np

    from etymon.generation.likelihood import score_parts
    from etymon.generation.text import tokenizer_of
    from etymon.text.encoding import Encoder, batches
    from etymon.text.sources import TextFiles

    tokenizer = tokenizer_of(model)
    encoder = Encoder(tokenizer, np.dtype(np.int32))

    def parts() -> Iterator[tuple[np.ndarray, int, bool]]:
        for batch in batches(TextFiles([file], format="txt").documents()):
            yield encoder(batch).tokens, sum(len(part.text.encode()) for part in batch), target is None
        if target is not None:
            yield tokenizer.encode(target), len(target.encode()), True

    told = None if tell is None else lambda tokens: tell(f"{tokens:,} tokens")
    return score_parts(model, str(file) if target is None else target, parts(), memory, segment, told)


def present(
    result: list[Score],
    tokens: Annotated[bool, "show every token's log-probability"] = False,
    json: Annotated[bool, "print a JSON record a text"] = False,
) -> None:
    clear_line()
    if json:
        return print_json(*result)
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
