"""The command line: every verb's own signature, read once, becomes its options.

A verb is a typed function `<verb>` in the module `etymon.verbs.<verb>`; Python users call it as `etymon.<verb>`.
What its module has to keep to (the module must be light: torch and the like are imported inside the function):

- The docstring's first line is the summary in `etymon --help`; the rest appears in `etymon <verb> --help`.
- A parameter is written `name: Annotated[type, "help text"]`. Without a default it is an argument
  (`list[str]`: one or more), with one it is the option `--name` (`bool`: `--name/--no-name`, `Literal`: choices,
  `list`: may be repeated, or have several words). `bool | Literal["auto"]` is a flag that may have a value: `--name`, `--name auto`,
  `--no-name`. A list before the `*` that has a default is an argument that may be left out. Of any other union the first member that
  a command line can express is taken, so `str | Path | Model` is text; names imported only under TYPE_CHECKING may be used.
- Parameters named `on_...` are callbacks and never options. If the module, or else `etymon.verbs.terminal`, has a
  function of the same name, the command line hands it over: a module-level `on_text(piece)` prints what
  `generate(..., on_text=None)` streams. Its keyword-only parameters get the values of the options of those names.
- `present(result, ...)` in the module, if there is one, prints the result. Its further parameters are the verb's
  own values of those names; one that the verb does not have becomes an option of the command line alone, e.g.
  `json: Annotated[bool, "print JSON"] = False`.
- A result may have an `exit_code`, for a run that was stopped before its end.

Mistakes of the user are `EtymonError`: one line on stderr, exit code 2 (a traceback only if ETYMON_DEBUG=1). So are
files that cannot be used (`OSError`), and numbers that are infinite or beyond 64 bits, whatever the option. What the
library warns of through its loggers is shown as a note.
What a terminal shows has its control characters made visible; pipes and files get texts as they are (`terminal.safe_streams`).
"""

from __future__ import annotations

import builtins
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import ModuleType, TracebackType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

import typer
from typer.models import ArgumentInfo

import etymon
from etymon import __version__
from etymon.config import USABLE, is_usable
from etymon.errors import EtymonError, visible
from etymon.files import DISK_ERRORS
from etymon.verbs import terminal

# The registry: a verb's name, in the order of `etymon --help`, and the module that holds it.
VERBS = {name: f"etymon.verbs.{name}" for name in etymon.VERBS}
FLAG = {"yes": True, "no": False}
"""What a flag that may have a value has without one."""

LONGEST_MESSAGE = 1000


def main(arguments: Sequence[str] | None = None, verbs: Mapping[str, str] = VERBS) -> NoReturn:
    """Run one command line and leave the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = os.environ.get("ETYMON_DEBUG", "") not in ("", "0")
    logging.getLogger("etymon").addHandler(terminal.NOTES)  # once, however often it is asked
    with terminal.safe_streams():
        _run(arguments, verbs, debug)


def _run(arguments: Sequence[str], verbs: Mapping[str, str], debug: bool) -> NoReturn:
    try:
        command = typer.main.get_command(build(arguments, verbs))
        try:
            command(args=spread(arguments, verbs), prog_name="etymon")
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be handled
    except EtymonError as error:
        if debug:
            raise
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; keep Python from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        if (
            isinstance(error, OSError) and error.filename is not None
        ):  # too long a name, no permission, a full disk
            _refuse(
                f"cannot use {os.fsdecode(error.filename)}: {error.strerror}; mend that, or give another name"
            )
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            _refuse(f"cannot write: {error.strerror}; make room, also in the temporary folder (TMPDIR)")
        traceback.print_exception(error.with_traceback(_without_dispatch(error.__traceback__)))
        print("etymon: this is a bug in etymon; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def _refuse(message: str) -> NoReturn:
    """Says what is wrong in one line, and leaves with exit code 2."""
    if len(message) > LONGEST_MESSAGE:  # that of a name of 3,000 characters
        message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
    print(f"etymon: error: {visible(message, breaks='')}", file=sys.stderr)
    sys.exit(2)


def build(arguments: Sequence[str], verbs: Mapping[str, str] = VERBS) -> typer.Typer:
    """The typer application for a command line: only the verb that it names is imported, or all for help."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help: at once, and readable in pipes and on any terminal
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        epilog="Every verb is a Python function too: etymon.generate(...), etymon.pretrain(...).",
    )
    app.callback()(_root)
    named = [name for name in verbs if arguments and arguments[0] == name.replace("_", "-")]
    for name in named or verbs:
        module = import_module(verbs[name])
        app.command(name=name.replace("_", "-"))(adapt(getattr(module, name), module))
    return app


