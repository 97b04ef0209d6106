"""Jobs give the same results in the same order wherever they run, and a lost worker's are done again."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import etymon
from etymon.errors import EtymonError
from etymon.executors import Executor, open_executor
from etymon.settings.reading import FilterSettings
from etymon.text import encoding, filtering
from etymon.text.filtering import filter_text
from etymon.text.sources import Texts
from etymon.text.store_building import build_store
from tests import tiny
from tests.text.test_resuming import files


class Squarer:
    """Squares numbers; told so by a file, its process is killed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> tuple[int, int]:
        mark = self.folder / f"kill-{number}"
        if mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if number < 0:
            raise EtymonError(f"{number} is below zero")
        return number**2, os.getpid()


@pytest.fixture(scope="module")
def ray() -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch, open_executor("ray", workers=2) as executor:
        # Its workers are nicer than everybody else: on a busy machine they would get seconds in a quarter of an hour.
        patch.setenv("RAY_worker_niceness", "0")
        yield executor


def test_ray_gives_results_in_order(ray: Executor, tmp_path: Path) -> None:
    results = list(ray.run(Squarer, (tmp_path,), range(30)))
    assert [(job, result[0]) for job, result in results] == [(number, number**2) for number in range(30)]
    assert os.getpid() not in {pid for _, (_, pid) in results}


def test_jobs_of_a_killed_ray_worker_are_done_again(ray: Executor, tmp_path: Path) -> None:
    for number in (3, 4, 11):
        (tmp_path / f"kill-{number}").touch()
    results = list(ray.run(Squarer, (tmp_path,), range(20)))
    assert [result[0] for _, result in results] == [number**2 for number in range(20)]
    assert not any(tmp_path.iterdir())


def test_mistakes_in_ray_are_those_of_the_job(ray: Executor, tmp_path: Path) -> None:
    results = ray.run(Squarer, (tmp_path,), [1, 2, -3, 4])
    assert [next(results)[1][0], next(results)[1][0]] == [1, 4]
    with pytest.raises(EtymonError, match=r"^-3 is below zero$"):
        next(results)


