"""The documentation is one site: it builds without a warning, asks nobody else for anything, and finds both languages."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prose_limits, reference, terminal_picture

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    # Links to pages and headings that are not there are warnings, too.
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(out)]
    built = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(pages) > 30 and all((site / page).is_file() for page in pages)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        if "_downloads" in page.parts:  # an example, which has no page of ours around it
            continue
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', text)
        is_whole = "_static" in page.parts  # a report, which has its scripts and styles in it
        assert bool(loaded) != is_whole and not [address for address in loaded if "//" in address], page


def test_only_programs_are_coloured(site: Path) -> None:
    page = (site / "explaining.html").read_text(encoding="utf-8")
    printed = page[page.index("BERT, masked-next-sentence") - 200 :][:700]
    assert "highlight-none" in printed and 'class="k' not in printed and 'class="ow' not in printed


def test_search_finds_chinese_and_english_words(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[index.index("(") + 1 : index.rindex(")")])["terms"]
    assert "预测" in terms or "词元" in terms
    assert any(term.startswith("pretrain") for term in terms)


@pytest.mark.parametrize("page", [str(path.relative_to(DOCS)) for path in prose_limits.pages()])
def test_no_paragraph_and_no_sentence_is_long(page: str) -> None:
    assert list(prose_limits.too_long(DOCS / page)) == []


def test_what_is_too_long_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose_limits, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    for text, count in (
        ("word " * 36 + ".", 1),
        ("Ten words are in this sentence, which is not long. " * 10, 1),
        ("- " + "word " * 36, 1),
        ("| a | " + "word " * 36 + "|", 1),
        ("字" * 181, 1),
        ("```\n" + "word " * 200 + "\n```", 0),
        ("Word " * 30 + ".\n" + "Word " * 30 + ".\n\n" + "Word " * 30 + ".", 0),
        ("字" * 100 + "\n\n" + "字" * 100, 0),
    ):
        page.write_text(text, encoding="utf-8")
        assert len(list(prose_limits.too_long(page))) == count, text


def test_generated_pages_are_current() -> None:
    for path, text in reference.pages().items():
        assert path.read_text(encoding="utf-8") == text, "python -m tests.reference"


def test_the_moving_picture_is_what_was_recorded() -> None:
    assert (DOCS / "pictures/run.svg").read_text(encoding="utf-8") == terminal_picture.picture(
        DOCS / "pictures/run.json"
    ), "python -m tests.terminal_picture"


def test_pictures_leave_the_dark_page_to_the_site() -> None:
    # The site turns pictures round at night. One that does so itself would be turned twice, and could not be read.
    pictures = list((DOCS / "pictures").glob("*.svg"))
    assert pictures
    assert not [path for path in pictures if "prefers-color-scheme" in path.read_text(encoding="utf-8")]


OPENINGS = ("After this page you", "After this page your")
GENERATED = {"verbs.md", "settings.md", "lab-notes.md", "index.md", "errors.md", "exports.md"}


@pytest.mark.parametrize(
    "page", [str(path.relative_to(DOCS)) for path in prose_limits.pages() if ".zh" not in path.name]
)
def test_every_page_says_first_what_the_reader_will_be_able_to_do(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    chinese = len(prose_limits.HAN.findall(text)) > 0.05 * len(text)
    if page in GENERATED or page.startswith("families/") or chinese:
        return
    assert text.split("\n\n")[1].startswith(OPENINGS), page


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.zh.md")))
def test_every_chinese_page_says_first_what_the_reader_will_be_able_to_do(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert page == "index.zh.md" or text.split("\n\n")[1].startswith("读完这一页"), page


def test_no_marks_of_a_merge_are_left() -> None:
    root = DOCS.parent
    pages = [*DOCS.rglob("*.md"), *root.glob("*.md"), root / "etymon/locale/zh/LC_MESSAGES/etymon.po"]
    marked = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
    assert not [page for page in pages if marked.search(page.read_text(encoding="utf-8"))]


def changelog_scars(text: str) -> list[str]:
    """Returns what a merge leaves in a changelog: headings and items that stand twice, and lines of no item."""
    usual = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    scars: list[str] = []
    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.*)$", version, re.MULTILINE)
        if headings != [heading for heading in usual if heading in headings]:
            scars.append(f"headings: {headings}")
        openings = re.findall(r"^- (.{60})", version, re.MULTILINE | re.DOTALL)
        scars += sorted({opening for opening in openings if openings.count(opening) > 1})
        for before, line in itertools.pairwise(version.splitlines()):
            if line.startswith("  ") and (not before or before.endswith((")).", "#"))):
                scars.append(line)
    return scars


def test_the_changelog_tells_each_thing_once_in_the_usual_form() -> None:
    assert changelog_scars((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "lines",
    [
        "### Added\n\n- **One**: a.\n\n### Added\n\n- **Two**: b.",
        "### Fixed\n\n- **One**: a.\n\n### Added\n\n- **Two**: b.",
        "### Added\n\n" + "- **One** of BERT, ALBERT, ELECTRA, XLNet, T5 and GPT-2 is opened.\n" * 2,
        "### Added\n\n- **One**: a\n  ([one](one.md)).\n  ([two](two.md)).",
    ],
)
def test_scars_of_a_merge_in_the_changelog_are_found(lines: str) -> None:
    assert changelog_scars(f"# Changelog\n\n## [Unreleased]\n\n{lines}\n")
