"""`etymon tokenizer`: learn a tokenizer from your own text, or see how one fits it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.files import atomic_folder
from etymon.registry import TOKENIZERS
from etymon.report.inline import Inline
from etymon.settings import JsonOptions, PathText, PluginOptions, in_table, option, settings
from etymon.settings.reading import NORMALISE_HELP, FileOptions, LanguageSettings, NormaliseSteps
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.page import Cell, Section
    from etymon.text.language_reports import LanguageReport
    from etymon.text.normalising import RoundTrip
    from etymon.text.segmenters import Segmenter
    from etymon.text.sources import TextFiles
    from etymon.text.text_sample import TextSample
    from etymon.text.tokenizer import Tokenizer
    from etymon.text.tokenizer_growing import TokenizerReport

MANY_UNKNOWN = 0.001
"""The share of characters that are read as unknown from which on there is advice."""


@dataclass
class Tokenized(Inline):
    """A tokenizer, its folder, and how it fits the text (None: there was no text)."""

    folder: Path
    tokenizer: Tokenizer
    report: TokenizerReport | None
    judged_by: str
    skipped: int = 0
    advice: tuple[str, ...] = ()
    """What could be done better."""
    languages: Mapping[str, LanguageReport] = field(default_factory=dict)
    """How it fits every language, where there are several."""
    normalised: Mapping[str, RoundTrip] = field(default_factory=dict)
    """How much of the text every step of `normalise` changes, and how much comes back by turning it round."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import Figures

        figures: dict[str, Cell] = {"kind": self.tokenizer.kind, "tokens": f"{self.tokenizer.size:,}"}
        if self.report is not None:
            figures |= {"bytes a token": self.report.bytes_per_token, "tokens a word": self.report.fertility}
            figures["unknown"] = f"{self.report.unknown_rate:.3%}"
        yield Figures(figures)


def character_for_char(kind: Any) -> Any:
    return "character" if kind == "char" else kind


@settings
class TokenizerOptions(FileOptions, LanguageSettings, PluginOptions, JsonOptions):
    kind: Annotated[str, BeforeValidator(character_for_char), in_table(TOKENIZERS)] | None = option(
        None, f"what tokens are: {', '.join(TOKENIZERS.places)}, or FILE.py:FUNCTION (the family's own)"
    )
    size: int | None = option(
        None, "most tokens to learn, special ones included (8000; character: all)", ge=1
    )
    out: PathText = option(None, "folder to write")
    family: str | None = option(
        None,
        "build it like this family's: its kind, its special tokens and where they stand (gpt2, bert, "
        "t5, ...)",
    )
    lowercase: bool | None = option(None, "ignore case (as the family does)")
    strip_accents: bool | None = option(
        None, "remove accents and all other combining marks, vowel signs too (as the family does)"
    )
    normalise: NormaliseSteps = option(None, NORMALISE_HELP)
    sentinels: int | None = option(
        None, "tokens that stand for missing spans, as in T5 (the family's own)", ge=0
    )
    limit: str = option("200MB", "how much text to learn from, taken evenly from all of it")
    start: PathText = option(
        None, "folder or hub id of a tokenizer or model: add tokens to it, up to --size", name="from_"
    )
    show: PathText = option(None, "train nothing; report on the tokenizer of this folder or hub id")


