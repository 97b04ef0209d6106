"""A run that is killed ten times, at random and at the worst moments, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etymon.training.state import RunFolder
from tests.verbs.small_runs import metrics


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_a_run_that_is_killed_again_and_again_ends_the_same(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.training.crashes", str(tmp_path)]
    done = subprocess.run(
        command, cwd=root, env=environment, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["killed"] == [-9] * 4
    assert told["injected"] and set(told["injected"].values()) == {9}, told["injected"]
    assert sum(told["leftovers"]) > 0, "some deaths leave something half written, or nothing was tried"
    assert told["broken"] == [], "what has a checkpoint's name is whole"
    assert told["finished"] == 0
    straight, crashed = tmp_path / "straight", tmp_path / "crashed"
    assert metrics(crashed) == metrics(straight), "every loss, bit for bit"
    for name in ("model", "milestones/20steps", "checkpoints/step-00000040/model"):
        assert (crashed / name / "model.safetensors").read_bytes() == (
            straight / name / "model.safetensors"
        ).read_bytes()
    optimiser = "checkpoints/step-00000040/optimiser.safetensors"
    assert (crashed / optimiser).read_bytes() == (straight / optimiser).read_bytes()
    assert RunFolder(crashed).checkpoints() == RunFolder(straight).checkpoints()
    assert list(crashed.rglob("*.partial")) == []
    assert told["between"] == 9 and told["model gone"] and told["finished again"] == 0
