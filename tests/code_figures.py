"""What reading the library costs, in figures: `python -m tests.code_figures` prints them, `--check` holds them to limits.

Counted from the source alone: Python tokens (without comments and strings), comments, long files and lines, class names that
stand for two things, and words that say nothing as names. With `--trace`, small runs are followed: the files and functions of
ours that they go through, and how deep below the verb a layer is reached.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARY = Path(__file__).resolve().parents[1] / "etymon"
EMPTY_WORDS = ("one", "found", "own", "asked", "known", "told", "said", "meant")
"""As names they could stand for anything."""
LONGEST_LINE, LONGEST_FILE, LONGEST_FAMILY = 110, 400, 300
DIRECTIVES = ("# type:", "# noqa", "# fmt:", "# ---")
"""Comments that tell a reader nothing."""
SHARED_NAMES = {"Shape"}
"""Class names that every family has."""
LIMITS = {
    "tokens": 503_700,
    "long files": 0,
    "class names used twice": 0,
    "empty words": 10,
    "long lines": 26,
    "lines left unformatted": 14,
}
"""Not to be exceeded. Lower them whenever the figures fall."""
FEWEST_COMMENTS = 4.0
"""A hundred lines: where a reader would ask why it is like this, a comment says so."""


def source_figures(room: str = "") -> dict[str, Any]:
    """The figures that the source tells, of the whole library or of one of its folders."""
    tokens = comments = lines = long_lines = unformatted = 0
    names: Counter[str] = Counter()
    classes: dict[str, list[str]] = {}
    long_files = []
    for path in sorted((LIBRARY / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(LIBRARY).as_posix()
        count = text.count("\n")
        lines += count
        if count > (LONGEST_FAMILY if place.startswith("families/") else LONGEST_FILE):
            long_files.append(place)
        long_lines += sum(len(line) > LONGEST_LINE for line in text.splitlines())
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += not token.string.startswith(DIRECTIVES)
                unformatted += "fmt:" in token.string
            elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
                tokens += 1
                names[token.string] += token.type == tokenize.NAME
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(place)
    twice = sorted(name for name, places in classes.items() if len(places) > 1 and name not in SHARED_NAMES)
    return {
        "lines": lines,
        "tokens": tokens,
        "comments": comments,
        "comments a hundred lines": round(100 * comments / lines, 1),
        "long files": long_files,
        "long lines": long_lines,
        "lines left unformatted": unformatted,
        "class names used twice": twice,
        "empty words": sum(names[word] for word in EMPTY_WORDS),
    }


def _is_ours(place: str) -> bool:
    # Templates of pages (.html, .css) run as code under their own names, and are not Python to be read.
    return place.startswith(str(LIBRARY)) and place.endswith(".py")


class Follower:
    """Counts our files and functions that a call runs through, and the depth at which a layer's forward begins."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, int]] = set()
        self.depth = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not _is_ours(code.co_filename):
            return
        self.files.add(code.co_filename)
        if not code.co_name.startswith("<"):  # neither imports nor comprehensions are part of the story
            self.functions.add((code.co_filename, code.co_firstlineno))
        if code.co_name == "forward" and code.co_filename.endswith("nn/blocks.py") and not self.depth:
            step: FrameType | None = frame
            while step is not None:
                self.depth += _is_ours(step.f_code.co_filename)
                step = step.f_back

    def follow(self, call: Callable[[], Any]) -> Any:
        sys.setprofile(self)
        try:
            return call()
        finally:
            sys.setprofile(None)


def trace_figures() -> dict[str, dict[str, int]]:
    """Files, functions and depth of `pretrain bert`, `finetune` and `generate` on a tiny text."""
    import etymon

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        words = "the river crossed the old garden and the captain remembered it".split()
        text = "\n\n".join(f"{' '.join(words[n % 5 :])}. {' '.join(words[: 3 + n % 7])}." for n in range(80))
        (place / "text.txt").write_text(text, encoding="utf-8")
        rows = "".join(f"{' '.join(words[n % 7 :])},{'good' if n % 2 else 'bad'}\n" for n in range(60))
        (place / "rows.csv").write_text("text,label\n" + rows, encoding="utf-8")
        small = ["shape.dim=32", "shape.layers=2", "shape.heads=2", "shape.inner_dim=48"]
        options: dict[str, Any] = {
            "data": [place / "text.txt"], "steps": 4, "batch": 8, "length": 32, "vocabulary": 300, "progress": "silent",
        }  # fmt: skip
        etymon.pretrain("gpt2", out=place / "gpt2", set=small[:3], **options)
        calls = {
            "pretrain bert": lambda: etymon.pretrain("bert", out=place / "bert", set=small, **options),
            "finetune": lambda: etymon.finetune(
                place / "bert",
                task="classify",
                train=[place / "rows.csv"],
                out=place / "tuned",
                steps=4,
                progress="silent",
            ),
            "generate": lambda: etymon.generate(place / "gpt2", ["the river"], max_new_tokens=4),
        }
        for name, call in calls.items():
            follower = Follower()
            follower.follow(call)
            figures[name] = {
                "files": len(follower.files), "functions": len(follower.functions), "depth": follower.depth,
            }  # fmt: skip
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.code_figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--trace", action="store_true", help="follow small runs, too")
    parser.add_argument("--room", default="", help="count one folder of the library, e.g. nn")
    options = parser.parse_args()
    figures = source_figures(options.room)
    for name, value in figures.items():
        print(f"{name}: {len(value)} {value}" if isinstance(value, list) else f"{name}: {value:,}")
    if options.trace:
        for name, value in trace_figures().items():
            print(f"{name}: {value}")
    if options.check:
        sizes = {
            name: len(figures[name]) if isinstance(figures[name], list) else figures[name] for name in LIMITS
        }
        over = [
            f"{name} {sizes[name]:,} (at most {limit:,})"
            for name, limit in LIMITS.items()
            if sizes[name] > limit
        ]
        if (share := 100 * figures["comments"] / figures["lines"]) < FEWEST_COMMENTS:
            missing = math.ceil((FEWEST_COMMENTS * figures["lines"] / 100 - figures["comments"]) / 0.96)
            over.append(
                f"comments a hundred lines {share:.2f} (at least {FEWEST_COMMENTS}: {missing} more, where "
                "somebody would ask why it is like this)"
            )
        if over:
            sys.exit(f"over the limits of tests/code_figures.py: {', '.join(over)}")


if __name__ == "__main__":
    main()
