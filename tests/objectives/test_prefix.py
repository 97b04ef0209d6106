"""Prefix language modelling: what is seen, what is asked, and that it is causal where there is no prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.objectives import objective_class
from etymon.objectives.causal import CausalExample
from etymon.objectives.objective import check_fit
from etymon.sampling.plans import key
from etymon.text.store import TokenStore
from etymon.training.unit import TrainingUnit
from tests import tiny
from tests.decoders import DECODERS, rows_of, tiny_decoder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    yield tiny.store("gpt2", tmp_path_factory.mktemp("prefix") / "store")


def examples(store: TokenStore, name: str, epoch: int = 0) -> list[CausalExample]:
    objective = tiny.objective("gpt2", name)
    table = objective.plan(store.train, 0, epoch)
    return [objective.prepare(store.train, row, key(0, "sample", epoch, i)) for i, row in enumerate(table)]


def test_windows_are_those_of_causal_and_the_split_is_anywhere(store: TokenStore) -> None:
    whole, divided = examples(store, "causal"), examples(store, "prefix")
    assert len(whole) == len(divided) > 20
    prefixes = Counter[int]()
    for one, two in zip(whole, divided, strict=True):
        prefix = len(two.ids) - len(two.targets) + 1
        assert np.array_equal(one.ids, two.ids)
        assert np.array_equal(np.append(one.ids, one.targets[-1])[prefix:], two.targets)
        prefixes[prefix] += len(two.ids) == 24
    objective = tiny.objective("gpt2", "prefix")
    row = next(row for row in objective.plan(store.train, 0, 0) if row[1] - row[0] == 25)
    for number in range(4000):
        prefixes[25 - len(objective.prepare(store.train, row, key(1, number)).targets)] += 1
    assert set(prefixes) - {0} == set(range(1, 25))  # of a window of 25 tokens, 1 to 24
    assert max(prefixes.values()) < 2 * 4000 / 24


def test_it_is_drawn_anew_every_epoch_and_always_alike(store: TokenStore) -> None:
    once, again, later = (examples(store, "prefix", epoch) for epoch in (0, 0, 1))
    asked = [[len(example.targets) for example in epoch] for epoch in (once, again, later)]
    assert asked[0] == asked[1] != asked[2]


def spied(model: Model, batch: Batch) -> tuple[Any, list[Tensor]]:
    """A unit whose hidden states are kept, to ask for their gradients."""
    seen: list[Tensor] = []
    unit = TrainingUnit(model, tiny.objective("gpt2", "prefix"))
    plain = model.hidden

    def hidden(*arguments: Any, **options: Any) -> Any:
        found, state = plain(*arguments, **options)
        found.retain_grad()
        seen.append(found)
        return found, state

    model.hidden = hidden  # type: ignore[method-assign]
    return unit, seen


def test_loss_and_gradients_are_those_of_the_targets_alone(store: TokenStore) -> None:
    objective = tiny.objective("gpt2", "prefix")
    chosen = examples(store, "prefix")[:5]
    prepared: Any = objective.collate(chosen)
    model = tiny.model("gpt2", objective)
    unit, seen = spied(model, prepared.batch)
    total = unit(prepared)["loss"].sum
    expected = torch.zeros(())
    for example in chosen:  # one by one, with everything in sight
        prefix = len(example.ids) - len(example.targets) + 1
        hidden, _ = model.hidden(Batch.of([example.ids], prefix=[prefix]))
        logits = model.heads["vocabulary"].logits(hidden)[prefix - 1 :]  # type: ignore[operator]
        expected = expected + F.cross_entropy(logits, torch.from_numpy(example.targets), reduction="sum")
    torch.testing.assert_close(total, expected)
    total.backward()
    gradient = seen[0].grad
    assert gradient is not None
    asked = torch.zeros(len(gradient), dtype=torch.bool)
    asked[prepared.at] = True
    assert not gradient[~asked].any()
    assert gradient[asked].any(-1).all()
    assert prepared.counts["loss"] == len(prepared.targets) < prepared.tokens == len(gradient)
    bytes_of = tiny.tokenizer("gpt2").byte_lengths
    assert bytes_of is not None
    assert prepared.bytes == sum(int(bytes_of[example.targets].sum()) for example in chosen)


def test_where_all_is_asked_it_is_causal(store: TokenStore) -> None:
    """A prefix of one token is the beginning that `causal` has as well: the same numbers, by the same kernel."""
    whole = examples(store, "causal")[:4]
    losses = []
    for name in ("causal", "prefix"):
        objective = tiny.objective("gpt2", name)
        prepared: Any = objective.collate(whole)
        assert prepared.batch.prefix is None and prepared.at is None
        losses.append(TrainingUnit(tiny.model("gpt2", objective), objective)(prepared)["loss"].sum)
    assert torch.equal(*losses)


def sees(model: Model, batch: Batch) -> Tensor:
    """Which token's hidden state depends on which token's vector `[N, N]`."""
    words = model.body.embeddings.look_up(batch).detach().requires_grad_()
    hidden, _ = model.hidden(batch, embedded=words)
    return torch.stack([
        torch.autograd.grad(hidden[place].sum() * 1.7 + hidden[place, 0], words, retain_graph=True)[0].abs().sum(-1) > 0
        for place in range(len(hidden))
    ])  # fmt: skip


@pytest.mark.parametrize("family", DECODERS)
def test_a_prefix_sees_itself_and_nobody_sees_what_comes(family: str) -> None:
    model = tiny_decoder(family)
    rows, prefixes = rows_of([9, 6]), [5, 2]
    dependence = sees(model, Batch.of(rows, prefix=prefixes))
    row_of = [0] * 9 + [1] * 6
    for place in range(15):
        for other in range(15):
            row, query, seen = row_of[place], place - 9 * row_of[place], other - 9 * row_of[other]
            allowed = row_of[other] == row and (seen <= query or seen < prefixes[row])
            assert bool(dependence[place, other]) == allowed, (place, other)


def test_a_prefix_lifts_the_order_of_a_band_and_not_its_reach() -> None:
    model = tiny_decoder("gpt3", pattern="banded", layers=1)
    dependence = sees(model, Batch.of(rows_of([9]), prefix=[6]))
    meant = [[abs(q - k) < 3 and (k <= q or k < 6) for k in range(9)] for q in range(9)]
    assert torch.equal(dependence, torch.tensor(meant))


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("prefixes", [[0, 0], [1, 1]], ids=str)
def test_no_prefix_is_causal(family: str, prefixes: list[int]) -> None:
    model, rows = tiny_decoder(family), rows_of([7, 4])
    with torch.no_grad():
        found, causal = (
            model.hidden(batch)[0] for batch in (Batch.of(rows, prefix=prefixes), Batch.of(rows))
        )
    torch.testing.assert_close(found, causal, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_token_by_token_behind_a_prefix(family: str) -> None:
    model, rows, prompts = tiny_decoder(family), rows_of([12, 9]), [7, 4]
    with torch.no_grad():
        whole = model.hidden(Batch.of(rows, prefix=prompts))[0].split([12, 9])
        state = model.start(2)
        first, _ = model.hidden(Batch.of([row[:n] for row, n in zip(rows, prompts)], prefix=prompts), state)
        torch.testing.assert_close(first, torch.cat([x[:n] for x, n in zip(whole, prompts)]))
        for more in range(5):
            batch = Batch.of([[row[n + more]] for row, n in zip(rows, prompts)], starts=list(state.lengths))
            got, _ = model.hidden(batch, state)
            expected = torch.stack([x[n + more] for x, n in zip(whole, prompts)])
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_who_cannot_read_a_prefix_is_refused() -> None:
    with pytest.raises(EtymonError, match="prefix"):
        check_fit(objective_class("prefix"), get_family("bert"))
    with pytest.raises(EtymonError, match="prefix"):
        check_fit(objective_class("prefix"), replace(get_family("gpt2"), capabilities=frozenset({"causal"})))
    check_fit(objective_class("prefix"), get_family("gpt2"))


def test_a_folder_says_how_its_model_reads(tmp_path: Path) -> None:
    import etymon

    model = tiny_decoder("gpt2")
    model.reads_prefix = True
    etymon.save(model, tmp_path / "one")
    read = etymon.load(tmp_path / "one")
    assert read.reads_prefix
    assert "both directions" in (tmp_path / "one" / "README.md").read_text(encoding="utf-8")
    read.reads_prefix = False
    etymon.save(read, tmp_path / "two")
    assert not etymon.load(tmp_path / "two").reads_prefix
    assert "etymon_prefix" not in (tmp_path / "two" / "config.json").read_text(encoding="utf-8")
