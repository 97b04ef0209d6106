"""Hybrid language modelling and shifted masks: what is seen, what is predicted from where, and what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import etymon
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.nn.batch import Batch
from etymon.objectives import get_objective, objective_class
from etymon.objectives.hybrid import Hybrid, HybridExample
from etymon.objectives.objective import check_fit, weighted_loss
from etymon.sampling.plans import key
from etymon.text.store import TokenStore
from etymon.training.unit import TrainingUnit
from tests import tiny

ENCODERS = ("bert", "roberta", "albert", "distilbert", "electra")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    yield tiny.store("bert", tmp_path_factory.mktemp("hybrid") / "store")


def objective(family: str = "bert", **options: Any) -> Any:
    return get_objective("hybrid", tiny.tokenizer(family), 24, **options)


def examples(store: TokenStore, asked: Any, count: int = 40) -> list[HybridExample]:
    table = asked.plan(store.train, 0, 0)[:count]
    return [asked.prepare(store.train, row, key(0, "sample", i)) for i, row in enumerate(table)]


def example(ids: list[int], places: list[int], targets: list[int], is_causal: bool) -> HybridExample:
    return HybridExample(np.array(ids), np.zeros(len(ids), int), np.array(places), np.array(targets), is_causal=is_causal)  # fmt: skip


def test_rows_are_masked_or_causal_by_their_share_and_drawn_alike_every_time(store: TokenStore) -> None:
    once, again = (examples(store, objective(causal=0.3), 40) for _ in range(2))
    assert [each.is_causal for each in once] == [each.is_causal for each in again]
    many = [objective(causal=0.3).prepare(store.train, objective().plan(store.train, 0, 0)[0], key(1, n)).is_causal for n in range(300)]  # fmt: skip
    assert np.mean(many) == pytest.approx(0.3, abs=0.09)
    for share, wanted in ((0.0, {False}), (1.0, {True})):
        assert {each.is_causal for each in examples(store, objective(causal=share))} == wanted


def test_a_causal_row_shows_the_text_and_asks_for_all_of_it(store: TokenStore) -> None:
    masked, causal = (examples(store, objective(causal=share)) for share in (0.0, 1.0))
    tokenizer = tiny.tokenizer("bert")
    mask, separator = tokenizer.id("mask"), tokenizer.id("separator")
    for hidden, whole in zip(masked, causal, strict=True):
        text = hidden.ids.copy()
        text[hidden.places] = hidden.targets
        assert np.array_equal(whole.ids, text) and mask not in whole.ids
        wanted = [place for place in range(1, len(text)) if text[place] != separator]
        assert whole.places.tolist() == wanted and np.array_equal(whole.targets, text[wanted])
        assert 0 < len(hidden.places) < len(wanted) and mask in hidden.ids


def test_targets_are_read_one_place_before_by_hand() -> None:
    # Row 0: [CLS] a [MASK] c [SEP], of which b is asked for; row 1: [CLS] x y [SEP] from left to right.
    rows = [example([1, 10, 4, 12, 2], [2], [11], False), example([1, 20, 21, 2], [1, 2], [20, 21], True)]
    micro = objective().collate(rows)
    # The shorter row comes first: places 0 and 1 there, place 1 of the other, which begins at 4.
    assert micro.at.tolist() == [0, 1, 5] and micro.targets.tolist() == [20, 21, 11]
    assert micro.is_causal.tolist() == [True, True, False]
    assert micro.counts == {"masked": 1, "causal": 2, "masked_accuracy": 1, "causal_accuracy": 2}
    assert micro.batch.prefix is not None
    assert micro.batch.prefix.tolist() == [0] * 4 + [5] * 5


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, "rotary") for family in ENCODERS),
        *(("bert", kind) for kind in ("learned", "relative_bias", "relative_key_query")),
    ],
)
def test_causal_rows_see_nothing_later_and_masked_rows_see_everything(family: str, kind: str) -> None:
    asked = objective(family)
    known = get_family(family)
    shape = {**tiny.shape(family), "vocabulary": tiny.tokenizer(family).size, "position_kind": kind}
    model = etymon.build(known, heads=asked.heads, shape=shape).eval()
    first, second = [5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12, 13]
    for is_causal in (True, False):
        states = []
        for ids in (first, second):
            # A row of the other kind beside it, shorter, so that rows are padded.
            rows = [example([5, 9, 7], [1], [9], not is_causal), example(ids, [1], [6], is_causal)]
            states.append(model.hidden(asked.collate(rows).batch)[0][3:])
        same = [torch.allclose(one, two, atol=1e-6) for one, two in zip(*states, strict=True)]
        assert same == [is_causal] * 3 + [False] * 3
    # Alone, a slice of causal rows sees as little.
    alone = asked.collate([example(first, [1], [6], True)]).batch
    together = asked.collate([example(first, [1], [6], True), example(second, [1], [6], False)]).batch
    assert torch.allclose(model.hidden(alone)[0], model.hidden(together)[0][:6], atol=1e-6)


def test_masked_rows_are_seen_as_a_plain_encoder_sees_them() -> None:
    asked, rows = objective(), [example([5, 6, 7, 8], [2], [7], False), example([9, 5, 6], [1], [5], False)]
    model = tiny.model("bert", asked).eval()
    micro = asked.collate(rows)
    plain = replace(micro.batch, prefix=None, views={})
    assert torch.allclose(model.hidden(micro.batch)[0], model.hidden(plain)[0], atol=1e-6)


def test_the_loss_is_the_mean_of_each_kind_by_its_share_and_one_head_serves_both(store: TokenStore) -> None:
    asked = objective(causal=0.25)
    rows = examples(store, asked, 24)
    assert {row.is_causal for row in rows} == {True, False}
    micro, model = asked.collate(rows), tiny.model("bert", asked)
    terms = TrainingUnit(model, asked)(micro)
    assert {name: term.weight for name, term in terms.items() if term.weight} == {
        "masked": 0.75,
        "causal": 0.25,
    }
    loss = weighted_loss(terms, micro.counts)
    hidden = model.hidden(micro.batch)[0].index_select(0, micro.at)
    log_probs = model.heads["vocabulary"].log_probs(hidden)  # type: ignore[operator]
    losses = F.nll_loss(log_probs, micro.targets, reduction="none")
    wanted = 0.75 * losses[~micro.is_causal].mean() + 0.25 * losses[micro.is_causal].mean()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    # The same weights learn from both.
    parameters = dict(model.named_parameters())
    used = []
    for name in ("masked", "causal"):
        part = TrainingUnit(model, asked)(micro)[name].sum
        found = torch.autograd.grad(part, list(parameters.values()), allow_unused=True)
        used.append({key for key, gradient in zip(parameters, found, strict=True) if gradient is not None and gradient.abs().sum() > 0})  # fmt: skip
    assert used[0] == used[1] and "body.embeddings.words.weight" in used[0]


def test_slices_without_one_kind_have_both_terms(store: TokenStore) -> None:
    asked = objective(causal=0.5)
    model = tiny.model("bert", asked)
    for is_causal in (True, False):
        rows = [row for row in examples(store, asked) if row.is_causal == is_causal]
        terms = TrainingUnit(model, asked)(asked.collate(rows))
        assert terms["masked" if is_causal else "causal"].sum.item() == 0
        weighted_loss(terms, asked.collate(rows).counts).backward()


def test_masked_can_be_shifted(store: TokenStore) -> None:
    plain, shifted = (
        get_objective("masked", tiny.tokenizer("bert"), 24, shifted=each) for each in (False, True)
    )
    row = plain.plan(store.train, 0, 0)[0]
    one, two = (each.collate([each.prepare(store.train, row, key(3))]) for each in (plain, shifted))
    assert torch.equal(one.batch.ids, two.batch.ids) and torch.equal(one.targets, two.targets)
    assert torch.equal(one.at - 1, two.at)
    # RoBERTa may mask the first token, before which there is nothing.
    roberta = get_objective(
        "masked", tiny.tokenizer("roberta"), 24, masking="roberta", density=1.0, shifted=True
    )
    made = roberta.prepare(store.train, row, key(3))
    assert made.places.tolist() == list(range(1, len(made.ids)))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_summary_asks_the_first_token_for_all_masked_tokens_of_its_row(
    family: str, store: TokenStore
) -> None:
    plain, asked = (
        get_objective("masked", tiny.tokenizer(family), 24, density=0.4, **each)
        for each in ({}, {"summary": 0.5})
    )
    rows = plain.plan(store.train, 0, 0)[:3]
    micro = asked.collate([asked.prepare(store.train, row, key(3)) for row in rows])
    model = tiny.model(family, asked).double()
    terms = TrainingUnit(model, asked)(micro)
    assert terms["summary"].weight == 0.5 and micro.counts["summary"] == micro.counts["masked"]
    without = TrainingUnit(model, plain)(
        plain.collate([plain.prepare(store.train, row, key(3)) for row in rows])
    )
    assert torch.equal(without["masked"].sum, terms["masked"].sum) and "summary" not in without
    # Row by row, the long way.
    hidden, _ = model.hidden(micro.batch)
    layout, expected = micro.batch.layout, 0.0
    for row, first in enumerate(layout.first.tolist()):
        log_probs = model.heads["vocabulary"].logits(hidden[first : first + 1]).log_softmax(-1)[0]
        expected -= float(log_probs[micro.targets[layout.row[micro.at] == row]].sum().detach())
    assert terms["summary"].sum.item() == pytest.approx(expected, rel=1e-12)
    # Its gradient comes from the first tokens, and reaches all layers.
    terms["summary"].sum.backward()
    assert all(value.grad is not None for name, value in model.named_parameters() if "layers" in name)


def test_a_shifted_model_fills_and_scores_from_the_place_before(tmp_path: Path, store: TokenStore) -> None:
    asked = get_objective("masked", tiny.tokenizer("bert"), 24, shifted=True)
    model = tiny.model("bert", asked).eval()
    batch, at = Batch.of([[5, 6, 7, 8]]), torch.tensor([2])
    # Close, not equal: the last layer computes this place alone.
    torch.testing.assert_close(model.hidden_behind_masks(batch, at), model.hidden(batch)[0][2:3])
    model.predicts_shifted = True
    etymon.save(model, tmp_path / "model")
    read = etymon.load(tmp_path / "model")
    assert read.predicts_shifted
    assert torch.allclose(read.hidden_behind_masks(batch, at), model.hidden(batch)[0][1:2], atol=1e-6)
    assert "the place before it" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    read.predicts_shifted = False
    etymon.save(read, tmp_path / "plain")
    assert "etymon_shifted" not in (tmp_path / "plain" / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["xlnet", "gpt2", "t5"])
def test_a_family_that_cannot_read_rows_both_ways_is_refused(family: str) -> None:
    with pytest.raises(EtymonError, match="'hybrid' needs a model that is"):
        check_fit(objective_class("hybrid"), get_family(family))
    for each in ENCODERS:
        check_fit(Hybrid, get_family(each))
