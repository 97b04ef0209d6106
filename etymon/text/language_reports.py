"""How a tokenizer fits each of several languages, and what it has of them in its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from etymon.text.segmenters import SegmentedTexts, Segmenter
from etymon.text.sentences import cut_texts
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import TokenizerReport, measure_tokenizer

SUMS = ("bytes", "words", "characters", "tokens", "unknown", "unknown_characters")


@dataclass(frozen=True)
class LanguageReport:
    """How a tokenizer fits a language."""

    report: TokenizerReport
    used: int
    """Tokens of the vocabulary that occur in the text, special ones aside."""
    alone: int
    """Those of them that occur in no other language's."""


def report_languages(
    tokenizer: Tokenizer, texts: Mapping[str, Iterable[str]], segmenters: Mapping[str, Segmenter | None]
) -> dict[str, LanguageReport]:
    """A report for every language, on texts that can be read more than once."""
    used: dict[str, set[int]] = {}
    for code, sample in texts.items():
        ids: set[int] = set()
        for text in cut_texts(SegmentedTexts(sample, segmenters.get(code))):
            ids.update(tokenizer.encode(text, quiet=True).tolist())
        used[code] = ids - tokenizer.special_ids
    return {
        code: LanguageReport(
            measure_tokenizer(tokenizer, sample, segmenters.get(code)),
            len(used[code]),
            len(used[code].difference(*(ids for other, ids in used.items() if other != code))),
        )
        for code, sample in texts.items()
    }


def join_reports(reports: Iterable[LanguageReport]) -> TokenizerReport:
    """The report on all languages together."""
    parts = [each.report for each in reports]
    sums = {name: sum(getattr(part, name) for part in parts) for name in SUMS}
    return replace(parts[0], **sums, has_words=all(part.has_words for part in parts))
