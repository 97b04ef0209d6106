"""Pictures show every script: fonts are found, letters shaped, and what cannot be drawn is said."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from etymon.report import fonts
from etymon.report.explain_picture import ARROW
from etymon.report.plots import AttentionMap, attention_picture, loss_curve

SCRIPTS = {
    "Chinese": "预训练模型",
    "Japanese": "かなカナ漢字",
    "Korean": "한국어",
    "Devanagari": "हिन्दी",
    "Arabic": "مرحبا",
    "Thai": "ที่นี่",
    "Khmer": "ខ្មែរ",
    "Burmese": "မြန်မာ",
    "Tibetan": "བོད་",
    "Ethiopic": "አማርኛ",
}


@pytest.fixture(autouse=True)
def forget_fonts():
    fonts._search.cache_clear()
    yield
    fonts._search.cache_clear()


def families(text: str) -> list[str]:
    """The families that have the text; without them the test is skipped."""
    found = fonts.families_for(text)
    if fonts._search(frozenset(text) - set(" "), fonts._region(text)).missing:
        pytest.skip(f"no font for {text}: make fonts")
    return found


def pixels(text: str, found: list[str]) -> np.ndarray:
    figure = Figure(figsize=(4, 1))
    canvas = FigureCanvasAgg(figure)
    figure.text(0.1, 0.4, text, family=found, fontsize=30)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., 0] < 128
    return drawn[:, drawn.any(0).argmax() :]  # from the first column that has ink


def test_text_goes_from_right_to_left():
    # Two letters as they are read, and the same two set from left to right by force.
    assert fonts.families_for("אב") == ["DejaVu Sans"]
    right, left = pixels("אב", ["DejaVu Sans"]), pixels("\u202dבא", ["DejaVu Sans"])
    width = min(right.shape[1], left.shape[1])
    assert (right[:, :width] == left[:, :width]).all()


@pytest.mark.parametrize(
    ("text", "apart"), [("بب", "ب\u200cب"), ("क्ष", "क्\u200cष")], ids=["Arabic", "Devanagari"]
)
def test_letters_join_as_their_script_joins_them(text, apart):
    found = families(text)
    joined, separate = pixels(text, found), pixels(apart, found)
    assert joined.any(0).nonzero()[0].max() < separate.any(0).nonzero()[0].max()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_picture_of_a_script_is_drawn_without_a_complaint(script, tmp_path, caplog):
    tokens = [SCRIPTS[script], "[SEP]", "$x$"]
    families(SCRIPTS[script])
    attention = AttentionMap("self", tokens, tokens, np.full((1, 1, 3, 3), 1 / 3))
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        attention_picture(tmp_path / "map.png", attention, None, None)
        attention_picture(tmp_path / "map.svg", attention, None, None)
        assert SCRIPTS[script] in loss_curve({SCRIPTS[script]: [(0, 1), (1, 2)], "other": [(0, 1)]})
    assert not caplog.records
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert SCRIPTS[script] in (tmp_path / "map.svg").read_text(encoding="utf-8")  # shaped by its reader


@pytest.mark.parametrize("tokens", [["你"], ["a", "b"], ["x"] * 12])
def test_a_title_stays_inside_of_a_small_picture(tokens, tmp_path, monkeypatch):
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: drawn.append(figure) or save(figure, *args, **kw)
    )
    weights = np.full((1, 1, len(tokens), len(tokens)), 1 / len(tokens))
    attention_picture(tmp_path / "map.png", AttentionMap("self", tokens, tokens, weights), None, None)
    (figure,) = drawn
    figure.set_dpi(160)
    title = figure._suptitle.get_window_extent(figure.canvas.get_renderer())
    assert title.x0 >= 0 and title.x1 <= figure.bbox.width and title.y1 <= figure.bbox.height


def test_an_arrow_points_at_a_word_from_right_to_left():
    before, behind = pixels(ARROW + "אב", ["DejaVu Sans"]), pixels("\u202d→ בא", ["DejaVu Sans"])
    width = min(before.shape[1], behind.shape[1])
    assert (before[:, :width] == behind[:, :width]).all(), "as if everything were set from left to right"


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("预训练", "fonts-noto-cjk"),
        ("한국어", "fonts-noto-cjk"),
        ("हिन्दी", "fonts-noto-core"),
        ("🦊", "fonts-symbola"),
    ],
)
def test_a_missing_font_is_named_with_its_package(text, package, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    attention = AttentionMap("self", [text], [text], np.ones((1, 1, 1, 1)))
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")  # matplotlib would warn of every character
        attention_picture(tmp_path / "map.svg", attention, None, None)
        assert not caplog.records  # its reader has fonts
        attention_picture(tmp_path / "map.png", attention, None, None)
    (record,) = caplog.records
    assert f"apt install {package})" in record.getMessage() and "map.png" in record.getMessage()


def test_what_has_no_shape_needs_no_font(monkeypatch, caplog):
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: pytest.fail("looked for fonts"))
    assert fonts.families_for("a\u200d\u200bé\ufe0f\u2066\ue000 – “x” שלום", "map.png") == ["DejaVu Sans"]
    assert not caplog.records
