from __future__ import annotations

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.text.framing import (
    BART,
    BERT,
    DISTILBERT,
    ELMO,
    GPT1,
    PLAIN,
    ROBERTA,
    SEQ2SEQ,
    T5,
    XLNET,
    Framing,
)
from etymon.text.tokenizer import Tokenizer

IDS = {"class": 101, "separator": 102, "end": 1, "begin": 50}


def test_templates() -> None:
    bert = BERT.resolve(IDS.get)
    framed = bert.frame([7, 8], np.array([9]))
    assert framed.ids.tolist() == [101, 7, 8, 102, 9, 102]
    assert framed.segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert framed.special.tolist() == [True, False, False, True, False, True]
    assert framed.ids.dtype == np.int32 and framed.special.dtype == bool
    single = bert.frame([7])
    assert single.ids.tolist() == [101, 7, 102] and single.segments.tolist() == [0, 0, 0]
    t5 = T5.resolve(IDS.get)
    assert t5.frame([7, 8]).ids.tolist() == [7, 8, 1]
    assert t5.frame([7], [8]).ids.tolist() == [7, 8, 1]
    assert PLAIN.frame([7], [8]).ids.tolist() == [7, 8]
    assert bert.frame([], []).ids.tolist() == [101, 102, 102]


def test_overhead_is_what_framing_adds() -> None:
    for framing in (PLAIN, BERT, ROBERTA, DISTILBERT, GPT1, T5, BART, SEQ2SEQ, ELMO, XLNET):
        bound = framing.resolve(IDS.get)
        assert len(bound.frame([5, 6]).ids) == 2 + bound.overhead()
        assert len(bound.frame([5], [6, 7]).ids) == 3 + bound.overhead(pair=True)
    assert (BERT.overhead(), BERT.overhead(pair=True)) == (2, 3)


def test_other_families_are_other_values() -> None:
    xlnet = Framing(
        "xlnet",
        (0, "separator", "class"),
        (0, "separator", 1, "separator", "class"),
        (0, 0, 2),
        (0, 0, 1, 1, 2),
    )
    roberta = ROBERTA.resolve(IDS.get).frame([5], [6])
    assert roberta.ids.tolist() == [101, 5, 102, 102, 6, 102]
    assert not roberta.segments.any()
    distilbert, bert = (each.resolve(IDS.get).frame([5], [6]) for each in (DISTILBERT, BERT))
    assert distilbert.ids.tolist() == bert.ids.tolist() and not distilbert.segments.any()
    assert GPT1.resolve(IDS.get).frame([5], [6]).ids.tolist() == [50, 5, 102, 6, 101]
    assert GPT1.resolve(IDS.get).frame([5]).ids.tolist() == [50, 5, 101]
    assert xlnet.resolve(IDS.get).frame([5], [6]).segments.tolist() == [0, 0, 1, 1, 2]


def test_misuse() -> None:
    with pytest.raises(EtymonError, match="the bert framing needs a 'class' token"):
        BERT.resolve({"separator": 1}.get)
    with pytest.raises(ValueError, match="not bound"):
        BERT.frame([1])
    with pytest.raises(ValueError, match="segment id"):
        Framing("odd", (0, "end"), (0,), (0,), (0,))


def test_a_tokenizer_binds_its_framing(trained: dict[str, Tokenizer]) -> None:
    assert [trained[kind].framing.name for kind in trained] == ["plain", "bert", "t5"]
    tokenizer = trained["wordpiece"]
    framed = tokenizer.framing.frame(tokenizer.encode("river"))
    assert framed.ids[0] == tokenizer.id("class") and framed.ids[-1] == tokenizer.id("separator")
    with pytest.raises(EtymonError, match="needs a 'end' token"):
        tokenizer.framing = T5
