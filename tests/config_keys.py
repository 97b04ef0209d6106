"""Which keys of a `config.json` Transformers reads to compute a model, found in its source: `python -m tests.config_keys`.

A key that no modelling code reads cannot change what a model computes. The table goes to
`etymon/checkpoints/config_keys.json`. It is made from the installed Transformers and from the older one in `.venv-peer`
(`make .venv-peer/.installed`, or another folder in ETYMON_PEER), which has Transformer-XL and keys that were dropped since.

Nothing is imported, the source is parsed: a model's `modeling_*.py`, every function and class of the library that they
use, except what is no part of a forward pass (`OUTSIDE`), and the configuration classes: attributes that they derive from
other keys, other names of a key, and defaults.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from etymon.checkpoints.settings import TABLE

FOLDERS = {
    "albert": "albert", "bart": "bart", "bert": "bert", "camembert": "camembert", "distilbert": "distilbert",
    "electra": "electra", "gpt2": "gpt2", "gpt_neo": "gpt_neo", "gptj": "gptj", "mt5": "mt5", "openai-gpt": "openai",
    "roberta": "roberta", "roformer": "roformer", "t5": "t5", "transfo-xl": "deprecated/transfo_xl", "xlm-roberta": "xlm_roberta", "xlnet": "xlnet",
}  # fmt: skip
"""model_type -> folder below `transformers/models`."""
OUTSIDE = (
    "configuration_utils", "conversion_mapping", "core_model_loading", "data", "distributed", "dynamic_module_utils",
    "exporters", "fusion_mapping", "generation", "initialization", "integrations", "loss", "modeling_gguf",
    "modeling_outputs", "monkey_patching", "onnx", "pipelines", "quantizers", "safetensors_conversion", "tokenization",
    "trainer", "utils",
)  # fmt: skip
"""Modules that choose tokens, train, or read and place weights: they compute no forward pass."""
EVERYWHERE = {"per_layer_config": None}
"""Of Transformers 5: other values of any key in some layers. The configuration applies it when it is made."""


def peer_root() -> Path | None:
    """The folder of the older Transformers, where that environment is installed."""
    environment = Path(os.environ.get("ETYMON_PEER", Path(__file__).parents[1] / ".venv-peer"))
    return next(iter(sorted(environment.glob("lib/python3*/site-packages/transformers"))), None)


def installed_root() -> Path:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


# --- source files


@dataclass
class Module:
    """A source file: its definitions by name, and where its imported names come from."""

    path: Path
    root: Path
    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name -> (module below the root, name there)."""

    def __post_init__(self) -> None:
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                self.definitions |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
        package = self.path.relative_to(self.root).parts[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, *filter(None, [node.module])])
                self.imports |= {name.asname or name.name: (module, name.name) for name in node.names}


