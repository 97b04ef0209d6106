"""What a run writes on its way: its models, each with the history of how it was trained, and its run file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.families.loading import load
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.files import remove
from etymon.plugin_settings import records_in
from etymon.runs.folder import Job
from etymon.runs.model import StartModel, models_of, save_models
from etymon.runs.run_file import plain, read_run_file
from etymon.training.budgets import Milestone, Revision, parse_milestones
from etymon.training.checkpoint_writer import CheckpointWriter
from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit

if TYPE_CHECKING:
    from etymon.runs.run import TrainingData


@dataclass
class ModelWriter:
    """Writes the models of a run, each with the history of how it was trained."""

    job: Job
    data: TrainingData
    unit: TrainingUnit
    start: StartModel
    trainer: Trainer = field(init=False)
    """Of which steps, state and revisions are told; set as soon as there is one."""

    def history(self, metrics: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the runs before this one, and this one as far as it has come."""
        file, trainer = self.data.file, self.trainer
        training = plain(asdict(trainer.plan.final_settings(trainer.settings)))
        # What the file leaves open is the family's own.
        usual = {"objective": getattr(file, "objective", None) or self.data.model_plan.family.objective}
        records = [asdict(record) for record in records_in([plain(asdict(file)), training, usual])]
        # Models that are trained together read with one tokenizer.
        tokenizer = next(iter(self.models.values())).tokenizer
        entry = {
            **self.data.history_entry(),
            **({"normalise": tokenizer.normalise.describe()} if tokenizer and tokenizer.normalise else {}),
            **({"started_from": file.start} if file.start else {}),
            **({"grown": self.start.grown} if self.start.grown else {}),
            **({"replaced_tokenizer": replaced} if (replaced := self.start.replaced_tokenizer) else {}),
            **file.card_statements(),
            "seen": trainer.state.seen(),
            "training": training,
            "metrics": metrics,
            **({"plugins": records} if records else {}),
        }
        return [*self.start.history, entry]

    @property
    def models(self) -> dict[str, Model]:
        return models_of(self.unit, self.data.model_plan.folder)

    @contextmanager
    def whole_models(self, folder: RunFolder, step: int | None) -> Iterator[dict[str, Model]]:
        """Yields the models, while the first process works with them and the others wait.

        Sharded ones are read by the first process alone, from the checkpoint of `step` in `folder`: no device
        may have room for the whole.
        """
        world = self.job.world
        if not world.is_sharded:
            with world.first_alone():
                yield self.models
            return
        with world.first_alone() as is_first:
            place = folder.checkpoint(step or 0)
            yield {name: load(place / name) for name in self.models} if is_first else self.models

    def save_checkpoint(self, folder: Path) -> None:
        # To resume exactly, no scale may be folded into the weights.
        in_parts = self.trainer.checkpoints.in_parts
        save_models(self.models, folder, history=self.history({}), fold=False, with_weights=not in_parts)

    def milestones(self) -> list[Milestone]:
        """Returns the amounts at which the model is saved for good."""
        # By the names of their folders: `babylm` is many of them.
        return [
            Milestone(amount, partial(self._save_milestone, name))
            for name, amount in parse_milestones(self.data.file.save_at).items()
        ]

    def _save_milestone(self, name: str) -> None:
        place, trainer = self.job.folder / "milestones", self.trainer
        # A checkpoint of its own: one of the run would count as taken, without the milestone if it died now.
        parts = RunFolder(place / f".{name}.partial")
        if self.job.world.is_sharded:
            writer = CheckpointWriter(parts, self.unit, trainer.optimiser, trainer.average, self.job.world)
            writer.save(trainer.state, self.save_checkpoint, keep=1)
            writer.wait()
        with self.whole_models(parts, trainer.state.step) as models:
            if self.job.world.first:
                model = models[self.data.model_plan.folder]
                save(model, place / name, history=self.history({}))
                remove(parts.folder)

    def record_revisions(self, revisions: Sequence[Revision]) -> None:
        """Writes another number of steps into the run file before it is followed, for resumed runs."""
        settings = replace(self.trainer.settings, revisions=tuple(revisions))
        file = read_run_file(self.job.folder, type(self.data.file))
        replace(file, training=settings).write(self.job.folder / "run.yaml")
