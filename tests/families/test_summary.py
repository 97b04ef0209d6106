"""Summaries of texts in front of task heads, read and written as `config.json` has them."""

from __future__ import annotations

import pytest
import torch

import etymon
from etymon.families import get_family
from etymon.nn.batch import Batch
from tests.families.folders import tiny

ROWS = [[4, 7, 9, 2, 30, 11, 5], [5, 6], [8, 3, 11, 10, 2]]
HEADS = {"gpt1": "choice", "gpt2": "choice", "xlnet": "classification", "electra": "choice"}


def answers(family: str, rows: list[list[int]], **changed: object) -> torch.Tensor:
    with torch.no_grad():
        return tiny(family, {HEADS[family]}, **changed).eval().answer(HEADS[family], Batch.of(rows))


@pytest.mark.parametrize("family", HEADS)
@pytest.mark.parametrize("kind", ["first", "last", "mean", "cls_index"])
def test_rows_of_any_length_are_summed_up_as_if_alone(family: str, kind: str) -> None:
    together = answers(family, ROWS, summary_type=kind)
    alone = torch.cat([answers(family, [row], summary_type=kind) for row in ROWS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", HEADS)
def test_kinds_of_summaries_differ_where_they_should(family: str) -> None:
    first, last, mean, named = (
        answers(family, ROWS, summary_type=kind) for kind in ("first", "last", "mean", "cls_index")
    )
    torch.testing.assert_close(last, named, atol=0, rtol=0)
    for one, other in ((first, last), (first, mean), (last, mean)):
        assert not torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("family", HEADS)
@pytest.mark.parametrize("absent", [None, "", "linear"])
def test_no_activation_is_written_as_the_class_takes_it(family: str, absent: str | None) -> None:
    known = get_family(family)
    fields, _ = known.settings.read({"summary_activation": absent}, "config.json")
    assert fields["summary_activation"] == "linear"
    written = known.settings.write(vars(known.shape(**fields)))
    # XLNet's and ELECTRA's classes of Transformers 5 refuse None.
    assert written["summary_activation"] == (None if family.startswith("gpt") else "linear")


@pytest.mark.parametrize("family", HEADS)
def test_summary_by_attention_is_refused(family: str) -> None:
    with pytest.raises(etymon.EtymonError, match="summary_type = 'attn' is not supported"):
        get_family(family).settings.read({"summary_type": "attn"}, "config.json")
