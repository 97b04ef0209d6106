"""What makes a verb of a function of its options: a Python function with typed arguments, and a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import etymon
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.report.inline import as_shown
from etymon.settings import OpeningOptions, Option, PluginOptions, one_or_several, options_of

Options = TypeVar("Options")
Result = TypeVar("Result")


def verb(cls: type[Options]) -> Callable[[Callable[[Options], Result]], Callable[..., Result]]:
    """Decorates a function of one argument, its options, which are declared by `cls`.

    What comes out takes each option as an argument. The command line uses its attributes: `options` is the
    list of them, `read` makes a `cls` of values by name, and `run` is the function within what the options
    say of opening models.
    """

    def decorate(function: Callable[[Options], Result]) -> Callable[..., Result]:
        options = options_of(cls)
        name = function.__name__

        def read(values: dict[str, Any]) -> Options:
            return _read(cls, name, options, values)

        def run(given: Options) -> Result:
            with _opening(given):
                return function(given)

        def call(*arguments: Any, **values: Any) -> Result:
            # A wrong name or too many values is a TypeError, as of any other function.
            places = [option.name for option in options if option.is_argument]
            if len(arguments) > len(places):
                raise TypeError(f"{name}() takes {len(places)} arguments by place: give others by name")
            by_place = dict(zip(places, arguments))
            if twice := by_place.keys() & values.keys():
                raise TypeError(f"{name}() got two values for {', '.join(sorted(twice))}")
            names = {option.name for option in options if option.seen_by in ("all", "python")}
            for unknown in values.keys() - names:
                raise TypeError(f"{name}() has no argument {unknown!r}: {did_you_mean(unknown, names)}")
            given = read(by_place | values)
            with _opening(given):
                return as_shown(function(given))

        call.__name__ = call.__qualname__ = name
        call.__module__ = function.__module__
        call.__doc__ = f"{etymon.VERBS.get(name, '')}\n\n{inspect.getdoc(function) or ''}".strip()
        # Without it, `inspect` would follow `__wrapped__` and show one argument, the options.
        call.__signature__ = signature_of(options)  # type: ignore[attr-defined]
        call.__dict__ |= {"options": options, "read": read, "run": run, "__wrapped__": function}
        return call

    return decorate


@contextmanager
def _opening(given: Any) -> Iterator[None]:
    """Within it, models are opened as the options say."""
    with ExitStack() as stack:
        if isinstance(given, OpeningOptions):
            from etymon.checkpoints.folder import verifying  # with torch, which help does without
            from etymon.checkpoints.settings import pass_over

            stack.enter_context(pass_over(list(given.ignore_config_key)))
            stack.enter_context(verifying(given.verify))
        yield


def _read(cls: type[Options], name: str, options: list[Option], values: dict[str, Any]) -> Options:
    """The options of a verb from values by name; None is as good as left out, unless it says something of
    its own."""
    if issubclass(cls, PluginOptions):
        values = _with_plugins(options, values)
    fields: dict[str, Any] = {option.section: {} for option in options if option.section}
    for option in options:
        value = values.get(option.name)
        if isinstance(value, str) and option.kind in (int, float, bool):  # pydantic would read it as a number
            raise EtymonError(
                f"{option.name} of {name} is {value!r}: expected a number, or true or false",
                code="bad-setting",
            )
        if option.section:
            # The command line gives an empty list for what was not given.
            value = option.preset if value is None or value == () or value == [] else value
            if value is not None:
                fields[option.section][option.field] = value
        # Only what was given is handed on, so that the class of settings keeps its own defaults.
        elif option.name in values and (value is not None or option.takes_none):
            fields[option.field] = value
        elif option.default is ...:
            raise TypeError(f"{name}() needs {option.name}: {option.help}")
    return cls(**fields)


def _with_plugins(options: list[Option], values: dict[str, Any]) -> dict[str, Any]:
    """The values with names for what was named as `file.py:Class`, after opening the plugins of `--plugin`.

    Here, where all is the user's own: what stands in run files and model folders is never opened.
    """
    from etymon.plugin_settings import resolve_override, resolve_setting
    from etymon.registry import load_plugin

    for source in one_or_several(values.get("plugin") or ()):
        load_plugin(source)
    fields = {option.name: option.field for option in options}
    resolved = {name: resolve_setting(fields.get(name, name), value) for name, value in values.items()}
    for name in ("set", "grid"):
        if isinstance(overrides := one_or_several(values.get(name) or ()), tuple) and overrides:
            resolved[name] = tuple(resolve_override(override) for override in overrides)
    return resolved


def signature_of(options: list[Option]) -> inspect.Signature:
    """The arguments that a Python program can give; types are spelled as in its source."""
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if option.is_argument
                else inspect.Parameter.KEYWORD_ONLY,
                # Those of a group have none here: the run or the task decides about what is left open.
                default=empty if option.default is ... else None if option.section else option.default,
                annotation=_spelled(option),
            )
            for option in options
            if option.seen_by in ("all", "python")
        ]
    )


def _spelled(option: Option) -> str:
    """The type of an argument; most can be left out by None too, as programs do that hand options on."""
    is_plain_flag = option.python == "bool" and not option.section
    if option.default is ... or is_plain_flag or option.python.endswith("None"):
        return option.python
    return f"{option.python} | None"


def resumes(resume: bool | str, folder: Path, note: str = "run.yaml") -> bool:
    """Whether a run goes on; `auto` does so where its folder holds a run, which begins with the file
    `note`."""
    if resume not in (True, False, "auto"):
        raise EtymonError(f"resume is true, false or 'auto', not {resume!r}")
    return (folder / note).is_file() if resume == "auto" else bool(resume)
