from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from etymon.errors import EtymonError
from etymon.files import atomic_folder, atomic_write, sha256


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
