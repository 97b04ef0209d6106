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
