"""Minimal pairs: which of two sentences a model finds likelier, by paradigm and field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.files import some
from etymon.generation.sentence_scores import (
    PllWay,
    SentenceScore,
    Seq2SeqWay,
    score_sentences,
    scoring_method,
)
from etymon.lab.model_rows import WordsSeen, words_seen
from etymon.report.inline import Inline
from etymon.settings.reading import EncodingSettings
from etymon.tables.formats import SUFFIXES
from etymon.tables.table import Table, read_table, rows_or_paths
from etymon.text.sources import suffix_of

if TYPE_CHECKING:
    from etymon.report.page import Section

Measure = Literal["sum", "token", "byte"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
# The names of columns in published sets, the usual first.
GOOD = ("sentence_good", "good", "good_sentence", "grammatical", "acceptable")
BAD = ("sentence_bad", "bad", "bad_sentence", "ungrammatical", "unacceptable")
PARADIGM = ("UID", "paradigm", "phenomenon")
FIELD = ("field", "linguistics_term", "category")
# Scores that differ by less, as a share of their size, differ by rounding.
TIE = 1e-6
DRAWS = 4000


@dataclass(frozen=True)
class PairColumns:
    """The columns of a table; None: one of the usual names."""

    good: str | None = None
    bad: str | None = None
    paradigm: str | None = None
    field: str | None = None


@dataclass(frozen=True)
class MinimalPair:
    paradigm: str
    field: str
    good: str
    bad: str


@dataclass(frozen=True)
class PairAccuracy:
    """Of 100; ties count half. Of a field and of all, the mean of its paradigms'."""

    value: float
    low: float
    high: float
    """Ends of the 95% interval."""
    pairs: int
    ties: int
    paradigms: int = 1


@dataclass(frozen=True)
class ModelPairs:
    """What one model makes of all pairs."""

    name: str
    family: str
    method: str
    run: str
    words: int | None
    words_read: int | None
    overall: dict[Measure, PairAccuracy]
    fields: dict[str, dict[Measure, PairAccuracy]]
    paradigms: dict[str, dict[Measure, PairAccuracy]]
    scores: list[tuple[SentenceScore, SentenceScore]] = field(repr=False)
    """Of every pair the good sentence and the bad."""


@dataclass(frozen=True)
class Pairs(Inline):
    pairs: list[MinimalPair] = field(repr=False)
    models: list[ModelPairs]

    @property
    def fields_of_paradigms(self) -> dict[str, str]:
        return {pair.paradigm: pair.field for pair in self.pairs}

    def inline_sections(self) -> Iterator[Section]:
        from etymon.lab.pairs_report import page_sections

        yield from page_sections(self)


# --- reading


def read_pairs(
    data: Any,
    columns: PairColumns | None = None,
    how: EncodingSettings | None = None,
    most: int | None = None,
) -> list[MinimalPair]:
    """The pairs of tables, of folders of tables (BLiMP's layout), of two parallel text files, or of rows that
    the program holds; at most `most` of a paradigm, evenly spread."""
    columns = columns or PairColumns()
    given = [] if data is None else rows_or_paths(data)
    if not given:
        raise EtymonError(
            "there are no pairs: give --data with a folder such as BLiMP's, a table, or two files"
        )
    tables: list[tuple[str, Table]] = []
    if isinstance(given[0], Mapping):
        tables.append(("pairs", read_table(given)))
    else:
        # A file is a paradigm, unless its rows name theirs.
        paths = [path for entry in given for path in _tables(Path(entry).expanduser())]
        if all(suffix_of(path) in SUFFIXES for path in paths):
            tables += [(path.name.partition(".")[0], read_table([path], how=how)) for path in paths]
        elif len(paths) == 2:
            tables.append((paths[0].stem, _parallel(read_table(paths, how=how), columns)))
        else:
            raise EtymonError(
                f"{some([str(path) for path in paths], 3)} are no pairs: give tables ({', '.join(SUFFIXES)})"
                ", a folder of them, or two text files (--data good.txt --data bad.txt)"
            )
    pairs: dict[str, list[MinimalPair]] = {}
    for name, table in tables:
        for pair in _rows(table, name, columns):
            pairs.setdefault(pair.paradigm, []).append(pair)
    return [pair for rows in pairs.values() for pair in _spread(rows, most)]


def _tables(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.rglob("*")) if suffix_of(file) in SUFFIXES and file.is_file()]
    if not files:
        raise EtymonError(f"{path} holds no table of pairs ({', '.join(SUFFIXES)})")
    return files


def _parallel(table: Table, columns: PairColumns) -> Table:
    """Two files by their order, unless their names say which is which."""
    names = list(table.rows[0])
    if any(name in (*GOOD, *BAD, columns.good, columns.bad) for name in names):
        return table
    rows: list[Mapping[str, Any]] = [{"good": row[names[0]], "bad": row[names[1]]} for row in table.rows]
    return Table(rows, table.places, table.description)


