"""Packing in which no document sees another: the same tokens and targets, and each document as if it were alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.nn.batch import Batch
from etymon.objectives import get_objective, read_options
from etymon.sampling.plans import key
from tests import tiny
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes

DECODERS = ["gpt1", "gpt2", "gpt3", "gptj", "transformer-xl"]


def prepared(family: str, store: Any, **options: Any) -> Any:
    objective = get_objective("causal", tiny.tokenizer(family), 48, **options)
    rows = objective.plan(store.train, 0, 0)
    return objective.collate(
        [objective.prepare(store.train, row, key(0, number)) for number, row in enumerate(rows)]
    )


@pytest.mark.parametrize("family", DECODERS)
def test_each_document_is_read_as_if_it_were_alone(family: str, tmp_path: Path) -> None:
    store = tiny.store(family, tmp_path)
    packed, isolated = prepared(family, store), prepared(family, store, isolated=True)
    assert packed.counts == isolated.counts and packed.tokens == isolated.tokens
    assert (packed.bytes, packed.characters) == (isolated.bytes, isolated.characters)
    pairs = [
        sorted(zip(micro.batch.ids.tolist(), micro.targets.tolist(), strict=True))
        for micro in (packed, isolated)
    ]
    assert pairs[0] == pairs[1], "every token is asked for behind the same one"
    separator = tiny.tokenizer(family).id("end")
    lengths = isolated.batch.layout.lengths
    assert len(lengths) > len(packed.batch.layout.lengths)
    model = tiny.model(family, get_objective("causal", tiny.tokenizer(family), 48)).eval()
    hidden, _ = model.hidden(isolated.batch)
    rows = np.split(isolated.batch.ids.numpy(), np.cumsum(lengths)[:-1])
    for ids, states in list(zip(rows, hidden.split(list(lengths)), strict=True))[::7]:
        assert not (ids[1:] == separator).any()
        alone, _ = model.hidden(Batch.of([ids]))
        torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-5)
    across, _ = model.hidden(packed.batch)
    firsts = [states[:, 0].sort().values for states in (across, hidden)]
    assert not torch.allclose(*firsts, rtol=1e-3), "together they see each other"


def test_a_run_with_isolated_documents_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with with_test_sizes():
        given: dict[str, Any] = {"set": ["options.isolated=true"], "steps": 6, "save_every": 3}
        straight = pretrain("gpt2", tmp_path / "straight", **given)
        across = pretrain("gpt2", tmp_path / "across", **(given | {"set": []}))
        pretrain("gpt2", tmp_path / "run", **given)
        for folder in (tmp_path / "run" / "checkpoints").glob("step-00000006"):
            folder.rename(folder.with_name("gone"))
        again = resume("gpt2", tmp_path / "run")
    assert metrics(again.folder) == metrics(straight.folder) != metrics(across.folder)
    tokens = [[record.get("tokens") for record in metrics(done.folder)] for done in (straight, across)]
    assert tokens[0] == tokens[1]


def test_a_prefix_cannot_be_isolated() -> None:
    with pytest.raises(EtymonError, match="isolated"):
        read_options("prefix", {"isolated": True})
