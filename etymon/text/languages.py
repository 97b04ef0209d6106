"""Text in several languages: `zh=a.txt bo=b/`, their shares, and a store with a part for each.

A language of n samples (or bytes) gets a share of n^T of what is read: as much as there is of it for a
temperature T of 1, as much as of any other for 0 (Lample and Conneau 2019, section 3.1).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from etymon.errors import EtymonError
from etymon.files import sha256, write_json
from etymon.text.reading import Document
from etymon.text.segmenters import SegmentedTexts, Segmenter
from etymon.text.sources import PreparedText, TextSource
from etymon.text.store import FORMAT, Split, SplitCounts, StoreSummary, TokenStore
from etymon.text.text_sample import ENOUGH_BYTES, TextSample, sample_texts
from etymon.text.tokenizer import Tokenizer

NAMED = re.compile(r"([a-z]{2,3}(?:-[A-Za-z0-9]+)*)=(.+)", re.S)


def split_languages(paths: Sequence[str | os.PathLike[str]]) -> dict[str, list[str]] | None:
    """The paths of each language of `zh=a.txt bo=b/ bo=c.txt`; None if no language is named."""
    matches = [None if Path(path).exists() else NAMED.fullmatch(str(path)) for path in paths]
    if not any(matches):
        return None
    groups: dict[str, list[str]] = {}
    for path, match in zip(paths, matches, strict=True):
        if match is None:
            raise EtymonError(
                f"{path} has no language, and other data have: name that of each, as in zh=a.txt bo=b.txt"
            )
        groups.setdefault(match[1], []).append(match[2])
    return groups


def language_shares(sizes: Mapping[str, float], temperature: float) -> dict[str, float]:
    """The share of every language, in proportion to its size to the power of the temperature."""
    weights = {code: float(size) ** temperature if size else 0.0 for code, size in sizes.items()}
    return {code: weight / sum(weights.values()) for code, weight in weights.items()}


def exact_quotas(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers in these shares that add up to the total, each at least 1: the largest rests are rounded
    up."""
    quotas = {code: max(1, int(total * share)) for code, share in shares.items()}
    by_rest = sorted(shares, key=lambda code: (int(total * shares[code]) - total * shares[code], code))
    for code in by_rest:
        quotas[code] += sum(quotas.values()) < total
    while sum(quotas.values()) > total and max(quotas.values()) > 1:  # the smallest have got more than theirs
        quotas[max(quotas, key=lambda code: quotas[code])] -= 1
    return quotas


# ---------------------------------------------------------------- text


@dataclass(frozen=True)
class LanguageText:
    """Texts by their languages."""

    sources: dict[str, TextSource]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for code, source in self.sources.items():
            if isinstance(source, PreparedText):
                raise EtymonError(
                    f"{source.folder} is a prepared text, which cannot be one language ({code}) of several: "
                    "prepare all of them together, and give that store alone"
                )

    @property
    def description(self) -> str:
        return "; ".join(f"{code}: {source.description}" for code, source in self.sources.items())

    def documents(self) -> Iterator[Document]:
        return chain.from_iterable(source.documents() for source in self.sources.values())

    def fingerprint(self) -> str:
        return _digest({code: source.fingerprint() for code, source in self.sources.items()})

    def map(self, change: Callable[[str, Any], TextSource]) -> LanguageText:
        """The same with another source for each language."""
        return replace(self, sources={code: change(code, source) for code, source in self.sources.items()})


