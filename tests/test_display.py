"""Text for people is measured in the cells of a terminal."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import etymon
from etymon.display import align_left, align_right, cut, display_width, split_at, wrap

ROOT = Path(etymon.__file__).parent

WIDTHS = {
    "loss": 4,
    "验证损失": 8,
    "한국어": 6,
    "ｶﾞ": 2,
    "สวัสดี": 4,  # two vowels stand above their consonants
    "مرحبا": 5,
    "e\u0301": 1,
    "a\u200bb": 2,
    "👨\u200d👩\u200d👧": 2,
    "❤\ufe0f": 2,
    "🇨🇳": 2,
}


@pytest.mark.parametrize("text", WIDTHS)
def test_a_text_is_as_wide_as_on_a_terminal(text):
    assert display_width(text) == WIDTHS[text]
    assert display_width(align_left(text, 12)) == display_width(align_right(text, 12)) == 12
    assert align_left(text, 12).startswith(text) and align_right(text, 12).endswith(text)


@pytest.mark.parametrize("text", [*WIDTHS, "हिन्दी भाषा", "预训练 tokenizer 词表"])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_a_cut_text_fits_and_no_mark_is_torn_from_its_letter(text, width):
    short = cut(text, width)
    assert display_width(short) <= width
    assert (short == text) == (display_width(text) <= width)
    first, rest = split_at(text, width)
    assert first + rest == text
    assert not re.match("[\u0300-\u036f\u200d\ufe0f\u093f\u0940\u0e31\u0e35]", rest)


def test_lines_break_between_ideographs_and_keep_punctuation_with_its_word():
    text = "文本文件、文件夹（递归读取）或 etymon prepare 生成的存储；可重复给出（默认：词表大小的 25%）。"
    for width in range(12, 60):
        lines = wrap(text, width)
        assert all(display_width(line) <= width for line in lines)
        assert not any(line[0] in "、；）。，" or line[-1] == "（" for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("unbreakable", 4) == ["unbreakable"]
    assert wrap("写成 .csv、.tsv 都行。", 11) == ["写成 .csv、", ".tsv 都行。"]
    assert wrap("", 10) == [""]


def test_no_table_is_padded_by_the_number_of_its_letters():
    # `{name:<16}` counts letters; numbers may be set to the right that way, since theirs are one cell each.
    found = []
    for path in [
        *ROOT.glob("verbs/*.py"),
        *ROOT.glob("lab/*.py"),
        *ROOT.glob("training/*.py"),
        ROOT / "cli.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
            if spec is not None and re.match(r".?[<^]", ast.unparse(spec)[2:-1]):
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr in ("ljust", "rjust", "center"):
                found.append(f"{path.name}:{node.lineno}")
    assert not found
