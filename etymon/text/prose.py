"""English prose that every Python installation holds: enough text to try everything without a download.

The standard library's docstrings and comments and the language reference behind `help()`, cleaned of code,
tables and markup. Modules are parsed, never imported.
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from etymon.text.reading import Document

SKIPPED_FOLDERS = set(
    "test tests idle_test site-packages dist-packages __pycache__ ensurepip turtledemo __phello__ encodings "
    "pydoc_data _pyrepl".split()
)

DIRECTIVE = re.compile(r"^\s*\.\. ")
BULLET = re.compile(r"^(\s*)(?:[-*+•o]|\d+[.)]|[a-z]\)|\(\w\)|\[\d+\]|#\.)\s+")
RULE = re.compile(r"^\s*([=\-~^*#_+.\"'`])\1{2,}.*$")
ROLE = re.compile(r":[\w:+-]+:`([^`<]+?)(?:\s*<[^`>]*>)?`")
LITERAL = re.compile(r"``?([^`]+)``?")
EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])")
CITATION = re.compile(r"\s*\[\d+\]_?|\s*\|[\w ]+\||\\ ")
MARKUP = ((BULLET, ""), (ROLE, r"\1"), (LITERAL, r"\1"), (EMPHASIS, r"\1"), (CITATION, ""))
"""What goes, in this order, and what stays of it."""
# Signs of code, grammar or tables inside a paragraph.
CODE_MARKS = re.compile(r"[{}\\|<>@$^~=_]|::|->|\(\)|\w\(|\)\.|\w\.\w|\+\+|[\[\]]")
WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)?")
SENTENCE_END = re.compile(r"[.!?][\"')]*$")


COMMENT = re.compile(r"\s*#+(?!!) ?(.*)")


class StandardLibrary:
    """The English prose that ships inside CPython."""

    description = "the prose of the Python standard library (topics, docstrings and comments)"

    @cached_property
    def _documents(self) -> list[Document]:
        # About a megabyte, and parsing the library takes seconds: once is enough.
        return stdlib_documents()

    def documents(self) -> Iterator[Document]:
        yield from self._documents  # only when somebody reads

    def fingerprint(self) -> str:
        # The text is a function of the interpreter: no need to read it to know it.
        return f"standard library 2, {platform.python_implementation()} {platform.python_version()}"


def stdlib_documents() -> list[Document]:
    """One document a help topic and one a standard library module, in a fixed order, without repeats."""
    seen: set[str] = set()
    documents: list[Document] = []
    for texts in [*_topics(), *_modules()]:
        paragraphs: list[str] = []
        for paragraph in (paragraph for text in texts for paragraph in clean_paragraphs(text)):
            if paragraph.casefold() not in seen:
                seen.add(paragraph.casefold())
                paragraphs.append(paragraph)
        if paragraphs:
            documents.append(Document("\n".join(paragraphs)))
    return documents


def package_paragraphs(package: str) -> list[str]:
    """The prose of a package's docstrings, paragraph by paragraph, without repeats: rows for a table whose
    label is the package."""
    kept: dict[str, None] = {}
    for path in sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        for text in _docstrings(ast.parse(path.read_bytes())):
            kept |= dict.fromkeys(clean_paragraphs(text))
    return list(kept)


def clean_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring or reStructuredText that are plain prose, each as one line."""
    for block in _blocks(inspect.cleandoc(text).expandtabs()):
        paragraph = " ".join(line.strip() for line in block)
        for pattern, replacement in MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        for mark, plain in (("`", ""), ("::", ":"), (" -- ", " - "), ("---", " - ")):
            paragraph = paragraph.replace(mark, plain)
        paragraph = " ".join(paragraph.split())
        # English sentences, rather than names, code or numbers: mostly letters, with an end, and few signs
        # of code.
        words = WORD.findall(paragraph)
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        if (
            ">>>" not in paragraph
            and len(words) >= 6
            and len(paragraph) >= 40
            and paragraph[0].isalpha()
            and letters >= 0.86 * len(paragraph)
            and SENTENCE_END.search(paragraph)
            and len(CODE_MARKS.findall(paragraph)) <= len(words) / 7
        ):
            yield paragraph


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs and list items; what is indented below a `::` or a directive is code and left out."""
    block: list[str] = []
    literal: int | None = None  # the indent that a literal block is deeper than
    session = False
    for line in [*text.split("\n"), ""]:
        indent = _indent(line)
        if line.strip() and literal is not None:
            if indent > literal:
                continue
            literal = None
        # An interactive example and its output, up to a blank line.
        session = bool(line.strip()) and (session or line.lstrip().startswith((">>>", "$ ", "#!")))
        ends = session or not line.strip() or RULE.match(line) or DIRECTIVE.match(line)
        # A jump to the right inside a paragraph is a definition or code, not a wrapped line.
        jumps = block and indent != _indent(block[-1]) and not BULLET.match(block[-1])
        if block and (ends or jumps or BULLET.match(line)):
            yield block
            if ends and not session and block[-1].rstrip().endswith("::"):
                literal = _indent(block[-1])
            block = []
        if not ends:
            block.append(line)
        elif not session and DIRECTIVE.match(line):
            literal = indent


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _topics() -> Iterator[list[str]]:
    """The texts behind `help("...")`, read from the literal dictionary in pydoc_data/topics.py."""
    path = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    nodes = ast.walk(ast.parse(path.read_bytes())) if path.is_file() else iter(())
    literal = next((node for node in nodes if isinstance(node, ast.Dict)), None)
    topics = {} if literal is None else ast.literal_eval(literal)
    for name in sorted(topics):
        yield [topics[name]]


def _modules() -> Iterator[list[str]]:
    """The docstrings and then the comments of every module of the standard library, in the order of the
    file."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda item: item.relative_to(root).as_posix()):
        folders = path.relative_to(root).parts[:-1]
        if SKIPPED_FOLDERS & set(folders) or (folders and folders[0].startswith("config-")):
            continue
        source, texts = path.read_bytes(), list[str]()
        if b'"""' in source or b"'''" in source:  # parsing is the slow part
            with suppress(SyntaxError, ValueError):  # a few files are deliberately broken
                texts = list(_docstrings(ast.parse(source)))
        yield [*texts, *_comments(source.decode("utf-8", "ignore"))]


def _comments(source: str) -> Iterator[str]:
    """Comments of whole lines, those below each other as one text."""
    block: list[str] = []
    for line in [*source.split("\n"), ""]:
        if comment := COMMENT.match(line):
            block.append(comment[1])
        elif block:
            yield "\n".join(block)
            block = []


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, walking only into bodies that can hold some."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)