@verb(TokenizerOptions)
def tokenizer(options: TokenizerOptions) -> Tokenized:
    """The folder opens in Transformers too. Accents and case stay unless you say otherwise, or the family's
    published recipe does (bert is uncased). With --from, an existing tokenizer learns more tokens, and no id
    changes.
    """
    from etymon.runs.tokenizer import ACCENTS_STAY, keeps_accents_after_all, training_choice
    from etymon.text.language_reports import join_reports, report_languages
    from etymon.text.tokenizer_growing import grow_tokenizer, require_room
    from etymon.text.tokenizer_training import train_tokenizer

    size, start, show = options.size, options.start, options.show
    recipe = (
        options.family,
        size,
        options.lowercase,
        options.strip_accents,
        options.normalise,
        options.sentinels,
    )
    has_recipe = options.kind is not None or any(part is not None for part in (recipe[0], *recipe[2:]))
    if show is not None:
        if has_recipe or any((size, options.out, start)):
            raise EtymonError("--show reports on a tokenizer as it is: leave out what says how to train one")
        shown = tokenizer_at(show)
        with _samples(options) as samples:
            languages = report_languages(shown, samples.all_texts, samples.segmenters)
            report = join_reports(languages.values())
            advice = _advise(shown, report, chain(*samples.all_texts.values()), options)
            normalised = shown.normalise.round_trips(chain(*samples.all_texts.values()))
        return Tokenized(
            Path(show), shown, report, "the text", samples.skipped, advice, languages, normalised
        )
    if options.out is None:
        raise EtymonError("say where the tokenizer goes: --out FOLDER")
    folder, old = Path(options.out), None
    if start is not None:
        if has_recipe:
            raise EtymonError(
                f"{start} has its own kind and ways: leave out what says how to train a new one"
            )
        old = tokenizer_at(start)
        if size is None:
            raise EtymonError(f"{start} has {old.size:,} tokens: say how many it should have with --size")
        require_room(old, size)
    kind = options.kind
    choice = {} if old else training_choice(kind, *recipe)
    # Before minutes of training, and not after them.
    _check_free(folder)
    # Bytes are the same 256 in every text: nothing has to be learnt.
    if choice.get("kind") == "byte" and not options.data:
        trained = train_tokenizer(texts=(), **choice)
        _save(trained, folder)
        return Tokenized(folder, trained, None, "")
    with _samples(options) as samples:
        grown = old and grow_tokenizer(old, lambda: samples.training, size or 0)
        trained = grown or train_tokenizer(texts=samples.training, **choice)
        _save(trained, folder)
        # Saved before it is measured: a report that fails loses no training.
        languages = report_languages(trained, samples.measured_texts, samples.segmenters)
        report = join_reports(languages.values())
        advice = _advise(trained, report, samples.training, options)
        normalised = trained.normalise.round_trips(chain(*samples.measured_texts.values()))
        if keeps_accents_after_all(choice, trained):
            advice = (ACCENTS_STAY, *advice)
    # On text that it was trained on every tokenizer looks better than it is: the report says which it was.
    measured_on = "the text it was trained on (too little to hold some out)"
    if all(held_out.size for _, held_out in samples.texts.values()):
        measured_on = "held-out text"
    return Tokenized(folder, trained, report, measured_on, samples.skipped, advice, languages, normalised)


def tokenizer_at(name: str | Path) -> Tokenizer:
    """The tokenizer behind a folder of its own, a model's, a run's or a hub id."""
    from etymon.checkpoints.hub import resolve
    from etymon.text.tokenizer import Tokenizer

    folder = resolve(name)
    inner = folder / "tokenizer"  # of a run
    return Tokenizer.load(inner if inner.is_dir() else folder)


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    """All files of the tokenizer, or none."""
    with atomic_folder(Path(os.path.realpath(folder))) as aside:  # a link stays one
        tokenizer.save(aside)


def _advise(
    tokenizer: Tokenizer, report: TokenizerReport, texts: Iterable[str], options: TokenizerOptions
) -> tuple[str, ...]:
    """What to do about unknown characters, if there are many."""
    from etymon.runs.tokenizer import advise_on_unknown
    from etymon.text.alphabets import CharacterCounts
    from etymon.text.tokenizer_growing import LETTERS

    # Tokenizers of bytes and of words have no letters that could be missing.
    place = options.show or options.start
    if report.unknown_character_rate <= MANY_UNKNOWN or tokenizer.kind not in (*LETTERS, "word-bpe"):
        return ()
    counts = CharacterCounts(map(tokenizer.normalise, texts))
    return (advise_on_unknown(tokenizer, options.family, counts, place),)


def _check_free(folder: Path) -> None:
    files = {"tokenizer.json", "tokenizer_config.json", "token_counts.json"}
    if folder.is_dir() and {path.name for path in folder.iterdir()} - files:
        raise EtymonError(
            f"{folder} holds something that is not a tokenizer: give another --out", code="folder-taken"
        )
    if folder.is_file():
        raise EtymonError(f"{folder} is a file, and the tokenizer needs a folder: give another --out")


@dataclass(frozen=True)
class LanguageSamples:
    """Texts to learn from and to measure with; a text without languages is under ""."""

    training: Iterable[str]
    """As the tokenizer reads them, languages in their shares."""
    texts: Mapping[str, tuple[TextSample, TextSample]]
    """Of every language texts that were learnt from, and others."""
    segmenters: Mapping[str, Segmenter | None]
    files: Mapping[str, TextFiles]

    @property
    def skipped(self) -> int:
        return sum(files.skipped for files in self.files.values())

    @property
    def all_texts(self) -> dict[str, list[str]]:
        return {code: list(chain(*pair)) for code, pair in self.texts.items()}

    @property
    def measured_texts(self) -> dict[str, TextSample]:
        """Of every language those that were not learnt from, or, of a short one, all."""
        return {code: held_out if held_out.size else texts for code, (texts, held_out) in self.texts.items()}


