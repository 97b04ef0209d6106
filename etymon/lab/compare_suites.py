"""Probes and suites among the criteria of a comparison."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from etymon.errors import EtymonError
from etymon.files import atomic_folder
from etymon.lab.probe_classifiers import logistic_regression
from etymon.lab.probe_files import ProbeColumns, read_tasks
from etymon.lab.suite_parts import SuitePart
from etymon.lab.suites import find_files, read_suite
from etymon.settings.reading import EncodingSettings


def list_probes(paths: Sequence[str], how: EncodingSettings) -> list[Path]:
    """The files to probe for; what cannot be read, or classified, is refused before any work."""
    files: list[Path] = []
    for path in (Path(each).expanduser() for each in paths):
        files += sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        raise EtymonError(f"probes need files of different names, not {', '.join(names)}")
    if files:
        logistic_regression()  # of an extra that may not be installed
        for task in read_tasks(files, ProbeColumns(), how=how):
            task.check()
    return files


def copy_probes(files: Sequence[Path], folder: Path) -> None:
    """Keeps the files with the comparison, unless they are there: all its runs are asked the same."""
    # A file that changes between two runs would make their scores incomparable.
    if folder.is_dir():
        return
    with atomic_folder(folder) as aside:
        for file in files:
            shutil.copyfile(file, aside / file.name)


def open_suite(name: str | None, data: str | None) -> tuple[SuitePart, ...]:
    """The parts of a suite, none without one; refuses what is not there."""
    if name is None:
        if data is not None:
            raise EtymonError("--suite-data is the folder of a suite: say --suite NAME")
        return ()
    # Missing files are told now, and not after hours of training.
    _, suite, home = read_suite(name)
    find_files(suite, home, None if data is None else Path(data))
    return suite.parts
