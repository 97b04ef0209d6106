from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from etymon import files
from etymon.errors import EtymonError
from etymon.files import atomic_folder, atomic_write, json_text, read_json, sha256


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_an_error_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "note.txt"
    with atomic_write(path) as file:
        file.write("première\n")
        assert not path.exists()
    assert path.read_bytes() == "première\n".encode()
    assert sha256(path) == hashlib.sha256("première\n".encode()).hexdigest()
    with pytest.raises(ZeroDivisionError), atomic_write(path, "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text(encoding="utf-8") == "première\n"
    assert names(path.parent) == ["note.txt"]


def test_a_folder_replaces_the_old_one_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for content in ("one", "two"):
        with atomic_folder(path) as aside:
            (aside / "deep").mkdir()
            (aside / "deep" / content).write_text(content)
    assert names(path / "deep") == ["two"]
    with pytest.raises(ZeroDivisionError), atomic_folder(path) as aside:
        (aside / "three").write_text("three")
        raise ZeroDivisionError
    assert names(tmp_path) == ["run"]
    assert names(path) == ["deep"]


@pytest.mark.parametrize("writer", [atomic_write, atomic_folder])
def test_a_full_disk_is_the_users_to_fix_and_a_bug_is_not(tmp_path: Path, writer: object) -> None:
    with pytest.raises(EtymonError, match="No space left") as caught, writer(tmp_path / "x"):  # type: ignore[operator]
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError), writer(tmp_path / "x"):  # type: ignore[operator]
        (tmp_path / "missing").read_bytes()
    assert names(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(EtymonError, match="in the way"), atomic_folder(tmp_path / "run"):
        pass
    with pytest.raises(EtymonError, match="cannot write"), atomic_write(tmp_path / "run" / "note.txt"):
        pass
    assert (tmp_path / "run").read_text() == "a file"


# ---------------------------------------------------------------- what killed processes leave


@pytest.fixture
def unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_swept", set())


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.mark.usefixtures("unswept")
def test_what_dead_processes_left_half_written_is_swept(tmp_path: Path, dead: int) -> None:
    here, elsewhere, old = files._host(), "0123abcd", time.time() - 2 * files.ABANDONED
    gone = [f".a.txt.{dead}-{here}-12ab34cd.partial", f".model.{dead}-{here}-12ab34cd.partial"]
    gone += [f".old.txt.7-{elsewhere}-12ab34cd.partial", f".older.txt.{os.getpid()}-12ab34cd.partial"]
    kept = [f".b.txt.{os.getpid()}-{here}-12ab34cd.partial", f".c.txt.{dead}-{elsewhere}-12ab34cd.partial"]
    kept += [f".d.txt.{dead}-12ab34cd.partial", ".notes.partial", "mine.1-12ab34cd.partial"]
    for name in (*gone, *kept):
        if "model" in name:
            (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "weights" if "model" in name else tmp_path / name).write_text("half")
    for name in gone[2:]:
        os.utime(tmp_path / name, (old, old))
    with atomic_write(tmp_path / "note.txt") as file:
        file.write("whole")
    assert names(tmp_path) == sorted([*kept, "note.txt"])


@pytest.mark.usefixtures("unswept")
def test_a_number_that_another_process_has_by_now_protects_nothing(tmp_path: Path) -> None:
    left = tmp_path / f".a.txt.{os.getppid()}-{files._host()}-12ab34cd.partial"
    left.write_text("half")
    with atomic_folder(tmp_path / "one"):
        pass
    assert left.exists(), "that process lives and may be writing"
    os.utime(left, (1, 1))  # long before it began
    files._swept.clear()
    with atomic_folder(tmp_path / "two"):
        pass
    assert names(tmp_path) == ["one", "two"]


@pytest.mark.usefixtures("unswept")
def test_an_old_folder_whose_new_one_never_came_is_not_swept(tmp_path: Path, dead: int) -> None:
    left = [tmp_path / f".{name}.{dead}-{files._host()}-12ab34cd.replaced" for name in ("lost", "there")]
    for folder in (*left, tmp_path / "there"):
        folder.mkdir()
    with atomic_folder(tmp_path / "other"):
        pass
    assert names(tmp_path) == [left[0].name, "other", "there"]


def test_a_name_of_any_length_that_the_disk_takes_can_be_written(tmp_path: Path) -> None:
    for name in ("a" * 255, "字" * 85):
        with atomic_write(tmp_path / name) as file:
            file.write("whole")
        assert (tmp_path / name).read_text() == "whole"


# ---------------------------------------------------------------- JSON


@dataclass
class Point:
    x: float
    more: object = None


def test_json_has_null_where_a_number_is_none() -> None:
    nan, infinite = float("nan"), float("inf")
    value = {
        "a": [nan, 1.5, (infinite, -infinite)],
        "b": Point(nan, [Point(2.0)]),
        "c": np.float64("nan"),
        "d": 10**400,
    }
    assert json.loads(json_text(value), parse_constant=pytest.fail) == {
        "a": [None, 1.5, [None, None]],
        "b": {"x": None, "more": [{"x": 2.0, "more": None}]},
        "c": None,
        "d": 10**400,
    }


def test_nobody_prints_json_that_may_hold_nan() -> None:
    """Of all that writes JSON, `json_text` and `write_json` alone know of NaN; the others write no figures."""
    root = Path(files.__file__).parent
    of_texts = {
        "config.py",
        "files.py",
        "report/page.py",
        "checkpoints/sentences.py",
        "training/state.py",
    }
    of_texts |= {
        "lab/sweep.py",
        "lab/suites.py",
        "lab/compare_text.py",
        "runs/run_file.py",
        "runs/report.py",
        "verbs/embed.py",
        "families/saving.py",
    }
    of_texts |= {"families/card.py", "families/imports/fairseq.py"}
    of_texts |= {"exports/torch_target.py", "exports/ctranslate2_target.py"}
    # Between two processes of ours, of which one has no etymon; NaN arrives as NaN.
    of_texts |= {"exports/llama_runner.py", "exports/llama_worker.py"}
    # Numbers that the server has made sure of, once a token: looking at each again would cost time.
    of_texts |= {"server/endpoints.py", "server/completions.py", "server/guard.py"}
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "json.dumps(" in (text := path.read_text("utf-8")) or "json.dump(" in text
    }
    assert {name for name in found if not name.startswith(("text/", "tables/"))} <= of_texts


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[" * 150 + "]" * 150, "nested too deeply"),
        ('{"a":' * 150 + "1" + "}" * 150, "nested too deeply"),
        ("9" * 6000, "a number of too many digits"),
        ('{"a": 1,}', "column 9"),
        ('{"a": "\\ud800"}', "half of a character"),
    ],
)
def test_json_that_cannot_be_used_is_told_in_one_line(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(EtymonError, match=fault) as refused:
        read_json(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_json_may_be_as_deep_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": ' + "[" * 50 + "]" * 50 + ', "b": "\\ud83d\\ude42"}')
    assert read_json(path)["b"] == "🙂"
