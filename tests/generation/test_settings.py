from __future__ import annotations

import pytest

from etymon.errors import EtymonError
from etymon.generation import DecodingSettings


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"max_new_tokens": 0}, "at least 1"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "above max_new_tokens 8"),
        ({"sample": True, "temperature": 0}, "temperature is 0"),
        ({"sample": True, "temperature": float("nan")}, "temperature"),
        ({"sample": True, "temperature": 1e-40}, "temperature is 1e-40, expected at least 0.0001"),
        ({"beams": 2, "length_penalty": 1000.0}, "length_penalty is 1000.0, expected at most 50"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty is NaN"),
        ({"beams": 2, "length_offset": float("nan")}, "length_offset is NaN"),
        ({"sample": True, "top_k": -1}, "top_k"),
        ({"sample": True, "top_p": 0}, "top_p"),
        ({"sample": True, "top_p": 1.1}, "top_p"),
        ({"temperature": 0.8}, "turn on sample"),
        ({"top_k": 5}, "turn on sample"),
        ({"beams": 0}, "beams"),
        ({"beams": 2, "sample": True}, "choose one"),
        ({"length_penalty": 2.0}, "beams above 1"),
        ({"early_stopping": True}, "beams above 1"),
        ({"returns": 0}, "returns"),
        ({"returns": 2}, "greedy decoding gives 1"),
        ({"returns": 4, "beams": 3}, "at most 3"),
        ({"no_repeat_ngram": -2}, "no_repeat_ngram"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"stop": ("",)}, "empty stop"),
        ({"seed": -1}, "seed"),
        ({"sample": True, "min_p": 1.5}, "min_p is 1.5"),
        ({"sample": True, "typical_p": 0}, "typical_p is 0"),
        ({"typical_p": 0.5}, "turn on sample"),
        ({"penalty_alpha": 1.1, "top_k": 4}, "penalty_alpha is 1.1"),
        ({"penalty_alpha": 0.6}, "needs top_k"),
        ({"penalty_alpha": 0.6, "top_k": 4, "sample": True}, "contrastive search"),
        ({"penalty_alpha": 0.6, "top_k": 4, "beams": 2}, "contrastive search"),
        ({"penalty_alpha": 0.6, "top_k": 4, "returns": 2}, "contrastive search gives 1"),
        ({"choices": ("a", "")}, "empty choice"),
        ({"choices": ("a", "a")}, "twice"),
        ({"choices": ("a", "b"), "beams": 2}, "beams has no say"),
        ({"choices": ("a", "b"), "stop": "x"}, "stop has no say"),
        ({"choices": ("a", "b"), "max_new_tokens": 5}, "max_new_tokens has no say"),
        ({"choices": ("a", "b"), "returns": 3}, "there are 2 choices"),
        ({"draft_tokens": 0}, "draft_tokens is 0"),
        ({"draft_tokens": 17}, "draft_tokens is 17, expected at most 16"),
    ],
)
def test_mistakes_are_refused_in_one_line(wrong, expected):
    with pytest.raises(EtymonError, match=expected) as caught:
        DecodingSettings(**wrong)
    assert "\n" not in str(caught.value)


def test_what_people_write_is_understood():
    assert DecodingSettings(stop="\n\n").stop == ("\n\n",)
    assert DecodingSettings(stop=["a", "b"], end_ids=[3]).end_ids == (3,)
    assert DecodingSettings(sample=True, returns=5).returns == 5


@pytest.mark.parametrize("beams", [0, 10_001, 2**63 - 1])
def test_a_number_of_beams_that_no_memory_holds_is_refused(beams: int) -> None:
    with pytest.raises(EtymonError, match=r"beams is .*, expected at (least 1|most 10000) "):
        DecodingSettings(beams=beams)
