"""Runs over streams with a memory: they go on bit for bit, the memory included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from etymon.errors import EtymonError
from etymon.families import get_family, transformer_xl
from etymon.families.loading import load
from etymon.nn import adaptive
from etymon.text.sources import Texts
from tests.carrying import carrying
from tests.verbs.pretraining.test_resume import same_weights
from tests.verbs.small_runs import crash, metrics, pretrain, resume

STREAMS = {"objective": "recurrent", "length": 16, "batch": 4, "slices": 2}


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with carrying():
        yield


@pytest.mark.parametrize("reset", ["epoch", "never", "document"])
def test_a_crashed_run_goes_on_bit_for_bit(reset: str, tmp_path: Path, at_step: Callable[..., None]) -> None:
    options = [f"options.reset={reset}", "options.memory=16", "options.validation_memory=32"]
    straight = pretrain("gpt2", tmp_path / "straight", **STREAMS, set=options)
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("gpt2", tmp_path / "run", **STREAMS, set=options)
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000005" / "optimiser.safetensors")
    assert {name for name in saved if name.startswith("memory/")} == {
        f"memory/{streams}/{part}" for streams in ("0-1", "2-3") for part in ("mean", "lengths")
    }
    assert saved["memory/0-1/mean"].any()
    result = resume("gpt2", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight.folder)
    assert same_weights(result.folder, straight.folder)  # and what the streams remember
    assert "bits_per_byte" in result.metrics


def test_transformer_xl_goes_on_bit_for_bit(tmp_path: Path, at_step: Callable[..., None]) -> None:
    """The same with a real memory, by its own objective."""
    wanted = {name: value for name, value in STREAMS.items() if name != "objective"}
    straight = pretrain("transformer-xl", tmp_path / "straight", **wanted)
    at_step(8, crash)
    with pytest.raises(ConnectionAbortedError):
        pretrain("transformer-xl", tmp_path / "run", **wanted)
    result = resume("transformer-xl", tmp_path / "run")
    assert metrics(result.folder) == metrics(straight.folder)
    assert same_weights(result.folder, straight.folder)
    judged = [
        record["validation_bits_per_byte"] for record in metrics(result.folder) if "validation_loss" in record
    ]
    assert judged[-1] < 0.9 * judged[0]


def test_a_lost_memory_would_be_seen(tmp_path: Path) -> None:
    """So the runs above are equal because it is not lost."""
    runs = [
        pretrain("gpt2", tmp_path / f"{memory}", **STREAMS, set=[f"options.memory={memory}"])
        for memory in (0, 16)
    ]
    assert metrics(runs[0].folder) != metrics(runs[1].folder)


def test_the_streams_of_phases(tmp_path: Path) -> None:
    phases = "phases=[{share: 0.5, length: 8}, {share: 0.5, length: 16}]"
    assert pretrain("gpt2", tmp_path / "run", **STREAMS, set=[phases]).steps == 12


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("ramp=0.5", "would change the number of streams"),
        ("phases=[{share: 0.5, batch: 2}, {share: 0.5}]", "2, 4 samples a step"),
        (
            "options.reset=sometimes",
            "options of the objective 'recurrent': reset is .sometimes., expected 'epoch', 'document' or",
        ),
        ("options.recent=1.5", "recent is 1.5, expected at most 1"),
        ("options.memory=-3", "memory is -3, expected at least 0"),
    ],
)
def test_refusals(setting: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=reason):
        pretrain("gpt2", tmp_path / "run", **STREAMS, set=[setting])
    assert not (tmp_path / "run").exists()


def test_another_number_of_streams_is_refused_on_resume(tmp_path: Path) -> None:
    pretrain("gpt2", tmp_path / "run", **STREAMS)
    for changes in ({"batch": 8}, {"slices": 4}):
        with pytest.raises(EtymonError, match=r"began with (batch 4, not 8|slices 2, not 4)"):
            resume("gpt2", tmp_path / "run", **changes)


def test_words_that_were_counted_are_cut_by_how_frequent_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "SMALL", 50)
    monkeypatch.setattr(adaptive, "BIN_COST", 0)
    words = [f"word{number} " * (400 // (number + 1)) for number in range(220)]
    own: dict[str, Any] = {"data": Texts(words), "tokenizer": "word", "vocabulary": 130, "steps": 1}
    assert pretrain("transformer-xl", tmp_path / "xl", **own).model.shape.cutoffs == (100,)
    told = pretrain("transformer-xl", tmp_path / "told", set=["shape.cutoffs=[50]"], **own)
    assert told.model.shape.cutoffs == (50,)
    assert pretrain("gpt2", tmp_path / "gpt2", **own).model.shape.cutoffs == (), "only where it is published"
    counted = load(tmp_path / "xl").tokenizer
    assert counted is not None and get_family("elmo").suggest_cutoffs(counted, "test", {}) == {}, (
        "its softmax is a sample"
    )
    # Uncounted tokens are cut where the size says, as far as there are so many.
    monkeypatch.setitem(transformer_xl.SIZES["test"], "cutoffs", (90, 250, 400))
    uncounted = pretrain(
        "transformer-xl", tmp_path / "uncounted", **{**own, "tokenizer": "byte-bpe", "vocabulary": 300}
    )
    assert uncounted.model.shape.cutoffs == (90, 250)
