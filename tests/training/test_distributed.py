"""Two processes under torchrun learn what one learns, stop together, and hand runs over to one and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
from tests.carrying import carrying
from tests.training.launching import close, same_run, torchrun
from tests.training.processes import stop_at
from tests.verbs.small_runs import FAMILIES, metrics, pretrain, resume, weight_files, with_test_sizes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="PyTorch has no distributed package"
)

IN_PHASES = ["phases=[{share: 0.5, objective: masked, length: 16}, {share: 0.5}]", "ema=0.7"]
"""The heads of the second phase have no gradient in the first; what is kept is the average of the weights."""
STREAMS = {"objective": "recurrent", "length": 16}
"""A slice's streams stay where they are."""


class Together:
    """What two processes made of a list of runs, and the same runs in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with with_test_sizes():
            self.alone = {family: pretrain(family, folder / f"{family}-alone") for family in FAMILIES}
            self.alone["phases"] = pretrain("bert", folder / "phases-alone", set=IN_PHASES)
            with carrying():
                self.alone["streams"] = pretrain("gpt2", folder / "streams-alone", **STREAMS)
            plain = Trainer._show
            stop_at(7)
            stopped = pretrain("t5", folder / "t5-handed-over")
            stop_at(7)
            with carrying():
                pretrain("gpt2", folder / "streams-handed-over", **STREAMS)
            Trainer._show = plain  # type: ignore[method-assign]
            assert stopped.stopped
        jobs: list[dict[str, Any]] = [{"family": family, "folder": family} for family in FAMILIES]
        jobs[0]["present"] = True
        jobs += [
            {"family": "bert", "folder": "phases", "changes": {"set": IN_PHASES}},
            {"family": "gpt2", "folder": "streams", "changes": STREAMS},
            {"family": "gpt2", "folder": "streams-stopped", "changes": STREAMS, "stop_at": 7},
            {"family": "bert", "folder": "bert-stopped", "stop_at": 7},
            {"family": "t5", "folder": "t5-handed-over", "resume": True},
            {"family": "gpt2", "folder": "streams-handed-over", "resume": True},
            {"family": "gpt2", "folder": "three", "changes": {"slices": 1}},
            {"family": "gpt2", "folder": "no-text", "changes": {"data": ["nowhere.txt"]}},
            {"family": "names", "folder": "names"},
        ]
        for job in jobs:
            job["folder"] = str(folder / job["folder"])
        self.out, self.errors = torchrun(folder / "jobs.json", jobs)

    def said(self, name: str) -> list[dict[str, Any]]:
        return [
            json.loads((self.folder / f"{name}.{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
        ]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("name", [*FAMILIES, "phases", "streams"])
def test_two_processes_learn_what_one_learns(name: str, together: Together) -> None:
    assert [said["steps"] for said in together.said(name)] == [12, 12]
    assert same_run(together.folder / name, together.alone[name].folder)
    assert close(*(said["metrics"] for said in together.said(name))), "every process knows the figures"


def test_only_the_first_process_writes_and_prints(together: Together) -> None:
    steps = [record["step"] for record in metrics(together.folder / "gpt2") if "learning_rate" in record]
    assert steps == list(range(1, 13)), "every step is on record once"
    assert together.out.count("validation bits per byte") == together.out.count("model   ") == 1


def test_a_stop_that_one_process_hears_stops_all_and_one_goes_on(together: Together) -> None:
    said = together.said("bert-stopped")
    assert [(each["steps"], each["stopped"]) for each in said] == [(7, True), (7, True)]
    assert RunFolder(together.folder / "bert-stopped").checkpoints() == [5, 7]
    with with_test_sizes():
        result = resume("bert", together.folder / "bert-stopped")
    assert same_run(result.folder, together.alone["bert"].folder)


def test_one_goes_on_with_the_streams_of_two(together: Together) -> None:
    saved = load_file(together.folder / "streams-stopped/checkpoints/step-00000007/optimiser.safetensors")
    assert {f"memory/{streams}/mean" for streams in ("0-3", "4-7")} <= set(saved), "those of both processes"
    with with_test_sizes(), carrying():
        result = resume("gpt2", together.folder / "streams-stopped")
    assert same_run(result.folder, together.alone["streams"].folder)


def test_two_go_on_with_the_streams_of_one(together: Together) -> None:
    runs = [together.folder / "streams-handed-over", together.alone["streams"].folder]
    assert same_run(*runs)
    last = [load_file(run / "checkpoints/step-00000012/optimiser.safetensors") for run in runs]
    remembered = [name for name in last[1] if name.startswith("memory/")]
    assert len(remembered) == 4, "and each process saves its own"
    assert all(torch.allclose(last[0][name], last[1][name], rtol=1e-5, atol=1e-6) for name in remembered)


def test_two_go_on_with_what_one_began(together: Together) -> None:
    assert [said["steps"] for said in together.said("t5-handed-over")] == [12, 12]
    assert same_run(together.folder / "t5-handed-over", together.alone["t5"].folder)


def test_refusals_reach_every_process_and_nobody_waits(together: Together) -> None:
    for said in together.said("three"):
        assert said["error"] == (
            "a step of 1 slices cannot be shared by 2 processes: make --slices a multiple of 2"
        )
    first, second = together.said("no-text")
    assert first["error"] == "no such file or folder: nowhere.txt"
    assert second["error"] == "another process of this run has failed: see what it says"
    assert not (together.folder / "three").exists() and not (together.folder / "no-text").exists()


def test_different_things_are_not_added_up(together: Together) -> None:
    for rank, said in enumerate(together.said("names")):
        assert said["error"] == f"process {rank} adds up only here {rank}, and another one something else"


def test_the_same_command_begins_and_goes_on_where_torchrun_starts_it_again(
    together: Together, tmp_path: Path
) -> None:
    run = {"family": "gpt2", "folder": str(tmp_path / "run"), "changes": {"resume": "auto"}, "die_at": 7}
    _, errors = torchrun(tmp_path / "jobs.json", [run], "--max-restarts", "1")
    assert "SIGKILL" in errors or "exitcode: -9" in errors, "or nothing was tried"
    straight = together.folder / "gpt2"
    assert metrics(tmp_path / "run") == metrics(straight)
    for file in weight_files(straight):
        assert (tmp_path / "run" / file).read_bytes() == (straight / file).read_bytes(), "bit for bit"
