"""Where code from outside comes from: plugin files, folders and modules, and how they are opened.

A plugin runs only if the user has named it (`--plugin`, `file.py:Class` as an option, `ETYMON_PLUGINS`, the
user's own `config.yaml`, `etymon.load_plugin`), or if it is installed and declares entry points. What a model
or a run folder says of plugins is only compared and shown: no path that stands in a folder is ever opened.

What a plugin adds is kept in `etymon.registry`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from etymon.config import read_yaml
from etymon.errors import EtymonError
from etymon.files import first_line

NAMED = "ETYMON_PLUGINS"
"""The environment variable with files and modules, separated as in PATH. Processes that are started from this
one find the plugins of this command there."""
PREFIX = "etymon_plugin_"
"""Before the names of modules that are made of files."""
PROGRAM = "a program"
"""The source of what a program without a file has registered, such as a notebook."""
REFERENCE = re.compile(r"(?P<source>.+\.py|\w+(\.\w+)+|.*/.*):(?P<object>[A-Za-z_]\w*(\.\w+)*)")
"""`path/to/file.py:Class`, `folder/package:Class` or `package.module:Class`."""


@dataclass(frozen=True)
class PluginRecord:
    """What run files and model folders keep of a plugin: enough to recognise it, and nothing to run."""

    kind: str
    name: str
    source: str
    """The file, as it was named, or the module."""
    digest: str = ""
    """SHA-256 of its source, the first 16 digits; empty where there is none, as in a notebook."""

    def __str__(self) -> str:
        digest = f" ({self.digest})" if self.digest else ""
        return f"{self.kind} {self.name!r} of {self.source}{digest}"

    @property
    def advice(self) -> str:
        """What to do to have it here."""
        if self.source == PROGRAM:
            return "register it in this program, too (etymon.register)"
        if is_file(self.source):
            return f"give --plugin {self.source}"
        return f"install {self.source}, or give its file with --plugin"


@dataclass(frozen=True)
class Origin:
    """Where something was defined."""

    source: str
    digest: str


_origins: dict[str, Origin] = {}
"""Of plugin files that were opened, by the names of their modules."""
_opened: dict[str, ModuleType] = {}
"""The modules of plugins that the user has named, in the order in which they were opened."""


# ------------------------------------------------------------ opening


def open_plugin(source: str | os.PathLike[str]) -> ModuleType:
    """The module of a plugin: a `.py` file, a folder with an `__init__.py`, or the name of a module.

    A file that was opened before is opened anew only if it has changed since.
    """
    # As it was named: that is what a message later asks for.
    text = os.fspath(source)
    path = _file_of(text)
    name = text if path is None else module_name(path)
    # Of a file before it runs: what it registers is recorded with what it was then.
    origin = None if path is None else Origin(text, digest_of(path))
    module = sys.modules.get(name)
    if module is not None and (origin is None or _origins.get(name, origin).digest == origin.digest):
        return _opened.setdefault(name, module)
    # Before it runs: processes that are started from here, and what registers itself, look for it.
    if path is not None:
        _name_for_others(str(path.absolute()))
        _origins[name] = origin or Origin(text, "")
        sys.modules.pop(name, None)
    try:
        _opened[name] = module = importlib.import_module(name)
        return module
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        for table in (_origins, _opened):
            table.pop(name, None)
        if path is None and isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise EtymonError(
                f"there is no plugin module {name!r} here: install it, or give the path of a file, "
                f"such as --plugin {name.rpartition('.')[2]}.py",
                code="plugin",
            ) from None
        # Its own line says where to look; a traceback would be of our machinery.
        raise EtymonError(
            f"the plugin {text} cannot be imported: {_reason(error, path)}; mend that, then give the same "
            "command again",
            code="plugin",
        ) from error


def is_file(source: str) -> bool:
    """Whether a source is the path of a file or a folder, and not the name of a module."""
    return source.endswith(".py") or "/" in source or os.sep in source


def _file_of(text: str) -> Path | None:
    """The file or folder that a text names; None if it is a module's name."""
    path = Path(text).expanduser()
    if not is_file(text):
        return None
    if path.is_dir() and not (path / "__init__.py").is_file():
        raise EtymonError(f"the plugin {text} is a folder without __init__.py: name a file in it, or add one")
    if not path.exists():
        raise EtymonError(
            f"there is no plugin {text} (looked for in {Path.cwd()}): give the path of its file",
            code="plugin",
        )
    return path