@contextmanager
def _samples(options: TokenizerOptions) -> Iterator[LanguageSamples]:
    """Texts to learn from and texts to validate on, after all files were read."""
    from etymon.text.filtering import filter_text
    from etymon.text.languages import LanguageText, sample_languages
    from etymon.text.segmenters import SegmentedTexts, open_segmenter, way_for
    from etymon.text.text_sample import sample_texts
    from etymon.verbs.load_inputs import files_by_language, parse_size
    from etymon.verbs.terminal import byte_progress

    groups = files_by_language(options)
    segmenters = {code: open_segmenter(way_for(options.words, code)) for code in groups}
    sources = {code: filter_text(files, options) for code, files in groups.items()}
    sizes = [files.size() for files in groups.values()]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    # Files are read to their ends all the same: what is kept is spread over all of them.
    limit = parse_size(options.limit)
    with ExitStack() as stack:
        with byte_progress("reading", total, options.progress) as done:

            def report_progress() -> None:
                done(sum(files.bytes_read for files in groups.values()))

            if "" in groups:
                reading = sample_texts(sources[""].documents(), limit, progress=report_progress)
                pair = stack.enter_context(reading)
                training: Iterable[str] = SegmentedTexts(pair[0], segmenters[""])
                texts = {"": pair}
            else:
                temperature = options.language_temperature
                text = LanguageText(sources, 1.0 if temperature is None else temperature)
                sampling = sample_languages(text, limit, progress=report_progress, segmenters=segmenters)
                training, texts = stack.enter_context(sampling)
            report_progress()
        yield LanguageSamples(training, texts, segmenters, groups)


def present(result: Tokenized, options: TokenizerOptions) -> None:
    report, made = result.report, result.tokenizer
    if options.json:
        record: dict[str, Any] = {"folder": str(result.folder), "kind": made.kind, "size": made.size}
        record |= {"judged_by": result.judged_by, "skipped": result.skipped, "advice": result.advice}
        names = "bytes words characters tokens unknown fertility tokens_per_character bytes_per_token".split()
        names += ["unknown_rate", "unknown_character_rate", "longest"]
        figures = {} if report is None else {name: getattr(report, name) for name in names}
        if made.normalise:
            steps = {step: trip._asdict() for step, trip in result.normalised.items()}
            record["normalise"] = {**made.normalise.describe(), "measured": steps}
        by_language = {
            code: {name: getattr(each.report, name) for name in names}
            | {"used": each.used, "alone": each.alone}
            for code, each in result.languages.items()
            if code
        }
        return print_json(
            {**record, **figures, **({"languages": by_language} if by_language else {})}, indent=2
        )
    if result.skipped:
        say(f"left out {result.skipped:,} documents that could not be read")
    say(f"{made.kind} tokenizer of {made.size:,} tokens in {result.folder}")
    if report is None:
        return
    say(f"on {result.judged_by} ({report.bytes:,} bytes):")
    if report.fertility is not None:
        say(f"  tokens a word       {report.fertility:.3f}")
    say(f"  tokens a character  {report.tokens_per_character:.3f}")
    say(f"  bytes a token       {report.bytes_per_token:.3f}")
    unknown = (
        f"{report.unknown_rate:.3%} of the tokens, {report.unknown_character_rate:.3%} of the characters"
    )
    say(f"  unknown             {unknown}")
    say(f"  longest token       {report.longest!r}")
    for step, trip in result.normalised.items():
        say(
            f"  {align_left(step, 18)}  {trip.changed:.2%} of the characters change, turned round "
            f"{trip.restored:.2%} are what they were"
        )
    for advice in result.advice:
        say(f"  note: {advice}")
    if "" in result.languages or not result.languages:
        return
    say("  language         bytes  a token  tokens a char  a word  unknown  vocabulary")
    for code, each in result.languages.items():
        part = each.report
        fertility = "-" if part.fertility is None else f"{part.fertility:.3f}"
        say(
            f"  {align_left(code, 10)}{part.bytes:>12,}{part.bytes_per_token:>9.3f}"
            f"{part.tokens_per_character:>15.3f}{fertility:>8}{part.unknown_rate:>9.3%}  {each.used:,} "
            f"tokens, {each.alone:,} of no other language"
        )
