"""The stores of a run's text: encoded once, checked when the run goes on,
and asked for the words they know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from etymon.errors import EtymonError
from etymon.objectives.languages import LanguageSampling
from etymon.objectives.objective import Objective
from etymon.text.filtering import FilteredText, text_files_of
from etymon.text.languages import LanguageStore, LanguageText, put_together
from etymon.text.segmenters import open_segmenter, way_for
from etymon.text.sources import PreparedText, TextSource
from etymon.text.store import Split, TokenStore, link_store
from etymon.text.store_building import ensure_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.words import spaceless_share
from etymon.training.distributed import World
from etymon.training.progress import format_bytes

MANY_UNKNOWN = 0.001
"""The share of unknown tokens of a text from which on they are noted."""
NOTE_SECONDS = 30
"""Seconds after which it is said how much of a text is encoded."""
FEW_SPACELESS = 0.02
"""The share of a text in scripts without spaces up to which nobody is told that their words are not known."""


def _note_language(note: Callable[[str], None], code: str, message: str) -> None:
    note(f"{code}: {message}")


def encode_languages(
    folder: Path,
    text: LanguageText,
    tokenizer: Tokenizer,
    validation: float,
    seed: int,
    note: Callable[[str], None],
    words: Sequence[str] = (),
) -> TokenStore:
    """Returns the store of a text in several languages, each encoded in a folder of its own."""
    for code, source in text.sources.items():
        noting, way = partial(_note_language, note, code), way_for(words, code)
        encode_text(folder / code, source, tokenizer, validation, seed, noting, way)
    put_together(folder, text.sources, tokenizer)
    return TokenStore.open(folder, tokenizer)


def encode_text(
    folder: Path,
    source: TextSource,
    tokenizer: Tokenizer,
    validation: float,
    seed: int,
    note: Callable[[str], None],
    words: str | None = None,
) -> TokenStore:
    """Returns the store of a text in `folder`, encoded there, or linked to where it was prepared."""
    if isinstance(source, PreparedText):
        # Where words begin is written when a text is encoded: another segmenter comes too late.
        segmenter, stored = open_segmenter(words), TokenStore.open(source.folder).description.get("words")
        if words is not None and stored != (segmenter and segmenter.describe()):
            raise EtymonError(
                f"{source.folder} was prepared with words by {(stored or {}).get('way', 'tokens')}, not by "
                f"{words}: leave --words out, or prepare the text anew"
            )
        link_store(folder, source.folder)
        summary = TokenStore.open(folder, tokenizer).summary
    else:
        # A note every half a minute: in a log file, a bar that moves would be thousands of lines.
        noted = monotonic()

        def note_bytes(done: int) -> None:
            nonlocal noted
            if monotonic() - noted >= NOTE_SECONDS:
                noted = monotonic()
                note(f"{format_bytes(done)} of text are encoded")

        summary = ensure_store(
            source, tokenizer, folder, validation=validation, seed=seed, progress=note_bytes, words=words
        )
        if (files := text_files_of(source)) is not None and files.skipped:
            note(f"left out {files.skipped:,} documents that could not be read")
        if isinstance(source, FilteredText) and not summary.reused:
            note(str(source.report))
    note(f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to validate on")
    if summary.warning:
        note(f"warning: {summary.warning}")
    store = TokenStore.open(folder, tokenizer)
    unknown_id = tokenizer.id("unknown")
    if unknown_id is not None and not isinstance(store, LanguageStore):
        splits = (store.train, store.validation)
        unknown = sum(int(split.token_counts[unknown_id : unknown_id + 1].sum()) for split in splits)
        if unknown and tokenizer.kind in ("character", "word"):
            note(
                f"{unknown:,} {tokenizer.kind}s of the text are not among the tokenizer's "
                f"{tokenizer.size:,} tokens: they are read as {tokenizer.roles['unknown']}"
            )
        elif (share := unknown / max(1, sum(len(split.tokens) for split in splits))) > MANY_UNKNOWN:
            note(
                f"{share:.2%} of the tokens are unknown: etymon tokenizer --show {folder.parent} --data ... "
                "says what to do about it"
            )
    return store


def check_words(
    objective: Objective,
    store: TokenStore,
    tokenizer: Tokenizer,
    is_asked: bool | None,
    note: Callable[[str], None],
) -> None:
    """Says so if whole words are to be hidden and the text does not show them; refuses that if it `is_asked`
    for, and if most of the text is like that. None: tokens are to be words."""
    if isinstance(store, LanguageStore):
        for code, part in store.stores.items():
            check_words(objective, part, tokenizer, is_asked, partial(_note_language, note, code))
        return
    check_split_words(objective, store.train, tokenizer, is_asked, note)


def check_split_words(
    objective: Objective,
    split: Split,
    tokenizer: Tokenizer,
    is_asked: bool | None,
    note: Callable[[str], None],
) -> None:
    """The same for one text."""
    if is_asked is None or not objective.whole_words or split.word_bits is not None:
        return
    share = spaceless_share(tokenizer, split)
    if share < FEW_SPACELESS:
        return
    finding = (
        f"{share:.0%} of the text is in scripts without spaces, where nothing shows which tokens are a word"
    )
    ways = "--words jieba (Chinese), MODULE:FUNCTION or spaces (text that is cut already)"
    # Some foreign names are no reason to stop. A text that is mostly like that would quietly hide tokens.
    if is_asked and share > 0.5:
        raise EtymonError(
            f"whole words were asked for, but {finding}: say where words are with {ways}, or take "
            "every token for a word with --words tokens",
            code="words-unknown",
        )
    note(f"{finding}: each is hidden by itself; {ways} says where words are")


def require_samples(objective: Objective | type[Objective]) -> None:
    """Refuses an objective that languages cannot be mixed in."""
    if objective.streaming:
        raise EtymonError(
            f"the objective {objective.name!r} reads streams in order, in which languages cannot be mixed: "
            "give the files without languages, or take a family that reads samples (gpt2, bert, t5)"
        )


def mix_languages(
    objective: Objective,
    store: LanguageStore,
    temperature: float | None,
    seed: int,
    note: Callable[[str], None],
) -> tuple[Objective, dict[str, dict[str, Any]]]:
    """Returns the objective with exact quotas of every language, and what those are, which is also noted."""
    require_samples(objective)
    mixed: Any = LanguageSampling(objective, 1.0 if temperature is None else temperature)
    quotas = mixed.quotas(store.train, seed)
    total = sum(quota for quota, _ in quotas.values())
    languages = {
        code: {"samples": quota, "share": quota / total, "passes": quota / max(1, size)}
        for code, (quota, size) in quotas.items()
    }
    listed = ", ".join(
        f"{code} {part['share']:.1%} ({part['samples']:,}, {part['passes']:.2f} passes)"
        for code, part in languages.items()
    )
    note(f"samples of an epoch, by language: {listed}")
    return mixed, languages


def verify_stores(stores: Iterable[TokenStore], folder: Path, world: World) -> None:
    """Refuses to resume the run in `folder` if its encoded text was changed; the first process looks."""
    with world.first_alone() as is_first:
        # Phases may share a store, and all of it is read: once, by one process.
        for store in {store.folder: store for store in stores}.values() if is_first else ():
            try:
                store.verify()
            except EtymonError as error:
                fault = str(error).partition(";")[0]
                raise EtymonError(
                    f"the run in {folder} cannot go on: {fault}; bring it back from a copy, or begin anew "
                    "with another --out"
                ) from error
