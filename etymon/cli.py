"""The command line: the options of a verb, as its class of options declares them, become those of a command.

A verb is a function in the module `etymon.verbs.<verb>`, made by `verbs.verb.verb`.
What its module may have beside it:

- `present(result, options)` prints the result.
- Options named `on_...` are callbacks and have no place on a command line. If the module, or else
  `etymon.verbs.terminal`, has a function of the same name, the command line hands it over: a module-level
  `on_text(piece)` prints what `generate(..., on_text=None)` streams.
- A result may have an `exit_code`, for a run that was stopped before its end.

Mistakes of the user are `EtymonError`: one line on stderr, exit code 2 (a traceback only if ETYMON_DEBUG=1).
So are files that cannot be used (`OSError`), and numbers that are infinite or beyond 64 bits, whatever the
option. What the library warns of through its loggers is shown as a note. What a terminal shows has its
control characters made visible; pipes and files get texts as they are (`terminal.safe_streams`).
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

import click

import etymon
from etymon.config import USABLE, did_you_mean, is_usable
from etymon.errors import EtymonError
from etymon.files import DISK_ERRORS
from etymon.language import translated
from etymon.verbs import terminal
from etymon.verbs.help_contents import FIRST_EXAMPLES, VERB_GROUPS, value_of
from etymon.verbs.help_page import HelpContext, HelpPage, VerbCommand
from etymon.verbs.usage import usage_message

if TYPE_CHECKING:
    from etymon.settings import Option

FLAG = {"yes": True, "no": False}
"""What a flag that may have a value has without one."""
COMPLETE = "_ETYMON_COMPLETE"
"""What a shell sets that asks what could stand behind the words so far."""


def main(arguments: Sequence[str] | None = None, verbs: Mapping[str, str] = etymon.VERBS) -> NoReturn:
    """Run one command line and leave the process with its exit code. `verbs` are names and what each does."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = os.environ.get("ETYMON_DEBUG", "") not in ("", "0")
    logging.getLogger("etymon").addHandler(terminal.NOTES)  # once, however often it is asked
    with terminal.safe_streams():
        _run(arguments, verbs, debug)


