"""The documentation is one site: it builds without a warning, asks nobody else for anything, and finds both languages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', text)
        assert loaded and not [address for address in loaded if "//" in address], page


def test_search_finds_chinese_and_english_words(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[index.index("(") + 1 : index.rindex(")")])["terms"]
    assert "预测" in terms or "词元" in terms
    assert any(term.startswith("pretrain") for term in terms)
