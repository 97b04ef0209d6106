from __future__ import annotations

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.families import REGISTRY, get_family
from etymon.text.framing import CLASS_FIRST, EXTRACT_LAST, PLAIN, TEXT_END, Framing
from etymon.text.tokenizer import Tokenizer

IDS = {"class": 101, "separator": 102, "end": 1, "begin": 50}


def test_templates() -> None:
    bert = CLASS_FIRST.resolve(IDS.get)
    framed = bert.frame([7, 8], np.array([9]))
    assert framed.ids.tolist() == [101, 7, 8, 102, 9, 102]
    assert framed.segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert framed.special.tolist() == [True, False, False, True, False, True]
    assert framed.ids.dtype == np.int32 and framed.special.dtype == bool
    single = bert.frame([7])
    assert single.ids.tolist() == [101, 7, 102] and single.segments.tolist() == [0, 0, 0]
    t5 = TEXT_END.resolve(IDS.get)
    assert t5.frame([7, 8]).ids.tolist() == [7, 8, 1]
    assert t5.frame([7], [8]).ids.tolist() == [7, 8, 1]
    assert PLAIN.frame([7], [8]).ids.tolist() == [7, 8]
    assert bert.frame([], []).ids.tolist() == [101, 102, 102]


def test_overhead_is_what_framing_adds() -> None:
    for name in REGISTRY:
        bound = get_family(name).framing.resolve(IDS.get)
        assert len(bound.frame([5, 6]).ids) == 2 + bound.overhead()
        assert len(bound.frame([5], [6, 7]).ids) == 3 + bound.overhead(pair=True)
    assert (CLASS_FIRST.overhead(), CLASS_FIRST.overhead(pair=True)) == (2, 3)


def test_other_families_are_other_values() -> None:
    framed = {name: get_family(name).framing.resolve(IDS.get).frame([5], [6]) for name in REGISTRY}
    assert framed["roberta"].ids.tolist() == [101, 5, 102, 102, 6, 102]
    assert not framed["roberta"].segments.any()
    assert framed["distilbert"].ids.tolist() == framed["bert"].ids.tolist()
    assert framed["bert"].segments.any() and not framed["distilbert"].segments.any()
    assert framed["gpt1"].ids.tolist() == [50, 5, 102, 6, 101]
    assert EXTRACT_LAST.resolve(IDS.get).frame([5]).ids.tolist() == [50, 5, 101]
    assert framed["xlnet"].ids.tolist() == [5, 102, 6, 102, 101]
    assert framed["xlnet"].segments.tolist() == [0, 0, 1, 1, 2]
    assert framed["elmo"].ids.tolist() == [50, 5, 1, 50, 6, 1]
    starts = [get_family(name).framing.start for name in ("t5", "bart", "transformer", "bert")]
    assert starts == ["pad", "end", "begin", None]


def test_misuse() -> None:
    with pytest.raises(EtymonError, match="the class-first framing needs a 'class' token"):
        CLASS_FIRST.resolve({"separator": 1}.get)
    with pytest.raises(ValueError, match="not bound"):
        CLASS_FIRST.frame([1])
    with pytest.raises(ValueError, match="segment id"):
        Framing("odd", (0, "end"), (0,), (0,), (0,))


def test_a_tokenizer_binds_its_framing(trained: dict[str, Tokenizer]) -> None:
    assert [trained[kind].framing.name for kind in trained] == ["plain", "class-first", "text-end"]
    tokenizer = trained["wordpiece"]
    framed = tokenizer.framing.frame(tokenizer.encode("river"))
    assert framed.ids[0] == tokenizer.id("class") and framed.ids[-1] == tokenizer.id("separator")
    with pytest.raises(EtymonError, match="needs a 'end' token"):
        tokenizer.framing = TEXT_END
