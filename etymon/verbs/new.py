"""`etymon new`: a commented file for an objective, family, task or masking scheme, and its test."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from etymon.errors import EtymonError
from etymon.files import atomic_write
from etymon.registry import TABLES
from etymon.settings import argument, option, settings
from etymon.verbs.terminal import say
from etymon.verbs.verb import verb

TEMPLATES = Path(__file__).with_name("templates")


@dataclass
class NewPlugin:
    file: Path
    test: Path
    command: str
    """That uses it."""


@settings
class NewOptions:
    kind: Literal["objective", "family", "task", "masking"] = argument("objective, family, task or masking")
    name: str = argument("its name, such as fill-in-the-middle")
    out: str | Path = option(".", "the folder to write into")


@verb(NewOptions)
def new(options: NewOptions) -> NewPlugin:
    """Writes NAME.py and test_NAME.py, which work as they are: change what the comments point at. See
    docs/extending.md.
    """
    name = options.name.strip()
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(module):
        raise EtymonError(
            f"the name {name!r} is to be of small letters, digits and hyphens, such as my-{options.kind}"
        )
    # One name, with hyphens as the built-in ones have them; files and functions have underscores.
    name = name.replace("_", "-")
    if name in TABLES[options.kind].places:
        raise EtymonError(f"{name!r} is the name of a built-in {options.kind}: choose another")
    folder = Path(options.out)
    klass = "".join(part.capitalize() for part in name.split("-"))
    words = {"name": name, "module": module, "file": f"{module}.py", "function": module, "klass": klass}
    file, test = folder / f"{module}.py", folder / f"test_{module}.py"
    # Both before either is written.
    for path in (file, test):
        if path.exists():
            raise EtymonError(f"{path} exists already and is left alone: choose another name, or --out")
    for path, template in ((file, options.kind), (test, f"test_{options.kind}")):
        # `$name` and not `{name}`: the templates are Python, which is full of braces.
        text = Template((TEMPLATES / f"{template}.txt").read_text(encoding="utf-8"))
        with atomic_write(path) as out:
            out.write(text.substitute(words))
    commands = {
        "objective": f"etymon pretrain gpt2 --data my.txt --objective {file}:{klass}",
        "family": f"etymon pretrain {file}:FAMILY --data my.txt",
        "task": f"etymon finetune MODEL --task {file}:{klass} --train rows.csv",
        "masking": f"etymon pretrain bert --data my.txt --set options.masking={file}:{module}",
    }
    return NewPlugin(file, test, commands[options.kind])


def present(result: NewPlugin, options: NewOptions) -> None:
    say(f"wrote {result.file} and {result.test}; try: python -m pytest {result.test}")
    say(f"use it: {result.command}")
