"""How a setting is declared: once, with its type, default, range and help.

    @settings
    class OptimiserSettings:
        weight_decay: float | None = option(None, "decoupled weight decay (the family's own)", ge=0)

A class of settings is a frozen dataclass that checks its values. Run files, the options of verbs, the command
line, the signatures in `etymon/__init__.pyi` and the tables in docs/settings.md are all read from such
classes by `options_of`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.dataclasses import rebuild_dataclass
from pydantic.fields import FieldInfo

from etymon.config import complaint, did_you_mean
from etymon.errors import EtymonError

Class = TypeVar("Class", bound=type)


class Spelling(NamedTuple):
    """What a value is to a type checker and to the command line, where its annotation does not say so."""

    python: str
    command_line: Any


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: Class) -> Class:
    """A frozen dataclass of settings; a value that does not fit is an EtymonError of one line."""
    # Built when it is first used: `--help` only lists the fields of what it imports (0.17 -> 0.13 s of CPU).
    made: Any = pydantic_dataclass(
        frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)
    )(cls)
    init = made.__init__
    # "DecodingSettings" is "decoding settings" in messages.
    title = " ".join(re.findall("[A-Z][a-z]*", cls.__name__)).lower()

    @wraps(init)
    def checked(self: Any, **values: Any) -> None:
        if not made.__pydantic_complete__:
            rebuild_dataclass(made)
            made.__init__ = checked  # building has put pydantic's back
        try:
            init(self, **values)
        except ValidationError as error:
            raise EtymonError(complaint(made, error, title), code="bad-setting") from None

    made.__init__ = checked
    return made


def option(
    default: Any,
    help: str,
    *,
    name: str | None = None,
    seen_by: Literal["all", "file", "python", "command line"] = "all",
    **limits: Any,
) -> Any:
    """A setting that may be left out. `limits` are pydantic's: ge, gt, le, lt, min_length.

    `name` is what verbs call it, where that is not the name of the field. Not everybody sees every setting:
    there are keys of run files that no verb takes ("file"), what only programs can hand over, and what only
    changes what is printed.
    """
    extra: Any = {"name": name, "seen_by": seen_by}
    # A list or a dict made once would be shared by all that have not been given one.
    if callable(default):
        return Field(default_factory=default, description=help, json_schema_extra=extra, **limits)
    return Field(default, description=help, json_schema_extra=extra, **limits)


def argument(help: str, default: Any = ..., *, leads: bool = False, **limits: Any) -> Any:
    """An option that is given by its place: `etymon generate MODEL PROMPTS`, `etymon.generate(model,
    prompts)`. One of several words that `leads` has all of them before the first `--option`."""
    extra: Any = {"argument": True, "leads": leads}
    return Field(default, description=help, json_schema_extra=extra, **limits)


def group(cls: type | list[Option], only: str = "", *, without: str = "", **defaults: Any) -> Any:
    """A field that takes the settings of another class, or a list of options, as options of their own: a dict
    of those that were given, by the names of their fields. All that verbs see, `without` some, or `only`
    some; `defaults` are for what is usual here and not there."""
    options = cls if isinstance(cls, list) else options_of(cls)
    extra: Any = {"group": options, "only": only.split(), "without": without.split(), "defaults": defaults}
    return Field({}, json_schema_extra=extra)


@dataclass(frozen=True)
class Option:
    """A setting as verbs, the command line and documents see it."""

    name: str
    help: str
    default: Any
    """`...`: it has to be given."""
    kind: Any
    """What the command line makes of its words: int, list[str], Literal["a", "b"], bool; None if it cannot
    be expressed."""
    python: str
    """The type, as Python spells it."""
    field: str
    """The field of the class that holds its value."""
    limits: str = ""
    section: str = ""
    """The field for the group that it belongs to, if any."""
    preset: Any = None
    """What it is in this group unless given, where that is not what is usual elsewhere."""
    seen_by: str = "all"
    is_argument: bool = False
    leads: bool = False
    """Whether its words come before all others: behind `--tasks`, several are tasks."""
    takes_none: bool = False
    """Whether None says something, and not just that the option is left out."""

    @property
    def flag(self) -> str:
        """`--max-new-tokens`. A name that is a word of Python's ends in an underscore there: `from_` is
        --from."""
        return f"--{self.name.removesuffix('_').replace('_', '-')}"

    @property
    def words(self) -> tuple[str, ...]:
        """Of a flag that may have a value, such as `--resume auto`, the values that it may have."""
        members = get_args(self.kind)
        return get_args(members[1]) if bool in members else ()


def options_of(cls: type) -> list[Option]:
    """The settings of a class, those of its groups in their place: arguments first, then what the class
    itself declares, then what it inherits."""
    # pydantic lists inherited fields first; people look for what is special to a verb first.
    fields = cls.__pydantic_fields__  # type: ignore[attr-defined]
    names = dict.fromkeys(name for base in cls.__mro__ for name in vars(base).get("__annotations__", ()))
    options: list[Option] = []
    for name in (name for name in names if name in fields):
        info = fields[name]
        extra = info.json_schema_extra or {}
        if "group" in extra:
            inner = {each.field: each for each in extra["group"]}
            visible = [field for field, each in inner.items() if each.seen_by != "file"]
            for field in extra["only"] or [field for field in visible if field not in extra["without"]]:
                # A verb may have a usual value of its own; range and help stay those of the declaration.
                preset = extra["defaults"].get(field)
                default = inner[field].default if preset is None else preset
                options.append(
                    replace(inner[field], section=name, default=default, preset=preset, seen_by="all")
                )
        # A field without help is nobody's option: it is set by programs alone.
        elif info.description:
            options.append(_option(name, info, extra))
    return sorted(options, key=lambda option: not option.is_argument)


def _option(name: str, info: FieldInfo, extra: Mapping[str, Any]) -> Option:
    annotation: Any = info.annotation
    kinds = [note for note in info.metadata if isinstance(note, Spelling)]
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return Option(
        name=extra.get("name") or name,
        help=info.description or "",
        default=... if info.is_required() else info.get_default(call_default_factory=True),
        kind=kinds[0].command_line if kinds else next(_expressible(annotation), None),
        python=kinds[0].python if kinds else _spelled(annotation),
        field=name,
        limits=_limits(info),
        seen_by=extra.get("seen_by", "all"),
        is_argument=extra.get("argument", False),
        leads=extra.get("leads", False),
        takes_none=NoneType in members or annotation is Any,
    )


def _expressible(annotation: Any) -> Iterator[Any]:
    """The members of an annotation that a command line can express, the first of which it takes."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _expressible(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        members = get_args(annotation)
        # `bool | Literal["auto"]`: a flag that may have a value, `--resume` and `--resume auto`.
        if bool in members and get_origin(members[1]) is Literal:
            yield annotation
        for member in members:
            yield from _expressible(member)
    elif annotation in (str, int, float, bool, Path) or origin is Literal:
        yield annotation
    elif origin in (list, tuple, Sequence):
        for member in _expressible(get_args(annotation)[0]):
            yield list[member]  # type: ignore[valid-type]


