"""`--on ray://HOST:PORT`: through the client port of a cluster's head, results are those of one machine, byte for byte.

The head is a Ray of its own on the loopback address, and every command a process of its own, as a user has them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import tiny
from tests.training.launching import ENOUGH, ROOT

pytestmark = pytest.mark.cluster

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "200",
    "RAY_worker_niceness": "0",
    # Heads ask for a token, unless told otherwise, on machines where Ray has made one before.
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    # On a busy machine, the process that the head starts for every client takes longer than Ray's half a minute.
    "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "60", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": str(ENOUGH),
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(ENOUGH),
}  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head with two cores and a client port, as `ray start --head` makes one."""
    client, cluster = (_free_port() for _ in range(2))
    # Ray puts sockets there, whose paths may have 107 letters at most.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    words = [
        "start", "--head", "--block", "--num-cpus", "2", "--include-dashboard", "false", "--disable-usage-stats",
        "--node-ip-address", "127.0.0.1", "--port", str(cluster), "--ray-client-server-port", str(client),
        "--object-store-memory", str(1 << 28), "--temp-dir", folder,
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("head") / "log"
    with open(log, "wb") as out:
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
    try:
        _wait_for(client, head, log)
        yield f"ray://127.0.0.1:{client}"
    finally:
        for process in [*psutil.Process(head.pid).children(recursive=True), head]:
            process.kill()
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def _wait_for(port: int, head: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + ENOUGH
    while head.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no head of a cluster came up: {log.read_text()[-2000:]}")


def etymon(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "etymon", *words],
        cwd=folder, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=ENOUGH,
    )  # fmt: skip


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a tokenizer."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "texts").mkdir()
    for number in range(3):
        words = "\n".join(text + f" {number}" for text in tiny.texts())
        (folder / f"texts/{number}.txt").write_text(words, encoding="utf-8")
    tiny.tokenizer("gpt2").save(folder / "tokenizer")
    return folder


def test_a_store_prepared_through_a_client_port_is_that_of_one_machine(address: str, place: Path) -> None:
    words = "prepare --data texts --documents line --tokenizer tokenizer --deduplicate exact".split()
    alone = etymon(place, *words, "--out", "alone")
    assert alone.returncode == 0, alone.stderr
    remote = etymon(place, *words, "--out", "remote", "--on", address)
    assert remote.returncode == 0, remote.stderr
    assert contents(place / "remote") == contents(place / "alone") != {}


def test_a_sweep_through_a_client_port_is_that_of_one_machine(address: str, place: Path) -> None:
    words = (
        "sweep gpt2 --data texts --documents line --budget 6steps --batch 4 --length 16 --vocabulary 300 "
        "--grid learning_rate=1e-3,5e-3 --set shape.layers=1 shape.dim=16 shape.heads=2 shape.positions=32"
    ).split()
    alone = etymon(place, *words, "--out", "sweep-alone")
    assert alone.returncode == 0, alone.stderr
    remote = etymon(place, *words, "--out", "sweep-remote", "--on", address)
    assert remote.returncode == 0, remote.stderr
    weights = contents(place / "sweep-remote", "model.safetensors")
    assert len(weights) >= 2 and weights == contents(place / "sweep-alone", "model.safetensors")


SCRIPT = """
import os, sys
from pathlib import Path
from etymon.errors import EtymonError
from etymon.executors import open_executor
from tests.test_executors import Squarer

with open_executor(sys.argv[1]) as executor:
    results = [result for _, result in executor.run(Squarer, (Path.cwd(),), range(12))]
    print([square for square, _ in results], os.getpid() in {pid for _, pid in results})
    try:
        list(executor.run(Squarer, (Path.cwd(),), [1, -3]))
    except EtymonError as error:
        print(error)
"""


def test_jobs_of_a_killed_worker_are_done_again_and_mistakes_are_those_of_the_job(
    address: str, tmp_path: Path
) -> None:
    (tmp_path / "kill-3").touch()
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, address],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=ENOUGH,
    )  # fmt: skip
    squares = [number**2 for number in range(12)]
    assert told.stdout.splitlines() == [f"{squares} False", "-3 is below zero"], told.stderr
    assert not (tmp_path / "kill-3").exists(), "or nobody was killed"


def test_mistakes_through_a_client_port_are_one_line(address: str, place: Path) -> None:
    words = ["prepare", "--tokenizer", "tokenizer", "--out", "x", "--on", address, "--data"]
    told = etymon(place, *words, "nowhere.txt")
    assert told.returncode == 2 and "nowhere.txt" in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1 and not (place / "x").exists()
    told = etymon(
        place, *words, "texts", RAY_AUTH_MODE="disabled", RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S="1"
    )
    assert told.returncode == 2 and "if it asks for a token, RAY_AUTH_MODE=token" in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1 and "Traceback" not in told.stderr
