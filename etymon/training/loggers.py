"""Where the curves of a run are shown beside its `metrics.jsonl`: TensorBoard, trackio, Weights & Biases,
MLflow, or a plugin's own.

A logger is a class with `start`, `log` and `finish`. What it raises at the start refuses the run; later on it
is noted, the logger is left alone, and the run goes on: no curve is worth a model.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from etymon.errors import EtymonError
from etymon.files import atomic_write, first_line
from etymon.registry import LOGGERS

Note = Callable[[str], None]


class Logger:
    """What a logger has to have; a plugin's class may inherit `require`."""

    package: ClassVar[str] = ""
    """The module that it imports, which is an extra of the same name."""

    @classmethod
    def require(cls) -> Any:
        """The module of the library; refuses where it is not installed."""
        if not cls.package:
            return None
        try:
            return import_module(cls.package)
        except ImportError as error:
            name = cls.package.rpartition(".")[2]
            raise EtymonError(
                f"{name} is not installed: pip install 'etymon[{name}]'", code="missing-package"
            ) from error

    def start(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        """The run in `folder` begins, or goes on after `step`: later steps that were logged are taken again.

        `settings` are those of its run.yaml.
        """
        raise NotImplementedError

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of a step, by name, in the order of the steps."""
        raise NotImplementedError

    def finish(self) -> None:
        """The run ends, or was stopped."""
        raise NotImplementedError


class TensorBoard(Logger):
    """Events in `OUT/tensorboard`."""

    package = "torch.utils.tensorboard"

    def start(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        # Events of steps that will be taken again are dropped.
        self.writer = self.require().SummaryWriter(
            str(folder / "tensorboard"), purge_step=step + 1, max_queue=1000, flush_secs=10
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self.writer.close()  # the last events are still in a queue


class Trackio(Logger):
    """A local dashboard (`trackio show`); the project is the name of the folder above the run's."""

    package = "trackio"

    def start(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        self.run = self.require().init(
            project=project_of(folder), name=folder.absolute().name, config=dict(settings), resume="allow"
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self.run.finish()


class WeightsAndBiases(Logger):
    """A run of Weights & Biases, in `OUT/loggers`; WANDB_MODE, WANDB_PROJECT and the like have their say."""

    package = "wandb"

    def start(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        place = folder / "loggers"
        place.mkdir(parents=True, exist_ok=True)
        # With an id of its own the library goes on with a run, and makes it where there is none.
        self.run = self.require().init(
            project=os.environ.get("WANDB_PROJECT") or project_of(folder),
            name=folder.absolute().name,
            id=kept_id(place / "wandb-run"),
            resume="allow",
            dir=str(place),
            config=dict(settings),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self.run.finish()


class MLflow(Logger):
    """A run of MLflow, at MLFLOW_TRACKING_URI or in `OUT/loggers/mlflow.db`."""

    package = "mlflow"

    def start(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        mlflow, place = self.require(), folder / "loggers"
        place.mkdir(parents=True, exist_ok=True)
        # A database and not a folder of files, which MLflow means to give up.
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(place / 'mlflow.db').absolute()}"
        self.client = mlflow.MlflowClient(tracking_uri=address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or project_of(folder)
        project = self.client.get_experiment_by_name(name)
        experiment = project.experiment_id if project else self.client.create_experiment(name)
        file = place / "mlflow-run"
        if file.is_file():
            self.run = file.read_text(encoding="utf-8").strip()
            self.client.update_run(self.run, status="RUNNING")
            return
        self.run = self.client.create_run(experiment, run_name=folder.absolute().name).info.run_id
        with atomic_write(file) as out:
            out.write(self.run)
        for key, value in settings.items():
            # MLflow refuses longer ones.
            if value not in (None, [], {}):
                self.client.log_param(self.run, key, str(value)[:500])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            # Of characters, MLflow takes few: not the percent sign.
            self.client.log_metric(self.run, name.replace("%", "percent"), value, step=step)

    def finish(self) -> None:
        self.client.set_terminated(self.run)


def project_of(folder: Path) -> str:
    """What runs side by side are called together: the folder that they lie in."""
    return folder.absolute().parent.name or "etymon"


def kept_id(file: Path) -> str:
    """The id of a run elsewhere, which a resumed run has again."""
    if not file.is_file():
        with atomic_write(file) as out:
            out.write(secrets.token_hex(4))
    return file.read_text(encoding="utf-8").strip()


class OpenLoggers:
    """The loggers of a run, in the process that logs. One that fails is closed with a note."""

    def __init__(
        self, names: Sequence[str], folder: Path, settings: Mapping[str, Any], step: int, note: Note
    ) -> None:
        self.note = note
        self.loggers: dict[str, Logger] = {}
        for name in names:
            logger = LOGGERS.find(name)()
            try:
                logger.start(folder, settings, step)
            except EtymonError:
                raise
            except Exception as error:  # of a foreign library, which may raise anything
                raise EtymonError(
                    f"the logger {name!r} cannot begin: {type(error).__name__}, {first_line(error)}; leave "
                    "it out, or mend that"
                ) from error
            self.loggers[name] = logger

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        # Samples are texts, and not for curves.
        numbers = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and name != "step"
        }
        self._ask("log", step, numbers)

    def finish(self) -> None:
        self._ask("finish")
        self.loggers = {}

    def _ask(self, method: str, *arguments: Any) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                del self.loggers[name]
                self.note(
                    f"the logger {name!r} failed and gets no more: {type(error).__name__}, "
                    f"{first_line(error)} (metrics.jsonl has everything)"
                )
