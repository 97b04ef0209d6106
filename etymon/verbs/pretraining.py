"""The stages behind `etymon pretrain`: text, tokenizer, store, model, training, report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from etymon.checkpoints.folder import ensure_replaceable
from etymon.config import load_yaml
from etymon.data.sources import TextSource
from etymon.data.tokenizer import Tokenizer
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Family, Recipe
from etymon.families.loading import build, load, read_shape, save, shape_of
from etymon.families.model import Model
from etymon.objectives import check_options, get_objective, objective_class
from etymon.objectives.objective import check_fit
from etymon.training.budgets import pace_of, parse_budget
from etymon.training.distributed import World, joined_world
from etymon.training.feeding import Course, Feed, Phase
from etymon.training.loop import Milestone, Trainer, TrainingSettings
from etymon.training.progress import Kind, Progress
from etymon.training.progress import progress as make_progress
from etymon.training.runs import Run, TrainingState, read_state
from etymon.training.unit import TrainingUnit
from etymon.verbs.pretrain import Pretrained
from etymon.verbs.run_file import PhaseFile, RunFile, differing, plain
from etymon.verbs.run_folder import claimed, require_free
from etymon.verbs.run_judge import Judge, PhasePlan
from etymon.verbs.run_members import assembled, begun, member_of, opened_teacher, save_members
from etymon.verbs.run_report import write_run_report
from etymon.verbs.run_settings import VALIDATIONS, chosen, ramped, steps_within, training_settings
from etymon.verbs.run_start import grown, start_tokenizer
from etymon.verbs.run_text import RunText

TOKENS_A_STEP = 2048
USUAL_BUDGET = "10m"
Train = Callable[[TrainingSettings, Course], Trainer]


class Pretraining:
    """One run, stage by stage."""

    def __init__(
        self,
        folder: Path,
        file: RunFile,
        source: TextSource | None,
        progress: Kind = "auto",
        *,
        resuming: bool = False,
        device: str | None = None,
        workers: int = 0,
    ) -> None:
        self.folder, self.file, self.source, self.resuming = folder, file, source, resuming
        self.device, self.workers = device, workers
        self.family: Family = get_family(file.family)
        self.recipe: Recipe = self.family.recipe_for(file.size)
        shape = shape_of(self.family, file.size, **file.shape)
        if file.teacher is not None:
            self.recipe = self._recipe(shape)[1]
        if file.start is not None and not resuming:
            shape = self._start_shape(file.start)
        self.vocabulary = file.vocabulary or int(shape.vocabulary)
        self.positions: int | None = getattr(shape, "positions", None)
        self.phase_files = file.phases or (PhaseFile(1.0),)
        if not file.phases and (share := chosen(file.ramp, self.recipe.ramp)):
            self.phase_files = ramped(share, self._rows(self.phase_files[0]) * file.slices, file.slices)
        self.member = member_of([objective_class(self._objective_name(phase)) for phase in self.phase_files])
        for phase in self.phase_files:
            check_fit(objective_class(self._objective_name(phase)), self.family)
            check_options(self._objective_name(phase), self._options(phase))
            length = self._length(phase)
            if self.positions is not None and length > self.positions and not resuming:
                raise EtymonError(
                    f"samples of {length} tokens do not fit {self.title}, which has {self.positions} positions"
                )
        training_settings(self.recipe, file, steps=1, rows=1, validations=1)  # refuses what cannot be
        if workers < 0:
            raise EtymonError(f"workers cannot be fewer than 0, and {workers} were asked for")
        if not resuming:
            require_free(folder)
        ensure_replaceable(folder / self.member)
        self.progress: Progress = make_progress(progress)
        self.samples: list[tuple[int, str]] = []
        self.past: list[dict[str, Any]] = []
        """How the model was trained before this run."""
        self.grown: dict[str, int] | None = None
        """What its vocabulary grew `from` and `to` in this run."""

    @staticmethod
    def resumed(folder: Path, asked: RunFile, source: TextSource | None, **options: Any) -> Pretraining:
        """The run in a folder; `asked` may say again what it began with, but nothing else."""
        if not (folder / "run.yaml").is_file():
            raise EtymonError(f"there is no run in {folder} to resume: it has no run.yaml")
        file = load_yaml(folder / "run.yaml", RunFile)
        if get_family(file.family) is not get_family(asked.family):
            raise EtymonError(f"the run in {folder} trains {file.family}, not {asked.family}")
        if (other := differing(asked, file)) is not None:
            name, now, then = other
            raise EtymonError(
                f"the run in {folder} began with {name} {_shown(then)}, not {_shown(now)}: it goes on as it "
                "began; leave that out, or give another --out for a new run"
            )
        return Pretraining(folder, file, source, resuming=True, **options)

    def go(self) -> Pretrained:
        with self._joined() as world, claimed(self.folder, world):
            return self._run(world)

    def rehearse(self) -> Pretrained:
        """Tries everything once, on the beginning of the text, and writes nothing."""
        from etymon.verbs.dry_run import rehearse

        folder = self.folder
        with self._joined() as world:
            model, plan = rehearse(self, World(device=world.device))
            return Pretrained(
                folder, folder / self.member, None, model, {}, 0, False, plan=plan, quiet=not world.first
            )

    @contextmanager
    def _joined(self) -> Iterator[World]:
        with joined_world(self.device) as world:
            if self.file.slices % world.size:
                raise EtymonError(
                    f"a step of {self.file.slices} slices cannot be shared by {world.size} processes: "
                    f"make --slices a multiple of {world.size}"
                )
            if not world.first:
                self.progress = make_progress("silent")
            yield world

    def _run(self, world: World) -> Pretrained:
        run = Run(self.folder)
        with world.first_alone() as mine:
            if mine:
                run.tidy()
        checkpoint = run.latest(self.progress.note) if self.resuming else None
        if self.resuming and checkpoint is None:
            self.progress.note("there is no whole checkpoint yet: starting from step 0")
        unit, phases = self.prepare(world, checkpoint)
        model: Model = unit.model  # type: ignore[assignment]
        state, optimiser_state = (TrainingState(), None) if checkpoint is None else read_state(checkpoint)

        def on_sample(step: int, text: str) -> None:
            self.samples.append((step, text))
            run.log({"step": step, "sample": text})

        judge = Judge(unit, phases, self.file.seed, self.progress, world, on_sample)

        def trainer(settings: TrainingSettings, course: Course) -> Trainer:
            def history() -> list[dict[str, Any]]:
                return self._history(settings, state, {})

            def keeper(amount: str) -> Callable[[], None]:
                return lambda: save(model, self.folder / "milestones" / amount, history=history())

            return Trainer(
                unit, course, settings, run,
                validate=lambda step: judge.validate(step, course.number_after(step), last=step >= settings.steps),
                # To go on exactly, nothing may be folded into the weights.
                save_members=lambda folder: save_members(
                    unit, self.member, folder, history=history(), fold=False
                ),
                progress=self.progress, state=state, optimiser_state=optimiser_state, world=world,
                milestones=[Milestone(parse_budget(amount), keeper(amount)) for amount in self.file.save_at],
            )  # fmt: skip

        settings = self.file.training or self.settings(trainer, unit, phases, world)
        course = self.course(phases, settings.steps, world)
        self._tell_of_milestones(phases, settings)
        with world.first_alone() as mine:
            if mine:
                # Measuring and an earlier attempt leave nothing behind, and a resumed run repeats what came after.
                run.forget_after(state.step if checkpoint is not None else -1)
                if not self.resuming:
                    self.resolved(settings, phases).write(self.folder / "run.yaml")
                if self.file.tensorboard:
                    run.show_curves(state.step)
        self.samples = [(record["step"], record["sample"]) for record in run.metrics() if "sample" in record]
        try:
            result = trainer(settings, course).train(f"{self.title}, {model.parameter_count():,} parameters")
        finally:
            run.close()
        model.eval()
        model.history = self._history(settings, state, result.metrics)
        report = self.folder / "report.html"
        with world.first_alone() as mine:
            if mine:
                save_members(unit, self.member, self.folder, history=model.history)
                write_run_report(
                    report, model, phases[0].store, run, self.samples, yardstick=not result.stopped
                )
        return Pretrained(
            self.folder, self.folder / self.member, report, model, result.metrics, result.state.step, result.stopped,
            f"etymon pretrain {self.family.name} --out {shlex.quote(str(self.folder))} --resume", self.samples,
            quiet=not world.first, signal=result.signal,
        )  # fmt: skip

    # --- the stages

    def prepare(
        self, world: World, checkpoint: Path | None, text_of: Callable[..., RunText] = RunText
    ) -> tuple[TrainingUnit, list[PhasePlan]]:
        """Text and members; the first process makes what has to be made, the others find it."""
        objectives = [objective_class(self._objective_name(phase)) for phase in self.phase_files]
        heads = frozenset().union(*(objective.heads for objective in objectives))
        teacher = opened_teacher(self.file, self.family, objectives, world.device)
        model = None
        if checkpoint is not None:
            model = load(checkpoint / self.member)
            self.past, self.grown = model.history[:-1], model.history[-1].get("grown")
        elif self.file.start is not None:
            model = load(self.file.start, heads=heads, seed=self.file.seed)
            self.past = model.history
            if model.new_heads:
                self.progress.note(
                    f"{self.file.start} has no {' and no '.join(model.new_heads)} head: starting anew there"
                )
        text = text_of(
            self.folder, self.file, self.family, self.source if world.first else None, self.progress,
            vocabulary=self.vocabulary, resuming=self.resuming or not world.first,
        )  # fmt: skip
        given = None if model is None or checkpoint is not None else start_tokenizer(self.file, model)
        if teacher is not None:
            given = teacher.tokenizer
        made = None
        with world.first_alone() as mine:
            if mine:
                made = self._text(text, given)
        tokenizer, phases = made or self._text(text, given)
        if model is None:
            words = tokenizer.size if teacher is None else teacher.shape.vocabulary
            shape = {**self.file.shape, **self.family.fitted(tokenizer), "vocabulary": words}
            model = build(self.family, self.file.size, heads=heads, seed=self.file.seed, shape=shape)
            if teacher is not None:
                begun(model, teacher, self.file, self.progress.note)
        else:
            model, self.grown = grown(model, tokenizer) or (model, self.grown)
        model.tokenizer = tokenizer
        unit = assembled(model, [phase.objective for phase in phases], self.file, checkpoint, teacher)
        return unit.to(world.device), phases

    def _text(self, text: RunText, given: Tokenizer | None) -> tuple[Tokenizer, list[PhasePlan]]:
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

    def course(self, phases: list[PhasePlan], steps: int, world: World) -> Course:
        """The phases as steps."""
        first, plans = 0.0, []
        for phase in phases:
            plans.append(Phase(round(first * steps), phase.feed))
            first += phase.share
        for number, (here, after) in enumerate(zip([*(plan.first for plan in plans[1:]), steps], plans), 1):
            if here <= after.first:
                raise EtymonError(
                    f"phase {number} gets no step of {steps:,}: give the run a larger budget, or the phase a "
                    "larger share"
                )
        return Course(plans, rank=world.rank, ranks=world.size, workers=self.workers)

    def settings(
        self, trainer: Train, unit: TrainingUnit, phases: list[PhasePlan], world: World
    ) -> TrainingSettings:
        """The family's recipe for as many steps as were asked for, or as fit into the budget by measurement."""
        file, rows, validations = self.file, phases[0].rows, VALIDATIONS
        budget = parse_budget(file.budget or USUAL_BUDGET)
        if budget.unit == "seconds":
            self.progress.note("measuring how long a step takes")
            probing = training_settings(self.recipe, file, steps=2**20, rows=rows, validations=1)
            each, patience = 0.0, min(4.0, budget.amount / 10) / len(phases)
            for phase in phases:
                alone = Course(
                    [Phase(0, phase.feed)], rank=world.rank, ranks=world.size, workers=self.workers
                )
                probe = trainer(probing, alone)
                each += phase.share * probe.seconds_per_step(patience)
            begin = time.perf_counter()
            probe.validate(0)
            validation = time.perf_counter() - begin
            # The last validation reads all of the held-out text, which may be much.
            spare = validation * phases[-1].rest_of_validation(file.seed)
            seconds = max(budget.amount - spare, budget.amount / 2)
            steps, validations = steps_within(seconds, each, validation, file.validate_every)
            steps = round(world.add({"steps": steps})["steps"] / world.size)
            validations = round(world.add({"validations": validations})["validations"] / world.size)
            self.progress.note(
                f"{each * 1000:.0f} ms a step, so {file.budget or USUAL_BUDGET} is enough for {steps:,}"
            )
        else:
            counted = unit if budget.unit == "flops" else None
            steps = pace_of([(phase.share, phase.feed) for phase in phases], counted).steps(budget)
        return training_settings(self.recipe, file, steps=steps, rows=rows, validations=validations)

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

    @property
    def title(self) -> str:
        size = self.file.size if self.file.start is None else f"from {self.file.start}"
        return f"{self.family.title} {size}"

    def _objective_name(self, phase: PhaseFile) -> str:
        return phase.objective or self.file.objective or self.family.objective

    def _options(self, phase: PhaseFile) -> dict[str, Any]:
        """The recipe's for the family's own objective, and what was asked for otherwise.

        A phase with another objective does not take the options of the run's.
        """
        own = self._objective_name(phase) == self.family.objective
        usual = dict(self.recipe.options) if own else {}
        if phase.options is not None or phase.objective is not None:
            return usual | (phase.options or {})
        return usual | self.file.options

    def _length(self, phase: PhaseFile) -> int:
        return phase.length or self.file.length or min(self.positions or 256, 256)

    def _rows(self, phase: PhaseFile) -> int:
        """Samples a slice."""
        batch = phase.batch or self.file.batch
        if batch is None:
            batch = max(1, TOKENS_A_STEP // self._length(phase))
            batch = max(self.file.slices, batch - batch % self.file.slices)
        return batch // self.file.slices

    def _start_shape(self, start: str) -> Any:
        """The shape of the model to go on from, whose size then chooses the recipe as well."""
        family, shape = read_shape(start)
        if family is not self.family:
            raise EtymonError(f"{start} is {family.title}, not {self.family.title}")
        size, self.recipe = self._recipe(shape)
        self.file = replace(self.file, size=size or self.file.size)
        return shape

    def _recipe(self, shape: Any) -> tuple[str | None, Recipe]:
        """The size that a shape is of, if it has one, and how it is trained."""
        family = self.family
        like = (size for size in family.sizes if _same_but_vocabulary(shape_of(family, size), shape))
        # What has no known size is trained by the published recipe, not by that of a pocket size.
        size = next(like, None)
        return size, family.recipe if size is None else family.recipe_for(size)

    def _tell_of_milestones(self, phases: list[PhasePlan], settings: TrainingSettings) -> None:
        pace = pace_of([(phase.share, phase.feed) for phase in phases])
        for amount in self.file.save_at:
            if pace.exact_steps(parse_budget(amount)) > settings.steps + 1:
                self.progress.note(f"nothing will be kept at {amount}: the run ends before it gets there")

    def _history(
        self, settings: TrainingSettings, state: TrainingState, metrics: dict[str, float]
    ) -> list[dict[str, Any]]:
        return [
            *self.past,
            {
                "objective": ", then ".join(dict.fromkeys(map(self._objective_name, self.phase_files))),
                "data": self.file.text if self.source is None else self.source.description,
                **({"started_from": self.file.start} if self.file.start else {}),
                **({"grown": self.grown} if self.grown else {}),
                "seen": {"steps": state.step, "tokens": state.tokens, "words": round(state.words)},
                "training": plain(asdict(settings)),
                "metrics": metrics,
            },
        ]


def _same_but_vocabulary(one: Any, two: Any) -> bool:
    return {**asdict(one), "vocabulary": 0} == {**asdict(two), "vocabulary": 0}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
