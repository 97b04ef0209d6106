"""What each direction reads and is asked for, that it all comes once, and how it is scored."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.objectives import get_objective
from etymon.objectives.objective import check_fit
from etymon.text.store import Split
from etymon.training.unit import StreamMemories, TrainingUnit
from tests import tiny

BEGIN, END, UNKNOWN = 0, 1, 2
SPLIT = Split.of(range(3, 23), [0, 9], [0, 4, 9, 15])
SENTENCES = [[3, 4, 5, 6], [7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17], [18, 19, 20, 21, 22]]


def objective(length: int = 6, **options: Any) -> Any:
    return get_objective("bidirectional", tiny.tokenizer("elmo"), length, **options)


def examples(streams: int, length: int = 6, shuffle: bool = False) -> list[Any]:
    chosen = objective(length)
    table = chosen.plan(SPLIT, 0, 0, shuffle=shuffle, streams=streams)
    return [chosen.prepare(SPLIT, row, np.random.default_rng(0)) for row in table]


def test_published_pairs_of_words_and_targets() -> None:
    ahead = [pair for one in examples(1) for pair in zip(one.ids.tolist(), one.targets.tolist())]
    expected = [pair for words in SENTENCES for pair in zip([BEGIN, *words], [*words, END])]
    assert ahead == expected
    # Back: the last segment comes first, and in each the last word is read first.
    back = [
        pair
        for one in examples(1)
        for pair in zip(one.back_ids.tolist()[::-1], one.back_targets.tolist()[::-1])
    ]
    assert back == [
        pair for words in SENTENCES[::-1] for pair in zip([END, *words[::-1]], [*words[::-1], BEGIN])
    ]


@pytest.mark.parametrize("streams", [2, 3])
def test_every_stream_is_read_whole_both_ways(streams: int) -> None:
    found = examples(streams)
    for stream in range(streams):
        mine = [one for one in found if one.stream == stream]
        ahead = [token for one in mine for token in one.targets.tolist()]
        back = [token for one in reversed(mine) for token in one.back_ids.tolist()]
        assert ahead == back, "the same places, from the other end"
        assert [one.fresh for one in mine] == [True, *[False] * (len(mine) - 1)]
    for one in found:
        assert len(one.ids) == len(one.back_ids), "both directions of a row go through as many tokens"
    asked = sorted(token for one in found for token in one.targets.tolist() if token > UNKNOWN)
    assert asked == list(range(3, 23))


def unit(**options: Any) -> TrainingUnit:
    chosen = objective(**options)
    model = tiny.model("elmo", chosen)
    return TrainingUnit(model, chosen)


def test_judged_by_all_words_and_rare_ones_are_unknown() -> None:
    made = unit(samples=5).eval()
    head, model = made.model.heads["vocabulary"], made.model
    assert head.size == 20 < model.tokenizer.size, "some words can only be read"
    prepared = made.objective.collate(examples(2)[:2])
    with torch.no_grad():
        terms = made(prepared)
        hidden, _ = model.hidden(prepared.batch)
        log_p = head.log_probs(hidden[:, : model.shape.dim])
        back_p = head.log_probs(hidden[:, model.shape.dim :])
    targets, back = (
        torch.where(each < 20, each, UNKNOWN) for each in (prepared.targets, prepared.back_targets)
    )
    assert (prepared.back_targets >= 20).any()
    forward = -log_p.gather(1, targets[:, None]).sum()
    backward = -back_p.gather(1, back[:, None]).sum()
    torch.testing.assert_close(terms["forward"].sum, forward)
    torch.testing.assert_close(terms["backward"].sum, backward)
    torch.testing.assert_close(terms["loss"].sum, (forward + backward) / 2)
    assert terms["forward"].weight == terms["backward"].weight == 0.0


def test_training_samples_and_the_seed_decides() -> None:
    made = unit(samples=5).train()
    prepared = made.objective.collate(examples(2)[:2])

    def loss(seed: int) -> float:
        made.memories = StreamMemories()
        torch.manual_seed(seed)
        return float(made(prepared)["loss"].sum.detach())

    assert loss(1) == loss(1) != loss(2)
    whole = unit(softmax="full").train()
    whole.model.load_state_dict(made.model.state_dict())
    assert abs(loss(1) - float(whole(prepared)["loss"].sum.detach())) > 1e-3


def test_an_adaptive_softmax_takes_the_place_of_samples() -> None:
    chosen = objective(samples=5)
    known = get_family("elmo")
    shape = {
        **tiny.shape("elmo"),
        "vocabulary": tiny.tokenizer("elmo").size,
        "cutoffs": [6, 12],
        "divisor": 2,
    }
    model = Model(known, shape_of(known, "pocket", **shape), chosen.heads).initialise(0)
    model.tokenizer = tiny.tokenizer("elmo")
    made, prepared = TrainingUnit(model, chosen).train(), chosen.collate(examples(2)[:2])
    terms = made(prepared)
    terms["loss"].sum.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    everything = model.heads["vocabulary"].log_probs(torch.randn(3, model.shape.dim)).exp().sum(-1)
    torch.testing.assert_close(everything, torch.ones(3))
    with pytest.raises(EtymonError, match="cutoffs"):
        shape_of(known, "pocket", **{**shape, "cutoffs": [12, 6]})


def test_what_is_remembered_goes_on() -> None:
    made = unit(softmax="full").eval()
    slices = [made.objective.collate(examples(2)[at : at + 2]) for at in (0, 2)]
    with torch.no_grad():
        made(slices[0])
        going_on = made(slices[1])["loss"].sum
        alone = SimpleNamespace(model=made.model, recall=lambda prepared: None, keep=lambda *_: None)
        anew = made.objective.loss(alone, slices[1])["loss"].sum
    assert not math.isclose(float(going_on), float(anew), rel_tol=1e-6)
    # Ahead and back together are two runs over the whole streams.
    model, (first, second) = made.model, slices
    ahead = [[*a.ids, *b.ids] for a, b in zip(examples(2)[:2], examples(2)[2:4], strict=True)]
    back = [[*b.back_ids, *a.back_ids] for a, b in zip(examples(2)[:2], examples(2)[2:4], strict=True)]
    with torch.no_grad():
        state = model.remember(2)
        one, state = model.hidden(first.batch, state)
        two, state = model.hidden(second.batch, state)
        width = model.shape.dim
        whole_ahead, whole_back = (model.hidden(Batch.of(rows))[0] for rows in (ahead, back))
    sizes = first.batch.layout.lengths
    parts = zip(one.split(sizes), two.split(second.batch.layout.lengths), strict=True)
    for row, (earlier, later) in enumerate(parts):
        rows = (
            whole_ahead.split([len(each) for each in ahead])[row],
            whole_back.split([len(each) for each in back])[row],
        )
        torch.testing.assert_close(torch.cat([earlier, later])[:, :width], rows[0][:, :width])
        torch.testing.assert_close(torch.cat([later, earlier])[:, width:], rows[1][:, width:])


def test_other_families_have_not_two_directions() -> None:
    with pytest.raises(EtymonError, match="two directions"):
        check_fit(objective(), get_family("gpt2"))
    with pytest.raises(EtymonError, match="bidirectional"):
        check_fit(get_objective("causal", tiny.tokenizer("gpt2"), 16), get_family("elmo"))