def test_jobs_are_taken_only_a_little_ahead(ray: Executor, tmp_path: Path) -> None:
    taken: list[int] = []
    jobs = (taken.append(number) or number for number in range(1000))  # type: ignore[func-returns-value]
    results = ray.run(Squarer, (tmp_path,), jobs)
    assert next(results)[0] == 0 and len(taken) < 20
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2, None])
def test_processes_give_results_in_order(tmp_path: Path, workers: int | None) -> None:
    with open_executor(None, workers) as executor:
        results = list(executor.run(Squarer, (tmp_path,), range(12)))
    assert [(job, result[0]) for job, result in results] == [(number, number**2) for number in range(12)]
    assert (os.getpid() in {pid for _, (_, pid) in results}) is (workers != 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_before_an_unreadable_one_are_finished(tmp_path: Path, workers: int) -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise EtymonError("cut")

    finished = []
    with open_executor(None, workers) as executor, pytest.raises(EtymonError, match="cut"):
        for job, _ in executor.run(Squarer, (tmp_path,), broken()):
            finished.append(job)
    assert finished == list(range(5))


@pytest.mark.parametrize(
    ("on", "reason"),
    [
        ("spark", "cannot run on 'spark': give --on ray, or --on ray://HOST:PORT"),
        ("ray://127.0.0.1:9", "cannot run on ray://127.0.0.1:9: Connection refused; is the cluster up"),
        ("ray://head", "needs a host and a port"),
    ],
)
def test_places_that_are_none(on: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(EtymonError, match=reason), open_executor(on) as executor:
        next(iter(executor.run(Squarer, (tmp_path,), [1])))


def test_a_cluster_of_the_environment_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(EtymonError, match="Connection refused"), open_executor("ray") as executor:
        next(iter(executor.run(Squarer, (tmp_path,), [1])))


def test_a_machine_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EtymonError, match=r"pip install 'etymon\[cluster\]'"), open_executor("ray"):
        pass


def test_other_versions_on_the_cluster_are_refused(
    ray: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etymon import executors

    list(ray.run(Squarer, (tmp_path,), [1]))
    monkeypatch.setattr(executors, "_versions", lambda: {"numpy": "0.1"})
    monkeypatch.setattr(executors, "_remote_versions", lambda ray: {"numpy": "2.0"})
    with pytest.raises(EtymonError, match=r"have numpy 2.0, and 0.1 is here: install the same there"):
        executors._require_versions(ray.ray, "ray")  # type: ignore[attr-defined]


# ---------------------------------------------------------------- what runs on it


@contextmanager
def killed_at_random(most: int, ready: Any = lambda: True, seed: int = 0) -> Iterator[list[int]]:
    """While the block runs, up to so many workers of Ray are killed in the middle of a job."""
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        draw = random.Random(seed)
        while len(killed) < most and not ended.is_set():
            workers = []
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if "ray::_run_remote_job" in " ".join(process.cmdline()):
                        workers.append(process)
            if workers and ready():
                with suppress(psutil.Error):
                    process = draw.choice(workers)
                    process.kill()
                    killed.append(process.pid)
                time.sleep(0.1)
            time.sleep(0.002)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def test_a_store_made_on_ray_is_that_of_one_machine_whoever_is_killed(
    ray: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "BATCH", 400)
    monkeypatch.setattr(filtering, "JOB", 400)
    texts = [*tiny.texts(), *tiny.texts()[:20]]
    settings = FilterSettings(deduplicate="near", min_length=5)

    def build(name: str, executor: Executor | None) -> dict[str, bytes]:
        source = filter_text(Texts(texts), settings)
        made: dict[str, Any] = {"source": source, "executor": executor}
        build_store(source.documents(), tiny.tokenizer("gpt2"), tmp_path / name, validation=0.2, **made)
        return files(tmp_path / name)

    alone = build("alone", None)
    with killed_at_random(3) as killed:
        assert build("ray", ray) == alone
    assert killed and json.loads(alone["filtering.json"])["dropped"]["copies"] == 20


@pytest.mark.cluster  # three processes that import torch, and a fourth where one was killed
def test_a_sweep_on_ray_is_that_of_one_machine_whoever_is_killed(ray: Executor, tmp_path: Path) -> None:
    list(ray.run(Squarer, (tmp_path,), [1]))  # it is connected
    (tmp_path / "text.txt").write_text("\n".join(tiny.texts()), encoding="utf-8")
    shape = ["shape.layers=1", "shape.dim=16", "shape.heads=2", "shape.positions=32"]
    options: dict[str, Any] = {
        "data": [tmp_path / "text.txt"], "documents": "line", "budget": "30steps", "batch": 4, "length": 16,
        "vocabulary": 300, "grid": ["learning_rate=1e-3,5e-3"], "progress": "silent",
        "set": [*shape, "validate_every=3", "save_every=3", "validation=0.2"],
    }  # fmt: skip
    alone = etymon.sweep("gpt2", out=tmp_path / "alone", **options)
    checkpoint = "learning_rate=0.005/checkpoints/step-*"
    with killed_at_random(1, lambda: any((tmp_path / "ray").glob(checkpoint))) as killed:
        remote = etymon.sweep("gpt2", out=tmp_path / "ray", on="ray", **options)
    assert killed and remote.done == 2 and not remote.failed
    assert [cell.mean for cell in remote.rankings[0].cells] == [cell.mean for cell in alone.rankings[0].cells]
    weights = sorted(
        path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").glob("*/model/*.safetensors")
    )
    assert len(weights) == 2
    for path in weights:
        assert (tmp_path / "alone" / path).read_bytes() == (tmp_path / "ray" / path).read_bytes()


def test_a_sweep_that_cannot_begin_on_ray_leaves_nothing(ray: Executor, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="no such file or folder"):
        etymon.sweep(
            "gpt2",
            data=[tmp_path / "no.txt"],
            out=tmp_path / "s",
            grid=["seed=1,2"],
            budget="2steps",
            on="ray",
            progress="silent",
        )
    assert not any(tmp_path.glob("s/*"))
