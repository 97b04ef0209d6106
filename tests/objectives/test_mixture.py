"""Mixtures: notation, shares of samples, weights of losses, slices that lack an objective."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.objectives import get_objective, objective_class, read_options
from etymon.objectives.objective import check_fit, weighted_loss
from etymon.sampling.plans import key
from etymon.text.store import Split
from etymon.training.feeding import Feed, Position, validation_slices
from etymon.training.unit import TrainingUnit, evaluate
from tests import tiny

MIXTURE = "masked=0.7,masked-sentence-order=0.3"


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return tiny.store("albert", tmp_path_factory.mktemp("mixture") / "store").train


@pytest.fixture(scope="module")
def mixture() -> Any:
    return tiny.objective("albert", MIXTURE)


def test_notation() -> None:
    blend: Any = objective_class("masked = 7, masked-sentence-order=3")
    assert blend.weights == pytest.approx({"masked": 0.7, "masked-sentence-order": 0.3})
    assert blend.heads == {"vocabulary", "sentence_order"} and blend.requires == {"bidirectional", "pairs"}
    for text, reason in {
        "masked=0.7,masked=0.3": "has masked twice",
        "masked=0.7,masked-next-sentence": "needs a weight above 0 for each objective",
        "masked=0.7,masked-next-sentence=0": "above 0",
        "masked=0.7,masked-next-sentence=-1": "above 0",
        "masked=inf,masked-next-sentence=1": "above 0",
        "masked=0.7,": "above 0",
        "masked=0.7,maskd-next-sentence=1": "did you mean 'masked-next-sentence'",
        "masked=0.7,masked=0.2=0.1": "twice|above 0",
    }.items():
        with pytest.raises(EtymonError, match=reason):
            objective_class(text)


def test_misfits_are_refused() -> None:
    check_fit(objective_class(MIXTURE), get_family("albert"))
    with pytest.raises(
        EtymonError, match=r"masked=0.5,causal=0.5.*needs a model that is causal, and BERT is not"
    ):
        check_fit(objective_class("masked=0.5,causal=0.5"), get_family("bert"))
    with pytest.raises(EtymonError, match="encoder-decoder"):
        check_fit(objective_class("masked=1,span-corruption=1"), get_family("albert"))


def test_options_of_each() -> None:
    options: dict[str, Any] = {"masked": {"masking": "rare", "density": 0.4}}
    read_options(MIXTURE, options)
    made: Any = get_objective(MIXTURE, tiny.tokenizer("albert"), 24, **options)
    assert made.parts["masked"].masking.name == "rare"
    assert made.parts["masked-sentence-order"].masking.name == "ngram"
    with pytest.raises(
        EtymonError, match="given for each of masked, masked-sentence-order, not for 'density'"
    ):
        read_options(MIXTURE, {"density": 0.2})
    with pytest.raises(
        EtymonError,
        match="unknown key 'masing' in the options of the objective 'masked': did you mean 'masking'",
    ):
        read_options(MIXTURE, {"masked": {"masing": "bert"}})


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_takes_the_share_of_each_plan(mixture: Any, split: Split, shuffle: bool) -> None:
    plan = mixture.plan(split, 0, 3, shuffle=shuffle)
    assert np.array_equal(plan, mixture.plan(split, 0, 3, shuffle=shuffle))
    assert not np.array_equal(plan, mixture.plan(split, 0, 4, shuffle=shuffle))
    taken = Counter(plan[:, 0].tolist())
    for number, (name, part) in enumerate(mixture.parts.items()):
        own = part.plan(split, 0, 3, shuffle=shuffle)
        assert abs(taken[number] - mixture.weights[name] * len(own)) <= 1
        rows = {tuple(row[3 : 3 + row[2]].tolist()) for row in plan[plan[:, 0] == number]}
        assert len(rows) == taken[number] and rows <= {tuple(row.tolist()) for row in own}
    # Objectives are mixed all through the epoch.
    thirds = [part[:, 0].mean() for part in np.array_split(plan, 3)]
    assert max(thirds) - min(thirds) < (0.35 if shuffle else 0.05)


def test_the_same_plan_is_shared_out(split: Split) -> None:
    options = {"replaced": {"packing": "stream"}}
    made: Any = get_objective("masked=1,replaced=2", tiny.tokenizer("albert"), 24, **options)
    rows = made.plan(split, 0, 1)[:, 3:5].tolist()
    assert sorted(rows) == sorted(made.parts["masked"].plan(split, 0, 1).tolist()), "all of the text, once"


def test_samples_and_loss_are_those_of_the_parts(mixture: Any, split: Split) -> None:
    plan = mixture.plan(split, 0, 0)[:16]
    examples = [mixture.prepare(split, row, key(0, number)) for number, row in enumerate(plan)]
    prepared = mixture.collate(examples)
    model = tiny.model("albert", mixture)
    unit = TrainingUnit(model, mixture).eval()  # without the dropout of ALBERT's heads
    terms = unit(prepared)
    loss = weighted_loss(terms, prepared.counts)
    expected, tokens = torch.zeros(()), 0
    for number, (name, part) in enumerate(mixture.parts.items()):
        own = [
            part.prepare(split, row[3 : 3 + row[2]], key(0, place))
            for place, row in enumerate(plan)
            if row[0] == number
        ]
        assert own
        alone = part.collate(own)
        expected = expected + mixture.weights[name] * weighted_loss(part.loss(unit, alone), alone.counts)
        tokens += alone.tokens
        for term, count in alone.counts.items():
            assert prepared.counts[f"{name}/{term}"] == count
    torch.testing.assert_close(loss, expected)
    assert prepared.tokens == tokens and set(terms) <= set(prepared.counts)
    assert {name for name, term in terms.items() if term.weight} == {
        "masked/masked", "masked-sentence-order/masked", "masked-sentence-order/sentence_order",
    }  # fmt: skip


def test_moving_moves_the_parts(mixture: Any, split: Split) -> None:
    plan = mixture.plan(split, 0, 0)[:8]
    prepared = mixture.collate([mixture.prepare(split, row, key(0)) for row in plan])
    moved = prepared.to("meta")
    assert all(part.batch.ids.is_meta and part.targets.is_meta for part in moved.parts.values())
    assert moved.counts == prepared.counts and not prepared.parts["masked"].targets.is_meta


@pytest.mark.parametrize("training", [True, False])
def test_a_slice_without_some_objective_has_all_terms_and_changes_nothing(
    mixture: Any, split: Split, training: bool
) -> None:
    plan = mixture.plan(split, 0, 0)
    only = [mixture.prepare(split, row, key(0)) for row in plan[plan[:, 0] == 0][:4]]
    both = [mixture.prepare(split, row, key(0)) for row in plan[:12]]
    model = tiny.model("albert", mixture).train(training)
    unit = TrainingUnit(model, mixture).train(training)
    lacking, whole = mixture.collate(only), mixture.collate(both)
    assert lacking.counts.keys() == whole.counts.keys()
    assert list(unit(lacking)) == list(unit(whole))
    masked = mixture.parts["masked"]
    alone = masked.collate([example for _, bundle in only for example in bundle])
    assert lacking.tokens == alone.tokens
    terms = unit(lacking)
    expected = 0.7 * weighted_loss(masked.loss(unit, alone), alone.counts)
    loss = weighted_loss(terms, lacking.counts)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    head = [parameter for name, parameter in model.named_parameters() if "sentence_order" in name]
    assert head and all(parameter.grad is not None and not parameter.grad.any() for parameter in head)


def test_slices_add_up_to_the_step(mixture: Any, split: Split) -> None:
    plan = mixture.plan(split, 0, 0)[:12]
    examples = [mixture.prepare(split, row, key(0, number)) for number, row in enumerate(plan)]
    unit = TrainingUnit(tiny.model("albert", mixture), mixture).eval()
    whole = mixture.collate(examples)
    slices = [mixture.collate(examples[place : place + 3]) for place in range(0, 12, 3)]
    counts = {name: sum(part.counts[name] for part in slices) for name in whole.counts}
    assert counts == whole.counts
    parts = torch.stack([weighted_loss(unit(part), counts) for part in slices]).sum()
    torch.testing.assert_close(parts, weighted_loss(unit(whole), counts))


def test_a_mixture_is_fed_judged_and_sent_to_workers(mixture: Any, split: Split, tmp_path: Path) -> None:
    feed = Feed(mixture, split, 0, slices=2, rows=4)
    again = pickle.loads(pickle.dumps(feed))
    addresses, _ = feed.addresses(Position())
    one, two = feed.slice(addresses[0]), again.slice(addresses[0])
    assert one.counts == two.counts
    assert torch.equal(one.parts["masked"].batch.ids, two.parts["masked"].batch.ids)
    unit = TrainingUnit(tiny.model("albert", mixture), mixture)
    slices = validation_slices(mixture, split, 0, rows=3, most=12)
    figures = evaluate(unit, slices)
    assert figures["bits_per_target"] == pytest.approx(figures["masked/masked"] / np.log(2))
    assert "masked-sentence-order/sentence_order_accuracy" in figures


def test_likelihood_of_the_one_that_has_it(tmp_path: Path) -> None:
    split = tiny.store("gpt2", tmp_path / "store").train
    made: Any = get_objective("causal=1", tiny.tokenizer("gpt2"), 24)
    assert made.likelihood == "causal/loss"
    prepared = made.collate([made.prepare(split, row, key(0)) for row in made.plan(split, 0, 0)[:3]])
    assert prepared.bytes > 0
    assert tiny.objective("albert", MIXTURE).likelihood is None
