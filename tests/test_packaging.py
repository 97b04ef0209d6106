"""What is handed out has all that it needs and no more, and works where this tree is not."""

from __future__ import annotations

import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import etymon
from tests import packaging

pytest.importorskip("pip", reason="needs pip to install a wheel")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packaging.build(tmp_path_factory.mktemp("dist"))


def package_files() -> set[str]:
    root = packaging.ROOT
    paths = (path for path in (root / "etymon").rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        about = message_from_string(wheel.read(metadata).decode())
    assert names == package_files()
    assert (about["Name"], about["Version"]) == ("etymon", etymon.__version__)
    assert about["License-Expression"] == "Apache-2.0" and "# Etymon" in about.get_payload()


def test_the_citation_names_this_version() -> None:
    citation = (packaging.ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {etymon.__version__}\n" in citation


def test_the_source_archive_has_the_package_and_its_papers_but_no_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() <= names
    assert {"README.md", "README.zh.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]


def test_the_wheel_works_in_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    commands = packaging.install(built[1], tmp_path / "environment", linked=True)
    packaging.try_out(commands, tmp_path)
