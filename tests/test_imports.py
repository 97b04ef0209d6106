"""Imports point one way, and the package can be imported without its heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import etymon

ROOT = Path(etymon.__file__).parent

# Room -> the rooms (or single modules) it stands on. A room may also import what those stand on in turn.
ARROWS: dict[str, set[str]] = {
    "text": set(),
    "tables": {"text"},
    "sampling": {"text"},
    "checkpoints": set(),
    "nn": set(),
    "report": set(),
    "families": {"nn", "checkpoints", "report", "text.framing", "text.tokenizer"},
    "objectives": {"nn", "sampling"},
    "training": {"objectives", "checkpoints", "report"},
    "generation": {"families", "text.readable", "text.token_stream"},
    "tasks": {"objectives", "generation", "tables"},
    "explaining": {"training", "families"},
    "runs": {"tasks", "training", "report", "explaining"},
    "lab": {"runs"},
    "server": {"lab"},
    "exports": {"families", "text"},
    "verbs": {"lab", "server", "exports"},
    "cli": {"verbs"},
    "harness": {"generation"},
    "sklearn": {"verbs"},
    "transformers_models": {"generation"},
    "__main__": {"cli"},
}
VISIBLE_TO_ALL = {
    "errors",
    "display",
    "language",
    "files",
    "config",
    "settings",
    "executors",
    "plugins",
    "plugin_settings",
    "registry",
}


def reachable(room: str) -> set[str]:
    """Everything below a room: an arrow to `objectives` is also one to what `objectives` stands on."""
    seen: set[str] = set()
    waiting = list(ARROWS.get(room, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += ARROWS.get(name, ())
    return seen


def imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted name below etymon) of every import anywhere in a file, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
        ):
            names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "etymon":
                yield node.lineno, name.removeprefix("etymon").removeprefix(".")


def allowed(room: str, name: str) -> bool:
    first = name.split(".")[0]
    if first in VISIBLE_TO_ALL or first in ("", "__version__", "EtymonError") or first == room:
        return True
    return any(name == target or name.startswith(f"{target}.") for target in reachable(room))


def violations(path: Path, room: str) -> list[str]:
    package = ["etymon", *path.relative_to(ROOT).parts[:-1]]
    return [
        f"{path.relative_to(ROOT.parent)}:{line}: {room} must not import etymon.{name}"
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8")), package)
        if not allowed(room, name)
    ]


def test_imports_point_one_way():
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "__init__":
            continue  # the front door sees everything, lazily
        assert room in ARROWS or room in VISIBLE_TO_ALL, f"{path}: say in ARROWS what {room} may import"
        found += violations(path, room)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("room", "name", "verdict"),
    [
        ("text", "nn.batch", False),
        ("checkpoints", "families", False),
        ("families", "text.framing", True),
        ("families", "text.store", False),
        ("families", "nn.attention", True),
        ("objectives", "families.bert", False),
        ("training", "nn.batch", True),
        ("training", "families.bert", False),
        ("training", "generate", False),
        ("generation", "families.model", True),
        ("verbs", "lab.probe", True),
        ("verbs", "cli", False),
        ("nn", "errors.EtymonError", True),
    ],
)
def test_the_rule_itself(room, name, verdict):
    assert allowed(room, name) is verdict


def test_hidden_imports_are_found():
    code = "def f():\n    from etymon.nn import batch\n    import_module('etymon.cli')\n    from ..nn.cache import x\n"
    assert sorted(imports(ast.parse(code), ["etymon", "data"])) == [
        (2, "nn.batch"),
        (3, "cli"),
        (4, "nn.cache.x"),
    ]


def in_a_process(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_importing_the_package_is_light():
    heavy = ("torch", "numpy", "transformers", "pydantic", "typer", "click", "rich", "yaml", "matplotlib")
    in_a_process(f"import etymon, sys; found = set({heavy}) & set(sys.modules); assert not found, found")


def test_rooms_of_data_need_no_torch():
    rooms = ("text", "tables", "sampling")
    names = [
        f"etymon.{room}.{path.stem}" for room in rooms for path in sorted((ROOT / room).glob("[!_]*.py"))
    ]
    lines = "; ".join(f"import {name}" for name in names)
    in_a_process(f"import sys; {lines or 'pass'}; assert 'torch' not in sys.modules")


def test_public_names():
    assert set(etymon.__all__) <= set(dir(etymon))
    assert etymon.EtymonError.__module__ == "etymon.errors"
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = etymon.pretrian  # type: ignore[attr-defined]
