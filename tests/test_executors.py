"""Jobs give the same results in the same order wherever they run, and a lost worker's are done again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etymon.errors import EtymonError
from etymon.executors import Executor, open_executor


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
    with open_executor("ray", workers=2) as executor:
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
