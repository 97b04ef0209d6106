"""The stages behind `etymon pretrain`: text, tokenizer, store, model, training, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from etymon.checkpoints.settings import pass_over
from etymon.errors import EtymonError
from etymon.families.loading import read_shape, shape_of
from etymon.objectives import check_options, get_objective, objective_class
from etymon.objectives.objective import check_fit
from etymon.runs.data import RunText, verify_stores
from etymon.runs.folder import made_once
from etymon.runs.members import assembled, begun, member_of, opened_teacher, save_members
from etymon.runs.memory import (
    TOKENS_A_STEP,
    USUAL_LENGTH,
    Plan,
    Samples,
    require_training,
    with_vocabulary,
)
from etymon.runs.report import write_run_report
from etymon.runs.result import Pretrained
from etymon.runs.run_file import PhaseFile, RunFile
from etymon.runs.running import USUAL_BUDGET, OnSample, Trained, TrainingRun
from etymon.runs.training_settings import chosen, ramped, training_settings
from etymon.runs.validation import Judge, PhasePlan
from etymon.text.sources import TextSource
from etymon.text.tokenizer import Tokenizer
from etymon.training.distributed import World
from etymon.training.feeding import Feed, check_streams
from etymon.training.loop import TrainingSettings
from etymon.training.progress import ProgressKind
from etymon.training.unit import TrainingUnit


class Pretraining(TrainingRun[Pretrained]):
    """One run, stage by stage."""

    verb = "pretrain"
    files = RunFile
    file: RunFile

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        source: TextSource | None,
        progress: ProgressKind = "auto",
        **options: Any,
    ) -> None:
        super().__init__(folder, file, progress, **options)
        self.source = source
        shape = shape_of(self.family, file.size, **file.shape)
        if file.teacher is not None:
            self.recipe = self.like(shape)[1]
        if file.start is not None and not self.resuming:
            shape = self._start_shape(file.start)
        self.shape = shape
        """Of the model, but for its vocabulary, which the text decides where no tokenizer is given."""
        self.vocabulary = file.vocabulary or int(shape.vocabulary)
        self.positions: int | None = getattr(shape, "positions", None)
        self.phase_files = file.phases or (PhaseFile(1.0),)
        if not file.phases and (share := chosen(file.ramp, self.recipe.ramp)):
            self.phase_files = ramped(share, self._rows(self.phase_files[0]) * file.slices, file.slices)
        kinds = [objective_class(self._objective_name(phase)) for phase in self.phase_files]
        self.member = member_of(kinds)
        for phase, kind in zip(self.phase_files, kinds, strict=True):
            check_fit(kind, self.family)
            check_options(self._objective_name(phase), self._options(phase))
            length = self._length(phase)
            if self.positions is not None and length > self.positions and not self.resuming:
                raise EtymonError(
                    f"samples of {length} tokens do not fit {self.title}, which has {self.positions} positions"
                )
        check_streams(list(zip(kinds, (self._rows(phase) * file.slices for phase in self.phase_files))))
        self.check()

    def memory_plan(self, shape: Any = None) -> Plan:
        """The run as its memory depends on it; of a model that is there, with its `shape`."""
        file = self.file
        teacher = None if file.teacher is None else read_shape(file.teacher)
        if shape is None:
            shape = with_vocabulary(self.shape, teacher[1].vocabulary if teacher else self.vocabulary)
        samples = [
            Samples(self._objective_name(phase), self._options(phase), self._length(phase), self._rows(phase))
            for phase in self.phase_files
        ]
        choice = training_settings(self.recipe, file, steps=1, validations=1).optimiser
        return Plan(self.family, shape, samples, choice, file.slices, file.generator, teacher)

    def require_memory(self, device: torch.device) -> None:
        if not self.resuming:
            require_training(self.memory_plan(), f"to train {self.title}", device)

    def rehearse(self) -> Pretrained:
        """Tries everything once, on the beginning of the text, and writes nothing."""
        from etymon.runs.dry_run import rehearse

        folder = self.folder
        with self.joined() as world:
            model, plan = rehearse(self, World(device=world.device))
            return Pretrained(
                folder, folder / self.member, None, model, {}, 0, False, plan=plan, quiet=not world.first
            )

    # --- the stages

    def prepare(
        self, world: World, checkpoint: Path | None, text_of: type[RunText] = RunText
    ) -> tuple[TrainingUnit, list[PhasePlan]]:
        """Text and members; the first process makes what has to be made, the others find it."""
        objectives = [objective_class(self._objective_name(phase)) for phase in self.phase_files]
        heads = frozenset().union(*(objective.heads for objective in objectives))
        teacher = opened_teacher(self.file, self.family, objectives, world.device)
        model, given = self.opened(checkpoint, heads)
        self.text = text_of(
            self.folder, self.file, self.family, self.source if world.first else None, self.progress,
            vocabulary=self.vocabulary, resuming=self.resuming or not world.first,
        )  # fmt: skip
        if teacher is not None:
            given = teacher.tokenizer
        tokenizer, phases = made_once(world, lambda: self._text(given))
        if self.resuming:
            verify_stores([phase.store for phase in phases], self.folder, world)
        begins = model is None
        fields = {} if teacher is None else {"vocabulary": teacher.shape.vocabulary}
        model = self.completed(model, tokenizer, heads, **fields)
        if begins and teacher is not None:
            begun(model, teacher, self.file, self.progress.note)
        unit = assembled(model, [phase.objective for phase in phases], self.file, checkpoint, teacher)
        return unit.to(world.device), phases

    def _text(self, given: Tokenizer | None) -> tuple[Tokenizer, list[PhasePlan]]:
        text = self.text
        tokenizer = text.tokenizer(given)
        store = text.store(tokenizer)
        phases: list[PhasePlan] = []
        asked: tuple[str, int, dict[str, Any]] | None = None
        for number, phase in enumerate(self.phase_files):
            length, rows = self._length(phase), self._rows(phase)
            before, asked = asked, (self._objective_name(phase), length, self._options(phase))
            if asked != before:  # else the same samples as before, only more of them a step
                objective = get_objective(asked[0], tokenizer, length, **asked[2])
            own = text.phase_store(number, phase.data, tokenizer) if phase.data else store
            feed = Feed(objective, own.train, self.file.seed, slices=self.file.slices, rows=rows)
            phases.append(PhasePlan(phase.share, length, rows, objective, own, feed))
        return tokenizer, phases

    def judge(self, unit: TrainingUnit, phases: list[PhasePlan], world: World, on_sample: OnSample) -> Judge:
        return Judge(unit, phases, self.file.seed, self.progress, world, on_sample)

    def keep(self, trained: Trained, world: World) -> None:
        with world.first_alone() as mine:
            if mine:
                save_members(trained.unit, self.member, self.folder, history=trained.model.history)
                store = None if trained.result.stopped else trained.phases[0].store
                write_run_report(trained.report, trained.model, store, trained.run, self.samples)

    def outcome(self, trained: Trained, **common: Any) -> Pretrained:
        return Pretrained(**common)

    def resolved(self, settings: TrainingSettings, phases: list[PhasePlan]) -> RunFile:
        """The run file with everything that was left open filled in."""
        described = None if self.source is None else self.source.description
        return replace(
            self.file,
            training=settings,
            length=phases[0].length if not self.file.phases else self.file.length,
            batch=phases[-1].rows * self.file.slices if not self.file.phases else self.file.batch,
            ramp=None if self.file.phases else chosen(self.file.ramp, self.recipe.ramp),
            objective=self.file.objective or self.family.objective,
            budget=self.file.budget or USUAL_BUDGET,
            text=described or self.file.text,
            phases=tuple(
                replace(file, length=plan.length, batch=plan.rows * self.file.slices, objective=plan.objective.name)
                for file, plan in zip(self.file.phases, phases)
            ),
        )  # fmt: skip

    # --- small questions

    def about(self) -> dict[str, Any]:
        return {
            "objective": ", then ".join(dict.fromkeys(map(self._objective_name, self.phase_files))),
            "data": self.file.text if self.source is None else self.source.description,
            "length": max(map(self._length, self.phase_files)),
        }

    def _objective_name(self, phase: PhaseFile) -> str:
        return phase.objective or self.file.objective or self.family.objective

    def _options(self, phase: PhaseFile) -> dict[str, Any]:
        """The recipe's for the family's own objective, and what was asked for otherwise.

        A phase with another objective does not take the options of the run's.
        """
        name = self._objective_name(phase)
        usual = dict(self.recipe.options) if name == self.family.objective else {}
        if phase.options is not None:
            return usual | phase.options
        return usual | (self.file.options if name == (self.file.objective or self.family.objective) else {})

    def _length(self, phase: PhaseFile) -> int:
        return (
            phase.length
            or self.file.length
            or self.recipe.length
            or min(self.positions or USUAL_LENGTH, USUAL_LENGTH)
        )

    def _rows(self, phase: PhaseFile) -> int:
        """Samples a slice."""
        batch = phase.batch or self.file.batch
        if batch is None:
            batch = max(1, TOKENS_A_STEP // self._length(phase))
            batch = max(self.file.slices, batch - batch % self.file.slices)
        return batch // self.file.slices

    def _start_shape(self, start: str) -> Any:
        """The shape of the model to go on from, whose size then chooses the recipe as well."""
        with pass_over(self.file.ignore_config_key):
            family, shape = read_shape(start)
        if family.name != self.family.name:
            raise EtymonError(f"{start} is {family.title}, not {self.family.title}")
        size, self.recipe = self.like(shape)
        self.file = replace(self.file, size=size)
        return shape
