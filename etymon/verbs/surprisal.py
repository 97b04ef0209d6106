"""`etymon surprisal`: how surprised a model is by every word of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etymon.display import align_left, align_right, cut, display_width
from etymon.errors import EtymonError
from etymon.report.inline import DARKEST, Inline, ShadedText, shaded_spans
from etymon.settings import (
    DeviceOptions,
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Texts,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings, WordWays
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.generation.surprisal import WordSurprisal
    from etymon.report.page import Section

OUT = (".csv", ".tsv", ".jsonl", ".parquet")
SHOWN = 40
"""Words that are printed; a file has all."""


@dataclass(frozen=True)
class TextSurprisal(Inline):
    """A text and its words; places are characters of the text."""

    text: str
    words: list[WordSurprisal]

    def inline_sections(self) -> Iterator[Section]:
        spans = [
            (word.start, word.stop, word.surprisal / DARKEST, f"{word.surprisal:.1f} bits")
            for word in self.words
        ]
        yield ShadedText(shaded_spans(self.text, spans), "the darker a word, the less it was expected")


@settings
class SurprisalOptions(DeviceOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    texts: Texts = argument("texts to read; - reads lines from standard input", ())
    file: Path | None = option(None, "a file to read, as one text")
    by: Literal["text", "line", "sentence"] | None = option(
        None,
        "what is read alone, without the text before it (decoders: text; others: sentence)",
    )
    window: int | None = option(None, "decoders: tokens of a long text to read at once (as many as it can)")
    overlap: int | None = option(
        None, "tokens that neighbouring windows over a long text share (half a window)"
    )
    memory: int | None = option(
        None, "read a text once, in segments that remember this many tokens (Transformer-XL: its own memory)"
    )
    segment: int | None = option(None, "tokens per segment, with --memory (256)")
    pll: Literal["token", "within-word"] = option(
        "token", "encoders: hide one token at a time, or with it the rest of its word"
    )
    words: WordWays = option(
        (),
        "how words are found: tokens (and spaces), jieba, spaces (put there by a tool), or "
        "MODULE:FUNCTION (tokens; jieba, if the model was trained with it)",
    )
    guesses: int = option(3, "how many guesses of the model to give for each word's first token", ge=0)
    out: PathText = option(None, "a table of all words (.csv .tsv .jsonl .parquet)")
    on_note: Notify | None = option(None, "is told of blank lines", seen_by="python")
    on_progress: Notify | None = option(None, "is told how far it has come", seen_by="python")


@verb(SurprisalOptions)
def surprisal(options: SurprisalOptions) -> list[TextSurprisal]:
    """For every word: where it stands, and its surprisal, which is the sum over its tokens, in bits. A second
    column counts the space before a word to the word that it ends. Beside them stand the entropy of the
    model's guess, and what it guessed. Long texts are read in overlapping windows, or with a memory;
    encoders hide one token after another.
    """
    from etymon.generation.sentence_scores import scoring_method
    from etymon.generation.surprisal import ReadingWays, check_reading, word_surprisals
    from etymon.generation.text import tokenizer_of
    from etymon.objectives.history import last_pretraining
    from etymon.tables.formats import write_table
    from etymon.text.encoding import mark_words
    from etymon.text.segmenters import SegmentedTexts, open_segmenter
    from etymon.verbs.load_inputs import load_model, read_texts, require_writable

    require_writable(options.out, *OUT, read=[options.file])
    texts = read_texts(options.texts, options.file, lines=False, on_note=options.on_note, how=options)
    # Of an ELECTRA's run, the generator: a discriminator predicts no words.
    model = load_model(options.model, options, head="vocabulary")
    method = scoring_method(model, options.pll)
    ways = ReadingWays(options.window, options.overlap, options.memory, options.segment, options.pll)
    check_reading(model, method, ways)
    way = last_pretraining(model.history).word_way(options.words, options.on_note)
    # The pseudo-likelihood of a whole file would be a row of the file's length for every token.
    by = options.by or ("text" if method == "likelihood" else "sentence")
    results = []
    for number, text in enumerate(texts, 1):
        words: list[WordSurprisal] = []
        for part, (first, last) in enumerate(spans := _parts(text, by)):
            if options.on_progress is not None:
                options.on_progress(f"text {number} of {len(texts)}: {part / len(spans):.0%}")
            # Places stay those of the file, whatever is read by itself.
            cut_text = text[first:last]
            # Spaces that a tool has put are no part of the text: the model does not read them.
            (read,) = SegmentedTexts([cut_text], open_segmenter(way))
            begins_word = mark_words(cut_text, tokenizer_of(model), way)
            part_words = word_surprisals(model, read, begins_word, ways=ways, guesses=options.guesses)
            words += [_moved(word, first) for word in part_words]
        results.append(TextSurprisal(text, words))
    if not any(result.words for result in results):
        raise EtymonError("there is no word to predict: give more text")
    if options.out is not None:
        write_table(options.out, surprisal_rows(results, options.guesses), options.on_note)
    return results


def _parts(text: str, by: str) -> list[tuple[int, int]]:
    """The characters of what is read by itself."""
    from etymon.text.sentences import sentence_starts

    if by == "text":
        return [(0, len(text))] if text.strip() else []
    if by == "line":
        starts = [0, *(place + 1 for place, mark in enumerate(text) if mark == "\n")]
    else:
        starts = sentence_starts(text).tolist()
    spans = []
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        # A sentence ends with its last word: the space behind it would be a token of its own.
        part = text[start:stop].rstrip()
        if part.strip():
            spans.append((start, start + len(part)))
    return spans


def _moved(word: WordSurprisal, by: int) -> WordSurprisal:
    return replace(word, start=word.start + by, stop=word.stop + by)


def surprisal_rows(results: list[TextSurprisal], guesses: int) -> list[dict[str, Any]]:
    """A row of a table for every word."""
    rows = []
    for number, result in enumerate(results, 1):
        for word in result.words:
            row: dict[str, Any] = {
                "text": number,
                "word": word.word,
                "start": word.start,
                "stop": word.stop,
                "tokens": word.tokens,
                "surprisal": word.surprisal,
                "corrected": word.corrected,
                "entropy": word.entropy,
            }
            for place, guess in enumerate(word.guesses[:guesses], 1):
                row |= {f"guess_{place}": guess.token, f"probability_{place}": guess.probability}
            rows.append(row)
    return rows


def present(result: list[TextSurprisal], options: SurprisalOptions) -> None:
    clear_line()
    if options.json:
        return print_json(*result)
    # A terminal shows the beginning; a table is for a file.
    every = [word for text in result for word in text.words]
    width = min(24, max(display_width(word.word) for word in every[:SHOWN]))
    word_head, *heads = map(result_text, ("word", "bits", "corrected", "entropy", "guesses"))
    print(align_left(word_head, width), *map(align_right, heads[:3], (9, 10, 9)), f" {heads[3]}")
    for word in every[:SHOWN]:
        corrected = "–" if word.corrected is None else f"{word.corrected:.2f}"
        guesses = ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in word.guesses)
        print(
            align_left(cut(word.word, width), width),
            align_right(f"{word.surprisal:.2f}", 9),
            align_right(corrected, 10),
            align_right(f"{word.entropy:.2f}", 9),
            f" {guesses}",
        )
    if len(every) > SHOWN:
        where = f"all are in {options.out}" if options.out else "write all by --out words.csv"
        say(f"... {len(every) - SHOWN:,} more words: {where}")
