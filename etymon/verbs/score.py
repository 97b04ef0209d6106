"""`etymon score`: how likely a model finds a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from etymon.display import cut
from etymon.errors import EtymonError
from etymon.settings import (
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Texts,
    WeightOptions,
    Words,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings, WordWays
from etymon.verbs.terminal import clear_line, print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.generation.likelihood import Score


@settings
class ScoreOptions(WeightOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    texts: Texts = argument("texts to score (T5: sources); - reads lines from standard input", ())
    file: Path | None = option(None, "a file to score, as one text")
    lines: bool = option(False, "every line of the file is a text of its own")
    target: Words = option(
        (), "score this text as what follows TEXTS (T5: as the answer to them); one for all, or one each"
    )
    window: int | None = option(
        None, "decoders: tokens of a long text to read at once (as many as in training)"
    )
    overlap: int | None = option(
        None, "tokens that neighbouring windows over a long text share (half a window)"
    )
    memory: int | None = option(
        None, "read a text once, in segments that remember this many tokens (Transformer-XL: its own memory)"
    )
    segment: int | None = option(None, "tokens per segment, with --memory (256)")
    tokens: bool = option(False, "show every token's log-probability", seen_by="command line")
    words: WordWays = option(
        (),
        "also give every word's surprisal in bits; words are found by tokens (and spaces), jieba, "
        "spaces (put there by a tool), or MODULE:FUNCTION",
    )
    out: PathText = option(None, "with --words: a table of all words (.csv .tsv .jsonl .parquet)")
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")
    on_progress: Notify | None = option(None, "is told how much of a file was read", seen_by="python")


@verb(ScoreOptions)
def score(options: ScoreOptions) -> list[Score]:
    """A decoder (GPT-2) gives the log-likelihood, bits per byte and perplexity, and reads long texts in
    overlapping windows. An encoder (BERT) gives the pseudo-log-likelihood: each token is predicted from all
    others. T5 scores a target given a text. Transformer-XL reads a text of any length once, in segments; with
    --memory a file is never held as a whole.
    """
    from etymon.generation.likelihood import check_memory, score_texts
    from etymon.generation.text import tokenizer_of
    from etymon.generation.word_scores import score_words, word_rows
    from etymon.tables.formats import WRITTEN, write_table
    from etymon.text.encoding import mark_words
    from etymon.text.segmenters import SegmentedTexts, open_segmenter, way_for
    from etymon.verbs.load_inputs import load_model, read_texts, require_writable

    file, memory, segment = options.file, options.memory, options.segment
    if segment is not None and memory is None:
        raise EtymonError("segments need a memory: give --memory as well, or --overlap for windows")
    # Only a model with a memory can read a file that is never held: windows need their overlap again.
    require_writable(options.out, *WRITTEN, read=[file])
    if options.out is not None and not options.words:
        raise EtymonError("--out is a table of words: say how to find them (--words tokens)")
    is_streamed = file is not None and memory is not None and not options.lines
    texts = []
    if len(options.texts) or not is_streamed:
        texts = read_texts(
            options.texts,
            None if is_streamed else file,
            lines=options.lines,
            on_note=options.on_note,
            how=options,
        )
    count, targets = len(texts) + is_streamed, list(options.target)
    # One target for all: the same sentence after many beginnings.
    if len(targets) == 1:
        targets *= count
    if targets and len(targets) != count:
        raise EtymonError(f"there are {count} texts and {len(targets)} targets: give a target for each")
    if options.words and is_streamed:
        raise EtymonError(
            "a file that is read in segments is not held, so its words are not known: leave --words out"
        )
    segmenter = open_segmenter(way_for(options.words))
    # Spaces that a tool has put are no part of the text: the model does not read them.
    cut_texts = [*texts], [*targets]
    texts, targets = ([*SegmentedTexts(each, segmenter)] for each in cut_texts)
    model = load_model(options.model, options, head="vocabulary")
    scores = []
    if texts:
        scores = score_texts(
            model,
            texts,
            targets[: len(texts)] or None,
            window=options.window,
            overlap=options.overlap,
            memory=memory,
            segment=segment,
        )
    if options.words:
        tokenizer, way = tokenizer_of(model), way_for(options.words)
        scores = [
            replace(score, words=score_words(score, mark_words(text, tokenizer, way), tokenizer))
            # Words come from the text with the tool's spaces, which the model did not see.
            for score, text in zip(scores, cut_texts[1] or cut_texts[0], strict=True)
        ]
    if options.out is not None:
        write_table(options.out, word_rows(scores), options.on_note)
    if file is not None and memory is not None and is_streamed:
        check_memory(model, memory, segment, options.window is not None or options.overlap is not None)
        target = targets[-1] if targets else None
        scores.append(_score_file(model, file, target, memory, segment, options))
    return scores


def _score_file(
    model: Model,
    file: Path,
    target: str | None,
    memory: int,
    segment: int | None,
    options: ScoreOptions,
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
        for batch in batches(TextFiles([file], format="txt", **options.reader_options).documents()):
            yield encoder(batch).tokens, sum(len(part.text.encode()) for part in batch), target is None
        if target is not None:
            yield tokenizer.encode(target), len(target.encode()), True

    on_progress = options.on_progress
    on_tokens = None if on_progress is None else lambda tokens: on_progress(f"{tokens:,} tokens")
    return score_parts(model, str(file) if target is None else target, parts(), memory, segment, on_tokens)


def present(result: list[Score], options: ScoreOptions) -> None:
    clear_line()
    if options.json:
        return print_json(*result)
    for score in result:
        bits = "" if score.bits_per_byte is None else f"  bits per byte {score.bits_per_byte:.4f}"
        pseudo = "pseudo-" if score.kind == "pseudo-likelihood" else ""
        text = " ".join(score.text.split())
        say(
            f"{pseudo}log-likelihood {score.log_likelihood:.4f}  tokens {score.tokens}{bits}  "
            f"{pseudo}perplexity {score.perplexity:.4g}  {cut(text, 60)}"
        )
        if options.tokens:
            for piece, log_prob in zip(score.pieces, score.log_probs, strict=True):
                print(f"{log_prob:10.4f}  {piece}")
        for word in score.words or ():
            say(f"{word.surprisal:10.4f} bits  {word.word}")
