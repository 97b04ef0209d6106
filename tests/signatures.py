"""Writes what is generated from the declarations of settings: `python -m tests.signatures`.

`etymon/__init__.pyi` has the typed signatures of all verbs, for type checkers and editors; docs/settings.md has the tables
of all settings, docs/verbs.md every verb with its options, docs/errors.md what `etymon help CODE` shows. `tests/test_signatures.py` says whether they are current.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import etymon
from etymon.settings import Option, options_of
from etymon.settings.adversarial import AdversarialSettings
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import TASK_OPTIONS
from etymon.settings.training import (
    FeatureSettings,
    LoraSettings,
    PhaseFile,
)
from etymon.verbs.help_contents import EXAMPLES, OPTION_GROUPS, PAGES, grouped_options
from etymon.verbs.verb import signature_of

ROOT = Path(etymon.__file__).parent
HOMES = {
    "Any": "typing",
    "Literal": "typing",
    "Path": "pathlib",
    "Callable": "collections.abc",
    "Mapping": "collections.abc",
    "Sequence": "collections.abc",
    "Model": "etymon.families.model",
    "Rows": "etymon.settings.tasks",
    "TextSource": "etymon.text.sources",
    "ProbeTask": "etymon.lab.probe_tasks",
}
"""Where names live that signatures use and no verb imports."""


def stub() -> str:
    """The text of `etymon/__init__.pyi`."""
    homes, functions, types = dict(HOMES), [], []
    for name in etymon.VERBS:
        module: Any = import_module(f"etymon.verbs.{name}")
        verb = getattr(module, name)
        returned = str(verb.__wrapped__.__annotations__["return"])
        homes |= _imports(Path(module.__file__)) | {
            each: module.__name__
            for each, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        }
        arguments, star = [], False
        types.append(returned)
        for parameter in signature_of(verb.options).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                arguments.append("*")
                star = True
            default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
            arguments.append(f"{parameter.name}: {parameter.annotation}{default}")
            types.append(str(parameter.annotation))
        functions.append(f"def {name}({', '.join(arguments)}) -> {returned}: ...")
    body = "\n".join(functions)
    # Words of Literal types are no names.
    words = set(re.findall(r"\b[A-Za-z]\w*", re.sub(r"'[^']*'", "", " ".join(types))))
    imports = [f"from {homes[name]} import {name}" for name in sorted(words & homes.keys())]
    imports += ["import numpy as np"] if "np" in words else []
    public = ", ".join(repr(name) for name in etymon.__all__)
    return _formatted(
        '"""Typed signatures of the verbs, written by `python -m tests.signatures`: do not edit."""\n'
        + "\n".join(imports)
        + "\nfrom etymon.errors import EtymonError as EtymonError\n"
        + "from etymon.families.loading import build as build, load as load\n"
        + "from etymon.families.saving import save as save\n"
        + "from etymon.nn.trace import trace as trace\n"
        + "from etymon.registry import load_plugin as load_plugin, register as register\n"
        + f"__version__: str\nVERBS: dict[str, str]\n__all__ = [{public}]\n{body}\n"
    )


def _imports(path: Path) -> dict[str, str]:
    """Names that a file imports, with the modules that they come from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }


def _default(value: Any) -> str:
    return f"Path({str(value)!r})" if isinstance(value, Path) else repr(value)


def _formatted(source: str) -> str:
    for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(ROOT / "__init__.pyi"), "-"]
        source = subprocess.run(
            line, input=source, capture_output=True, text=True, check=True, cwd=ROOT.parent
        ).stdout
    return source


