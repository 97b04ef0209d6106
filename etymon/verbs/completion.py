"""Tab completion in bash, zsh and fish: `etymon --install-completion`, `etymon --show-completion`.

A shell asks the command itself, by `_ETYMON_COMPLETE`; click answers with the names of verbs, options and
choices.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from etymon.errors import EtymonError
from etymon.files import atomic_write

VARIABLE = "_ETYMON_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
AUTO = "auto"
FAMILY_PLACES = {"family": None, "arms": None, "model": ("explain", "finetune"), "folder": ("show",)}
"""Arguments that may be the name of a family, with the verbs in which they are (None: in all)."""


class CompletionPlaces(NamedTuple):
    script: Path
    start_file: Path | None
    """The file that a shell reads when it starts, where the script is not found by itself."""


def answer_shell(commands: click.Group) -> int:
    """Answers a shell that asks for completions, with the code to leave with."""
    return shell_complete(commands, {}, "etymon", VARIABLE, os.environ[VARIABLE])


def complete_value(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Families where one is asked for, and otherwise what the shell finds among files."""
    from etymon.registry import FAMILIES

    verbs = FAMILY_PLACES.get(parameter.name or "", ())
    families = FAMILIES if verbs is None or context.command.name in verbs else ()
    items = [CompletionItem(name) for name in sorted(families) if name.startswith(prefix)]
    # Beside names bash would drop the files, so these come only where no name fits.
    return items or [CompletionItem(prefix, type="file")]


def shell_name(requested: str) -> str:
    """The shell that was named, or that of the user (SHELL)."""
    name = Path(os.environ.get("SHELL", "")).name if requested == AUTO else requested
    if name not in SHELLS:
        problem = (
            "SHELL names none of them"
            if requested == AUTO
            else f"{requested!r} is not a shell that can be completed in"
        )
        raise EtymonError(f"{problem}: say --install-completion bash, zsh or fish")
    return name


def script_of(shell: str, commands: click.Group) -> str:
    """What a shell has to read, once."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click knows all of SHELLS"
    # Without click's look at bash's version, which starts a bash only to print a warning.
    completion = completion_class(commands, {}, "etymon", VARIABLE)
    return completion.source_template % completion.source_vars()


def places_of(shell: str) -> CompletionPlaces:
    home = Path.home()
    if shell == "fish":  # reads all scripts of this folder by itself
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return CompletionPlaces(settings / "fish" / "completions" / "etymon.fish", None)
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    start = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return CompletionPlaces(data / "etymon" / f"completion.{shell}", start)


def install(shell: str, commands: click.Group) -> list[str]:
    """Writes the script, and a line that reads it into the shell's start file. Twice is as good as once.
    Returns what was done and how to undo it, a line each."""
    script, start_file = places_of(shell)
    with atomic_write(script) as file:
        file.write(script_of(shell, commands))
    lines = [f"{script} written"]
    undo = f"rm {script}"
    if start_file is not None:
        line = f'[ -r "{script}" ] && . "{script}"  # completion of etymon'
        text = _read(start_file)
        if line in text.splitlines():
            lines.append(f"{start_file} reads it already")
        else:
            # One short write at the end: the file keeps its owner, its rights, and what it is a link to.
            with start_file.open("a", encoding="utf-8") as file:
                file.write(f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")
            lines.append(f"{start_file} reads it: a line was added at its end")
        undo += f", and remove that line from {start_file}"
    return [*lines, f"open a new {shell} to use it; to undo it: {undo}"]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise EtymonError(
            f"{path} is not UTF-8 (byte {error.start}) and is left alone: add what "
            "--show-completion prints to it yourself"
        ) from error
