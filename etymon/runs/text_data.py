"""The data of `etymon pretrain` and `etymon distill`: text, in one or several phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from etymon.errors import EtymonError
from etymon.families.loading import read_shape
from etymon.families.model import Model
from etymon.objectives import get_objective, objective_class, read_options
from etymon.objectives.objective import check_fit
from etymon.report.asked import AskedQuestions
from etymon.report.page import Paragraph, Section
from etymon.runs.folder import Job, build_once, check_job
from etymon.runs.memory import Plan, require_training, with_vocabulary
from etymon.runs.model import StartModel, build_unit, init_from_teacher, load_teacher, plan_model
from etymon.runs.report import Records, ReportParts, language_table, size_table
from etymon.runs.run_file import RunFile
from etymon.runs.text_phases import TextPhase, count_sentinels, recipe_phases, text_phases
from etymon.runs.text_stores import (
    check_words,
    encode_languages,
    encode_text,
    mix_languages,
    require_samples,
    verify_stores,
)
from etymon.runs.tokenizer import build_tokenizer
from etymon.runs.training_settings import or_default, training_settings
from etymon.runs.validation import Evaluation, Log, PhasePlan, TextValidator
from etymon.text.filtering import filter_text, text_files_of
from etymon.text.languages import LanguageStore, LanguageText
from etymon.text.reading import Document
from etymon.text.segmenters import TOKENS, as_read, open_segmenter, way_for
from etymon.text.sources import PreparedText, TextSource, text_source
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.distributed import World
from etymon.training.feeding import Feed, check_streams
from etymon.training.loop import Criterion
from etymon.training.progress import format_count
from etymon.training.unit import TrainingUnit

WHOLE_BYTES, BEGINNING_BYTES = 16 << 20, 2 << 20
"""Of a dry run: bytes of files up to which all of a text is read, so that its tokens are those of the run; of
larger ones, the bytes of text that are read."""


class TextData:
    """Text to train on. Of a dry run, `beginning_only` reads no more than the beginning of large files."""

    criterion: Criterion | None = None
    keeps_best = False
    keeps_last = staticmethod(lambda figures, best: False)  # a loss over many tokens has little luck
    languages: dict[str, dict[str, Any]] = {}
    """Of every language the samples of an epoch, their share, and passes over its text."""

    def __init__(self, job: Job, source: TextSource | None, *, beginning_only: bool = False) -> None:
        self.model_plan = plan = plan_model(job.file, job.resuming)
        self.file: RunFile = replace(job.file, size=plan.size)
        self.beginning_only = beginning_only
        self.source = source if source is None else self._shorten(source)
        """None in a resumed run, whose folder keeps the encoded text."""
        for way in self.file.words if source is not None else ():
            open_segmenter(way.rpartition("=")[2])  # refuses what is not here, or nobody has named
        has_languages = isinstance(source, LanguageText | PreparedText)
        if self.file.language_temperature is not None and source is not None and not has_languages:
            raise EtymonError(
                "a temperature of languages needs languages: give them as --data zh=a.txt en=b.txt"
            )
        self.phases = text_phases(self.file, plan)
        objectives = [objective_class(phase.objective) for phase in self.phases]
        plan.heads = frozenset().union(*(each.heads for each in objectives))
        plan.folder = next((each.folder for each in objectives if each.folder != "model"), "model")
        positions: int | None = getattr(plan.shape, "positions", None)
        for phase, objective in zip(self.phases, objectives, strict=True):
            check_fit(objective, plan.family)
            if isinstance(source, LanguageText):
                require_samples(objective)
            read_options(phase.objective, phase.options)
            if positions is not None and phase.length > positions and not job.resuming:
                raise EtymonError(
                    f"samples of {phase.length} tokens do not fit {plan.title}, "
                    f"which has {positions} positions",
                    code="too-long",
                )
        batches = (phase.rows * self.file.slices for phase in self.phases)
        # Streams go on from phase to phase, so all phases need as many of them.
        check_streams(list(zip(objectives, batches, strict=True)))
        check_job(job, plan.recipe, plan.folder)

    def memory_plan(self, shape: Any = None) -> Plan:
        """Returns the run as far as its memory depends on it; `shape` is that of the built model."""
        file, plan = self.file, self.model_plan
        teacher = None if file.teacher is None else read_shape(file.teacher)
        if shape is None:
            shape = with_vocabulary(plan.shape, teacher[1].vocabulary if teacher else plan.vocabulary)
        choice = training_settings(plan.recipe, file, steps=1, validations=1).optimiser
        # What `auto` will choose is not known yet: float32 takes the most.
        precision = "float32" if file.precision == "auto" else file.precision
        return Plan(plan.family, shape, self.phases, choice, file.slices, file.generator, teacher, precision)

    def require_memory(self, world: World, recompute: bool = False) -> None:
        """Refuses a run that does not fit into the memory of each of its processes, before any work."""
        plan = replace(
            self.memory_plan(),
            slices=max(1, self.file.slices // world.size),
            recompute=recompute,
            processes=world.size,
            parts=world.parts,
        )
        require_training(plan, f"to train {self.model_plan.title}", world.device)

    # --- text and tokenizer, then objectives and what they train

    def prepare(self, job: Job, given: Tokenizer | None) -> Tokenizer:
        """Returns the tokenizer, `given` or trained, after the text was encoded by it."""
        file, plan = self.file, self.model_plan
        objectives = [objective_class(phase.objective) for phase in self.phases]
        self.teacher = load_teacher(file, plan.family, objectives, job.world.device)
        if self.teacher is not None:
            # Logits are compared entry by entry, so the vocabularies are equal, padding included.
            given, plan.fields = self.teacher.tokenizer, {"vocabulary": self.teacher.shape.vocabulary}

        def build(is_first: bool) -> tuple[Tokenizer, list[TokenStore]]:
            is_kept = job.resuming or not is_first
            tokenizer = build_tokenizer(
                job.folder,
                file,
                plan.family,
                None if self.source is None else self._as_read(self.source),
                plan.vocabulary,
                given,
                sentinels=count_sentinels(file, plan.family, self.phases),
                is_kept=is_kept,
                note=job.note,
            )
            store = self._store(job, job.folder / "store", self.source, tokenizer, is_kept)
            return tokenizer, [
                self._phase_store(job, number, tokenizer, is_kept) if phase.data else store
                for number, phase in enumerate(self.phases)
            ]

        # The text is encoded before the model is built: its memory is then free for that.
        tokenizer, self.stores = build_once(job.world, build)
        if job.resuming:
            verify_stores(self.stores, job.folder, job.world)
        return tokenizer

    def _as_read(self, source: TextSource) -> TextSource:
        """Returns the text as the model reads it, of several languages each by its words."""
        words = self.file.words
        if isinstance(source, LanguageText):
            return source.map(lambda code, part: as_read(part, way_for(words, code)))
        return as_read(source, way_for(words))

    def _phase_store(self, job: Job, number: int, tokenizer: Tokenizer, is_kept: bool) -> TokenStore:
        paths, source = self.phases[number].data, None
        if not is_kept:
            source = self._shorten(filter_text(text_source(paths, self.file), self.file))
        return self._store(job, job.folder / f"store-{number}", source, tokenizer, is_kept)

    def _store(
        self, job: Job, folder: Path, source: TextSource | None, tokenizer: Tokenizer, is_kept: bool
    ) -> TokenStore:
        if is_kept:
            store = TokenStore.open(folder, tokenizer)
            # A resumed run may be given its text again, but no other.
            if source is not None and job.world.first and source.fingerprint() != store.description["source"]:
                raise EtymonError(
                    f"the text is not the one that the run in {folder.parent} began with: leave it out",
                    code="run-changed",
                )
            return store
        assert source is not None, "only a resumed run does without its text"
        file = self.file
        if isinstance(source, LanguageText):
            return encode_languages(
                folder, source, tokenizer, file.validation, file.seed, job.note, file.words
            )
        return encode_text(
            folder, source, tokenizer, file.validation, file.seed, job.note, way_for(file.words)
        )

    def _shorten(self, source: TextSource) -> TextSource:
        if isinstance(source, LanguageText):
            return source.map(lambda code, part: self._shorten(part))
        # A prepared text is encoded already: a dry run takes it whole, as the run will.
        is_long = self.beginning_only and not isinstance(source, PreparedText)
        return TextBeginning(source) if is_long else source

    def build_unit(
        self, job: Job, model: Model, start: StartModel, checkpoint: Path | None
    ) -> tuple[TrainingUnit, list[PhasePlan]]:
        """Returns what is trained and its phases; a new student begins as a part of its teacher."""
        phases: list[PhasePlan] = []
        previous: TextPhase | None = None
        assert model.tokenizer is not None
        for phase, store in zip(self.phases, self.stores, strict=True):
            same = previous is not None and (phase.objective, phase.length, phase.options) == (
                previous.objective,
                previous.length,
                previous.options,
            )
            if not same:  # else the samples of the phase before go on, only more of them a step
                objective = get_objective(phase.objective, model.tokenizer, phase.length, **phase.options)
                if start.is_new or not job.resuming:
                    check_words(objective, store, model.tokenizer, self._asks_for_words(), job.note)
                if isinstance(store, LanguageStore):
                    temperature, seed = self.file.language_temperature, self.file.seed
                    objective, self.languages = mix_languages(objective, store, temperature, seed, job.note)
            goes_on = previous is not None and phase.samples_as(previous)
            previous = phase
            feed = Feed(
                objective,
                store.train,
                self.file.seed,
                slices=self.file.slices,
                rows=phase.rows,
                goes_on=goes_on,
            )
            phases.append(PhasePlan(phase.share, phase.length, feed, store))
        if start.is_new and self.teacher is not None:
            init_from_teacher(model, self.teacher, self.file.teacher_layers, job.note)
        objectives = [plan.objective for plan in phases]
        unit = build_unit(model, objectives, self.file, checkpoint, job.note, self.teacher)
        return unit, phases

    def _asks_for_words(self) -> bool | None:
        """Whether somebody asked for whole words; None if tokens were said to be words."""
        if TOKENS in self.file.words:
            return None
        given = [self.file.options, *(phase.options or {} for phase in self.file.phases)]
        return any(options.get("masking") in ("whole-words", "ngram") for options in given)

    def build_validator(
        self, job: Job, unit: TrainingUnit, phases: list[PhasePlan], log: Log
    ) -> TextValidator:
        """Returns the validator that is called every `validate_every` steps."""
        return TextValidator(job, unit, phases, log)

    # --- what is written of the run

    def resolved_file(self, budget: str, phases: list[PhasePlan]) -> RunFile:
        """Returns the run file with everything that was left open filled in."""
        file, plan, recipe = self.file, self.model_plan, self.model_plan.recipe
        file = replace(
            file,
            budget=budget,
            objective=file.objective or recipe.objective or plan.family.objective,
            text=file.text if self.source is None else self.source.description or file.text,
        )
        phase_files = self.file.phases or recipe_phases(self.file, plan)
        if not phase_files:
            first, batch = self.phases[0], self.phases[-1].rows * file.slices
            ramp = or_default(file.ramp, recipe.ramp)
            return replace(file, length=first.length, batch=batch, ramp=ramp, options=dict(first.options))
        resolved = (
            replace(
                phase_file,
                length=phase.length,
                batch=phase.rows * file.slices,
                objective=plan.objective.name,
                options=dict(phase.options) or phase_file.options,
            )
            for phase_file, phase, plan in zip(phase_files, self.phases, phases, strict=True)
        )
        return replace(file, ramp=None, phases=tuple(resolved))

    def history_entry(self) -> dict[str, Any]:
        """Returns what the model's history says of the data."""
        return {
            # In the order of the phases, the last one at the end: an objective may come back.
            "objective": ", then ".join(
                name for name, _ in groupby(phase.objective for phase in self.phases)
            ),
            # Of the last phase: what the model does in the end.
            "options": dict(self.phases[-1].options),
            "recipe": self.model_plan.recipe.name,
            "data": self.file.text if self.source is None else self.source.description,
            "length": max(phase.length for phase in self.phases),
            **self._words_entry(),
            **({"languages": self.languages} if self.languages else {}),
        }

    def _words_entry(self) -> dict[str, Any]:
        """Returns how words were found, where that is not as usual."""
        ways = [store.description["words"] for store in self.stores if "words" in store.description]
        if not ways and TOKENS in self.file.words:
            ways = [{"way": TOKENS}]
        return {"words": ways[0]} if ways else {}

    def report_parts(
        self, job: Job, model: Model, evaluation: Evaluation | None, records: Records
    ) -> ReportParts:
        """Returns what the report adds to that of every run: of a finished one, a comparison with xz, and
        what was asked and is answered."""
        sections: list[Section] = []
        if is_multilingual := isinstance(store := self.stores[0], LanguageStore):
            assert model.tokenizer is not None
            metrics = {} if evaluation is None else evaluation.metrics
            sections.append(language_table(store, model.tokenizer, self.languages, metrics))
        if evaluation is not None:
            sections += [AskedQuestions(asdict(sample)) for sample in evaluation.questions]
        if self.file.sizing:
            sections.append(size_table(self.file.sizing))
        if (recipe := self.model_plan.recipe).why:
            sections.append(Paragraph(recipe.why, title=f"Recipe: {recipe.name}"))
        return ReportParts(
            store=None if evaluation is None or is_multilingual else store,
            figures={"recipe": recipe.name},
            sections=sections,
        )

    # --- a dry run

    def share_read(self) -> float:
        """Returns how much of the text was read, which is all of it but in dry runs."""
        if isinstance(self.source, LanguageText):
            parts = [part for part in self.source.sources.values() if isinstance(part, TextBeginning)]
            read = sum(part.bytes_given for part in parts)
            return read / max(1.0, sum(part.bytes_given / part.share() for part in parts)) if read else 1.0
        return self.source.share() if isinstance(self.source, TextBeginning) else 1.0

    def describe(self, phases: list[PhasePlan]) -> dict[str, str]:
        """Returns lines of a dry run's plan, by name: text and samples."""
        share, summary = self.share_read(), self.stores[0].summary
        train, held_out = summary.train.tokens, summary.validation.tokens
        counts = f"{train:,} tokens to train on, {held_out:,} to validate on"
        if share < 1:  # of the beginning, too little may be held out to tell
            tokens = (train + held_out) / share
            held_out = round(self.file.validation * tokens)
            train_tokens, held_tokens = format_count(tokens - held_out), format_count(held_out)
            counts = f"about {train_tokens} tokens to train on, {held_tokens} to validate on"
        description = (self.file.text or "") if self.source is None else self.source.description
        lines = {"text": f"{description}: {counts}"}
        for number, (phase, plan) in enumerate(zip(self.phases, phases, strict=True), 1):
            name = "samples" if len(phases) == 1 else f"phase {number}"
            part = "" if len(phases) == 1 else f"{phase.share:.0%} of the steps, "
            batch = phase.rows * self.file.slices
            lines[name] = f"{part}{plan.objective.name}, {batch} a step of up to {phase.length} tokens"
        return lines

    def footprint(self, unit: TrainingUnit, phases: list[PhasePlan], device: torch.device) -> Any:
        """Returns the memory that the run takes."""
        model: Any = unit.model
        return self.memory_plan(model.shape).footprint(device)


