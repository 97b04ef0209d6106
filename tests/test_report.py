"""The report page: complete in itself, safe with any text, and drawn from the numbers it was given."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import etymon
from etymon.report.page import (
    Code,
    Confusion,
    Curve,
    Figures,
    Paragraph,
    ReportSamples,
    ReportTable,
    label_report,
    render,
    shown,
    value_report,
    write_report,
)
from etymon.report.plots import loss_curve, thin_points
from etymon.tasks.scores import MetricScore

EVIL = "<script>alert('x')</script> & \"quotes\" \x00\x1b[31m \ud800 $a$ {brace}"
CURVE = Curve(
    {"training": [(1, 3.0), (2, 2.0)], "validation": [(1, 3.1), (2, 2.2)]}, {"xz": 2.31}, title="Loss"
)


class Reader(HTMLParser):
    """Collects what a browser would see, and checks that elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_every_section_escapes_everything(tmp_path):
    sections = [
        Figures({EVIL: EVIL}, title=EVIL),
        Curve(
            {EVIL: [(0, 1.0), (1, 2.0)], "_b": [(0, 1.0)]}, {EVIL: 1.5}, EVIL, EVIL, title=EVIL, caption=EVIL
        ),
        ReportTable([EVIL, "n"], [[EVIL, 1]], title=EVIL),
        ReportSamples([(1, EVIL), (EVIL, EVIL)], title=EVIL),
        Paragraph(EVIL, title=EVIL),
        Code(EVIL, title=EVIL),
    ]
    path = tmp_path / "deep" / "report.html"
    write_report(path, EVIL, sections)
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    assert "script" not in reader.tags
    assert "alert('x')" in "".join(reader.text)
    assert not any("\x00" in piece or "\x1b" in piece for piece in reader.text)
    assert [path.name for path in path.parent.iterdir()] == ["report.html"]


def test_page_needs_nothing_from_outside():
    reader = Reader(render("title", [CURVE, CURVE]))
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    for name, value in reader.attributes:
        if "://" in value:
            assert name.startswith("xmlns"), (name, value)
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#")
    identifiers = [value for name, value in reader.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    page = render("title", [CURVE, CURVE])
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(identifiers)


def test_curve_is_wellformed_themed_and_deterministic():
    svg = loss_curve(CURVE.series, CURVE.references, "step", "bits per byte")
    assert svg == loss_curve(CURVE.series, CURVE.references, "step", "bits per byte")
    ElementTree.fromstring(svg)
    for expected in (
        "var(--series-1",
        "var(--series-2",
        ">xz 2.31<",
        ">training<",
        ">bits per byte<",
        "viewBox",
    ):
        assert expected in svg
    assert "#0a0b" not in svg
    assert "<metadata" not in svg
    assert not re.search(r"<svg[^>]* (width|height)=", svg)


def test_curve_follows_its_numbers():
    low = loss_curve({"a": [(0, 1.0), (1, 1.0), (2, 5.0)]})
    high = loss_curve({"a": [(0, 1.0), (1, 4.0), (2, 5.0)]})
    assert low != high


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(1, 2.0)], [(1, 2.0), (2, math.inf), (3, 2.0)]])
def test_curve_of_few_or_broken_points(points):
    svg = loss_curve({"a": points}, {"xz": math.nan})
    ElementTree.fromstring(svg)
    assert ("no points yet" in svg) == (not thin_points(points))


def test_thinned_keeps_the_mean_and_the_end():
    points = [(float(x), float(x % 2)) for x in range(10_000)]
    kept = thin_points(points, most=100)
    assert len(kept) == 100
    assert kept[-1] == points[-1]
    assert all(abs(y - 0.5) < 0.02 for _, y in kept[:-1])
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thin_points(points[:100], most=100) == points[:100]


def test_table_aligns_numbers_and_refuses_ragged_rows():
    body = ReportTable(["name", "count"], [["a", 1], ["b", None]]).body()
    assert body.count('class="number"') == 3
    assert "<th>name</th>" in body
    labels = ReportTable(["text", "label"], [["房间太小，隔音很差，再也不来了。", "差评"]]).body()
    assert '<td class="short" dir="auto">差评</td>' in labels and labels.count("short") == 1, (
        "names stay whole"
    )
    assert ReportTable(["empty"], []).body().count("<th") == 2  # <thead> and one <th>
    with pytest.raises(ValueError):
        ReportTable(["a", "b"], [[1, 2], [1]]).body()
    with pytest.raises(ValueError):
        ReportTable(["a"], [[1, 2]]).body()


def test_old_report_survives_a_failure(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, "old", [])
    with pytest.raises(ValueError):
        write_report(path, "new", [ReportTable(["a"], [[1, 2]])])
    assert ">old</h1>" in path.read_text()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), ("x", "x"), (12_345_678, "12,345,678"), (1.93441, "1.934"), (41234.4, "41,234"), (0.0, "0")]
    + [(1e-7, "1.000e-07"), (-2.5, "-2.5"), (True, "True"), (math.inf, "inf"), (math.nan, "nan")],
)
def test_shown(value, expected):
    assert shown(value) == expected


