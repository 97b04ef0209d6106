"""What all training runs have in common: folder, processes, measuring, training, saving, the way to go on."""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from etymon.checkpoints.folder import ensure_replaceable
from etymon.checkpoints.settings import pass_over
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Family, Recipe
from etymon.families.loading import build, load, shape_of
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.runs.folder import claimed, require_agreement, require_free
from etymon.runs.members import members, save_members
from etymon.runs.run_file import CommonFile, begun, differing, plain, same_but_vocabulary, shown
from etymon.runs.start import grown, start_tokenizer
from etymon.runs.timing import measure
from etymon.runs.training_settings import VALIDATIONS, training_settings
from etymon.runs.validation import PhasePlan
from etymon.text.tokenizer import Tokenizer
from etymon.training.budgets import Revision, mean_pace, parse_budget
from etymon.training.distributed import World, open_world
from etymon.training.feeding import Phase, StepStream
from etymon.training.loop import Criterion, Milestone, Trainer, TrainingResult, TrainingSettings
from etymon.training.progress import Progress, ProgressKind, make_progress
from etymon.training.state import RunFolder, TrainingState, read_state, require_tensorboard
from etymon.training.unit import TrainingUnit

if TYPE_CHECKING:
    import torch

    from etymon.runs.result import Pretrained

USUAL_BUDGET = "10m"
OnSample = Callable[[int, str], None]
Train = Callable[[TrainingSettings, StepStream], Trainer]
Result = TypeVar("Result", bound="Pretrained")


class Judging(Protocol):
    def validate(self, step: int, number: int, *, last: bool) -> dict[str, Any]:
        """The figures after `step` steps, by what phase `number` trains."""


@dataclass
class Trained:
    """A run whose last step is done, before anything of it is kept."""

    unit: TrainingUnit
    phases: list[PhasePlan]
    run: RunFolder
    result: TrainingResult
    report: Path
    phase: int
    """The number of the one that it ended in."""

    @property
    def model(self) -> Model:
        return self.unit.model  # type: ignore[return-value]