def spread(arguments: Sequence[str], verbs: Mapping[str, str] = VERBS) -> list[str]:
    """The command line with `--train a b` as `--train a --train b`: once a verb has the arguments that it needs, words behind an
    option that may be repeated are its own. `--` ends that. A verb that takes any number of texts keeps them, unless they come
    from `--data`. A flag that may have a value gets one where it has none: `--resume` is `--resume=yes`."""
    name = next((name for name in verbs if arguments and arguments[0] == name.replace("_", "-")), None)
    if name is None:
        return list(arguments)
    module = import_module(verbs[name])
    many, valued, needed, elsewhere = set(), set(), 0, True
    switches: dict[str, tuple[str, ...]] = {}
    given = any(word.partition("=")[0] == "--data" for word in arguments)
    for each in inspect.signature(adapt(getattr(module, name), module)).parameters.values():
        kind, about = get_args(each.annotation)
        if isinstance(about, ArgumentInfo):
            needed += each.default is each.empty
            elsewhere &= "list[" not in str(kind) or (given and each.default is not each.empty)
            continue
        own = {*(about.param_decls or [f"--{each.name.replace('_', '-')}"])}
        many |= own if "list[" in str(kind) else set()
        valued |= own if "bool" not in str(kind) else set()
        switches |= dict.fromkeys(own, words) if (words := _switch_words(kind)) else {}
    if not elsewhere:
        many.clear()
    made, last, waiting = [arguments[0]], "", False
    for word, after in zip_longest(arguments[1:], arguments[2:], fillvalue=""):
        option = word.startswith("-") and word != "-" and last != "--"
        if waiting:  # for the option's value, whatever it is
            waiting = False
        elif option:
            last, told, _ = word.partition("=")
            if last in switches and not told and after not in switches[last]:
                word = f"{last}=yes"
            elif (switch := last.replace("--no-", "--", 1)) != last and switch in switches:
                word = f"{switch}=no"
            else:
                waiting = last in valued and not told
        elif last in many and needed <= 0:
            made.append(last)
        elif last != "--":
            last, needed = "", needed - 1
        made.append(word)
    return made


def _print_version(asked: bool) -> None:
    if asked:
        print(f"etymon {__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Pretrain, evaluate, generate with and look inside language models, on your own text."""


def adapt(verb: Callable[..., Any], module: ModuleType) -> Callable[..., None]:
    """A function that typer understands: calls `verb` with the options and shows its result."""
    present = getattr(module, "present", None)
    shown = list(inspect.signature(present).parameters.values())[1:] if present else []
    own = inspect.signature(verb).parameters
    usual = vars(terminal) | vars(module)
    callbacks = {name: usual.get(name) for name in own if name.startswith("on_")}
    parameters = [
        _option(verb, parameter) for parameter in own.values() if not parameter.name.startswith("on_")
    ]
    parameters += [
        _option(present, parameter) for parameter in shown if present and parameter.name not in own
    ]
    switches = {each.name for each in parameters if _switch_words(get_args(each.annotation)[0])}

    def command(**given: Any) -> None:
        values = {
            name: FLAG.get(value, value) if name in switches else value for name, value in given.items()
        }
        _check_numbers(values)
        listeners = {name: _bound(function, values) for name, function in callbacks.items() if function}
        result = verb(**{name: value for name, value in values.items() if name in own}, **listeners)
        if present:
            present(result, **{parameter.name: values[parameter.name] for parameter in shown})
        if code := getattr(result, "exit_code", 0):
            sys.exit(code)

    command.__name__, command.__doc__ = verb.__name__, inspect.getdoc(verb)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Refuses numbers that no option takes: infinite ones, and whole ones beyond 64 bits."""
    for name, value in values.items():
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int | float) and not is_usable(number):
                raise EtymonError(f"--{name.replace('_', '-')} is {str(number)[:40]}: {USABLE}")


def _bound(callback: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """The callback with the options that it wants to know of."""
    wanted = inspect.signature(callback).parameters.values()
    return partial(
        callback, **{each.name: values[each.name] for each in wanted if each.kind is each.KEYWORD_ONLY}
    )


def _option(function: Callable[..., Any], parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with its help text turned into typer's description of an argument or option."""
    annotation = _evaluated(function, parameter.annotation)
    help_text = None
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        help_text = next((note for note in notes if isinstance(note, str)), None)
    plain = next(_plain_types(annotation), None)
    if plain is None:
        raise TypeError(
            f"{function.__qualname__}: a command line cannot express {parameter.name}: {annotation}"
        )
    default = parameter.default
    many = get_origin(plain) is list and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    if default is parameter.empty or many:
        described = typer.Argument(help=help_text, show_default=False)
    else:
        # A name that is a word of Python's is written with an underscore behind it: `from_` is --from.
        names = [f"--{parameter.name[:-1].replace('_', '-')}"] if parameter.name.endswith("_") else []
        shown, metavar = default not in (None, "", (), False), None
        if plain is bool and (
            words := [each for each in _plain_types(annotation) if get_origin(each) is Literal]
        ):
            plain, metavar = Literal[*FLAG, words[0]], f"[{'|'.join(get_args(words[0]))}]"
            default = {meaning: word for word, meaning in FLAG.items()}.get(default, default)
        described = typer.Option(*names, help=help_text, show_default=shown, metavar=metavar)
        plain = plain | None if default is None else plain
    default = list(default) if isinstance(default, tuple) else default
    return inspect.Parameter(
        parameter.name, parameter.KEYWORD_ONLY, default=default, annotation=Annotated[plain, described]
    )


def _switch_words(kind: Any) -> tuple[str, ...]:
    """What may stand behind a flag that may have a value; nothing of any other option."""
    words = get_args(kind)
    return words if words[: len(FLAG)] == tuple(FLAG) else ()


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The members of an annotation that a command line can express."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _plain_types(member)
    elif annotation in (str, int, float, bool, Path) or origin is Literal:
        yield annotation
    elif origin in (list, Sequence):
        for member in _plain_types(get_args(annotation)[0]):
            yield list[member]  # type: ignore[valid-type]


class _PythonOnly:
    """Stands for a type that is known to type checkers alone."""


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _PythonOnly)


def _evaluated(function: Callable[..., Any], annotation: Any) -> Any:
    # Not typing.get_type_hints: it gives up on names imported under TYPE_CHECKING.
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {}, _Names(getattr(inspect.unwrap(function), "__globals__", {})))


def _without_dispatch(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the verb on, without the frames of the command-line machinery."""
    rest = step = trace
    while step:
        if step.tb_frame.f_code.co_filename == __file__:
            rest = step.tb_next or step
        step = step.tb_next
    return rest
