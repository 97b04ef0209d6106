"""Strict, typed configuration: run files, overrides, durations and counts.

A run file is YAML that must fit a typed class exactly. Nothing is ignored or guessed: an unknown key, a
doubled key or a value of another type is an `EtymonError` that says which key, where, and what was expected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from decimal import Decimal
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from etymon.errors import EtymonError
from etymon.files import first_line

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Config = TypeVar("Config")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """What to say after "unknown ...:": the closest choice as a question, or else all the choices."""
    choices = list(choices)
    # Without case: LAYERS is as far from layers as any other word of six letters.
    close = get_close_matches(word.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.6)
    if close:
        return f"did you mean {next(choice for choice in choices if choice.lower() == close[0])!r}?"
    return f"choose from {', '.join(choices)}" if choices else "none is allowed here"


def strict(cls: type[Config], mapping: Mapping[str, Any], where: str) -> Config:
    """Build `cls` (a pydantic model, or a dataclass of either kind) from `mapping`, or say what does not fit.

    `where` names the source in messages, e.g. "run.yaml". Values are taken as JSON would take them: lists
    become tuples and strings become paths where the class asks for it, but "3" is not 3 and 1 is not true.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(mapping, Mapping):
        raise EtymonError(f"{where} must hold keys and values, but it is {_kind(mapping)}")
    try:
        text = json.dumps(dict(mapping), default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise EtymonError(f"{where} holds something that is not a plain value: {error}") from error
    for key, number in _numbers(mapping):
        if not is_usable(number):
            raise EtymonError(
                f"bad value in {where}: {key} is {_shown(number)}, {USABLE}", code="bad-setting"
            )
    try:
        return TypeAdapter(cls).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise EtymonError(complaint(cls, error, where), code="bad-setting") from None


def check_keys(cls: type, mapping: Mapping[str, Any], where: str) -> None:
    """Refuses values of another type than `cls` declares; keys that it does not have may be anything,
    or absent."""
    strict(cls, {key: value for key, value in mapping.items() if key in _fields(cls)}, where)


USABLE = "expected a finite number, and a whole one of at most 64 bits"


def is_usable(number: int | float) -> bool:
    """Whether a number is finite and, if it is whole, fits into 64 bits: no setting takes any other."""
    return -(2**63) <= number < 2**63 if isinstance(number, int) else math.isfinite(number)


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number of a tree, with the dotted key that leads to it."""
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            yield from _numbers(part, f"{key}.{name}" if key else str(name))


def load_yaml(path: str | PathLike[str], cls: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Read a run file into `cls`, after applying dotted overrides such as "model.layers=6"."""
    return strict(cls, override(read_yaml(path), overrides), str(path))


def override(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The same keys and values after dotted overrides such as "model.layers=6", in place."""
    for each in overrides:
        _apply(tree, each)
    return tree


def read_yaml(path: str | PathLike[str]) -> dict[str, Any]:
    """The keys and values of a run file, not yet checked against any class."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_YAML:
            raise EtymonError(
                f"{path} has {path.stat().st_size:,} bytes, too many for settings (at most {LARGEST_YAML:,})"
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EtymonError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror or error}") from error
    tree = _parse_yaml(text, str(path))
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise EtymonError(f"{path} must hold keys and values, but it is {_kind(tree)}")
    return tree


_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_DURATION = 100 * 365 * 86400


def parse_duration(text: str) -> float:
    """Seconds in a duration such as "90s", "10m", "1.5h", "1h30m" or "2d"."""
    word = str(text).strip().lower()
    # A number alone could be steps, seconds or minutes: guessing wrong costs a night.
    if re.fullmatch(r"\d+(\.\d+)?", word):
        raise EtymonError(f"duration {word!r} has no unit: write {word}s, {word}m or {word}h", code="budget")
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", word)
    # Decimals: 1.1h is 3960 seconds, not 3960.0000000000005.
    seconds = float(sum(Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts))
    if seconds <= 0 or not re.fullmatch(r"(\s*\d+(\.\d+)?\s*[smhd])+", word):
        raise EtymonError(
            f"cannot read {text!r} as a duration: write e.g. 90s, 10m, 1h30m or 2d", code="budget"
        )
    if seconds > LONGEST_DURATION:
        raise EtymonError(f"the duration {text!r} is longer than a hundred years: write e.g. 90s, 10m or 2d")
    return seconds


_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_count(text: str | int) -> int:
    """A whole number such as "512", "32k", "1.5M", "2B" or "1e6" (k, M, B and T are powers of a thousand)."""
    word = str(text).strip().lower().replace("_", "").replace(",", "")
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([kmbgt]?)", word)
    if not match:
        raise EtymonError(f"cannot read {text!r} as a count: write e.g. 512, 32k, 1.5M or 2B")
    # Exact: as a float, 4.1M would be 4099999.9999999995, and refused as no whole number.
    count = Decimal(match[1]) * _COUNT_UNITS[match[2]]
    if count != int(count):
        raise EtymonError(f"the count {text!r} is not a whole number")
    if not is_usable(int(count)):
        raise EtymonError(f"the count {text!r} does not fit into 64 bits: write e.g. 512, 32k, 1.5M or 2B")
    return int(count)


LARGEST_YAML = 1_000_000
"""Bytes of a run file: reading takes a few microseconds a byte."""
MOST_VALUES = 100_000
"""Values of a run file, those behind anchors counted wherever they are used."""


def _parse_yaml(text: str, where: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML 1.2's plain scalars: 1e-3 is a number; yes, on, 1:30 and 2024-01-01 stay words."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                # Several merges in a mapping are allowed.
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                if key.value in seen:
                    again = key.start_mark.line + 1
                    raise EtymonError(
                        f"key {key.value!r} is written twice in {where} (again in line {again})"
                    )
                seen.add(key.value)
            made = super().construct_mapping(node, deep)
            return {key if isinstance(key, str) else json.dumps(key, default=str): made[key] for key in made}

    # PyYAML follows YAML 1.1: there 1e-3 is text, `no` is false and 1:30 is 90.
    Loader.yaml_implicit_resolvers = {}
    for kind, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
        (
            "float",
            r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
            list("-+.0123456789"),
        ),
        ("merge", r"<<", ["<"]),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), first)
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        # Anchors inside anchors: a few lines can stand for billions of values.
        if _count_values(node, {}) > MOST_VALUES:
            raise EtymonError(
                f"{where} has more than {MOST_VALUES:,} values, with what its anchors stand for"
            )
        return loader.construct_document(node)
    except RecursionError as error:
        raise EtymonError(f"cannot read {where}: nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise EtymonError(f"cannot read {where}{place}: {problem}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        # What the constructors of `!!int abc`, `!!bool maybe` or a number of 6,000 digits raise.
        raise EtymonError(
            f"cannot read {where}: a value does not fit its type ({first_line(error)})"
        ) from error


def _count_values(node: Any, counts: dict[int, int]) -> int:
    """The values below a YAML node, an anchor's again wherever it is used;
    one that contains itself has no end."""
    if id(node) not in counts:
        counts[id(node)] = MOST_VALUES + 1  # until it is known: found again inside itself, it is too many
        parts = node.value if isinstance(node.value, list) else []
        inner = (each for part in parts for each in (part if isinstance(part, tuple) else (part,)))
        counts[id(node)] = 1 + sum(_count_values(each, counts) for each in inner)
    return counts[id(node)]


def _apply(tree: dict[str, Any], override: str) -> None:
    dotted, equals, value = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise EtymonError(
            f"cannot read the override {override!r}: write it as key=value or section.key=value",
            code="bad-setting",
        )
    place = tree
    for depth, key in enumerate(keys[:-1]):
        inner = place.get(key)
        inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            section = ".".join(keys[: depth + 1])
            raise EtymonError(
                f"the override {override!r} does not fit: {section} is {_kind(inner)}, not a section",
                code="bad-setting",
            )
        place[key] = inner
        place = inner
    # Read as a run file would be, so that layers=6 is a number and sizes=[1, 2] a list.
    place[keys[-1]] = _parse_yaml(value, f"the override {override!r}")


TYPE_NAMES = {"int", "str", "float", "bool", "list[int]", "list[str]", "[key]"}
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
PLAIN_WORDS = {
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
}


def complaint(cls: type, error: ValidationError, where: str) -> str:
    """What does not fit `cls`, in one line: which key, where, and what was expected."""
    # A misspelt key is usually also a missing one: name the misspelling, which explains both.
    detail = min(error.errors(), key=lambda detail: detail["type"] not in UNKNOWN_KEY)
    # Of a value that may have several types, pydantic names each: no key of the file.
    location = tuple(part for part in detail["loc"] if part not in TYPE_NAMES)
    dotted = ".".join(str(part) for part in location)
    if detail["type"] in UNKNOWN_KEY:
        choices = _fields(_descend(cls, location[:-1]))
        section = ".".join(str(part) for part in location[:-1])
        place = f"{where}, section {section}" if section else where
        return f"unknown key {str(location[-1])!r} in {place}: {did_you_mean(str(location[-1]), choices)}"
    if detail["type"] in ("missing", "missing_argument"):
        return f"missing key {dotted!r} in {where}"
    # A value of one type or another has a complaint for each: any of them would have done.
    same_place = [each for each in error.errors() if each["loc"][: len(location)] == location]
    expected = dict.fromkeys(_expectation(each) for each in same_place or [detail])
    message = " or ".join(
        [next(iter(expected)), *(each.removeprefix("expected ") for each in [*expected][1:])]
    )
    if not location:
        return f"{where}: {message}"
    # The help of a setting often says what to write instead.
    names = [part for part in location if isinstance(part, str)]
    fields = getattr(_descend(cls, names[:-1]), "__pydantic_fields__", {})
    help = fields[names[-1]].description if names and names[-1] in fields else None
    if help and detail["type"] == "string_pattern_mismatch":
        message = f"expected {help}"
    elif help:
        message += f" [{help}]"
    return f"bad value in {where}: {dotted} is {_shown(detail['input'])}, {message}"


def _expectation(detail: ErrorDetails) -> str:
    """What pydantic expected of a value, in plain words."""
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be ", "expected ")
    for formal, plain in PLAIN_WORDS.items():
        message = message.replace(formal, plain)
    if detail["type"] == "literal_error":
        suggestion = did_you_mean(str(detail["input"]), re.findall("'([^']*)'", detail["ctx"]["expected"]))
        message += f": {suggestion}" if suggestion.startswith("did you mean") else ""
    return " ".join(message.split())


def _fields(cls: Any) -> list[str]:
    if is_dataclass(cls):
        return [name for name, field in cls.__dataclass_fields__.items() if field.init]
    return list(getattr(cls, "model_fields", {}))


def _descend(cls: Any, location: Sequence[str | int]) -> Any:
    """The class whose keys are written at `location`, through lists, mappings and optional types."""
    for part in location:
        hints = get_type_hints(cls) if _fields(cls) else {}
        if part in hints:
            cls = _first_class(hints[str(part)])
    return cls


def _first_class(annotation: Any) -> Any:
    if _fields(annotation):
        return annotation
    classes = (_first_class(argument) for argument in get_args(annotation))
    return next((cls for cls in classes if cls is not None), None)


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}
    return names.get(type(value), f"the value {value!r}")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
