"""Four processes, killed ones, lost and joined nodes, and two hosts: `make test-sharding` (minutes)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launching import ENOUGH, close, finish, kill, same_run, start, torchrun
from tests.training.test_sharding import SHORT, Shared
from tests.verbs.small_runs import metrics, pretrain, resume, with_test_sizes

pytestmark = pytest.mark.sharding

MORE_RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in ("gpt2", "bert", "t5", "albert", "electra", "xlnet")},
    **{family: (family, {}) for family in ("transformer-xl", "bart", "gptj", "elmo", "rnn")},
    "adagrad": ("gpt2", {"optimiser": "adagrad", "learning_rate": 5e-3}),
    "adam-bert": ("gpt2", {"optimiser": "adam-bert"}),
    "unfreezing": ("gpt2", {"unfreeze": 0.5}),
    "adversarial": ("bert", {"adversarial": "freelb"}),
    "phases": ("bert", {"set": ["phases=[{share: 0.5, objective: masked, length: 16}, {share: 0.5}]"]}),
}
JOINING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, torchrun tells nodes that join later no address (PyTorch 2.13)."""
SHARDED = SHORT | {"shard": "full", "resume": "auto"}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("four"), MORE_RUNS, [], processes=4)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with with_test_sizes():
        return pretrain("gpt2", tmp_path_factory.mktemp("straight") / "run", **SHORT).folder


@pytest.mark.parametrize("name", MORE_RUNS)
def test_four_processes_that_share_parameters_learn_what_one_learns(name: str, four: Shared) -> None:
    assert [four.said(name, rank)["steps"] for rank in range(4)] == [6] * 4
    assert same_run(four.folder / name, four.folder / f"{name}-alone", sharded=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_a_run_again_whose_process_was_killed(
    rank: int, straight: Path, tmp_path: Path
) -> None:
    job = {
        "family": "gpt2",
        "folder": str(tmp_path / "run"),
        "changes": SHARDED,
        "die_at": 5,
        "die_rank": rank,
    }
    _, errors = torchrun(tmp_path / "jobs.json", [job], "--max-restarts", "1")
    assert "SIGKILL" in errors or "exitcode: -9" in errors, "or nothing was tried"
    assert same_run(tmp_path / "run", straight, sharded=True)


def test_four_and_then_one_go_on_where_two_were_killed(straight: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "jobs.json"
    job = {"family": "gpt2", "folder": str(run), "changes": SHARDED}
    places = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    first = start(file, [job | {"die_at": 3}], "--nproc-per-node", "2", *places)
    finish(first)
    assert first.returncode != 0 and not (run / "model").exists()
    torchrun(file, [job | {"stop_at": 5}], processes=4)
    assert json.loads(Path(f"{run}.3.json").read_text())["steps"] == 5
    with with_test_sizes():
        resume("gpt2", run)
    assert same_run(run, straight, sharded=True)


def test_a_node_is_lost_and_joins_again(tmp_path: Path) -> None:
    changes = SHARDED | {"steps": 40, "save_every": 2, "validate_every": 20}
    with with_test_sizes():
        alone = pretrain(
            "gpt2", tmp_path / "alone", **(SHORT | {"steps": 40, "save_every": 2, "validate_every": 20})
        )
    run = tmp_path / "run"
    job = {"family": "gpt2", "folder": str(run), "changes": changes, "pause": 0.4}
    options = [
        "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "9", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "elastic",
        "--rdzv-conf", "is_host={},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=60",
    ]  # fmt: skip

    def node(host: bool) -> subprocess.Popen[str]:
        given = [option.format(int(host)) for option in options]
        return start(tmp_path / f"jobs-{host}.json", [job], *given, LOGLEVEL="INFO", **JOINING)

    nodes = [node(True), node(False)]
    try:
        wait_for_step(run, 6)
        # The node is gone at once: a signal that it could answer would stop the whole run, and save it.
        kill(nodes[1])
        wait_for_step(run, 16)
        nodes.append(node(False))
        _, errors = finish(nodes[0])
    finally:
        for each in nodes:
            kill(each)
    assert nodes[0].returncode == 0, errors[-3000:]
    # Forty steps on, AdamW has scaled roundings up to some 1e-5 of a weight: the curve tells.
    curves = [[record for record in metrics(each) if "sample" not in record] for each in (run, alone.folder)]
    assert close(*curves)
    joined = [line for line in errors.splitlines() if "group_world_size=" in line]
    assert [line.rpartition("=")[2] for line in joined] == ["2", "1", "2"], "lost, then joined"


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("localhost", 0))
        return int(place.getsockname()[1])


def wait_for_step(run: Path, step: int, seconds: float = ENOUGH) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (run / "metrics.jsonl").is_file() and any(record["step"] >= step for record in metrics(run)):
            return
        time.sleep(0.2)
    raise AssertionError(f"step {step} was not reached")


# ------------------------------------------------------------ hosts, as network namespaces


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them; their names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and Debian's iproute2 (make test-sharding installs it)")
    names = [f"etymon{os.getpid()}{side}" for side in "ab"]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        run = lambda *words: subprocess.run(["ip", *words], check=True)  # noqa: E731
        run("netns", "add", names[1])
        run(
            "link",
            "add",
            "etyA",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "etyB",
            "netns",
            names[1],
        )
        for number, (name, link) in enumerate(zip(names, ("etyA", "etyB"), strict=True), 1):
            run("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", link)
            run("-n", name, "link", "set", link, "up")
            run("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.parametrize("shard", ["full", "hybrid"])
def test_two_hosts_learn_what_one_process_learns(
    shard: str, hosts: list[str], straight: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = SHORT | {"shard": shard}
    job = {"family": "gpt2", "folder": str(tmp_path / "run"), "changes": changes}
    nodes = [
        start(
            tmp_path / f"jobs-{number}.json", [job],
            "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "hosts",
            "--rdzv-endpoint", "10.77.0.1:29538", "--local-addr", f"10.77.0.{number}",
            "--rdzv-conf", f"is_host={int(number == 1)}",
            before=f"ip netns exec {name}", GLOO_SOCKET_IFNAME=link,
        )
        for number, (name, link) in enumerate(zip(hosts, ("etyA", "etyB"), strict=True), 1)
    ]  # fmt: skip
    for node in nodes:
        _, errors = finish(node)
        assert node.returncode == 0, errors[-3000:]
    assert same_run(tmp_path / "run", straight, sharded=True)