def _run(arguments: Sequence[str], verbs: Mapping[str, str], debug: bool) -> NoReturn:
    code = 0
    try:
        try:
            if COMPLETE in os.environ:
                from etymon.verbs.completion import answer_shell

                sys.exit(answer_shell(Commands(verbs)))
            words = spread(arguments, verbs) if arguments else ["--help"]
            with Commands(verbs).make_context("etymon", words) as context:
                code = context.command.invoke(context)
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be handled
    except EtymonError as error:
        if debug:
            raise
        terminal.fail(
            str(error) if error.code is None else f"{error} (see etymon help {error.code})", arguments
        )
    except click.UsageError as error:
        command = "etymon --help" if error.ctx is None else f"{error.ctx.command_path} --help"
        terminal.fail(f"{usage_message(error)} (see {command})", arguments)
    except click.exceptions.Exit as leaving:  # after help, or the version
        sys.exit(leaving.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; keep Python from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is not None:
            # Too long a name, no permission, a full disk.
            name = os.fsdecode(error.filename)
            terminal.fail(f"cannot use {name}: {error.strerror}; mend that, or give another name")
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            room = f"cannot write: {error.strerror}; make room, also in the temporary folder (TMPDIR)"
            terminal.fail(f"{room} (see etymon help no-room)")
        traceback.print_exception(error.with_traceback(_without_dispatch(error.__traceback__)))
        print("etymon: this is a bug in etymon; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
    sys.exit(code)


class Commands(click.Group):
    """`etymon`, with a command for every verb. Only the verb that is named gets imported."""

    context_class = HelpContext

    def __init__(self, verbs: Mapping[str, str]) -> None:
        super().__init__(
            help="Pretrain, evaluate, generate with and look inside language models, on your own text.",
            epilog="Every verb is a Python function too: etymon.generate(...), etymon.pretrain(...). "
            "etymon help VERB shows its page, etymon help errors explains error messages.",
            params=[
                click.Option(
                    ["--version"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    help="Print the version and exit.",
                    callback=_print_version,
                ),
                *(
                    click.Option(
                        [flag],
                        is_flag=False,
                        flag_value="auto",
                        metavar="[bash|zsh|fish]",
                        is_eager=True,
                        expose_value=False,
                        help=text,
                        callback=_complete_in_shell,
                    )
                    for flag, text in (
                        ("--install-completion", "Complete verbs and options by the tab key in your shell."),
                        ("--show-completion", "Print what that would write, to put it where you like."),
                    )
                ),
            ],
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        )
        self.verbs = verbs

    def list_commands(self, context: click.Context) -> list[str]:
        return [name.replace("_", "-") for name in self.verbs]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        verb = name.replace("-", "_")
        if verb == "help" and verb not in self.verbs:
            return _help_command(self)  # not one of the verbs: it has no function in Python
        if verb not in self.verbs or "_" in name:
            if context.resilient_parsing:  # a shell asks, and there is nobody to tell
                return None
            context.fail(f"there is no verb {name!r}: {did_you_mean(name, self.list_commands(context))}")
        return command(verb)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpPage)
        formatter.write_examples(FIRST_EXAMPLES)
        super().format_options(context, formatter)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every verb for its summary.
        summaries = {name.replace("_", "-"): text for name, text in self.verbs.items()}
        groups = {heading: names.split() for heading, names in VERB_GROUPS.items()}
        grouped = {name for names in groups.values() for name in names}
        groups["Commands"] = [name for name in summaries if name not in grouped]
        for heading, names in groups.items():
            if rows := [(name, summaries[name]) for name in names if name in summaries]:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _help_command(commands: Commands) -> click.Command:
    """`etymon help`, `etymon help VERB`, `etymon help CODE`, `etymon help errors`."""

    def show(topic: str | None) -> int:
        from etymon.verbs import error_pages

        context = click.get_current_context()
        top = context.parent
        assert top is not None
        # Verbs and codes share one list of names, so a slip in either is told what was meant.
        pages = dict(error_pages.error_list())
        if topic is None:
            print(commands.get_help(top))
        elif topic in commands.list_commands(top):
            verb = command(topic.replace("-", "_"))
            print(verb.get_help(HelpContext(verb, parent=top, info_name=topic)))
        elif topic in pages:
            print(error_pages.error_page(topic, context.make_formatter().width))
        elif topic == "errors":
            formatter = context.make_formatter()
            formatter.write_dl(list(pages.items()))
            print(formatter.getvalue(), end="")
        else:
            known = [*commands.list_commands(top), *pages, "errors"]
            raise EtymonError(f"there is no help on {topic!r}: {did_you_mean(topic, known)}")
        return 0

    return VerbCommand(
        "help",
        params=[click.Argument(["topic"], required=False)],
        callback=show,
        help="Show the page of a verb, or what a refusal means and what to do.",
    )


def _print_version(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        print(f"etymon {etymon.__version__}")
        context.exit()


def _complete_in_shell(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    from etymon.verbs import completion

    assert isinstance(context.command, click.Group)
    name = completion.shell_name(shell)
    if parameter.name == "show_completion":
        print(completion.script_of(name, context.command), end="")
    else:
        for line in completion.install(name, context.command):
            print(translated(line, "result"))
    context.exit()


def _complete_value(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    from etymon.verbs.completion import complete_value  # only shells that ask need it

    return complete_value(context, parameter, begun)


def spread(arguments: Sequence[str], verbs: Mapping[str, str] = etymon.VERBS) -> list[str]:
    """The command line with `--train a b` as `--train a --train b`: once a verb has the arguments that it
    needs, words behind an option that may be repeated are its values. `--` ends that. A verb that takes any
    number of texts keeps them, unless they come from `--data`. A flag that may have a value gets one where
    it has none: `--resume` is `--resume=yes`."""
    verb = arguments[0].replace("-", "_")
    if verb not in verbs:
        return list(arguments)
    options = command_options(verb)
    places = [option for option in options if option.is_argument]
    missing = sum(option.default is ... for option in places)
    has_data = any(word.partition("=")[0] == "--data" for word in arguments)
    takes_texts = any(
        is_list(option) and not option.leads and not (has_data and option.default is not ...)
        for option in places
    )
    named = {option.flag: option for option in options if not option.is_argument}
    words, last, awaits_value = [arguments[0]], "", False
    for word, following in zip_longest(arguments[1:], arguments[2:], fillvalue=""):
        if awaits_value:  # whatever it is
            awaits_value = False
        elif word.startswith("-") and word != "-" and last != "--":
            last, equals, _ = word.partition("=")
            option, negated = named.get(last), named.get(last.replace("--no-", "--", 1))
            if option is not None and option.words:
                word = word if equals or following in (*FLAG, *option.words) else f"{last}=yes"
                awaits_value = not equals and word == last
            elif negated is not None and negated.words and not equals:
                word = f"{negated.flag}=no"
            else:
                awaits_value = option is not None and option.kind is not bool and not equals
        elif last in named and is_list(named[last]) and not takes_texts and missing <= 0:
            words.append(last)
        elif last != "--":
            last, missing = "", missing - 1
        words.append(word)
    return words


def is_list(option: Option) -> bool:
    return get_origin(option.kind) is list


def module_of(verb: str) -> ModuleType:
    return import_module(f"etymon.verbs.{verb}")


def command_options(verb: str) -> list[Option]:
    """The options of a verb that a command line can express."""
    return [
        option
        for option in getattr(module_of(verb), verb).options
        if option.kind is not None and option.seen_by in ("all", "command line")
    ]


def command(name: str) -> click.Command:
    """The command of a verb: reads its options, calls it and shows its result."""
    module, options = module_of(name), command_options(name)
    verb = getattr(module, name)
    callbacks = {
        option.name: getattr(module, option.name, None) or getattr(terminal, option.name, None)
        for option in verb.options
        if option.name.startswith("on_")
    }

    def call(**words: Any) -> int:
        values = {}
        for option in options:
            value = words[option.name]
            if value is None or value == ():
                continue
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and not is_usable(number):
                    raise EtymonError(f"{option.flag} is {str(number)[:40]}: {USABLE}")
            values[option.name] = FLAG.get(value, value) if option.words else value
        given = verb.read(values | callbacks)
        result = verb.run(given)
        if hasattr(module, "present"):
            module.present(result, given)
        return getattr(result, "exit_code", 0)

    return VerbCommand(
        name.replace("_", "-"),
        params=[_parameter(name, option) for option in options],
        callback=call,
        help=verb.__doc__,
    )


class Place(click.Argument):
    """An argument, with its help among that of the options."""

    def __init__(self, option: Option, type_: Any) -> None:
        count = -1 if is_list(option) else 1
        super().__init__(
            [option.name],
            type=type_,
            nargs=count,
            required=option.default is ...,
            shell_complete=_complete_value if type_ is str else None,
        )
        self.help: str = option.help

    def get_help_record(self, context: click.Context) -> tuple[str, str]:
        return self.make_metavar(context), self.help


class Switch(click.Option):
    """A flag that is off. Help leaves its `--no-...` out, which only undoes a run file's setting."""

    def get_help_record(self, context: click.Context) -> tuple[str, str]:
        return self.opts[0], self.help or ""


def _parameter(verb: str, option: Option) -> click.Parameter:
    kind = get_args(option.kind)[0] if is_list(option) else option.kind
    if option.words:
        choices = click.Choice([*FLAG, *option.words])
        shown = f"[{'|'.join(option.words)}]"
        return click.Option([option.flag, option.name], type=choices, help=option.help, metavar=shown)
    if get_origin(kind) is Literal:
        type_: Any = click.Choice(get_args(kind))
    else:
        type_ = click.Path(path_type=Path) if kind is Path else kind
    if option.is_argument:
        return Place(option, type_)
    help = option.help
    if option.default not in (None, "", (), False, ...) and option.kind is not bool:
        help += f"  [default: {option.default}]"
    if kind is bool:
        names = [f"{option.flag}/--no-{option.flag[2:]}", option.name]
        return (Switch if option.default is False else click.Option)(names, default=None, help=help)
    value = None if isinstance(type_, click.Choice) else value_of(verb, option.name, type_)
    return click.Option(
        [option.flag, option.name],
        type=type_,
        metavar=f"{value or 'TEXT'} ..." if is_list(option) else value,
        multiple=is_list(option),
        help=help,
        shell_complete=_complete_value if type_ is str else None,
    )


def _without_dispatch(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the verb on, without the frames of the command-line machinery."""
    rest = step = trace
    while step:
        if step.tb_frame.f_code.co_filename == __file__:
            rest = step.tb_next or step
        step = step.tb_next
    return rest
