"""A run's folder: metrics that survive a torn line, checkpoints that are whole or passed over, and which are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etymon.errors import EtymonError
from etymon.training.feeding import Position
from etymon.training.state import RunFolder, TrainingState, read_state


def save(run: RunFolder, step: int, keep: int = 2, best: int | None = None) -> Path:
    state = TrainingState(step, Position(1, 7), 99, 7.5, 0.25, seconds=1.5, best=0.1 + 0.2, best_step=best)

    def save_members(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(bytes(range(200)))

    return run.save(
        state, {"exp_avg/a.b": torch.arange(4.0)[::2], "step/a.b": torch.tensor(3.0)}, save_members, keep
    )


def test_state_round_trip(tmp_path: Path) -> None:
    folder = save(RunFolder(tmp_path), 12, best=5)
    state, tensors = read_state(folder)
    assert state == TrainingState(12, Position(1, 7), 99, 7.5, 0.25, 1.5, 0.1 + 0.2, 5)
    assert tensors["exp_avg/a.b"].tolist() == [0.0, 2.0] and tensors["step/a.b"].item() == 3.0


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 8):
        save(run, step, keep=2, best=min(step, 3))
        assert step in run.checkpoints()
    assert run.checkpoints() == [3, 6, 7]
    save(run, 8, keep=2, best=8)
    assert run.checkpoints() == [7, 8], "what was the best once is not kept for ever"
    save(run, 9, keep=1, best=8)
    assert run.checkpoints() == [8, 9]


@pytest.mark.parametrize("name", ["model/weights", "optimiser.safetensors", "state.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_broken_checkpoints_are_passed_over(tmp_path: Path, name: str, damage: str) -> None:
    run = RunFolder(tmp_path)
    older, newer = save(run, 5), save(run, 10)
    assert run.latest() == newer
    file = newer / name
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        data[len(data) // 2] ^= 0x10
        file.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    assert run.latest() == older
    (older / "state.json").unlink()
    assert run.latest() is None


def test_leftovers_are_no_checkpoints(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.latest() is None and run.checkpoints() == []
    for name in ("step-", "step-old", ".step-00000009.12-ab.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000007").mkdir()  # removal was interrupted
    folder = save(run, 3)
    assert run.latest() == folder


def test_metrics_forget_what_is_taken_again_and_survive_a_torn_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.metrics() == [] and run.last_validation() == {}
    run.log({"step": 0, "validation_bits_per_byte": 4.5, "seconds": 0.0})
    for step in range(1, 5):
        run.log({"step": step, "loss": step / 3})
    run.log({"step": 3, "validation_bits_per_byte": 2.5, "validation_loss": 1.25})
    with open(run.metrics_file, "a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4, 3]
    assert run.last_validation() == {"bits_per_byte": 2.5, "loss": 1.25}
    run.forget_after(2)
    assert [(record["step"], record.get("loss")) for record in run.metrics()] == [
        (0, None),
        (1, 1 / 3),
        (2, 2 / 3),
    ]
    assert run.last_validation() == {"bits_per_byte": 4.5}
    run.log({"step": 3, "loss": 1.0})
    assert run.metrics()[-1] == {"step": 3, "loss": 1.0}, "a line after a torn one is a line of its own"
    run.forget_after(-1)
    assert run.metrics() == []


def test_a_torn_last_line_of_metrics_is_passed_over_and_damage_before_it_is_named(tmp_path):
    run = RunFolder(tmp_path)
    run.log({"step": 1, "loss": 2.0})
    run.log({"step": 2, "loss": 1.0})
    whole = run.metrics_file.read_text()
    run.metrics_file.write_text(whole + '{"step": 3, "lo')
    assert [record["step"] for record in run.metrics()] == [1, 2]
    for line in ('{"step": 3, "lo', "5", "{}", '{"step": "a"}', "[" * 100_000):
        run.metrics_file.write_text(f"{line}\n{whole}")
        with pytest.raises(EtymonError, match=r"metrics\.jsonl, line 1 (is not valid JSON|has no step)"):
            run.metrics()
