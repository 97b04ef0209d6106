"""A setting is declared once: what is generated from the declarations is current, and type checkers know it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import etymon
from etymon.errors import EtymonError
from tests.signatures import GENERATED


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path](), "run python -m tests.signatures"


PROGRAM = """
import etymon

run = etymon.pretrain("bert", data=["text.txt"], learning_rate=1e-3, adversarial="fgm", resume="auto")
print(run.metrics["loss"], etymon.generate(run.model, "The", beams=4, stop=["."])[0].text)
etymon.pretrain("bert", lerning_rate=1e-3)
etymon.pretrain("bert", learning_rate="fast")
etymon.generate("folder", "The", quantize="int4")
etymon.fill("folder")
"""


def test_a_type_checker_finds_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    # Whatever else the signatures mention is not followed, or checking would take a minute.
    files = [str(tmp_path / "program.py"), "etymon/__init__.pyi"]
    line = [sys.executable, "-m", "mypy", "--follow-imports=skip", "--cache-dir", str(tmp_path), *files]
    told = subprocess.run(line, capture_output=True, text=True, cwd=Path(etymon.__file__).parents[1]).stdout
    errors = [error for error in told.splitlines() if ": error:" in error]
    assert [int(error.split(":")[1]) for error in errors] == [6, 7, 8, 9], told
    for error, word in zip(errors, ("lerning_rate", "learning_rate", "quantize", "texts")):
        assert word in error


def test_help_in_python_shows_every_argument() -> None:
    parameters = inspect.signature(etymon.pretrain).parameters
    assert next(iter(parameters)) == "family" and parameters["layer_decay"].default is None
    assert (etymon.pretrain.__doc__ or "").startswith("Train a model on your own text.\n")
    assert "json" not in inspect.signature(etymon.fill).parameters


def test_a_wrong_name_is_a_type_error_and_a_wrong_value_one_line() -> None:
    with pytest.raises(
        TypeError, match=r"pretrain\(\) has no argument 'lerning_rate': did you mean 'learning_rate'\?"
    ):
        etymon.pretrain("bert", lerning_rate=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"fill\(\) needs texts"):
        etymon.fill("folder")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="two values for family"):
        etymon.pretrain("bert", family="gpt2")  # type: ignore[misc]
    with pytest.raises(EtymonError, match="batch_size is 0, expected at least 1"):
        etymon.fill("folder", "a", batch_size=0)
    with pytest.raises(EtymonError, match="learning_rate is -1, expected above 0"):
        etymon.pretrain("bert", data="text.txt", learning_rate=-1)
