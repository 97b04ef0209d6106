"""Processes that share a model's parameters learn what one learns, and hand runs over to any number of them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import etymon
from etymon.checkpoints.sharded import is_sharded
from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
from tests.training.launching import close, same_run, torchrun
from tests.training.processes import stop_at
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="PyTorch has no distributed package"
)

SHORT: dict[str, Any] = {"steps": 6, "validate_every": 3, "save_every": 2, "slices": 4}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "matrices": ("gpt2", {"optimiser": "muon", "recompute": True}),
    "relative rates": ("t5", {"optimiser": "adafactor", "learning_rate": 5e-3}),
    "shared layers": ("albert", {"optimiser": "lamb", "learning_rate": 5e-3}),
    "shared words": ("electra", {"set": ["ema=0.7"]}),
    "two streams": ("xlnet", {}),
}
"""What is not elementwise in an optimiser, and what is not cut by blocks in a model."""
AVERAGED = SHORT | {"set": ["ema=0.7"]}
"""With an average of the weights, which is handed over from one number of processes to another."""
TUNINGS: dict[str, dict[str, Any]] = {
    "classified": {},
    "adapters": {"lora": 2},
    "frozen features": {"features": "mix"},
}


class Shared:
    """Runs of this process, and the same of processes that share the parameters."""

    def __init__(
        self,
        folder: Path,
        runs: dict[str, tuple[str, dict[str, Any]]],
        jobs: list[dict[str, Any]],
        **launch: Any,
    ) -> None:
        self.folder = folder
        with with_test_sizes():
            for name, (family, changes) in runs.items():
                pretrain(family, folder / f"{name}-alone", **(SHORT | changes))
        jobs = [
            *({"family": family, "folder": name, "changes": SHORT | changes | {"shard": "full"}} for name, (family, changes) in runs.items()),
            *jobs,
        ]  # fmt: skip
        for job in jobs:
            job["folder"] = str(folder / job["folder"])
        self.out, self.errors = torchrun(folder / "jobs.json", jobs, **launch)

    def said(self, name: str, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.{rank}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.mktemp("shared")
    with with_test_sizes():
        plain = Trainer._show
        stop_at(3)
        stopped = pretrain("gpt2", folder / "from-one", **AVERAGED)
        Trainer._show = plain  # type: ignore[method-assign]
        assert stopped.stopped
        pretrain("gpt2", folder / "straight", **AVERAGED)
        model = pretrain("bert", folder / "run", steps=1).model_folder
        shutil.copytree(model, folder / "bert")
    texts = [
        {"text": f"{word} window {number}", "label": word} for number in range(12) for word in ("good", "bad")
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, texts)), encoding="utf-8")
    tuned: dict[str, Any] = {
        "task": "classify", "train": str(folder / "rows.jsonl"), "validation": str(folder / "rows.jsonl"),
        "steps": 3, "slices": 2, "validate_every": 1, "baselines": False,
    }  # fmt: skip
    for name, changes in TUNINGS.items():
        if name != "frozen features":
            etymon.finetune(
                folder / "bert", out=folder / f"{name}-alone", progress="silent", **(tuned | changes)
            )
    jobs: list[dict[str, Any]] = [
        {"family": "gpt2", "folder": "from-one", "resume": True, "changes": {"shard": "full"}},
        {"family": "gpt2", "folder": "from-two", "changes": AVERAGED | {"shard": "full"}, "stop_at": 3},
        {"family": "gpt2", "folder": "saved", "changes": AVERAGED | {"shard": "full", "save_at": ["4steps"]}},
        *(
            {
                "family": "",
                "finetune": str(folder / "bert"),
                "folder": name,
                "changes": tuned | changes | {"shard": "full"},
            }
            for name, changes in TUNINGS.items()
        ),
        {"family": "gpt2", "folder": "refused", "changes": SHORT | {"slices": 1, "shard": "full"}},
    ]
    return Shared(folder, RUNS, jobs)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_that_share_parameters_learn_what_one_learns(name: str, shared: Shared) -> None:
    assert [shared.said(name, rank)["steps"] for rank in (0, 1)] == [6, 6]
    assert same_run(shared.folder / name, shared.folder / f"{name}-alone", sharded=True)


@pytest.mark.parametrize("name", ["classified", "adapters"])
def test_processes_that_share_a_model_fine_tune_it_as_one_does(name: str, shared: Shared) -> None:
    one, two = (metrics(shared.folder / folder) for folder in (f"{name}-alone", name))
    assert close(*([record for record in run if "sample" not in record] for run in (one, two)))
    models = [
        etymon.load(shared.folder / folder / "model").state_dict() for folder in (f"{name}-alone", name)
    ]
    assert all(torch.allclose(models[0][key], models[1][key], atol=1e-5) for key in models[0])


def test_what_each_process_would_keep_by_itself_is_refused(shared: Shared) -> None:
    assert "say --tune-body, or leave --shard out" in shared.said("frozen features")["error"]


def test_checkpoints_are_in_parts_and_whole_on_disk(shared: Shared) -> None:
    run = RunFolder(shared.folder / "shared words")
    checkpoint = run.latest()
    assert checkpoint is not None and is_sharded(checkpoint)
    parts = [path.name for path in (checkpoint / "shards").glob("*.distcp")]
    assert sorted(parts) == ["__0_0.distcp", "__1_0.distcp"], "one of each process"
    assert not list(checkpoint.rglob("*.safetensors")) or {
        path.name for path in checkpoint.rglob("*.safetensors")
    } == {"memories.safetensors"}


def test_one_process_goes_on_where_two_stopped(shared: Shared) -> None:
    assert shared.said("from-two") == shared.said("from-two", 1) | {"steps": 3, "stopped": True}
    with with_test_sizes():
        result = resume("gpt2", shared.folder / "from-two")
    assert same_run(result.folder, shared.folder / "straight", sharded=True)


def test_two_processes_go_on_where_one_stopped(shared: Shared) -> None:
    assert shared.said("from-one")["steps"] == 6
    assert same_run(shared.folder / "from-one", shared.folder / "straight", sharded=True)


def test_a_checkpoint_in_parts_is_opened_like_any_model_folder(shared: Shared) -> None:
    run = shared.folder / "saved"
    last = RunFolder(run).checkpoint(6)
    assert is_sharded(last)
    model, whole = etymon.load(last / "model"), etymon.load(run / "model")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    milestone = etymon.load(run / "milestones" / "4steps")
    assert milestone.history[-1]["seen"]["steps"] == 4


def test_the_newest_checkpoint_of_a_run_is_converted_to_an_ordinary_folder(
    shared: Shared, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(shared.folder / "saved", run)
    shutil.rmtree(run / "model")
    converted = etymon.convert(run, tmp_path / "out")
    assert converted.family == "GPT-2"
    assert (
        load_file(tmp_path / "out/model.safetensors").keys()
        == load_file(shared.folder / "saved/model/model.safetensors").keys()
    )
    averaged = etymon.convert(run, tmp_path / "mean", average=2)
    assert averaged.averaged == (4, 6)


def test_a_table_of_parts_that_would_run_something_is_refused(shared: Shared, tmp_path: Path) -> None:
    checkpoint = tmp_path / "step"
    shutil.copytree(RunFolder(shared.folder / "saved").checkpoint(6), checkpoint)
    (checkpoint / "shards/.metadata").write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(etymon.EtymonError, match="is no part of a table of tensors"):
        etymon.load(checkpoint / "model")


def test_processes_that_cannot_share_a_step_are_refused(shared: Shared) -> None:
    for rank in (0, 1):
        assert "make --slices a multiple of 2" in shared.said("refused", rank)["error"]


def test_sharding_needs_torchrun(tmp_path: Path) -> None:
    assert "TORCHELASTIC_RUN_ID" not in os.environ
    with with_test_sizes(), pytest.raises(etymon.EtymonError, match="start them with torchrun"):
        pretrain("gpt2", tmp_path / "run", shard="full")
    assert not (tmp_path / "run").exists()