def _rows(table: Table, name: str, columns: PairColumns) -> list[MinimalPair]:
    header = list(table.rows[0])

    def find(given: str | None, usual: Sequence[str]) -> str | None:
        return given or next((column for column in usual if column in header), None)

    good, bad = find(columns.good, GOOD), find(columns.bad, BAD)
    if good is None or bad is None:
        raise EtymonError(
            f"{table.description} has no columns of good and bad sentences, but {', '.join(map(str, header))}"
            ": call them good and bad, or name them by --good and --bad (etymon pairs)"
        )
    paradigm, group = find(columns.paradigm, PARADIGM), find(columns.field, FIELD)
    count = len(table)
    paradigms = [name] * count if paradigm is None else table.values(paradigm)
    for place, value in zip(table.places, paradigms, strict=True):
        if value is None or not str(value).strip():
            raise EtymonError(f"{place}: column {paradigm!r} is empty; fill it in, or leave the row out")
    # A paradigm need not belong to a field.
    fields = (
        [""] * count if group is None else ["" if each is None else str(each) for each in table.values(group)]
    )
    return list(map(MinimalPair, map(str, paradigms), fields, table.texts(good), table.texts(bad)))


def _spread(rows: list[MinimalPair], most: int | None) -> list[MinimalPair]:
    if most is None or len(rows) <= most:
        return rows
    # Not the first ones: published files are sorted by template.
    return [rows[place] for place in np.linspace(0, len(rows) - 1, most).round().astype(int)]


# --- scoring


def judge_pairs(
    model: Model,
    pairs: Sequence[MinimalPair],
    name: str,
    *,
    run: str = "",
    pll: PllWay = "token",
    seq2seq: Seq2SeqWay | None = None,
    on_progress: Callable[[str], None] = lambda note: None,
) -> ModelPairs:
    """Accuracies of one model. Scores are computed in float32 and added up in float64."""
    method = scoring_method(model, pll, seq2seq)
    # All at once, so that beginnings are shared by all pairs.
    sentences = [pair.good for pair in pairs] + [pair.bad for pair in pairs]
    scores = score_sentences(
        model,
        sentences,
        pll=pll,
        seq2seq=seq2seq,
        on_progress=lambda share: on_progress(f"{name}: {share:.0%} of {len(pairs):,} pairs"),
    )
    by_pair = list(zip(scores[: len(pairs)], scores[len(pairs) :], strict=True))
    seen: WordsSeen = words_seen(model.history)
    return ModelPairs(
        name=name,
        family=model.family.name,
        method=method,
        run=run,
        words=seen.words,
        words_read=seen.words_read,
        scores=by_pair,
        **accuracies(pairs, by_pair),
    )


def outcomes(scores: Sequence[tuple[SentenceScore, SentenceScore]], measure: Measure) -> np.ndarray:
    """For every pair 1 where the good sentence is likelier, 0.5 for a tie, else 0."""
    good, bad = (
        np.array([_value(pair[side], measure) for pair in scores], np.float64).reshape(-1) for side in (0, 1)
    )
    is_tie = np.abs(good - bad) <= TIE * np.maximum(np.abs(good), np.abs(bad))
    return np.where(is_tie, 0.5, good > bad)


def _value(score: SentenceScore, measure: Measure) -> float:
    return {"sum": score.log_prob, "token": score.per_token, "byte": score.per_byte}[measure]


def accuracies(
    pairs: Sequence[MinimalPair], scores: Sequence[tuple[SentenceScore, SentenceScore]]
) -> dict[str, Any]:
    """`overall`, `fields` and `paradigms`, each by measure."""
    # Paradigms in the order of the data, however many files they come from.
    places: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        places.setdefault(pair.paradigm, []).append(number)
    fields: dict[str, list[str]] = {}
    for paradigm, numbers in places.items():
        if pairs[numbers[0]].field:
            fields.setdefault(pairs[numbers[0]].field, []).append(paradigm)
    overall: dict[Measure, PairAccuracy] = {}
    by_field: dict[str, dict[Measure, PairAccuracy]] = {name: {} for name in fields}
    by_paradigm: dict[str, dict[Measure, PairAccuracy]] = {name: {} for name in places}
    for measure in MEASURES:
        results = outcomes(scores, measure)
        parts = {name: results[numbers] for name, numbers in places.items()}
        draws = _posterior_draws(list(parts.values()))
        rows = dict(zip(parts, draws, strict=True))
        overall[measure] = _mean_accuracy(list(parts), parts, rows)
        for name, members in fields.items():
            by_field[name][measure] = _mean_accuracy(members, parts, rows)
        for name in parts:
            by_paradigm[name][measure] = _mean_accuracy([name], parts, rows)
    return {"overall": overall, "fields": by_field, "paradigms": by_paradigm}


def _posterior_draws(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Draws `[paradigms, DRAWS]` of every paradigm's accuracy by Jeffreys' prior: its interval holds what it
    promises near 0 and 100, where resampled rows would not vary at all."""
    right = np.array([part.sum() for part in parts])[:, None] + 0.5
    wrong = np.array([len(part) - part.sum() for part in parts])[:, None] + 0.5
    return np.random.default_rng(12345).beta(right, wrong, (len(parts), DRAWS))


def _mean_accuracy(
    names: Sequence[str], parts: Mapping[str, np.ndarray], draws: Mapping[str, np.ndarray]
) -> PairAccuracy:
    value = 100 * float(np.mean([parts[name].mean() for name in names]))
    drawn = 100 * np.mean([draws[name] for name in names], axis=0)
    if len(names) > 1:
        # The prior draws every small paradigm towards 50, which a mean of many of them must not follow.
        drawn = value + drawn - drawn.mean()
    low, high = np.percentile(drawn, [2.5, 97.5]).clip(0, 100)
    return PairAccuracy(
        value,
        min(value, float(low)),  # at 0 and 100 the interval begins or ends there
        max(value, float(high)),
        sum(len(parts[name]) for name in names),
        sum(int((parts[name] == 0.5).sum()) for name in names),
        len(names),
    )