def tables() -> str:
    """The text of docs/settings.md."""
    from etymon.objectives import REGISTRY, objective_class
    from etymon.runs.run_file import RunFile
    from etymon.runs.task_file import MemberFile, MixtureFile, TaskFile

    parts = [
        "# All settings",
        "Written from their declarations in `etymon/settings` by `python -m tests.signatures`. Each verb's `--help` has its "
        "options; these are the keys of run files, which `--set key=value` and `--config FILE` take too.",
    ]
    for title, cls in (
        ("Run files of `etymon pretrain`, `distill` and `sweep`", RunFile),
        ("Run files of `etymon finetune`", TaskFile),
        ("A phase", PhaseFile),
        ("`lora`", LoraSettings),
        ("`features`", FeatureSettings),
        ("`adversarial`", AdversarialSettings),
        ("`mixture`", MixtureFile),
        ("A member of a mixture", MemberFile),
        ("Decoding: `etymon.generation.DecodingSettings`", DecodingSettings),
        *((f"Options of the task `{name}`", cls) for name, cls in TASK_OPTIONS.items()),
        *((f"Options of the objective `{name}`", objective_class(name).Options) for name in REGISTRY),
    ):
        rows = [_row(option) for option in sorted(options_of(cls), key=lambda option: option.field)]
        parts.append(
            "\n".join([f"## {title}", "", "| key | default | range | |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def verb_reference() -> str:
    """The text of docs/verbs.md."""
    parts = [
        "# All verbs",
        "Written from their declarations by `python -m tests.signatures`. Each is a command (`etymon VERB --help`) and a "
        "function of the same name (`etymon.VERB(...)`); the settings of training are in [settings.md](settings.md). Options that many verbs share stand "
        "[at the end](#options-of-many-verbs).",
        "\n".join(
            [
                "| verb | |",
                "|---|---|",
                *(f"| [`{name}`](#{name}) | {text} |" for name, text in etymon.VERBS.items()),
            ]
        ),
    ]
    shown = {
        name: [each for each in _verb(name).options if each.seen_by in ("all", "command line")]
        for name in etymon.VERBS
    }
    counts = Counter(_option_row(option) for options in shown.values() for option in options)
    shared: dict[str, dict[str, None]] = {heading: {} for heading in OPTION_GROUPS}
    for name, summary in etymon.VERBS.items():
        options = {option.name: option for option in shown[name] if not option.is_argument}
        places = [option for option in shown[name] if option.is_argument]
        usage = " ".join([f"etymon {name}", *(option.name.upper() for option in places), "[OPTIONS]"])
        explained = " ".join((inspect.getdoc(_verb(name).__wrapped__) or "").split())
        examples = "\n".join(f"# {purpose}\netymon {line}" for line, purpose in EXAMPLES[name])
        page = f"[{PAGES[name]}]({PAGES[name]}.md)"
        rows, elsewhere = [_option_row(option) for option in places], []
        for heading, names in grouped_options(name, options).items():
            rows_here = {each: _option_row(options[each]) for each in names}
            # What many verbs have in the same words is told once.
            common = [each for each in names if heading in shared and counts[rows_here[each]] >= MANY]
            rows += [row for each, row in rows_here.items() if each not in common]
            if common:
                shared[heading] |= dict.fromkeys(rows_here[each] for each in common)
                anchor = re.sub("[^a-z ]", "", heading.lower()).replace(" ", "-")
                flags = ", ".join(f"`{options[each].flag}`" for each in common)
                elsewhere.append(f"- [{heading}](#{anchor}): {flags}")
        parts.append(
            f"## {name}\n\n**{summary}** How to use it: {page}.\n\n{explained}\n\n```\n{usage}\n```\n\n"
            f"```sh\n{examples}\n```\n\n{_table(rows)}"
        )
        if elsewhere:
            parts.append("\n".join(elsewhere))
    parts.append("## Options of many verbs")
    parts += [f"### {heading}\n\n{_table(rows)}" for heading, rows in shared.items() if rows]
    return "\n\n".join(parts) + "\n"


MANY = 3
"""Verbs that have an option in the same words."""


def _verb(name: str) -> Any:
    return getattr(import_module(f"etymon.verbs.{name}"), name)


def _option_row(option: Option) -> str:
    name = option.name.upper() if option.is_argument else f"`{option.flag}`"
    return f"| {name} | {_usual(option)} | {option.limits} | {option.help.replace('|', '&#124;')} |"


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| | default | range | |", "|---|---|---|---|", *rows])


def _usual(option: Option) -> str:
    """The default of an option, as a cell of a table."""
    usual = option.default
    if isinstance(usual, tuple) and usual:
        return f"`[{', '.join(map(str, usual))}]`"
    default = "" if usual in (None, ..., "", (), {}) else f"`{usual}`"
    return default.replace("\n", "\\n") if isinstance(usual, str) else default


def _row(option: Option) -> str:
    name = f"`{option.field}`"
    if option.name != option.field:
        name += f" (`{option.flag}`)"
    return f"| {name} | {_usual(option)} | {option.limits} | {option.help.replace('|', '&#124;')} |"


DOCS = ROOT.parent / "docs"


def error_page(language: str) -> str:
    """The text of docs/errors.md, which the package has a copy of, for `etymon help CODE`."""
    return (ROOT / "locale" / language / "errors.md").read_text(encoding="utf-8")


GENERATED = {
    ROOT / "__init__.pyi": stub,
    DOCS / "settings.md": tables,
    DOCS / "verbs.md": verb_reference,
    DOCS / "errors.md": partial(error_page, "en"),
    DOCS / "errors.zh.md": partial(error_page, "zh"),
}

if __name__ == "__main__":
    for path, make in GENERATED.items():
        path.write_text(make(), encoding="utf-8")
        print(f"{path.relative_to(ROOT.parent)} written")
