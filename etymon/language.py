"""Messages in the user's language.

Code writes its messages in English, mostly as f-strings. Where they are shown to people (the command line,
progress, pages), `translated` looks them up in `locale/LANGUAGE/LC_MESSAGES/etymon.po`, whose entries are
texts with places to fill:

    msgctxt "message"
    msgid "{folder} holds a run already: go on with --resume, or give another --out"
    msgstr "{folder} 中已有一次训练：用 --resume 继续，或用 --out 指定别的文件夹"

"runs/a holds a run already: ..." fits that entry, and what stands at {folder} is kept. A place whose name
begins with `message` holds a text that is looked up in turn, and one that begins with `help` a text of
--help; `numbers` holds no letters. What has no entry stays in English, so a message needs none. Files that
programs read (run.yaml, JSON, metrics) and the texts of exceptions are never translated.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Context = Literal["help", "message", "progress", "report", "result"]
"""Where a text is shown; texts of one place are not taken for those of another."""

LOCALE = Path(__file__).parent / "locale"
_PLACE = re.compile(r"\{(\w+)\}")
_ONE_OF_MANY = re.compile(
    # What is quoted was written by somebody else, and stays.
    r"""((?<!\w)(?:'[^'\n]*'|"[^"\n]*")(?!\w))|"""
    # Neither the end of a number ("2.1 tokens") or of a sum ("n + 1 tokens"), nor a total ("1 of 1 texts").
    r"(?<![\w.,/])(?<![-+] )(?<!of )(1 "
    r"(?:arm|character|checkpoint|column|device|document|epoch|example|file|head|label|layer|model|pair"
    r"|parameter|part|phase|question|row|run|sample|seed|sentence|slice|step|target|text|token|trial"
    r"|vector|window|word))s\b(?![-/\\]|\.\w)"
)
"""Counts that are one, without the ending; not in a file's name ("part 1 texts.txt")."""
_INNER = {"message": "", "help": "help"}
"""Places that hold a text to look up in turn, by how their names begin: in the same context, or in `help`."""


def language() -> str:
    """The code of the language that messages are shown in, "zh" or "en": as ETYMON_LANGUAGE says, or else the
    locale."""
    if name := os.environ.get("ETYMON_LANGUAGE"):
        return _code_of(name)
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    # A terminal of another encoding (Big5) has not all of the characters.
    encoding = locale.partition(".")[2].partition("@")[0].lower().replace("-", "")
    if locale in ("", "C", "POSIX") or not encoding.startswith(("utf8", "gb", "euccn")):
        return "en"
    return _code_of((os.environ.get("LANGUAGE") or locale).partition(":")[0])


def _code_of(name: str) -> str:
    code = re.split("[_.@-]", name.lower())[0]
    return code if code.isalpha() and (LOCALE / code).is_dir() else "en"


def translated(text: str, context: Context, code: str | None = None) -> str:
    """The text in the user's language or that of `code`, or as it is if there is no entry for it."""
    code = language() if code is None else _code_of(code)
    return with_singulars(text) if code == "en" else _translate(code, context, text).text


def with_singulars(text: str) -> str:
    """The English text with "1 step" for "1 steps"; code writes every count with a plural."""
    return _ONE_OF_MANY.sub(r"\1\2", text)


class PlacedEntry(NamedTuple):
    """An entry with places: the texts between them, the names of the places, and the translation."""

    literals: list[str]
    names: list[str]
    translation: str


class Translation(NamedTuple):
    letters: int
    """Letters of the English text that entries have, not counting what fills their places."""
    text: str


@lru_cache(maxsize=1024)
def _translate(code: str, context: str, text: str) -> Translation:
    """The translation by the entries that have most of the text: "{message} (see {command})" with an entry
    for the message says more than an entry for the message's beginning that takes the rest for a name."""
    entries = _catalogue(code)[context]
    if text in entries.exact:
        return Translation(len(text), entries.exact[text])
    best = Translation(0, text)
    for template in entries.templates:
        values = _fill(template.literals, text)
        if values is None or any(map(_is_misplaced, template.names, values)):
            continue
        letters, shown = sum(map(len, template.literals)), {}
        for name, value in zip(template.names, values):
            inner = next((inner for prefix, inner in _INNER.items() if name.startswith(prefix)), None)
            part = Translation(0, value) if inner is None else _translate(code, inner or context, value)
            letters, shown[name] = letters + part.letters, part.text
        if letters > best.letters:
            pieces = _PLACE.split(template.translation)  # texts and names of places by turns
            best = Translation(
                letters, "".join(shown[piece] if i % 2 else piece for i, piece in enumerate(pieces))
            )
    return best


def _is_misplaced(name: str, value: str) -> bool:
    """Whether a value cannot be what the place of that name is for."""
    return name == "numbers" and any(letter.isalpha() for letter in value)


def _fill(literals: list[str], text: str) -> list[str] | None:
    """What stands between the literals, if the text has them all in this order and nothing around them."""
    first, *middle, last = literals
    place, end = len(first), len(text) - len(last)
    if place > end or not text.startswith(first) or not text.endswith(last):
        return None
    values = []
    for literal in middle:
        start = text.find(literal, place, end)
        if start < 0:
            return None
        values.append(text[place:start])
        place = start + len(literal)
    return [*values, text[place:end]]


class Entries(NamedTuple):
    """The entries of one context: without places, and with some."""

    exact: dict[str, str]
    templates: list[PlacedEntry]


@cache
def _catalogue(code: str) -> dict[str, Entries]:
    contexts = {context: Entries({}, []) for context in get_args(Context)}
    for context, text, translation in read_po(LOCALE / code / "LC_MESSAGES" / "etymon.po"):
        literals, names = _PLACE.split(text)[::2], _PLACE.findall(text)
        if not translation:
            continue
        if names:
            contexts[context].templates.append(PlacedEntry(literals, names, translation))
        else:
            contexts[context].exact[text] = translation
    return contexts


def read_po(path: Path) -> list[tuple[str, str, str]]:
    """(context, text, translation) of the entries of a .po file, the header left out.

    The file is read as it is, so that nothing needs to be compiled: 672 entries took 3 ms on an AMD EPYC.
    """
    entries = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        fields, name = {"msgctxt": "", "msgid": "", "msgstr": ""}, ""
        for line in block.splitlines():
            if line and not line.startswith("#"):
                word, _, rest = line.partition(" ")
                name, quoted = (name, line) if line.startswith('"') else (word, rest)
                fields[name] += json.loads(quoted)  # PO escapes a string as JSON does
        if fields["msgid"]:
            entries.append((fields["msgctxt"], fields["msgid"], fields["msgstr"]))
    return entries
