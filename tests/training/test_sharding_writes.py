"""Who is killed while a checkpoint of parts is written in the background leaves the one before, whole, and the run
goes on from it bit for bit: `make test-sharding` (minutes)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from etymon.training.state import RunFolder
from tests.training.launching import ENOUGH, kill, start, torchrun
from tests.training.test_sharding import SHORT
from tests.verbs.small_runs import metrics, weight_files

pytestmark = pytest.mark.sharding

SHARDED: dict[str, Any] = SHORT | {"shard": "full", "resume": "auto"}
DEATHS = {
    "who writes a part": [("in the middle of a part", 1), ("in the middle of a part", 0)],
    "who puts it together": [
        ("before the table of parts", 0),
        ("before the table has its name", 0),
        ("before the checksums", 0),
        ("before it has its name", 0),
    ],
    "who has just done so": [("when it has its name", 0)],
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that nobody kills."""
    folder = tmp_path_factory.mktemp("straight")
    job = {"family": "gpt2", "folder": str(folder / "run"), "changes": SHARDED}
    torchrun(folder / "jobs.json", [job])
    return folder / "run"


def assert_identical(run: Path, straight: Path) -> None:
    """Bit for bit: as many processes, the same kernels, the same order."""
    assert metrics(run) == metrics(straight)
    assert weight_files(run) == weight_files(straight) != []
    for file in weight_files(run):
        assert (run / file).read_bytes() == (straight / file).read_bytes()


@pytest.mark.parametrize("who", DEATHS)
def test_a_checkpoint_whose_writer_is_killed_is_never_taken_for_whole(
    who: str, straight: Path, tmp_path: Path
) -> None:
    run, deaths = tmp_path / "run", DEATHS[who]
    job = {"family": "gpt2", "folder": str(run), "changes": SHARDED, "deaths": deaths}
    _, errors = torchrun(tmp_path / "jobs.json", [job], "--max-restarts", str(len(deaths)))
    assert errors.count("SIGKILL") + errors.count("exitcode: -9") >= len(deaths), "or nothing was tried"
    first, *found = [json.loads(line) for line in Path(f"{run}.found.jsonl").read_text().splitlines()]
    assert first["checkpoints"] == [] and len(found) == len(deaths)
    named = who == "who has just done so"
    for told in found:
        assert told == {
            "checkpoints": [2, 4] if named else [2],
            "newest": f"step-{4 if named else 2:08d}",
            "broken": [],
        }
    assert_identical(run, straight)


def test_a_machine_that_fails_while_parts_are_written_loses_no_older_checkpoint(
    straight: Path, tmp_path: Path
) -> None:
    run, file = tmp_path / "run", tmp_path / "jobs.json"
    job = {"family": "gpt2", "folder": str(run), "changes": SHARDED}
    places = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    node = start(file, [job | {"slow_parts": 0.1}], *places)
    try:
        end = time.monotonic() + ENOUGH
        # A part of the second checkpoint is there, and far from whole.
        while not list(run.glob("checkpoints/.step-00000004.*.partial/shards/*.distcp")):
            assert node.poll() is None and time.monotonic() < end, "no part was ever written"
            time.sleep(0.02)
    finally:
        kill(node)
    broken: list[str] = []
    newest = RunFolder(run).latest(broken.append)
    assert newest is not None and newest.name == "step-00000002" and not broken
    torchrun(file, [job])
    assert_identical(run, straight)
    assert not list(run.glob("checkpoints/.*")), "what was left half written is swept away"