def is_config(node: ast.AST) -> bool:
    """Whether an expression is a model's configuration: `config`, `self.config`, `encoder_config`, `config.get_text_config()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and is_config(node.func)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(re.fullmatch(r"(get_)?(text_|encoder_|decoder_)?config", name))


def config_reads(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Keys of a configuration that a piece of code reads, each with what it takes where there is none."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load) and is_config(part.value):
            yield part.attr, None
        elif isinstance(part, ast.Subscript) and is_config(part.value) and _text(part.slice):
            yield _text(part.slice), None
        elif isinstance(part, ast.Call) and part.args:
            asks = isinstance(part.func, ast.Name) and part.func.id in ("getattr", "hasattr")
            gets = isinstance(part.func, ast.Attribute) and part.func.attr == "get"
            if asks and is_config(part.args[0]):
                key, *default = part.args[1:]
            elif gets and is_config(part.func.value):  # type: ignore[attr-defined]
                key, *default = part.args
            else:
                continue
            if _text(key):
                yield _text(key), default[0] if default else None


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# --- configuration classes


@dataclass
class ConfigClass:
    """What the classes of a configuration, from the base to its own, say of its keys."""

    defaults: dict[str, ast.expr] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    """Other name -> the key that it stands for."""
    sources: dict[str, set[str]] = field(default_factory=dict)
    """Attribute -> the keys that it is computed from."""
    popped: set[str] = field(default_factory=set)
    """Keys that are taken from a file without being a parameter."""
    fixed: set[str] = field(default_factory=set)
    """Methods, read-only properties and constants of a class: no file can set them."""

    def add(self, node: ast.ClassDef) -> None:
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                if "ClassVar" in ast.unparse(part.annotation):
                    self.fixed.add(part.target.id)
                elif part.value is not None:
                    self.defaults[part.target.id] = part.value
            elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                self.fixed.add(name := part.targets[0].id)
                if name == "attribute_map":
                    self.aliases |= ast.literal_eval(part.value)
            elif isinstance(part, ast.FunctionDef):
                self._add_method(part)

    def _add_method(self, node: ast.FunctionDef) -> None:
        decorators = {ast.unparse(each) for each in node.decorator_list}
        if node.name in ("__init__", "__post_init__"):
            named = [*node.args.args, *node.args.kwonlyargs]
            values = [*node.args.defaults, *node.args.kw_defaults]
            pairs = zip(reversed(named), reversed(values))  # the first ones have none
            self.defaults |= {name.arg: value for name, value in pairs if value is not None}
            self._add_assignments(node)
        elif "property" in decorators:
            self.sources.setdefault(node.name, set()).update(_own_reads(node))
            self.fixed.add(node.name)
        elif f"{node.name}.setter" in decorators:
            self.fixed.discard(node.name)
        else:
            self.fixed.add(node.name)

    def _add_assignments(self, node: ast.FunctionDef) -> None:
        """`self.x = f(y, kwargs.pop("z"))` makes x of y and z, and so does a test of them around it."""
        local: dict[str, set[str]] = {}

        def keys_of(part: ast.AST) -> set[str]:
            found = _own_reads(part)
            for each in ast.walk(part):
                if isinstance(each, ast.Name) and each.id != "kwargs":  # all that is left: told key by key
                    found |= local.get(each.id, {each.id})
                elif isinstance(each, ast.Call) and ast.unparse(each.func) in ("kwargs.pop", "kwargs.get"):
                    found.add(_text(each.args[0]))
                    self.popped.add(_text(each.args[0]))
            return found

        def visit(statements: list[ast.stmt], tested: set[str]) -> None:
            for part in statements:
                if isinstance(part, ast.If):
                    visit([*part.body, *part.orelse], tested | keys_of(part.test))
                elif isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    made = keys_of(part.value) | tested
                    for target in targets:
                        if isinstance(target, ast.Name):
                            local.setdefault(target.id, set()).update(made)
                        elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                            self.sources.setdefault(target.attr, set()).update(made)
                            popped = part.value
                            if isinstance(popped, ast.Call) and ast.unparse(popped.func) == "kwargs.pop":
                                self.defaults[_text(popped.args[0])] = popped.args[1]

        visit(node.body, set())


def _own_reads(node: ast.AST) -> set[str]:
    """The attributes of `self` that a piece of code reads."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
    }


# --- a whole installation


