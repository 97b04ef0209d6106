"""docs/extending.md tells the truth: its files are written and its commands run; so are the files of `etymon new`."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import etymon
from etymon.errors import EtymonError
from tests import tiny
from tests.conftest import forget_plugins
from tests.test_readme import block, commands, run

PAGE = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
SMALL = "--batch 8 --length 32 --vocabulary 300 --steps 3 --progress silent --set shape.dim=32 --set shape.layers=2 --set shape.heads=2"
LIMITS = {"every_third.py": 15, "middle.py": 40, "alibi.py": 80}
"""Lines that the page may take for each."""


def page_files() -> dict[str, str]:
    return dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize(
    ("name", "file"), [("masking", "every_third.py"), ("objective", "middle.py"), ("family", "alibi.py")]
)
def test_the_page(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = page_files()[file]
    assert len([line for line in text.splitlines() if line.strip()]) <= LIMITS[file]
    Path(file).write_text(text, encoding="utf-8")
    Path("my.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    with open("rows.csv", "w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("text", "label"), *((f"the river {n}", str(n % 2)) for n in range(40))])
    for words in commands(block(name, "sh", PAGE)):
        # Every command is a process of its own.
        forget_plugins()
        small = {"pretrain": SMALL.split(), "finetune": "--steps 2 --no-baselines --progress silent".split()}
        if words[0] == "pretrain" and "--resume" in words:
            small = {"pretrain": ["--progress", "silent"]}
        if name == "masking" and words[0] == "pretrain":
            small["pretrain"] = [*small["pretrain"], "--set", "shape.inner_dim=32"]
        shown = run([*words, *small.get(words[0], [])], capsys)
        # A model of three steps may write nothing but spaces.
        assert shown, words


@pytest.mark.parametrize("kind", ["objective", "family", "task", "masking"])
def test_new_files_pass_their_tests_as_they_are(kind: str) -> None:
    made = etymon.new(kind, f"my-own-{kind}")
    assert (made.file, made.test) == (Path(f"my_own_{kind}.py"), Path(f"test_my_own_{kind}.py"))
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made.test)]
    environment = {**os.environ, "PYTHONPATH": str(Path(etymon.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:]
    style = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--line-length",
        "120",
        str(made.file),
        str(made.test),
    ]
    assert subprocess.run(style, capture_output=True).returncode == 0
    with pytest.raises(EtymonError, match="exists already and is left alone"):
        etymon.new(kind, f"my-own-{kind}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("causal", "is the name of a built-in"),
        ("Mine", "small letters"),
        ("a b", "small letters"),
        ("for", "small letters"),
    ],
)
def test_names_that_cannot_be(name: str, message: str) -> None:
    with pytest.raises(EtymonError, match=message):
        etymon.new("objective", name)
    assert not list(Path().glob("*.py"))
