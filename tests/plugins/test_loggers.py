"""Loggers: the same numbers as metrics.jsonl, from fake libraries; one that fails does not end a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from etymon.errors import EtymonError
from etymon.training.loggers import OpenLoggers
from etymon.training.state import RunFolder
from tests.plugins.files import write
from tests.plugins.test_runs import pretrain, resume


class Recorder:
    """A run of a library: what it was told."""

    def __init__(self, **options: Any) -> None:
        self.options, self.rows, self.is_over = options, [], False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def finish(self) -> None:
        self.is_over = True


class FakeClient:
    """MLflow's client, as far as it is used."""

    runs: dict[str, Recorder] = {}

    def __init__(self, tracking_uri: str) -> None:
        self.address = tracking_uri

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.runs["7"] = Recorder(project=experiment, name=run_name, address=self.address)
        return SimpleNamespace(info=SimpleNamespace(run_id="7"))

    def update_run(self, run: str, status: str) -> None:
        self.runs[run].is_over = False

    def log_param(self, run: str, key: str, value: str) -> None:
        self.runs[run].options[key] = value

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self.runs[run].log({name: value}, step)

    def set_terminated(self, run: str) -> None:
        self.runs[run].finish()


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Runs of wandb and trackio in the order in which they were begun."""
    made: list[Recorder] = []

    def init(**options: Any) -> Recorder:
        made.append(Recorder(**options))
        return made[-1]

    for name in ("wandb", "trackio", "mlflow"):
        module: Any = ModuleType(name)
        module.init, module.MlflowClient = init, FakeClient
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return made


def test_every_logger_gets_the_numbers_of_the_metrics_and_goes_on(recorders: list[Recorder]) -> None:
    run = pretrain(logger=["wandb", "trackio", "mlflow"])
    rows = [
        (
            row["step"],
            {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"},
        )
        for row in RunFolder(run.folder).metrics()
    ]
    rows = [(step, numbers) for step, numbers in rows if numbers]
    wandb, trackio = recorders
    assert [row for row in wandb.rows if row[1]] == rows == [row for row in trackio.rows if row[1]]
    assert wandb.is_over and trackio.is_over and wandb.options["name"] == "run"
    assert wandb.options["config"]["family"] == "gpt2" and wandb.options["project"] == Path.cwd().name
    mlflow = FakeClient.runs["7"]
    assert len(mlflow.rows) == sum(len(numbers) for _, numbers in rows) and mlflow.is_over
    assert mlflow.options["address"].startswith("sqlite:///") and mlflow.options["family"] == "gpt2"
    resume()
    assert recorders[2].options["id"] == wandb.options["id"] and recorders[2].options["resume"] == "allow"
    assert list(FakeClient.runs) == ["7"]


BROKEN = """
from etymon.training.loggers import Logger


class Broken(Logger):
    name = "broken"

    def start(self, folder, settings, step):
        if settings["seed"] == 1:
            raise OSError("no network")

    def log(self, step, metrics):
        if step == 2:
            raise ConnectionError("the line is cut")

    def finish(self):
        raise AssertionError("a logger that failed is left alone")
"""


def test_a_logger_that_fails_is_left_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    write("broken.py", BROKEN)
    run = pretrain(logger="broken.py:Broken", progress="plain")
    assert run.steps == 6 and len(RunFolder(run.folder).metrics()) > 6
    shown = capsys.readouterr()
    text = "the logger 'broken' failed and gets no more: ConnectionError, the line is cut (metrics.jsonl has everything)"
    assert (shown.out + shown.err).count(text) == 1
    with pytest.raises(
        EtymonError, match="the logger 'broken' cannot begin: OSError, no network; leave it out"
    ):
        pretrain(logger="broken", seed=1, out="second")
    assert not Path("second/run.yaml").exists() or not list(Path("second").glob("checkpoints/*"))


def test_what_is_not_installed_or_unknown_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(EtymonError, match=r"trackio is not installed: pip install 'etymon\[trackio\]'"):
        pretrain(logger="trackio")
    with pytest.raises(EtymonError, match="did you mean 'tensorboard'"):
        pretrain(logger="tensorbord")
    assert not Path("run").exists()


def test_no_loggers_are_no_work() -> None:
    told: list[str] = []
    OpenLoggers([], Path(), {}, 0, told.append).log(1, {"loss": 1.0})
    assert told == []