class Transformers:
    """The source of a Transformers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module | None] = {}
        text = (root / "__init__.py").read_text(encoding="utf-8")
        self.version = re.search(r'__version__ = "(.+?)"', text)[1]  # type: ignore[index]

    def module(self, name: str) -> Module | None:
        if name not in self.modules:
            path = self.root / Path(*name.split("."))
            places = (path.with_suffix(".py"), path / "__init__.py")
            found = next((place for place in places if place.is_file()), None)
            self.modules[name] = None if found is None else Module(found, self.root)
        return self.modules[name]

    def home(self, place: str, name: str) -> tuple[str, str] | None:
        """Where an imported name is defined, if the library has it."""
        module = self.module(place) if name else None
        if module is None:
            return None
        if name in module.definitions:
            return place, name
        return self.home(*module.imports[name]) if name in module.imports else None

    def forward_reads(self, folder: str) -> dict[str, list[ast.expr | None]]:
        """The keys that a model's modelling files, and what they use, read, each with its defaults there."""
        package = "models." + folder.replace("/", ".")
        files = sorted((self.root / "models" / folder).glob("modeling_*.py"))
        own = [path.stem for path in files if not path.name.startswith(("modeling_tf_", "modeling_flax_"))]
        waiting = [
            (f"{package}.{stem}", name) for stem in own for name in self._definitions(f"{package}.{stem}")
        ]
        seen, found = set(waiting), dict[str, list[ast.expr | None]]()
        while waiting:
            place, name = waiting.pop()
            module = self.module(place)
            assert module is not None
            reads, uses = self._facts(place, name)
            for key, default in reads:
                found.setdefault(key, []).append(default)
            for used in uses:
                origin = module.imports.get(used, ("", ""))
                if used in module.definitions:
                    target: tuple[str, str] | None = (place, used)
                else:
                    target = None if origin[0].startswith(OUTSIDE) else self.home(*origin)
                if target is None or target in seen or target[0].startswith(OUTSIDE):
                    continue
                seen.add(target)
                if "configuration_" not in target[0]:
                    waiting.append(target)
        return found

    @cache  # noqa: B019  (what models share is looked through once)
    def _facts(self, place: str, name: str) -> tuple[list[tuple[str, ast.expr | None]], set[str]]:
        """The keys that a definition reads, and the names that it uses."""
        node = self._definitions(place)[name]
        return [*config_reads(node)], {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}

    def _definitions(self, place: str) -> Mapping[str, ast.AST]:
        module = self.module(place)
        assert module is not None
        return module.definitions

    def config_class(self, model_type: str, folder: str) -> ConfigClass:
        place = f"models.{folder.replace('/', '.')}.configuration_{folder.split('/')[-1]}"
        for node in self._definitions(place).values():
            told = [part.value for part in getattr(node, "body", ()) if isinstance(part, ast.Assign)
                    and ast.unparse(part.targets[0]) == "model_type"]  # fmt: skip
            if isinstance(node, ast.ClassDef) and told and ast.literal_eval(told[0]) == model_type:
                found = ConfigClass()
                for each in self._lineage(place, node):
                    found.add(each)
                return found
        raise LookupError(f"{place} has no class of model_type {model_type}")

    def _lineage(self, place: str, node: ast.ClassDef) -> list[ast.ClassDef]:
        """A class behind those that it is made of, as far as these are configurations."""
        module, found = self.module(place), list[ast.ClassDef]()
        assert module is not None
        for base in node.bases:
            name = ast.unparse(base)
            target = (
                (place, name)
                if name in module.definitions
                else self.home(*module.imports.get(name, ("", "")))
            )
            if target is not None and "onfig" in target[1]:
                parent = self._definitions(target[0])[target[1]]
                assert isinstance(parent, ast.ClassDef)
                found += self._lineage(target[0], parent)
        return [*found, node]

    @cache  # noqa: B019
    def table(self, model_type: str) -> dict[str, Any] | None:
        """`keys` with an effect, the `defaults` of some, and the `aliases` of keys; None where there is no such model."""
        folder = FOLDERS[model_type]
        if not (self.root / "models" / folder).is_dir():
            return None
        read, config = self.forward_reads(folder), self.config_class(model_type, folder)
        waiting, keys = [*read, *EVERYWHERE], set[str]()
        while waiting:
            key = waiting.pop()
            if key not in keys:
                keys.add(key)
                waiting += [*config.sources.get(key, ()), *filter(None, [config.aliases.get(key)])]
        told = (
            read.keys()
            | config.defaults.keys()
            | config.popped
            | EVERYWHERE.keys()
            | {*config.aliases.values()}
        )
        known = {key for key in keys & told if key not in config.fixed and not key.startswith("__")}
        defaults: dict[str, Any] = {}
        for key in known:
            taken = [value for value in read.get(key, []) if value is not None]
            told = [config.defaults[key]] if key in config.defaults else taken
            values = [json.dumps(_literal(value)) for value in told if _literal(value) is not ...]
            if len({*values}) == 1 and len(values) == len(told):
                defaults[key] = json.loads(values[0])
        aliases = {other: key for other, key in config.aliases.items() if key in known}
        return {"keys": known - aliases.keys(), "defaults": defaults | EVERYWHERE, "aliases": aliases}


def _literal(node: ast.expr) -> Any:
    """The value of an expression, or `...` if it has none that JSON can tell."""
    try:
        value = eval(
            compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}
        )  # numbers such as 4 * 768
        json.dumps(value)
    except Exception:
        return ...
    return list(value) if isinstance(value, tuple) else value


def joined_table(*libraries: Transformers) -> dict[str, Any]:
    """The keys that any of the libraries reads. A default is one only where they agree."""
    models: dict[str, Any] = {}
    for model_type in FOLDERS:
        tables = [table for each in libraries if (table := each.table(model_type)) is not None]
        if not tables:
            continue
        keys = set().union(*(table["keys"] for table in tables))
        defaults: dict[str, Any] = {}
        for key in sorted(keys):
            told = {
                json.dumps(table["defaults"].get(key, ...), default=str)
                for table in tables
                if key in table["keys"]
            }
            if len(told) == 1 and (value := next(iter(told))) != '"Ellipsis"':
                defaults[key] = json.loads(value)
        aliases = {other: key for table in tables for other, key in table["aliases"].items()}
        models[model_type] = {
            "keys": sorted(keys - aliases.keys()),
            "defaults": {key: value for key, value in defaults.items() if key not in aliases},
            "aliases": dict(sorted(aliases.items())),
        }
    return {"transformers": [each.version for each in libraries], "models": models}


def main() -> None:
    roots = [installed_root(), peer_root()]
    if roots[1] is None:
        raise SystemExit(
            "the older Transformers is not there: run `make .venv-peer/.installed`, or set ETYMON_PEER"
        )
    table = joined_table(*(Transformers(root) for root in roots if root is not None))
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{TABLE}: {len(table['models'])} models, from Transformers {' and '.join(table['transformers'])}")


if __name__ == "__main__":
    main()
