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
    Curve,
    Figures,
    Paragraph,
    Samples,
    Table,
    escape,
    render,
    shown,
    write_report,
)
from etymon.report.plots import loss_curve, thinned

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
        Table([EVIL, "n"], [[EVIL, 1]], title=EVIL),
        Samples([(1, EVIL), (EVIL, EVIL)], title=EVIL),
        Paragraph(EVIL, title=EVIL),
        Code(EVIL, title=EVIL),
    ]
    path = tmp_path / "deep" / "report.html"
    write_report(path, EVIL, sections, subtitle=EVIL)
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
    assert ("no points yet" in svg) == (not thinned(points))


def test_thinned_keeps_the_mean_and_the_end():
    points = [(float(x), float(x % 2)) for x in range(10_000)]
    kept = thinned(points, most=100)
    assert len(kept) == 100
    assert kept[-1] == points[-1]
    assert all(abs(y - 0.5) < 0.02 for _, y in kept[:-1])
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thinned(points[:100], most=100) == points[:100]


def test_table_aligns_numbers_and_refuses_ragged_rows():
    body = Table(["name", "count"], [["a", 1], ["b", None]]).body()
    assert body.count('class="number"') == 3
    assert "<th>name</th>" in body
    assert Table(["empty"], []).body().count("<th") == 2  # <thead> and one <th>
    with pytest.raises(ValueError):
        Table(["a", "b"], [[1, 2], [1]]).body()
    with pytest.raises(ValueError):
        Table(["a"], [[1, 2]]).body()


def test_old_report_survives_a_failure(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, "old", [])
    with pytest.raises(ValueError):
        write_report(path, "new", [Table(["a"], [[1, 2]])])
    assert "<h1>old</h1>" in path.read_text()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), ("x", "x"), (12_345_678, "12,345,678"), (1.93441, "1.934"), (41234.4, "41,234"), (0.0, "0")]
    + [(1e-7, "1.000e-07"), (-2.5, "-2.5"), (True, "True"), (math.inf, "inf"), (math.nan, "nan")],
)
def test_shown(value, expected):
    assert shown(value) == expected


def test_escape_replaces_what_html_cannot_hold():
    assert escape("a\x00b\ud800\n\t<") == "a\ufffdb\ufffd\n\t&lt;"


def test_importing_the_page_does_not_import_matplotlib():
    code = "import sys, etymon.report.page; sys.exit('matplotlib' in sys.modules)"
    root = Path(etymon.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
