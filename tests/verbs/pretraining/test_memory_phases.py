"""A memory that grows from phase to phase: streams go on, and so does a run that died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from etymon.nn.memory import SegmentMemory
from etymon.runs.result import Pretrained
from etymon.training.state import RunFolder, read_state
from tests.verbs.pretraining.test_resume import same_weights
from tests.verbs.small_runs import crash, metrics, pretrain, resume

GROWING = "phases=[{share: 0.5, options: {memory: 8}}, {share: 0.5, options: {memory: 24}}]"
"""Steps 1 to 6 and 7 to 12."""
ZEROS = {
    "zeros that are seen": ["shape.zero_start=true"],
    "nothing": ["shape.zero_start=false", "shape.same_length=false"],
}
"""What stands before the first token of a text."""


def warm_up(out: Path, phases: str = GROWING, *also: str, **changes: Any) -> Pretrained:
    # Long enough that no epoch ends within the run, by streams short enough to remember more than a segment.
    given = {"length": 8, "batch": 4, "validate_every": 3, "save_every": 3, **changes}
    return pretrain("transformer-xl", out, set=[phases, "keep=9", *also], **given)


def losses(done: Pretrained) -> list[float]:
    return [record["loss"] for record in metrics(done.folder) if "learning_rate" in record]


def test_streams_go_on_where_only_the_memory_differs(tmp_path: Path) -> None:
    one = "phases=[{share: 1.0, options: {memory: 16}}]"
    two = "phases=[{share: 0.5, options: {memory: 16}}, {share: 0.5, options: {memory: 16, validation_memory: 24}}]"
    straight, parted = warm_up(tmp_path / "one", one), warm_up(tmp_path / "two", two)
    assert losses(straight) == losses(parted), "the same samples, and nothing was forgotten between"
    first = "phases=[{share: 0.5, options: {memory: 8}}, {share: 0.5, length: 9, options: {memory: 8}}]"
    forgetting = warm_up(tmp_path / "forgetting", first)
    growing = warm_up(tmp_path / "growing")
    # A phase with other samples begins an epoch; one that only remembers more does not.
    epochs = [
        read_state(RunFolder(done.folder).checkpoint(12))[0].position.epoch for done in (growing, forgetting)
    ]
    assert epochs == [0, 1]
    assert losses(growing)[:6] == losses(forgetting)[:6]


def test_no_memory_at_first_and_none_in_between(tmp_path: Path) -> None:
    def options(*lengths: int) -> str:
        share = 1 / len(lengths)
        parts = ", ".join(f"{{share: {share}, options: {{memory: {length}}}}}" for length in lengths)
        return f"phases=[{parts}]"

    rising = warm_up(tmp_path / "rising", options(0, 16))
    plain = warm_up(tmp_path / "plain", options(16))
    assert losses(rising)[0] == losses(plain)[0] and losses(rising)[1:] != losses(plain)[1:]
    # What was remembered before a phase without memory does not come back.
    interrupted = warm_up(tmp_path / "interrupted", options(16, 0, 16))
    _, tensors = read_state(RunFolder(interrupted.folder).checkpoint(6))
    assert not any(name.startswith("memory/") for name in tensors)


@pytest.mark.parametrize("begin", ZEROS)
@pytest.mark.parametrize("step", [4, 7, 10])
def test_a_run_that_dies_while_its_memory_grows_goes_on_bit_for_bit(
    step: int, begin: str, tmp_path: Path, at_step: Callable[..., None]
) -> None:
    straight = warm_up(tmp_path / "straight", GROWING, *ZEROS[begin])
    _, tensors = read_state(RunFolder(straight.folder).checkpoint(12))
    widths = {tensor.shape[1] for name, tensor in tensors.items() if ".memory" in name or "/memory." in name}
    assert widths == {24}, "the streams remember as much as the last phase asks for"
    at_step(step, crash)
    with pytest.raises(ConnectionAbortedError):
        warm_up(tmp_path / "run", GROWING, *ZEROS[begin])
    again = resume("transformer-xl", tmp_path / "run")
    assert metrics(again.folder) == metrics(straight.folder)
    assert same_weights(again.folder, straight.folder)


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_longer_memory_begins_with_what_there_is(is_filled: bool) -> None:
    filled = torch.zeros(2) if is_filled else None
    short, longer = SegmentMemory(1, 2, 2, filled=filled), SegmentMemory(1, 2, 3, filled=filled)
    short.extend([torch.arange(1.0, 9.0).view(2, 2, 2)], [2, 2])
    longer.load(short.tensors(), short.lengths)
    (kept,) = longer.layers
    assert kept is not None
    if is_filled:
        # As before the first token of a text: zeros that are seen.
        assert longer.lengths == (3, 3) and kept[:, 0].tolist() == [[0.0, 0.0]] * 2
        assert longer.missing(torch.device("cpu")) is None
    else:
        assert longer.lengths == (2, 2) and longer.width == 2
    assert kept[:, -2:].tolist() == torch.arange(1.0, 9.0).view(2, 2, 2).tolist()
    longer.extend([torch.ones(2, 1, 2)], [1, 1])
    assert longer.lengths == (3, 3) and longer.width == 3