def _digest(fingerprints: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class MixedTexts:
    """Texts of several languages in their shares of the bytes, as often as they are read: a language of which
    there is too little comes several times, one of which there is too much not as a whole."""

    samples: Mapping[str, TextSample]
    temperature: float
    limit: int = ENOUGH_BYTES
    """Bytes of all."""
    segmenters: Mapping[str, Segmenter | None] = field(default_factory=dict)
    """Of languages whose text is as it was cut by a tool."""

    @cached_property
    def quotas(self) -> dict[str, int]:
        """Bytes of every language."""
        # Shares follow what there was to read, not what was kept of it, which has the same limit for all.
        sizes = {code: sample.offered_bytes for code, sample in self.samples.items() if sample.size}
        return exact_quotas(min(sum(sizes.values()), self.limit), language_shares(sizes, self.temperature))

    def __iter__(self) -> Iterator[str]:
        for code, left in self.quotas.items():
            # Again from the beginning, if a small language is to have more than there is of it.
            while left > 0:
                for text in SegmentedTexts(self.samples[code], self.segmenters.get(code)):
                    yield text
                    left -= len(text.encode())
                    if left <= 0:
                        break


@contextmanager
def sample_languages(
    text: LanguageText,
    limit: int = ENOUGH_BYTES,
    *,
    hold_out: bool = True,
    progress: Callable[[], None] = lambda: None,
    segmenters: Mapping[str, Segmenter | None] | None = None,
) -> Iterator[tuple[MixedTexts, dict[str, tuple[TextSample, TextSample]]]]:
    """The mixture to train a tokenizer on, and of every language the texts it is made of, and others to
    measure with."""
    # How large the languages are is known only after reading: each may fill its part of the memory.
    share = limit // len(text.sources)
    with ExitStack() as stack:
        samples = {
            code: stack.enter_context(
                sample_texts(source.documents(), share, hold_out=hold_out, progress=progress)
            )
            for code, source in text.sources.items()
        }
        training = {code: sample[0] for code, sample in samples.items()}
        yield MixedTexts(training, text.temperature, limit, segmenters or {}), samples


# ---------------------------------------------------------------- stores


@dataclass(eq=False)
class LanguageSplit:
    """The training or validation text of every language."""

    parts: dict[str, Split]

    @cached_property
    def words(self) -> np.ndarray:
        return np.concatenate([part.words for part in self.parts.values()])

    @cached_property
    def bytes(self) -> np.ndarray:
        return np.concatenate([part.bytes for part in self.parts.values()])

    def __len__(self) -> int:
        """The number of documents."""
        return sum(map(len, self.parts.values()))


class LanguageStore(TokenStore):
    """A folder with a token store for each language, and a store.json that names them in order."""

    def __init__(self, folder: Path, description: dict[str, Any], stores: dict[str, TokenStore]) -> None:
        self.folder, self.description, self.stores = folder, description, stores
        self.train: Any = LanguageSplit({code: store.train for code, store in stores.items()})
        self.validation: Any = LanguageSplit({code: store.validation for code, store in stores.items()})

    @staticmethod
    def open_parts(folder: Path, description: dict[str, Any], tokenizer: Tokenizer | None) -> LanguageStore:
        """Opens the stores of all languages, which are as they were when they were put together."""
        stores = {}
        for code, digest in description["languages"].items():
            path = folder / str(code)
            # A language that was prepared anew by itself may have been cut by another tokenizer.
            if not (path / "store.json").is_file() or sha256(path / "store.json") != digest:
                raise EtymonError(f"{path} is missing or has changed; build the store again")
            stores[str(code)] = TokenStore.open(path, tokenizer)
        return LanguageStore(folder, description, stores)

    @property
    def summary(self) -> StoreSummary:
        return join_summaries(self.folder, [store.summary for store in self.stores.values()])

    def verify(self) -> None:
        for store in self.stores.values():
            store.verify()


def join_summaries(folder: Path, summaries: Sequence[StoreSummary]) -> StoreSummary:
    """What is in stores, taken together."""

    def join(counts: Iterable[SplitCounts]) -> SplitCounts:
        rows = [(each.documents, each.sentences, each.tokens, each.bytes, each.words) for each in counts]
        return SplitCounts(*(sum(column) for column in zip(*rows)))

    return StoreSummary(
        folder,
        join(each.train for each in summaries),
        join(each.validation for each in summaries),
        "by language",
        reused=all(each.reused for each in summaries),
        resumed_bytes=sum(each.resumed_bytes for each in summaries),
    )


def training_splits(store: TokenStore) -> list[Split]:
    """The training text of a store, of several languages one after the other."""
    return list(store.train.parts.values()) if isinstance(store, LanguageStore) else [store.train]


def put_together(folder: Path, codes: Iterable[str], tokenizer: Tokenizer) -> None:
    """Makes one store of those of languages, which lie in folders of their names."""
    stores = {code: TokenStore.open(folder / code) for code in codes}
    tokenizer.save(folder / "tokenizer")
    descriptions = [store.description for store in stores.values()]
    summary = join_summaries(folder, [store.summary for store in stores.values()])
    # By language: the same files under other languages are another text.
    fingerprints = {code: str(store.description["source"]) for code, store in stores.items()}
    words = {
        code: store.description["words"] for code, store in stores.items() if "words" in store.description
    }
    write_json(
        folder / "store.json",
        {
            "format": FORMAT,
            "languages": {code: sha256(folder / code / "store.json") for code in stores},
            "tokenizer": tokenizer.fingerprint,
            "source": _digest(fingerprints),
            "validation": descriptions[0]["validation"],
            "seed": descriptions[0]["seed"],
            "splits": {"train": asdict(summary.train), "validation": asdict(summary.validation)},
            "inputs": {name: entry for each in descriptions for name, entry in each["inputs"].items()},
            **({"words": words} if words else {}),
        },
    )


def require_language_folder(folder: Path) -> None:
    """Refuses a folder with a store that is not of languages: their files would lie among others."""
    if (folder / "train").is_dir():
        raise EtymonError(f"{folder} holds a store without languages: give another --out")