@dataclass
class TextBeginning:
    """A text, or the first documents of one in large files."""

    source: TextSource
    bytes_given: int = 0
    is_whole: bool = False
    block: tuple[int, int] = (0, 0)
    """Bytes of the files when all text in them had been given, and bytes of that text: files are read in
    blocks, ahead of it."""

    @property
    def description(self) -> str:
        return self.source.description

    def fingerprint(self) -> str:
        return "the beginning of a text"  # the real one would read all of it

    def documents(self) -> Iterator[Document]:
        self.bytes_given, self.is_whole, self.block, block_end = 0, False, (0, 0), 0
        files = text_files_of(self.source)
        is_large = files is not None and (files.size() or 0) > WHOLE_BYTES
        for document in self.source.documents():
            if (here := 0 if files is None else files.bytes_read) != block_end:
                self.block, block_end = (block_end, self.bytes_given), here
            self.bytes_given += len(document.text.encode())
            is_last = is_large and self.bytes_given >= BEGINNING_BYTES
            yield replace(document, more=document.more and not is_last)
            if is_last:
                return
        self.is_whole = True

    def share(self) -> float:
        """Returns how much of the text was read, as far as that can be told."""
        files = text_files_of(self.source)
        if self.is_whole or files is None or not (size := files.size()):
            return 1.0
        packed, text = self.block if self.block[1] else (files.bytes_read, max(self.bytes_given, 1))
        return min(1.0, self.bytes_given / text * packed / size)
