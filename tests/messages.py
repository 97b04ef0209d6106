"""Messages of the source beside the catalogue: `python -m tests.messages` lists what has no Chinese yet, as entries to
fill in."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import etymon
from etymon.cli import command_options, module_of
from etymon.language import _PLACE, LOCALE, _fill, read_po, translated
from etymon.registry import OBJECTIVES, TASKS
from etymon.verbs.help_contents import EXAMPLES, FIRST_EXAMPLES, OPTION_GROUPS, VERB_GROUPS

ROOT = Path(etymon.__file__).parent
CATALOGUE = LOCALE / "zh" / "LC_MESSAGES" / "etymon.po"
Literals = tuple[str, ...]
"""What a string of the source says for certain: the parts of an f-string between its values."""

PAGES = (
    "Figures",
    "Curve",
    "ReportTable",
    "ReportSamples",
    "Paragraph",
    "Confusion",
    "AskedQuestions",
    "write_report",
    "ReportParts",
    "ShadedText",
    "Picture",
)
PAGE_WORDS = ("title", "caption", "x_label", "y_label", "samples_title", "header", "HEADER")


# Texts that the source puts together from words (`"expected " + ...`) or that pydantic and click do.
COMPOSED = re.compile(
    r"expected (at least|at most|above|below|a valid|true or false|a list).*|\{value\} is not a valid \w+"
    r"|on the text it was trained on .*|(training|growing) a tokenizer of .* on the text|.* and this machine has .*"
    r"|(next sentence|sentence order) accuracy|pseudo-log-likelihood .*|\{score\}% .*|.*, counted half"
)


def literals_of(node: ast.AST) -> Literals | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # The arguments of a logger, or of str.format.
        return tuple(re.split(r"%[sd]|\{[\w!]*\}", node.value))
    if isinstance(node, ast.JoinedStr):
        parts = [""]
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts[-1] += str(value.value)
            else:
                parts.append("")
        return tuple(parts)
    return None


def strings_in(node: ast.AST | None) -> Iterator[Literals]:
    """Those of an expression; the parts of an f-string are no strings of their own."""
    if node is None:
        return
    if (found := literals_of(node)) is not None:
        yield found
        return
    for child in ast.iter_child_nodes(node):
        yield from strings_in(child)


@cache
def trees() -> list[tuple[str, ast.Module]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def can_make(literals: Literals, text: str) -> bool:
    """Whether a string of the source can become the text of an entry, whatever its values are."""
    letters = len("".join(literals))
    if not letters or letters < 0.4 * len(_PLACE.sub("", text)):
        return False
    return literals[0] == text if len(literals) == 1 else _fill(list(literals), text) is not None


def source_text() -> str:
    """All strings of the library, its templates and click, for finding phrases in them."""
    import click

    paths = [*ROOT.rglob("*.py"), *Path(click.__file__).parent.glob("*.py")]
    pieces = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces.append(node.value)
    pieces += [path.read_text(encoding="utf-8") for path in (ROOT / "report" / "templates").glob("*.html")]
    text = " ".join("\n".join(pieces).split())
    return f"{text}\n{text.replace('_', ' ')}"


def phrases(text: str) -> list[str]:
    """The parts of an entry between its places and its punctuation."""
    parts = (
        " ".join(part.split())
        for piece in _PLACE.split(text)[::2]
        for part in re.split(r"[:;,()\u00a0]|\.$", piece)
    )
    return [part for part in parts if re.search("[A-Za-z]{2}", part)]


def help_texts() -> list[str]:
    """Summaries, explanations, examples and options of all verbs, and headings."""
    texts: dict[str, None] = dict.fromkeys([*VERB_GROUPS, *OPTION_GROUPS, "More options", "Examples"])
    texts |= {purpose: None for examples in [*EXAMPLES.values(), FIRST_EXAMPLES] for _, purpose in examples}
    for verb in etymon.VERBS:
        for part in getattr(module_of(verb), verb).__doc__.split("\n\n"):
            texts[" ".join(part.split())] = None
        texts |= {" ".join(option.help.split()): None for option in command_options(verb)}
    # Refusals of `--set options.NAME=...` quote these.
    for table in (OBJECTIVES, TASKS):
        for fields in (getattr(table.find(name).Options, "__pydantic_fields__", {}) for name in table):
            texts |= {
                " ".join(field.description.split()): None for field in fields.values() if field.description
            }
    return [text for text in texts if not re.fullmatch(r"[\w-]+(, [\w-]+)*", text)]  # names alone


def note_strings() -> set[Literals]:
    """What is noted, and warned of, while a verb works."""
    found: set[Literals] = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in ("note", "on_note", "notify", "warning"):
                    found |= set(strings_in(node.args[0]))
    return {literals for literals in found if len(re.findall("[a-z]", "".join(literals))) > 3}


def result_strings() -> set[Literals]:
    """Lines of results on a terminal."""
    calls = (
        node for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args
    )
    said = [call.args[0] for call in calls if getattr(call.func, "id", "") == "say"]
    strings = {literals for node in said for literals in _shown_strings(node)}
    return {literals for literals in strings if len(re.findall("[a-z]", "".join(literals))) > 3}


def refusal_strings() -> set[Literals]:
    """What refusals say, and the phrases that a function sets into its own."""
    found: set[Literals] = set()
    for name, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= _refusals_of(function)
            # What a setting's own check says becomes a part of a refusal.
            called = (
                function.func.id
                if isinstance(function, ast.Call) and isinstance(function.func, ast.Name)
                else ""
            )
            if called == "ValueError" and name.split("/")[0] in ("settings", "objectives"):
                found |= set(strings_in(function.args[0]))
            if called == "strict" and len(function.args) > 2:
                found |= set(strings_in(function.args[2]))
    names = re.compile(r"--[\w-]+( \w+)? $")  # an option before a text that has its own entry
    return {literals for literals in found if len(re.findall("[a-z]", names.sub("", "".join(literals)))) > 3}


def _refusals_of(function: ast.AST) -> set[Literals]:
    phrases_of: dict[str, set[Literals]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {getattr(target, "id", "") for target in targets}:
                phrases_of.setdefault(name, set()).update(filter(_is_phrase, _shown_strings(node.value)))
    found: set[Literals] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.args and _is_refusal(node):
            found |= set(strings_in(node.args[0]))
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.FormattedValue):
                    found |= set(filter(_is_phrase, _shown_strings(part.value)))
                elif isinstance(part, ast.Name):
                    found |= phrases_of.get(part.id, set())
    return found


def _shown_strings(node: ast.AST) -> Iterator[Literals]:
    """The strings that an expression may become: not those that it is looked up or called with."""
    if (found := literals_of(node)) is not None:
        yield found
    elif isinstance(node, ast.IfExp):
        yield from [*_shown_strings(node.body), *_shown_strings(node.orelse)]
    elif isinstance(node, ast.BoolOp):
        yield from [found for value in node.values for found in _shown_strings(value)]
    elif isinstance(node, ast.BinOp):
        yield from [*_shown_strings(node.left), *_shown_strings(node.right)]


def _is_phrase(literals: Literals) -> bool:
    return re.search("[a-z]{2,} [a-z]{2,}|[a-z]{4,} $|^ [a-z]{4,}", "\0".join(literals)) is not None


def _is_refusal(node: ast.Call) -> bool:
    # `reading.refuse` takes the text of one; the server's `refuse` an answer for programs.
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "refuse"
    return getattr(node.func, "id", "") in ("EtymonError", "Diverged")


def page_strings() -> set[Literals]:
    """Titles, headings and captions of reports."""
    found: set[Literals] = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in PAGES:
                called = node.func.id  # type: ignore[attr-defined]
                for keyword in node.keywords:
                    if keyword.arg in PAGE_WORDS:
                        found |= set(strings_in(keyword.value))
                if called == "write_report" and len(node.args) > 1:
                    found |= set(strings_in(node.args[1]))
                if called in ("ReportTable", "Figures") and isinstance(
                    node.args[0], ast.Tuple | ast.List | ast.Dict
                ):
                    found |= set(strings_in(node.args[0]))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "in_language":
                found |= set(strings_in(node.args[0]))
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {getattr(target, "id", "") for target in targets}
                if names & {*PAGE_WORDS} and isinstance(node.value, ast.Constant | ast.List):
                    found |= set(strings_in(node.value))
                if names == {"figures"} and isinstance(node.value, ast.Dict):
                    for key in node.value.keys:
                        found |= set(strings_in(key))
    return {literals for literals in found if len(re.findall("[a-z]", "".join(literals))) > 1}


def entries(*contexts: str) -> list[str]:
    return [text for context, text, translation in read_po(CATALOGUE) if translation and context in contexts]


def missing(context: str) -> list[Literals]:
    """What has no entry: of `help`, of notes and refusals (`message`), of results on a terminal, or of reports."""
    known = entries(context)
    if context == "help":
        # Some list what is in a table of the library: their entries have a place for it.
        exact, placed = set(known), [_PLACE.split(text)[::2] for text in known if _PLACE.search(text)]
        has_entry = {
            text: text in exact or any(len("".join(parts)) > 40 and _fill(parts, text) for parts in placed)
            for text in help_texts()
        }
        return [(text,) for text in has_entry if not has_entry[text]]
    if context == "result":
        # A line of a result is put together more freely than a message: with numbers in its places it is translated.
        lines = {literals: "7".join(literals) for literals in result_strings()}
        missing = [each for each, line in lines.items() if translated(line, context, "zh") == line]
        return sorted(each for each in missing if not any(can_make(each, text) for text in known))
    strings = note_strings() | refusal_strings() if context == "message" else page_strings()
    missing = [literals for literals in strings if not any(can_make(literals, text) for text in known)]
    # Some entries are of a whole message, with the phrases that the source sets into it.
    inside = [literals for literals in missing if any(_has_phrase(text, literals) for text in known)]
    return sorted(set(missing) - set(inside))


def _has_phrase(text: str, literals: Literals) -> bool:
    """Whether an entry has a phrase of a refusal in it, with places for its values."""
    if not _is_phrase(literals):
        return False
    values = r"\{\w+\}".join(re.escape(part) for part in literals)
    return re.search(values, text) is not None


if __name__ == "__main__":
    for context in ("help", "message", "result", "report"):
        for literals in missing(context):
            text = "".join(part + f"{{place{i}}}" * (i < len(literals)) for i, part in enumerate(literals, 1))
            print(f'msgctxt "{context}"\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n')