def test_what_html_cannot_hold_is_replaced():
    assert "a\ufffdb\ufffd\n\t&lt;" in Code("a\x00b\ud800\n\t<").body()


def test_importing_the_page_does_not_import_matplotlib():
    code = "import sys, etymon.report.page; sys.exit('matplotlib' in sys.modules)"
    root = Path(etymon.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_label_report_shows_scores_confusions_and_errors():
    actual = ["no"] * 6 + ["yes"] * 4
    predicted = ["no"] * 5 + ["yes", "yes", "yes", None, EVIL]
    texts = [EVIL, *["fine"] * 4, "x" * 1000, "ok", "ok", "unread", "evil"]
    model = {"accuracy": MetricScore(70.0, 40.0, 90.0, rows=1234), "f1": MetricScore(66.5, rows=1234)}
    scores = {"this model": model, "majority": {"accuracy": MetricScore(60.0, 30.0, 90.0)}}
    chances = [0.9, 0.8, 0.8, 0.8, 0.8, 0.55, 0.9, 0.9, 0.25, 0.75]
    sections = label_report(scores, texts, actual, predicted, ["no", "yes"], chances)
    table, confusion, errors = sections
    assert isinstance(table, ReportTable) and table.header == ["", "accuracy", "f1"]
    assert table.rows[0] == ["this model", "70.00 (40.00\u00a0to\u00a090.00)", "66.50"]
    assert table.rows[1][2] is None and table.title == "Scores of 1,234 rows, with 95% intervals"
    figures = label_report(scores, texts, actual, predicted, figures=[("no", 100.0, 50.0, 200 / 3, 6)])[1]
    assert isinstance(figures, ReportTable) and figures.header == [
        "label",
        "precision",
        "recall",
        "F1",
        "rows",
    ]
    assert list(figures.rows) == [["no", "100.00", "50.00", "66.67", 6]]
    assert "Errors: 3 of 3" in render("", label_report(scores, texts, actual, predicted)), "none is the worst"
    few = label_report({"this model": {"f1": MetricScore(66.5, rows=1)}}, ["a"], ["no"], ["no"])[0]
    assert few.title == "Scores of 1 row: too few for an interval, which needs 20"
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", confusion.body(), re.DOTALL)[0])
    found = [title.text for title in svg.iter("title")]
    assert found == [
        "no taken for no: 5 of 6, 83.3%",
        "no taken for yes: 1 of 6, 16.7%",
        "no taken for (no label): 0 of 6, 0.0%",
        "yes taken for no: 0 of 4, 0.0%",
        "yes taken for yes: 2 of 4, 50.0%",
        "yes taken for (no label): 2 of 4, 50.0%",
    ]
    words = [text.text for text in svg.iter("text")]
    assert words.count("83%") == 1 and words.count("50%") == 2 and "0%" not in words
    shades = [float(rect.get("fill-opacity")) for rect in svg.iter("rect") if "series" in rect.get("fill")]
    assert shades[0] > shades[4] > shades[1] > shades[2] == 0
    assert isinstance(errors, ReportTable) and errors.title == "Worst errors: 3 of 3"
    assert [row[3] for row in errors.rows] == [0.75, 0.55, 0.25]  # the surest first
    assert len(errors.rows[1][0]) == 240 and errors.rows[2][2] == "(no label)"
    reader = Reader(render("labels", sections))
    assert "script" not in reader.tags
    assert not any("\x00" in piece for piece in reader.text)
    assert (
        len(label_report({}, ["a"], ["no"], ["no"])) == 1
    )  # without errors and labels there is nothing to show


def test_of_many_labels_the_most_confused_are_shown():
    labels = [f"label {EVIL if n == 7 else n}" for n in range(50)]
    actual = labels * 20
    predicted = [label if n % 50 != 7 else labels[41] for n, label in enumerate(actual)]
    body = Confusion(actual, predicted, labels).body()
    assert "30 of 50 labels" in body
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", body, re.DOTALL)[0])
    titles = [title.text for title in svg.iter("title")]
    assert len(titles) == 30 * 30
    assert "label 41 taken for label 41: 20 of 20, 100.0%" in titles
    assert sum("taken for label 41: 20 of 20" in title for title in titles) == 2
    Reader(render("many", [Confusion(actual, predicted, labels)]))


def test_value_report_begins_with_what_is_farthest_off():
    scores = {"this model": {"mse": MetricScore(0.5, 0.4, 0.6, falls=True)}}
    table, rows = value_report(scores, ["near", "far"], [1.0, 2.0], [1.5, -2.0])
    assert isinstance(rows, ReportTable) and [list(row) for row in rows.rows] == [
        ["far", 2.0, -2.0, -4.0],
        ["near", 1.0, 1.5, 0.5],
    ]
    assert "0.50 (0.40" in table.body()
