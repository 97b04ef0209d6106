"""The text of a run: its tokenizer and its stores, made once and kept in the run's folder."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from etymon.checkpoints.documents import read_json, write_json
from etymon.data.sampling import Sample
from etymon.data.sources import PreparedText, TextSource, text_source
from etymon.data.store import TokenStore, ensure_store, link_store
from etymon.data.tokenizer import Tokenizer
from etymon.data.tokenizer_training import train_tokenizer
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.training.progress import Progress
from etymon.verbs.run_file import RunFile, plain


class RunText:
    """A resumed run needs neither text nor tokenizer again: its folder keeps both."""

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        family: Family,
        source: TextSource | None,
        progress: Progress,
        *,
        vocabulary: int,
        resuming: bool,
    ) -> None:
        self.folder, self.file, self.family, self.source = folder, file, family, source
        self.progress, self.vocabulary, self.resuming = progress, vocabulary, resuming

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
        if self.resuming:
            tokenizer = Tokenizer.load(own)
        elif given is not None or self.file.tokenizer is not None or isinstance(self.source, PreparedText):
            tokenizer = given or Tokenizer.load(self.file.tokenizer or self._prepared_tokenizer())
            (own / "origin.json").unlink(missing_ok=True)
            tokenizer.save(own)  # the run keeps its own: the given one may be gone when it goes on
        else:
            tokenizer = self._trained(own)
        tokenizer.framing = self.family.framing
        return tokenizer

    def _prepared_tokenizer(self) -> Path:
        assert isinstance(self.source, PreparedText)
        if self.file.vocabulary is not None:
            raise EtymonError(
                f"{self.source.folder} was prepared with its tokenizer: leave out the vocabulary"
            )
        return self.source.folder / "tokenizer"

    def _trained(self, own: Path) -> Tokenizer:
        """The tokenizer that this text gives; one that an earlier attempt left is used if it came about alike."""
        choice, size = self.family.tokenizer, self.vocabulary
        origin = {"text": self._fingerprint, "size": size, **plain(asdict(choice))}
        if (own / "origin.json").is_file() and read_json(own / "origin.json") == origin:
            return Tokenizer.load(own)
        self.progress.note(f"training a tokenizer of {size:,} tokens on the text")
        with Sample(hold_out=False) as sample:
            tokenizer = train_tokenizer(
                choice.kind,
                sample.add(self._text.documents()).learning(),
                size,
                lowercase=choice.lowercase,
                strip_accents=choice.strip_accents,
                specials=choice.specials,
                sentinels=choice.sentinels,
                framing=self.family.framing,
            )
        (own / "origin.json").unlink(missing_ok=True)
        tokenizer.save(own)
        write_json(own / "origin.json", origin)
        return tokenizer

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
        return self._prepared(folder, self._text, self._fingerprint, tokenizer)

    def phase_store(self, number: int, paths: tuple[str, ...], tokenizer: Tokenizer) -> TokenStore:
        """The text of a phase that has its own."""
        folder = self.folder / f"store-{number}"
        if self.resuming:
            return TokenStore.open(folder, tokenizer)
        source = text_source(paths, self.file.documents, self.file.column, self.file.errors)
        return self._prepared(folder, source, source.fingerprint(), tokenizer)

    def _prepared(self, folder: Path, text: TextSource, fingerprint: str, tokenizer: Tokenizer) -> TokenStore:
        if isinstance(text, PreparedText):
            link_store(folder, text.folder)
            summary = TokenStore.open(folder, tokenizer).summary
        else:
            summary = ensure_store(
                text.documents(),
                fingerprint,
                tokenizer,
                folder,
                validation=self.file.validation,
                seed=self.file.seed,
            )
        self.progress.note(
            f"{summary.train.tokens:,} tokens to train on, {summary.validation.tokens:,} to judge by"
        )
        return TokenStore.open(folder, tokenizer)
