from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.text.sentences import sentence_starts


def split(text: str) -> list[str]:
    bounds = [*sentence_starts(text).tolist(), len(text)]
    return [text[start:stop].strip() for start, stop in pairwise(bounds)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "Then it stopped!", "Why?", "Nobody knew…", "So we left."],
        ["Mr. and Mrs. Bennet met Dr. J. K. Smith at St. Mary's.", "They left."],
        ["See e.g. Smith or Fig. 3 on p. 12 of No. 7.", "It is cheap."],
        ['"Stop!" he said.', '"Where to?" she asked.', "(It was late.)", "“No.”", "They ran."],
        ["He lives in the U.S. Army base.", "At 5 p.m. they close."],
        ["He came to the U.S.", "The trip was long."],
        ["So did I.", "Pi is 3.14 and costs $2.50.", "In 1914.", "Then war came."],
        ["我们去公园。", "天气很好！", "“你呢？”", "他说（好。）", "再见。"],
        ["今日は。", "「元気ですか？」", "はい。"],
        ["नमस्ते।", "ठीक है॥", "चलो।"],
        ["كيف حالك؟", "بخير.", "شکریہ۔", "وداعا."],
        ["ሰላም።", "እንዴት ነህ፧", "ደህና።"],
        ["សួស្តី។", "អរគុណ។"],
        ["မင်္ဂလာပါ။", "ကျေးဇူး။"],
    ],
)
def test_languages(sentences: list[str]) -> None:
    assert split(" ".join(sentences)) == sentences


def test_scripts_without_spaces() -> None:
    assert split("我们去公园。天气很好！！“你呢？”他问。") == [
        "我们去公园。",
        "天气很好！！",
        "“你呢？”",
        "他问。",
    ]


def test_lines_end_sentences_unless_the_text_is_wrapped() -> None:
    assert split("Chapter I\nThe beginning\n\n1. Apples. Pears") == [
        "Chapter I", "The beginning", "1. Apples.", "Pears",
    ]  # fmt: skip
    wrapped = (
        "A long line that\ngoes on here and\nthen on again to\nthe Very end. Here\nis more of\nit.\n\nTitle\n"
    )
    assert [" ".join(part.split()) for part in split(wrapped)] == [
        "A long line that goes on here and then on again to the Very end.",
        "Here is more of it.",
        "Title",
    ]


@given(st.text(alphabet="ab. \n\t!?\"'AMr。।", max_size=60))
def test_starts_are_ascending_and_never_white_space(text: str) -> None:
    starts = sentence_starts(text)
    assert starts.dtype == np.int64
    assert (np.diff(starts) > 0).all()
    assert all(not text[start].isspace() for start in starts)
    assert (len(starts) > 0) == bool(text.strip())
    if len(starts):
        assert not text[: starts[0]].strip()
