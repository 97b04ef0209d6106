"""Minimal pairs for people: tables for a terminal, the page with curves by words read, and files for
programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etymon.display import align_left, align_right, cut, display_width
from etymon.files import atomic_write, json_text
from etymon.lab.pairs import MEASURES, Measure, ModelPairs, PairAccuracy, Pairs
from etymon.report.page import Cell, Curve, Paragraph, ReportTable, Section, write_report
from etymon.tables.formats import write_table

FEW = 12
"""So many paradigms are printed without being asked for."""
WIDEST = 28
MEASURE_NAMES = {"sum": "sum", "token": "mean of tokens", "byte": "mean of bytes"}

HOW_TO_READ = """\
Accuracy is the share of pairs whose good sentence the model finds likelier; ties count half. That of a \
field and of all pairs is the mean of its paradigms. Intervals hold 95% (Jeffreys; those of means from the \
paradigms together) and are of the pairs: another training run differs by more.

A likelihood is that of a text from left to right. A pseudo-likelihood is the sum of every token's \
log-probability given all others. Sums favour short sentences: where good and bad differ in length, look at \
the means of tokens and of bytes as well. Accuracies of different methods compare; the scores themselves do
not."""


def as_record(pairs: Pairs) -> dict[str, Any]:
    """All but the scores of single pairs."""
    models = [
        {key: value for key, value in asdict(model).items() if key != "scores"} for model in pairs.models
    ]
    return {"pairs": len(pairs.pairs), "paradigms": pairs.fields_of_paradigms, "models": models}


def pair_rows(pairs: Pairs) -> list[dict[str, Any]]:
    """A row a model and pair."""
    return [
        {
            "model": model.name,
            "method": model.method,
            "paradigm": pair.paradigm,
            "field": pair.field,
            "good": pair.good,
            "bad": pair.bad,
            **{f"{side}_log_prob": score.log_prob for side, score in (("good", good), ("bad", bad))},
            **{f"{side}_tokens": score.tokens for side, score in (("good", good), ("bad", bad))},
            **{f"{side}_bytes": score.bytes for side, score in (("good", good), ("bad", bad))},
        }
        for model in pairs.models
        for pair, (good, bad) in zip(pairs.pairs, model.scores, strict=True)
    ]


def write_pairs(pairs: Pairs, out: Path, measure: Measure) -> None:
    """By the ending of the name: a table of all pairs, results.json, a page; without one a folder of all
    three."""
    # Each file is written whole or not at all; the page comes last, since it is the one that people open.
    kind = out.suffix.lower()
    if kind == ".html":
        _write_page(pairs, out, measure)
    elif kind == ".json":
        with atomic_write(out) as file:
            file.write(json_text(as_record(pairs), indent=2))
    elif kind:
        write_table(out, pair_rows(pairs))
    else:
        for name in ("pairs.csv", "results.json", "report.html"):
            write_pairs(pairs, out / name, measure)


# --- tables


def _text(accuracy: PairAccuracy | None) -> str:
    return "–" if accuracy is None else f"{accuracy.value:.1f} ({accuracy.low:.1f}–{accuracy.high:.1f})"


def _lines(pairs: Pairs, measure: Measure, by_paradigm: bool) -> list[tuple[str, list[PairAccuracy | None]]]:
    """Name and accuracies by model: all pairs, then fields, then their paradigms."""
    models = pairs.models
    lines: list[tuple[str, list[PairAccuracy | None]]] = []
    lines.append(("all", [model.overall[measure] for model in models]))
    fields = models[0].fields
    for name in fields:
        lines.append((name, [model.fields[name][measure] for model in models]))
        if by_paradigm:
            lines += _paradigms(pairs, measure, name)
    if by_paradigm:
        lines += _paradigms(pairs, measure, "")
    return lines


def _paradigms(pairs: Pairs, measure: Measure, field: str) -> list[tuple[str, list[PairAccuracy | None]]]:
    return [
        (f"  {name}", [model.paradigms[name][measure] for model in pairs.models])
        for name, of_field in pairs.fields_of_paradigms.items()
        if of_field == field
    ]


def report_lines(
    pairs: Pairs, measure: Measure, by_paradigm: bool, translate: Callable[[str], str] = str
) -> Iterator[str]:
    """The table, for a terminal: a column a model; of many models, a row a model."""
    models = pairs.models
    paradigms = len(pairs.fields_of_paradigms)
    yield translate(
        f"accuracy (%) of {len(pairs.pairs):,} pairs in {paradigms} paradigms, by {MEASURE_NAMES[measure]}"
    )
    # Columns of four models are wider than most terminals.
    if len(models) > 3 and not by_paradigm:
        yield from _model_table(models, measure, translate)
    else:
        (_, overall), *others = _lines(pairs, measure, by_paradigm or paradigms <= FEW)
        lines = [(translate("all"), overall), *others]
        widths = [max(16, min(WIDEST, display_width(model.name))) for model in models]
        first = max(display_width(name) for name, _ in lines)
        header = [align_right(_end(model.name), width) for model, width in zip(models, widths, strict=True)]
        yield "  ".join([" " * first, *header])
        for name, cells in lines:
            texts = [align_right(_text(cell), width) for cell, width in zip(cells, widths, strict=True)]
            yield "  ".join([align_left(name, first), *texts])
    yield ""
    for model in models:
        means = ", ".join(
            f"{translate(MEASURE_NAMES[other])} {model.overall[other].value:.1f}"
            for other in MEASURES
            if other != measure
        )
        ties = model.overall[measure].ties
        tied = f"; {ties:,} tie{'s' * (ties > 1)}, counted half" if ties else ""
        yield translate(f"{model.name}: by {model.method} ({means}){tied}")


def _end(name: str) -> str:
    """The end of a long path, which tells milestones apart."""
    return name if display_width(name) <= WIDEST else "…" + name[-WIDEST + 1 :]


def _model_table(
    models: Sequence[ModelPairs], measure: Measure, translate: Callable[[str], str]
) -> Iterator[str]:
    fields = list(models[0].fields)
    first = max(display_width(model.name) for model in models)
    heads = [translate("words read"), translate("all"), *(cut(name, 20) for name in fields)]
    widths = [max(11, display_width(head)) for head in heads]
    yield "  ".join([" " * first, *map(align_right, heads, widths)])
    for model in models:
        read = "–" if model.words_read is None else f"{model.words_read:,}"
        cells = [read, f"{model.overall[measure].value:.1f}"]
        cells += [f"{model.fields[name][measure].value:.1f}" for name in fields]
        yield "  ".join([align_left(model.name, first), *map(align_right, cells, widths)])


# --- the page


def curves_by_words(pairs: Pairs, measure: Measure) -> dict[str, list[tuple[float, float]]]:
    """Of every run with milestones (words read, accuracy)."""
    series: dict[str, list[tuple[float, float]]] = {}
    for model in pairs.models:
        if model.run and model.words_read is not None:
            series.setdefault(model.run, []).append((model.words_read, model.overall[measure].value))
    # One point is no curve.
    return {name: points for name, points in series.items() if len(points) > 1}


def _write_page(pairs: Pairs, path: Path, measure: Measure) -> None:
    sections = [*page_sections(pairs, measure), Paragraph(HOW_TO_READ, title="How to read this")]
    write_report(path, "Minimal pairs", sections)


def page_sections(pairs: Pairs, measure: Measure = MEASURES[0]) -> Iterator[Section]:
    """Curves of runs with milestones, the table of all pairs, and one by field and paradigm."""
    words, share = "words read", "accuracy %"
    if series := curves_by_words(pairs, measure):
        chance = {"chance": 50.0}
        yield Curve(series, chance, words, share, "Accuracy by words read")
        for run in series:
            members = [model for model in pairs.models if model.run == run and model.words_read is not None]
            by_field = {
                name: [(float(m.words_read or 0), m.fields[name][measure].value) for m in members]
                for name in members[0].fields
            }
            if by_field:
                yield Curve(by_field, chance, words, share, f"Fields of {run}")
    header = ["model", "method", "words", "words read", "pairs", "ties"]
    header += [MEASURE_NAMES[each] for each in MEASURES]
    rows: list[list[Cell]] = []
    for model in pairs.models:
        whole = model.overall[measure]
        cells: list[Cell] = [model.name, model.method, model.words, model.words_read, whole.pairs, whole.ties]
        rows.append([*cells, *(_text(model.overall[each]) for each in MEASURES)])
    yield ReportTable(header, rows, title="Accuracy of all pairs, with 95% intervals")
    # Fields in capitals: rows of a page are not indented.
    names = ["", *(model.name for model in pairs.models)]
    table: list[list[Cell]] = [
        [name.strip() if name.startswith("  ") else name.upper(), *map(_text, cells)]
        for name, cells in _lines(pairs, measure, True)[1:]
    ]
    if table:
        title = f"By field and paradigm, {MEASURE_NAMES[measure]}"
        yield ReportTable(names, table, title=title)