class TrainingRun(ABC, Generic[Result]):
    """One run, stage by stage. What it trains on, how it is judged and what is said of it is for those who inherit."""

    verb: ClassVar[str]
    files: ClassVar[type[CommonFile]]
    member = "model"
    criterion: Criterion | None = None
    revises = True  # the number of steps of a time budget, as it goes
    clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        folder: Path,
        file: Any,
        progress: ProgressKind = "auto",
        *,
        resuming: bool = False,
        device: str | None = None,
        workers: int = 0,
    ) -> None:
        self.folder, self.file, self.resuming = folder, file, resuming
        self.device, self.workers = device, workers
        self.family: Family = get_family(file.family)
        self.recipe: Recipe = self.family.recipe_for(file.size)
        self.progress: Progress = make_progress(progress)
        self.samples: list[tuple[int, str]] = []
        self.past: list[dict[str, Any]] = []
        """How the model was trained before this run."""
        self.grown: dict[str, int] | None = None
        """What its vocabulary grew `from` and `to` in this run."""

    def check(self) -> None:
        """Refuses what cannot be, before any work."""
        training_settings(self.recipe, self.file, steps=1, validations=1)
        if self.workers < 0:
            raise EtymonError(f"workers cannot be fewer than 0, and {self.workers} were asked for")
        if not self.resuming:
            require_free(self.folder)
        ensure_replaceable(self.folder / self.member)
        if self.file.tensorboard:
            require_tensorboard()

    @classmethod
    def resumed(cls, folder: Path, asked: CommonFile, *arguments: Any, **options: Any) -> Self:
        """The run in a folder; `asked` may say again what it began with, but nothing else."""
        file = begun(folder, cls.files)
        if get_family(file.family) is not get_family(asked.family):
            raise EtymonError(f"the run in {folder} trains {file.family}, not {asked.family}")
        if (other := differing(asked, file)) is not None:
            name, now, then = other
            before = f"with {name} {shown(then)}, not"
            if then in (None, ()):
                before = "from scratch, not with" if name == "start" else f"without {name}, not with"
            raise EtymonError(
                f"the run in {folder} began {before} {shown(now)}: it goes on as it "
                "began; leave that out, or give another --out for a new run"
            )
        return cls(folder, file, *arguments, resuming=True, **options)

    # --- what a kind of run has to say

    @abstractmethod
    def require_memory(self, device: torch.device) -> None:
        """Refuses what does not fit into memory, before any work."""

    @abstractmethod
    def prepare(self, world: World, checkpoint: Path | None) -> tuple[TrainingUnit, list[PhasePlan]]:
        """What is trained, anew or from a checkpoint, and on what; the first process makes what has to be made."""

    @abstractmethod
    def judge(
        self, unit: TrainingUnit, phases: list[PhasePlan], world: World, on_sample: OnSample
    ) -> Judging:
        """Who says how good it is."""

    @abstractmethod
    def resolved(self, settings: TrainingSettings, phases: list[PhasePlan]) -> CommonFile:
        """The run file with everything that was left open filled in."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the model's history tells of the run beside its settings and figures: `objective`, `data`."""

    @abstractmethod
    def keep(self, trained: Trained, world: World) -> None:
        """Writes the model and the report."""

    @abstractmethod
    def outcome(self, trained: Trained, **common: Any) -> Result:
        """What the caller gets."""

    # --- the stages

    def go(self) -> Result:
        with self.joined() as world, claimed(self.folder, world):
            return self._run(world)

    @contextmanager
    def joined(self) -> Iterator[World]:
        with open_world(self.device) as world, pass_over(self.file.ignore_config_key):
            if self.file.slices % world.size:
                raise EtymonError(
                    f"a step of {self.file.slices} slices cannot be shared by {world.size} processes: "
                    f"make --slices a multiple of {world.size}"
                )
            require_agreement(self.folder, self.resuming, world)
            if not world.first:
                self.progress = make_progress("silent")
            self.require_memory(world.device)
            yield world

    def _run(self, world: World) -> Result:
        run = RunFolder(self.folder)
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

        judge = self.judge(unit, phases, world, on_sample)

        def trainer(settings: TrainingSettings, course: StepStream) -> Trainer:
            def history() -> list[dict[str, Any]]:
                return self.history(training.plan.settled(settings), state, {})

            def record(revisions: Sequence[Revision]) -> None:
                revised, path = replace(settings, revisions=tuple(revisions)), self.folder / "run.yaml"
                replace(begun(self.folder, self.files), training=revised).write(path)

            def keeper(amount: str) -> Callable[[], None]:
                return lambda: save(model, self.folder / "milestones" / amount, history=history())

            training = Trainer(
                unit, course, settings, run,
                validate=lambda step: judge.validate(
                    step, course.phase_number_after(step), last=step >= training.plan.steps
                ),
                # To go on exactly, nothing may be folded into the weights.
                save_members=lambda folder: save_members(
                    unit, self.member, folder, history=history(), fold=False
                ),
                progress=self.progress, state=state, optimiser_state=optimiser_state, world=world,
                milestones=[Milestone(parse_budget(amount), keeper(amount)) for amount in self.file.save_at],
                criterion=self.criterion, record_revisions=record, clock=self.clock,
            )  # fmt: skip
            return training

        settings = self.file.training or self.settings(trainer, unit, phases, world)
        if self.file.training and not self.resuming:  # another run's: the steps that it came to, in any time
            settings = replace(settings, time=None)
        course = self.course(phases, settings.steps, world)
        training = trainer(settings, course)  # which may refuse, before anything is written
        self._tell_of_milestones(phases, settings)
        with world.first_alone() as mine:
            if mine:
                # Measuring and an earlier attempt leave nothing behind, and a resumed run repeats what came after.
                run.forget_after(state.step if checkpoint is not None else -1)
                if not self.resuming:
                    self.resolved(settings, phases).write(self.folder / "run.yaml")
                if self.file.tensorboard:
                    run.write_tensorboard(state.step)
        self.samples = [(record["step"], record["sample"]) for record in run.metrics() if "sample" in record]
        try:
            result = training.train(f"{self.title}, {model.parameter_count():,} parameters")
        finally:
            run.close()
        model.eval()
        report, ended = self.folder / "report.html", course.phase_number_after(state.step)
        trained = Trained(unit, phases, run, result, report, ended)
        if state.step < training.plan.steps and not result.stopped:
            self.progress.note(
                f"ended after {state.step:,} of {training.plan.steps:,} steps: no validation was better than that of step {state.best_step:,}"
            )
        metrics = self.settle(trained, world)
        model.history = self.history(training.plan.settled(settings), state, metrics)
        model.history[-1]["seen"]["ended"] = not result.stopped
        self.keep(trained, world)
        return self.outcome(
            trained,
            folder=self.folder, model_folder=self.folder / self.member, report=trained.report, model=model,
            metrics=metrics, steps=result.state.step, stopped=result.stopped, samples=self.samples,
            command=self.command, quiet=not world.first, signal=result.signal,
        )  # fmt: skip

    def settle(self, trained: Trained, world: World) -> dict[str, float]:
        """The last word on the model, before it is kept: its last validation; where the best one was waited for, the best's."""
        result = trained.result
        if (
            self.file.patience is None
            or result.stopped
            or result.state.best_step in (None, result.state.step)
        ):
            return result.metrics
        self.put_back_best(trained)
        judge = self.judge(trained.unit, trained.phases, world, lambda step, text: None)
        return judge.validate(result.state.step, trained.phase, last=True)

    def opened(
        self, checkpoint: Path | None, heads: frozenset[str], labels: Sequence[str] = ()
    ) -> tuple[Model | None, Tokenizer | None]:
        """The model of a checkpoint or the one to go on from, and the tokenizer that the latter brings; neither, to begin anew."""
        if checkpoint is not None:
            model = load(checkpoint / self.member)
            self.past, self.grown = model.history[:-1], model.history[-1].get("grown")
            return model, None
        if self.file.start is None:
            return None, None
        features = getattr(self.file, "features", None)
        model = load(
            self.file.start, heads=heads, labels=labels or None, features=features, seed=self.file.seed
        )
        self.past = model.history
        if model.new_heads:
            kinds = " and no ".join(model.new_heads) + " head" + (" for these labels" if labels else "")
            self.progress.note(f"{self.file.start} has no {kinds}: starting anew there")
        return model, start_tokenizer(self.file, model, self.progress.note)

    def completed(
        self,
        model: Model | None,
        tokenizer: Tokenizer,
        heads: frozenset[str],
        labels: Sequence[str] = (),
        **fields: int,
    ) -> Model:
        """The model with its tokenizer and room for its words; a new one, with these `fields` of its shape, if there is none."""
        if model is None:
            own = {"vocabulary": tokenizer.size, **fields}
            named: Any = {"labels": labels} if labels else {}
            suggested = self.family.suggest_cutoffs(tokenizer, self.file.size, self.file.shape)
            shape = {**suggested, **self.file.shape, **self.family.tokenizer_fields(tokenizer), **own}
            model = build(self.family, self.file.size, heads=heads, seed=self.file.seed, shape=shape, **named)
        else:
            model, self.grown = grown(model, tokenizer, self.file.seed) or (model, self.grown)
        model.tokenizer = tokenizer
        return model

    def put_back_best(self, trained: Trained) -> None:
        """The model as it was at its best, if that was not at the end."""
        best = trained.result.state.best_step
        if best is not None and best != trained.result.state.step:
            for name, model in members(trained.unit, self.member).items():
                kept = load(trained.run.checkpoint(best) / name, device=model.device)
                model.load_state_dict(kept.state_dict())
            self.progress.note(f"the best model is that of step {best:,}")

    def course(self, phases: list[PhasePlan], steps: int, world: World) -> StepStream:
        """The phases as steps."""
        first, plans = 0.0, []
        for phase in phases:
            plans.append(Phase(round(first * steps), phase.feed))
            first += phase.share
        for number, (here, after) in enumerate(zip([*(plan.first for plan in plans[1:]), steps], plans), 1):
            if here <= after.first and not self.file.grows(self.recipe.ramp):
                raise EtymonError(
                    f"phase {number} gets no step of {steps:,}: give the run a larger budget, or the phase a "
                    "larger share"
                )
        return StepStream(plans, rank=world.rank, ranks=world.size, workers=self.workers)

    def settings(
        self, trainer: Train, unit: TrainingUnit, phases: list[PhasePlan], world: World
    ) -> TrainingSettings:
        """The family's recipe for as many steps as were asked for, or as fit into the budget by measurement."""
        file, validations, measured = self.file, VALIDATIONS, None
        budget = parse_budget(file.budget or USUAL_BUDGET)
        if budget.unit == "seconds":
            self.progress.note("measuring how long a step takes")
            measured, steps, validations = measure(self, trainer, budget.amount, phases, world)
        else:
            counted = unit if budget.unit == "flops" else None
            steps = mean_pace([(phase.share, phase.feed) for phase in phases], counted).steps(budget)
        settings = training_settings(self.recipe, file, steps=steps, validations=validations)
        return replace(settings, time=measured if self.revises else None)

    # --- small questions

    @property
    def title(self) -> str:
        size = self.file.size if self.file.start is None else f"from {self.file.start}"
        return f"{self.family.title} {size}"

    @property
    def command(self) -> str:
        """How to go on."""
        what = (
            self.file.start or f"{self.family.name} --from-scratch"
            if self.verb == "finetune"
            else self.family.name
        )
        return f"etymon {self.verb} {what} --out {shlex.quote(str(self.folder))} --resume"

    def like(self, shape: Any) -> tuple[str | None, Recipe]:
        """The size that a shape is of, if it has one, and how it is trained."""
        family = self.family
        found = (size for size in family.sizes if same_but_vocabulary(shape_of(family, size), shape))
        size = next(found, None)
        return size, family.recipe_for(size)

    def _tell_of_milestones(self, phases: list[PhasePlan], settings: TrainingSettings) -> None:
        pace = mean_pace([(phase.share, phase.feed) for phase in phases])
        for amount in self.file.save_at:
            if pace.exact_steps(parse_budget(amount)) > settings.steps + 1:
                self.progress.note(f"nothing will be kept at {amount}: the run ends before it gets there")

    def history(
        self, settings: TrainingSettings, state: TrainingState, metrics: dict[str, float]
    ) -> list[dict[str, Any]]:
        return [
            *self.past,
            {
                **self.about(),
                **({"started_from": self.file.start} if self.file.start else {}),
                **({"grown": self.grown} if self.grown else {}),
                **self.file.stated(),
                "seen": state.seen(),
                "training": plain(asdict(settings)),
                "metrics": metrics,
            },
        ]