def _spelled(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _spelled(get_args(annotation)[0])
    # As it stands in a signature, whose file imports these names.
    text = re.sub(r"\b(typing|pathlib|collections\.abc)\.", "", inspect.formatannotation(annotation))
    if get_origin(annotation) is Union:  # of Literal types, which Python does not join by |
        return " | ".join("None" if part is NoneType else _spelled(part) for part in get_args(annotation))
    return text


def _limits(info: FieldInfo) -> str:
    """What a number may be, in words: "at least 0, below 1"."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(
        f"{words[name]} {getattr(limit, name):g}"
        for limit in info.metadata
        for name in words
        if hasattr(limit, name)
    )


# ------------------------------------------------------------ types that many settings have


def in_table(table: Mapping[str, Any]) -> AfterValidator:
    """For `Annotated[str, in_table(TABLE)]`: a name that the table has.

    A Literal would repeat the table's names; so a row that is added there needs no other change.
    """

    def check(name: str) -> str:
        if name not in table:
            advise = getattr(table, "advise", lambda name: did_you_mean(name, table))
            raise ValueError(advise(name))
        return name

    return AfterValidator(check)


def one_or_several(value: Any) -> Any:
    """A tuple of what is given, where a single one may stand for itself."""
    return (value,) if isinstance(value, str | Path) else tuple(value) if isinstance(value, list) else value


def comma_separated(value: Any) -> Any:
    """`a,b` and `[a,b, c]` as [a, b, c]."""
    words = one_or_several(value)
    if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
        return value
    return tuple(part for word in words for part in word.split(","))


LanguageCode = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$")]
Words = Annotated[
    tuple[str, ...], BeforeValidator(one_or_several), Spelling("Sequence[str] | str", list[str])
]
Files = Annotated[
    tuple[str | Path, ...],
    BeforeValidator(one_or_several),
    Spelling("Sequence[str | Path] | str | Path", list[str]),
]
ModelLike = Annotated[Any, Spelling("str | Path | Model", str)]
"""A folder, a hub id, or a model that is open already."""
Texts = Annotated[Any, Spelling("Sequence[str] | str", list[str])]
"""Texts to read; what they are is looked at one by one, since they may come from a generator."""
PathText = Annotated[
    str | None,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    Spelling("str | Path | None", str),
]
"""A folder or a hub id, kept as text."""
Notify = Callable[[str], None]


@settings
class PassedOverKeys:
    """What holds for every model that a verb opens, and for a run whenever it is resumed."""

    ignore_config_key: Words = option((), "ignore this key of a model's config.json; may be repeated")


@settings
class PluginOptions:
    """What every verb takes in which something may come from a plugin."""

    plugin: Files = option(
        (), "a file, folder or module of your own that adds objectives, families, tasks ..."
    )


@settings
class OpeningOptions(PluginOptions, PassedOverKeys):
    """Options of every verb that opens models."""

    verify: bool = option(
        True, "check that a model's files are as they were saved and its weights finite; refuse it otherwise"
    )


@settings
class DeviceOptions(OpeningOptions):
    """Options of verbs that compute with a model."""

    device: str | None = option(None, "cpu or cuda (cuda where there is one)")


PrecisionName = Literal["float32", "bf16", "fp16", "auto"]


@settings
class ComputeOptions(DeviceOptions):
    """Options of verbs that ask a model and do not train it."""

    precision: PrecisionName = option(
        "float32", "number format of matrix products; auto: half precision where it is measured to be faster"
    )


@settings
class WeightOptions(ComputeOptions):
    """Options of verbs that can compute with rounded weights."""

    quantize: Literal["int8"] | None = option(
        None, "round the weights to eight bits: faster and smaller, on a processor"
    )


@settings
class JsonOptions:
    json: bool = option(False, "print JSON, one record per line", seen_by="command line")


@settings
class ProgressOptions:
    progress: Literal["auto", "rich", "plain", "silent"] = option("auto", "how to show progress")


@settings
class ClusterOptions:
    on: str | None = option(
        None,
        "run independent parts on Ray: `ray` on this machine, or ray://HOST:PORT (without Ray, in "
        "processes of this machine)",
    )