def module_name(path: Path) -> str:
    """What the module of a file is called, in every process: plugins of one name may lie in two folders."""
    # By its place, not by its content: a worker looks for the name that was pickled.
    place = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]
    return f"{PREFIX}{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{place}"


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of all Python files of a folder, in 16 digits."""
    digest = hashlib.sha256()
    # Of a package all modules: the one that changed need not be the one that was named.
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise EtymonError(f"cannot read the plugin {file}: {error.strerror or error}") from error
        digest.update(f"{file.relative_to(path).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _reason(error: BaseException, path: Path | None) -> str:
    """What went wrong, with the line of the plugin's own file."""
    if path is None or isinstance(error, SyntaxError):  # whose message has its line
        return f"{type(error).__name__}, {first_line(error)}"
    file = str(path.absolute())
    # The last of its own frames: deeper ones are those of libraries that it calls.
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(file)
    ]
    where = f" (line {lines[-1]})" if lines else ""
    advice = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        beside = (path if path.is_dir() else path.parent) / f"{error.name.partition('.')[0]}.py"
        if beside.exists():
            advice = (
                "; files that need each other are a folder with an __init__.py, which import `from . import`"
            )
    message = first_line(error)
    return f"{type(error).__name__}{f', {message}' if message else ''}{where}{advice}"


def opened_plugins() -> list[ModuleType]:
    """The modules of plugins that the user has named and that were opened."""
    return [*_opened.values()]


def object_of(source: str, name: str) -> Any:
    """`name` of a plugin's module, dots allowed."""
    value: Any = open_plugin(source)
    for part in name.split("."):
        if not hasattr(value, part):
            public = [each for each in vars(value) if not each.startswith("_")] if vars(value) else []
            defined = [
                each for each in public if getattr(vars(value)[each], "__module__", None) == value.__name__
            ]
            there = f": it has {', '.join(defined)}" if defined else ""
            raise EtymonError(f"the plugin {source} has no {name}{there}")
        value = getattr(value, part)
    return value


def origin_of(namespace: dict[str, Any]) -> Origin:
    """Where the globals of a module come from: a plugin, a package, or the user's own program."""
    name = str(namespace.get("__name__", ""))
    plugin = next((each for each in _origins if name == each or name.startswith(f"{each}.")), None)
    if plugin is not None:
        return _origins[plugin]
    file = namespace.get("__file__")
    digest = digest_of(Path(file)) if file and Path(file).suffix == ".py" and Path(file).is_file() else ""
    if name in ("__main__", "__mp_main__", ""):
        return Origin(PROGRAM if not file else Path(file).name, digest)
    if name.startswith(PREFIX) and file:  # in a process that was started with the names of plugins
        return Origin(str(file), digest)
    return Origin(name, digest)


# ------------------------------------------------------------ what the user has named


def named_plugins() -> list[str]:
    """The plugins of the environment and of the user's own config."""
    named = [part for part in os.environ.get(NAMED, "").split(os.pathsep) if part]
    config = user_config()
    if config.is_file():
        tree = read_yaml(config)
        listed = tree.get("plugins", [])
        if set(tree) - {"plugins"} or not isinstance(listed, list) or not all(map(_is_text, listed)):
            raise EtymonError(f"{config} holds one key, plugins, with a list of files and modules")
        for each in listed:
            # Paths of the file are beside it, wherever the command is given.
            named.append(str(config.parent / Path(each).expanduser()) if is_file(each) else each)
    return list(dict.fromkeys(named))


def name_plugin(source: str) -> None:
    """The user has named a module or a file: its functions may be used from now on, in processes that are
    started from here, too."""
    _name_for_others(str(Path(source).expanduser().absolute()) if is_file(source) else source)


def is_named(source: str) -> bool:
    """Whether the user has named a module or a file, by an option, `--plugin`, the environment or the config:
    what only a folder names is not run."""
    if not is_file(source):
        return source in _opened or source in named_plugins()
    path = Path(source).expanduser().absolute()
    return module_name(path) in _opened or str(path) in named_plugins()


def user_config() -> Path:
    """The file in which a user may list plugins for good."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "etymon" / "config.yaml"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _name_for_others(path: str) -> None:
    # Not by an argument: DataLoader starts processes, too, and hands nothing on before it unpickles.
    parts = [part for part in os.environ.get(NAMED, "").split(os.pathsep) if part]
    if path not in parts:
        os.environ[NAMED] = os.pathsep.join([*parts, path])


class PluginFinder(MetaPathFinder):
    """Finds the modules of plugin files by their names: workers unpickle objects of such modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Modules inside of a plugin's folder are found as those of any package.
        if not fullname.startswith(PREFIX) or path is not None:
            return None
        for place in (Path(each).expanduser() for each in named_plugins() if is_file(each)):
            if module_name(place) != fullname:
                continue
            is_package = place.is_dir()
            file = str(place.absolute() / "__init__.py" if is_package else place.absolute())
            loader = UncachedLoader(fullname, file)
            inside = [str(place.absolute())] if is_package else None
            return importlib.util.spec_from_file_location(
                fullname, file, loader=loader, submodule_search_locations=inside
            )
        return None


class UncachedLoader(SourceFileLoader):
    """Leaves no `__pycache__` beside a user's file, and takes none for its newest state: bytecode is compared
    by whole seconds."""

    def path_stats(self, path: Any) -> Any:
        raise OSError


# At the end: a module that is installed is never hidden by it.
if not any(isinstance(finder, PluginFinder) for finder in sys.meta_path):
    sys.meta_path.append(PluginFinder())
