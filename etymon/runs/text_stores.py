"""The stores of a run's text: encoded once, checked when the run goes on, and asked for the words they know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from etymon.errors import EtymonError
from etymon.objectives.objective import Objective
from etymon.text.filtering import FilteredText, text_files_of
from etymon.text.segmenters import open_segmenter
from etymon.text.sources import PreparedText, TextSource
from etymon.text.store import TokenStore, link_store
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
        segmenter, stored = open_segmenter(words), TokenStore.open(source.folder).description.get("words")
        if words is not None and stored != (segmenter and segmenter.describe()):
            raise EtymonError(
                f"{source.folder} was prepared with words by {(stored or {}).get('way', 'tokens')}, not by {words}: "
                "leave --words out, or prepare the text anew"
            )
        link_store(folder, source.folder)
        summary = TokenStore.open(folder, tokenizer).summary
    else:
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
            note(f"{files.skipped:,} documents could not be read and were left out")
        if isinstance(source, FilteredText) and not summary.reused:
            note(str(source.report))
    note(f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to judge by")
    if summary.warning:
        note(f"warning: {summary.warning}")
    store = TokenStore.open(folder, tokenizer)
    unknown_id = tokenizer.id("unknown")
    if unknown_id is not None:
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
    if is_asked is None or not objective.whole_words or store.train.word_bits is not None:
        return
    share = spaceless_share(tokenizer, store.train)
    if share < FEW_SPACELESS:
        return
    finding = (
        f"{share:.0%} of the text is in scripts without spaces, where nothing shows which tokens are a word"
    )
    ways = "--words jieba (Chinese), MODULE:FUNCTION or spaces (text that is cut already)"
    if is_asked and share > 0.5:
        raise EtymonError(
            f"whole words were asked for, but {finding}: say where words are with {ways}, or take "
            "every token for a word with --words tokens"
        )
    note(f"{finding}: each is hidden by itself; {ways} says where words are")


def verify_stores(stores: Iterable[TokenStore], folder: Path, world: World) -> None:
    """Refuses to resume the run in `folder` if its encoded text was changed; the first process looks."""
    with world.first_alone() as is_first:
        for store in {store.folder: store for store in stores}.values() if is_first else ():
            try:
                store.verify()
            except EtymonError as error:
                fault = str(error).partition(";")[0]
                raise EtymonError(
                    f"the run in {folder} cannot go on: {fault}; bring it back from a copy, or begin anew "
                    "with another --out"
                ) from error
