"""The text of a run: its tokenizer and its stores, made once and kept in the run's folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.files import read_json, write_json
from etymon.runs.run_file import RunFile
from etymon.runs.tokenizer import training_choice
from etymon.text.sources import PreparedText, TextSource, sample_texts, text_source
from etymon.text.store import TokenStore, link_store
from etymon.text.store_building import ensure_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, grow_tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.training.distributed import World
from etymon.training.progress import Progress, format_bytes

EVERY = 30
"""Seconds after which it is said how much of a text is encoded."""


def verify_stores(stores: Iterable[Any], folder: Path, world: World) -> None:
    """Refuses to let the run in `folder` go on with a text that is not the one that was encoded. The first process reads it for
    all."""
    with world.first_alone() as mine:
        for store in {store.folder: store for store in stores}.values() if mine else ():
            try:
                store.verify()
            except EtymonError as error:
                fault = str(error).partition(";")[0]
                raise EtymonError(
                    f"the run in {folder} cannot go on: {fault}; bring it back from a copy, or begin anew with another --out"
                ) from error


@dataclass
class RunTokenizer:
    """A run's tokenizer. A resumed run needs neither text nor tokenizer again: its folder keeps both."""

    folder: Path
    file: Any
    family: Family
    source: TextSource | None
    progress: Progress
    vocabulary: int
    resuming: bool

    @property
    def description(self) -> str:
        return (self.file.text or "") if self.source is None else self.source.description

    @cached_property
    def _fingerprint(self) -> str:
        return self._text.fingerprint()

    @property
    def _text(self) -> TextSource:
        assert self.source is not None, "only a resumed run does without its text"
        return self.source

    def tokenizer(self, given: Tokenizer | None = None) -> Tokenizer:
        """The run's tokenizer: kept from before, given, or trained on the text."""
        own = self.folder / "tokenizer"
        found = None if self.resuming else self._found(given)
        there = found or given
        if there is not None and self.file.kind not in (None, there.kind):
            raise EtymonError(
                f"the tokenizer that is there already is of the kind {there.kind!r}: leave --tokenizer "
                f"{self.file.tokenizer} out"
            )
        if self.resuming:
            tokenizer = Tokenizer.load(own)
        elif found is not None:
            tokenizer = found
            (own / "origin.json").unlink(missing_ok=True)
            tokenizer.save(own)  # the run keeps its own: the given one may be gone when it goes on
        else:
            tokenizer = self._learnt(own, given)
        tokenizer.framing = self.family.framing
        return tokenizer

    def _found(self, given: Tokenizer | None) -> Tokenizer | None:
        """A tokenizer that is there already; None if one has to be learnt from the text."""
        if given is None and self.file.tokenizer is not None and self.file.kind is None:
            given = Tokenizer.load(self.file.tokenizer)
            given.forget_reading()  # by the model that it was made for
        if isinstance(self.source, PreparedText):
            if self.file.vocabulary is not None and not self.source.text:
                raise EtymonError(
                    f"{self.source.folder} was prepared with its tokenizer: leave out the vocabulary"
                )
            stored = Tokenizer.load(self.source.folder / "tokenizer")
            stored.forget_reading()
            return stored if given is None or extends(stored, given) else given
        return None if self.file.start is not None and self.file.vocabulary is not None else given

    def _learnt(self, own: Path, old: Tokenizer | None) -> Tokenizer:
        """What this text gives: a new tokenizer, or more tokens for an old one. What an earlier attempt left is used
        if it came about alike."""
        kind = self.file.kind
        # Of bytes there are so many, and of characters all are taken: what the shape has room for does not matter.
        size = self.file.vocabulary if kind in ("byte", "character") else self.vocabulary
        choice = training_choice(kind, self.family.name, size)
        how = {name: value for name, value in choice.items() if name != "framing"}
        if old is not None:
            how = {"size": size, "grown_from": old.fingerprint}
        origin = own / "origin.json"
        if origin.is_file() and read_json(origin) == how | {"text": self._fingerprint}:
            return Tokenizer.load(own)
        origin.unlink(missing_ok=True)
        if kind == "byte":  # there is nothing to learn
            tokenizer = train_tokenizer(texts=(), **choice)
            tokenizer.save(own)
            return tokenizer
        what = f"{size:,} tokens" if size else "all characters"
        self.progress.note(f"{'training' if old is None else 'growing'} a tokenizer of {what} on the text")
        with sample_texts(self._text.documents(), hold_out=False) as (texts, _):
            tokenizer = (
                train_tokenizer(texts=texts, **choice)
                if old is None
                else grow_tokenizer(old, lambda: texts, size or 0)
            )
        if old is not None:
            self.progress.note(f"the tokenizer has grown from {old.size:,} to {tokenizer.size:,} tokens")
        tokenizer.save(own)
        # Only now: files that were read are known, and need not be read once more for it.
        write_json(origin, how | {"text": self._fingerprint})
        return tokenizer


class RunText(RunTokenizer):
    """The text itself, as tokens, beside."""

    file: RunFile

    def store(self, tokenizer: Tokenizer) -> TokenStore:
        """The run's text as tokens."""
        folder = self.folder / "store"
        if self.resuming:
            store = TokenStore.open(folder, tokenizer)
            if self.source is not None and self._fingerprint != store.description["source"]:
                raise EtymonError(
                    f"the text is not the one that the run in {folder.parent} began with: leave it out"
                )
            return store
        return self._prepared(folder, self._text, tokenizer)

    def phase_store(self, number: int, paths: tuple[str, ...], tokenizer: Tokenizer) -> TokenStore:
        """The text of a phase that has its own."""
        folder = self.folder / f"store-{number}"
        if self.resuming:
            return TokenStore.open(folder, tokenizer)
        source = text_source(paths, self.file.documents, self.file.column, self.file.errors)
        return self._prepared(folder, source, tokenizer)

    def _prepared(self, folder: Path, text: TextSource, tokenizer: Tokenizer) -> TokenStore:
        if isinstance(text, PreparedText):
            link_store(folder, text.folder)
            summary = TokenStore.open(folder, tokenizer).summary
        else:
            told = monotonic()

            def tell(done: int) -> None:
                nonlocal told
                if monotonic() - told >= EVERY:
                    told = monotonic()
                    self.progress.note(f"{format_bytes(done)} of text are encoded")

            summary = ensure_store(
                text, tokenizer, folder, validation=self.file.validation, seed=self.file.seed, progress=tell
            )
            if skipped := getattr(text, "skipped", 0):
                self.progress.note(f"{skipped:,} documents could not be read and were left out")
        self.progress.note(
            f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to judge by"
        )
        if summary.warning:
            self.progress.note(f"warning: {summary.warning}")
        store = TokenStore.open(folder, tokenizer)
        number = tokenizer.id("unknown")
        if tokenizer.kind in ("character", "word") and number is not None:
            splits = (store.train, store.validation)
            if unknown := sum(int(split.token_counts[number : number + 1].sum()) for split in splits):
                self.progress.note(
                    f"{unknown:,} {tokenizer.kind}s of the text are not among the tokenizer's {tokenizer.size:,} tokens: they are "
                    f"read as {tokenizer.roles['unknown']}"
                )
        return store
