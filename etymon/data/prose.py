"""English prose that every Python installation holds: enough text to try everything without a download.

The standard library's docstrings and the language reference behind `help()`, cleaned of code, tables and
markup. Modules are parsed, never imported.
"""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from etymon.data.document import Document

SKIPPED_FOLDERS = {
    "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip", "turtledemo",
    "__phello__", "encodings", "pydoc_data", "_pyrepl",
}  # fmt: skip

DIRECTIVE = re.compile(r"^\s*\.\. ")
BULLET = re.compile(r"^(\s*)(?:[-*+•o]|\d+[.)]|[a-z]\)|\(\w\)|\[\d+\]|#\.)\s+")
RULE = re.compile(r"^\s*([=\-~^*#_+.\"'`])\1{2,}.*$")
ROLE = re.compile(r":[\w:+-]+:`([^`<]+?)(?:\s*<[^`>]*>)?`")
LITERAL = re.compile(r"``?([^`]+)``?")
EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])")
CITATION = re.compile(r"\s*\[\d+\]_?|\s*\|[\w ]+\||\\ ")
# Signs of code, grammar or tables inside a paragraph.
CODE_MARKS = re.compile(r"[{}\\|<>@$^~=_]|::|->|\(\)|\w\(|\)\.|\w\.\w|\+\+|[\[\]]")
WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)?")
SENTENCE_END = re.compile(r"[.!?][\"')]*$")


def stdlib_documents() -> list[Document]:
    """One document a help topic and one a standard library module, in a fixed order, without repeats."""
    seen: set[str] = set()
    documents: list[Document] = []
    for name, texts in [*_topics(), *_modules()]:
        paragraphs: list[str] = []
        for text in texts:
            for paragraph in clean_paragraphs(text):
                if paragraph.casefold() not in seen:
                    seen.add(paragraph.casefold())
                    paragraphs.append(paragraph)
        if paragraphs:
            documents.append(Document("\n".join(paragraphs), name))
    return documents


def clean_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring or reStructuredText that are plain prose, each as one line."""
    for block in _blocks(inspect.cleandoc(text).expandtabs()):
        paragraph = _plain(" ".join(line.strip() for line in block))
        if _is_prose(paragraph):
            yield paragraph


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs and list items; what is indented below a `::` or a directive is code and left out."""
    block: list[str] = []
    literal: int | None = None  # the indent that a literal block is deeper than
    session = False
    for line in [*text.split("\n"), ""]:
        indent = len(line) - len(line.lstrip())
        if line.strip() and literal is not None:
            if indent > literal:
                continue
            literal = None
        session = bool(line.strip()) and (session or line.lstrip().startswith((">>>", "$ ", "#!")))
        if session:  # an interactive example and its output, up to a blank line
            if block:
                yield block
            block = []
            continue
        if not line.strip() or RULE.match(line) or DIRECTIVE.match(line):
            if block:
                yield block
                if block[-1].rstrip().endswith("::"):
                    literal = len(block[-1]) - len(block[-1].lstrip())
            block = []
            if DIRECTIVE.match(line):
                literal = indent
            continue
        if BULLET.match(line) and block:
            yield block
            block = []
        # A jump to the right inside a paragraph is a definition or code, not a wrapped line.
        if block and indent != len(block[-1]) - len(block[-1].lstrip()) and not BULLET.match(block[-1]):
            yield block
            block = []
        block.append(line)


def _plain(paragraph: str) -> str:
    paragraph = BULLET.sub("", paragraph)
    paragraph = ROLE.sub(r"\1", paragraph)
    paragraph = LITERAL.sub(r"\1", paragraph)
    paragraph = EMPHASIS.sub(r"\1", paragraph)
    paragraph = CITATION.sub("", paragraph)
    paragraph = paragraph.replace("`", "").replace("::", ":").replace(" -- ", " - ").replace("---", " - ")
    return re.sub(r"\s+", " ", paragraph).strip()


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is made of English sentences rather than names, code or numbers."""
    words = WORD.findall(paragraph)
    if ">>>" in paragraph or len(words) < 6 or len(paragraph) < 40 or not paragraph[0].isalpha():
        return False
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    if letters < 0.86 * len(paragraph) or not SENTENCE_END.search(paragraph):
        return False
    return len(CODE_MARKS.findall(paragraph)) <= len(words) / 7


def _topics() -> Iterator[tuple[str, list[str]]]:
    """The texts behind `help("...")`, read from the literal dictionary in pydoc_data/topics.py."""
    path = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    if not path.is_file():
        return
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            topics = {
                str(name.value): str(value.value)
                for name, value in zip(node.keys, node.values, strict=True)
                if isinstance(name, ast.Constant) and isinstance(value, ast.Constant)
            }
            for name in sorted(topics):
                yield f"topic {name}", [topics[name]]
            return


def _modules() -> Iterator[tuple[str, list[str]]]:
    """Every module of the standard library with its docstrings in the order of the file."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda item: item.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts[:-1]) or relative.parts[0].startswith("config-"):
            continue
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            continue  # parsing is the slow part
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # a few files are deliberately broken
            continue
        texts = list(_docstrings(tree))
        if texts:
            yield f"module {relative.with_suffix('').as_posix().replace('/', '.')}", texts


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, walking only into bodies that can hold some."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)
