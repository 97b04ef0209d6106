"""What is handed out, built and installed: `python -m tests.packaging` (make check-wheel).

A source archive is built from a copy of the tree, and the wheel from that archive, as installers do; the wheel is
installed into an empty environment with what it asks for (from the index, so this takes minutes), and tried.
`tests/test_packaging.py` does the same with the dependencies that are here already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

import etymon

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "etymon",
    "pyproject.toml",
    "README.md",
    "README.zh.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "MANIFEST.in",
)
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"


def python(*words: str, at: Path, by: Path = Path(sys.executable)) -> str:
    """What a Python prints that runs in a folder and knows nothing of this tree."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([by, *words], cwd=at, env=known, capture_output=True, text=True)
    assert result.returncode == 0, (
        f"{' '.join(map(str, words))}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    )
    return result.stdout


def build(out: Path) -> tuple[Path, Path]:
    """The source archive of this tree, and the wheel of that archive, in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        for name in (*SOURCES, "tests"):  # tests too: that they are left out is to be seen
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                tree.mkdir(exist_ok=True)
                shutil.copy(source, tree / name)
        python("-c", BUILD, "build_sdist", str(out), at=tree)
        (archive,) = out.glob("etymon-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        python("-c", BUILD, "build_wheel", str(out), at=Path(folder) / archive.name.removesuffix(".tar.gz"))
    (wheel,) = out.glob("etymon-*.whl")
    return archive, wheel


def install(wheel: Path, place: Path, *, linked: bool) -> Path:
    """An environment that has the wheel; returns its folder of commands. `linked`: with the packages of this
    environment beside it, and not those that the index has."""
    venv.create(place, with_pip=not linked)
    commands = place / "bin"
    if not linked:
        words = ["install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)]
        python("-m", "pip", *words, at=place, by=commands / "python")
        return commands
    words = [
        "--python",
        str(commands / "python"),
        "install",
        "-q",
        "--no-compile",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    python("-m", "pip", *words, at=place)
    libraries = python(
        "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", at=place, by=commands / "python"
    )
    # A folder that is named so is searched, but what is written in its own .pth files (this tree) is not followed.
    Path(libraries.strip(), "linked.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return commands


def try_out(commands: Path, at: Path) -> None:
    """The version and the help, and a few things that need files beside the code."""

    def run(*words: str) -> str:
        return python(str(commands / "etymon"), *words, at=at, by=commands / "python")

    assert run("--version") == f"etymon {etymon.__version__}\n" and "pretrain" in run("--help")
    where = python("-c", "import etymon; print(etymon.__file__)", at=at, by=commands / "python")
    assert Path(where.strip()).is_relative_to(commands.parent), "the wheel is tried, and not this tree"
    run("explain", "bert", "The river ran. It was cold.", "--out", "page.html")
    run("new", "objective", "mine")
    assert (at / "page.html").stat().st_size > 10_000 and (at / "mine.py").is_file()


def main() -> None:
    archive, wheel = build(ROOT / "dist")
    print(f"{archive.name} {archive.stat().st_size:,} bytes, {wheel.name} {wheel.stat().st_size:,} bytes")
    with tempfile.TemporaryDirectory() as folder:
        commands = install(wheel, Path(folder) / "environment", linked=False)
        try_out(commands, Path(folder))
    print("installed in an empty environment and tried")


if __name__ == "__main__":
    main()
