"""Baselines learn what is easy, and typos leave texts readable."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.tasks import baselines as module
from etymon.tasks.baselines import baselines, with_typos

LINEAR = "tf-idf + logistic regression"
GOOD = [f"a lovely little film number {n}" for n in range(12)]
BAD = [f"such an awful waste number {n}" for n in range(9)]


def test_words_and_the_commonest_label():
    pytest.importorskip("sklearn")
    labels = ["good"] * len(GOOD) + ["bad"] * len(BAD)
    found = baselines(GOOD + BAD, labels, ["lovely film", "awful waste"])
    assert found == {"majority": ["good", "good"], LINEAR: ["good", "bad"]}
    assert all(type(label) is str for label in found[LINEAR])
    pairs = baselines([("one", text) for text in GOOD + BAD], labels, [("one", "lovely"), ("one", "awful")])
    assert pairs[LINEAR] == ["good", "bad"]
    assert found == baselines(GOOD + BAD, labels, ["lovely film", "awful waste"])


def test_letters_where_there_are_no_spaces():
    pytest.importorskip("sklearn")
    for good, bad in (("房间很好服务周到", "房间太差服务恶劣"), ("とてもよかったです", "ひどくわるかった")):
        texts = [good + "房"[: n % 2] for n in range(8)] + [bad + "间"[: n % 2] for n in range(8)]
        found = baselines(texts, ["1"] * 8 + ["0"] * 8, [good[2:6], bad[2:6]])
        assert found[LINEAR] == ["1", "0"], good


def test_numbers_and_several_labels():
    pytest.importorskip("sklearn")
    found = baselines(GOOD + BAD, [5.0] * len(GOOD) + [1.0] * len(BAD), ["lovely film", "awful waste"])
    assert found["mean"] == [pytest.approx(np.mean([5.0] * len(GOOD) + [1.0] * len(BAD)))] * 2
    high, low = found["tf-idf + ridge regression"]
    assert isinstance(high, float) and high > 3.3 > low
    several = [("film", "praise")] * len(GOOD) + [["blame"]] * len(BAD)
    found = baselines(GOOD + BAD, several, ["a lovely little film", "such an awful waste", ""])
    assert found["majority"] == [("film", "praise")] * 3
    assert found[LINEAR][:2] == [("film", "praise"), ("blame",)]
    alone = [("film",)] * len(GOOD) + [()] * len(BAD)
    found = baselines(GOOD + BAD, alone, ["a lovely little film", "such an awful waste"])
    assert found[LINEAR] == [("film",), ()], "of a single label, too"


def test_what_is_missing_is_told(monkeypatch):
    pytest.importorskip("sklearn")
    heard: list[str] = []
    assert set(baselines(["?!", "..."], ["a", "b"], ["!"], heard.append)) == {"majority"}
    assert "empty vocabulary" in heard.pop()
    assert set(baselines(["one", "two"], ["a", "a"], ["three"], heard.append)) == {"majority"}
    assert heard.pop()
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    assert set(baselines(GOOD, ["a"] * len(GOOD), ["x"], heard.append)) == {"majority"}
    assert "etymon[evaluate]" in heard.pop()


def test_long_tables_are_read_in_part(monkeypatch):
    pytest.importorskip("sklearn")
    # Every second row has the wrong label, and is left out.
    texts = [text for n in range(9) for text in (GOOD[n], GOOD[n], BAD[n], BAD[n], BAD[n], GOOD[n])]
    labels = ["good", "bad", "bad", "good", "bad", "bad"] * 9
    monkeypatch.setattr(module, "MOST_LETTERS", sum(map(len, texts)))
    assert baselines(texts, labels, ["lovely film"])[LINEAR] == ["good"]
    monkeypatch.setattr(module, "MOST_LETTERS", 10**9)
    assert baselines(texts, labels, ["lovely film"])[LINEAR] == ["bad"]


@settings(max_examples=80, deadline=None)
@given(st.text(min_size=1, max_size=30), st.floats(0, 1), st.integers(0, 3))
def test_typos_depend_on_seed_and_text_alone(text, share, seed):
    alone, among = with_typos([text], share, seed), with_typos(["x", text, "y"], share, seed)
    assert alone[0] == among[1]
    assert bool(alone[0].strip()) == bool(text.strip())
    kept = [[sign for sign in each if not sign.isalpha()] for each in (text, alone[0])]
    assert kept[0] == kept[1] or any(sign.upper() != sign and len(sign.upper()) > 1 for sign in text)
    assert with_typos([text], 0.0, seed) == [text]


def test_typos_are_of_four_kinds_and_as_many_as_asked():
    texts = [f"the quick brown fox jumps over dog {n}" for n in range(300)]
    changed = with_typos(texts, 0.1)
    assert with_typos(texts, 0.1) == changed != with_typos(texts, 0.1, seed=1)
    lengths = {len(new) - len(old) for old, new in zip(texts, changed)}
    assert {-1, 0, 1} <= lengths
    once = with_typos([f"abcdefgh{n}" for n in range(800)], 1 / 8)
    kinds = {
        "lost": sum(len(text.rstrip("0123456789")) == 7 for text in once),
        "more": sum(len(text.rstrip("0123456789")) == 9 for text in once),
        "swapped": sum(sorted(text[:8]) == list("abcdefgh") != list(text[:8]) for text in once),
    }
    assert all(150 < count < 250 for count in kinds.values()), kinds
    short = with_typos([f"ab{n}" for n in range(1000)], 0.1)
    assert 120 < sum(new != f"ab{n}" for n, new in enumerate(short)) < 280
    assert with_typos(["a"], 1.0)[0] and with_typos(["ABC"], 1.0)[0].isupper()
    with pytest.raises(EtymonError, match="between 0 and 1"):
        with_typos(["a"], 10)
