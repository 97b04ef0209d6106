"""The engine of `etymon compare`: an equal-budget tournament of families, recipes and objectives.

Every round trains the arms that are left with twice the budget of the round before, scores them on validation
text and tables, and keeps the better half. The finalists are trained anew with fresh seeds. Only then is the
test part opened, once, and it alone decides.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import etymon
from etymon.config import load_yaml
from etymon.errors import EtymonError
from etymon.files import finite, write_json
from etymon.lab.compare_criteria import Criterion, Entry, criteria_of, validation_score
from etymon.lab.compare_jobs import ArmJob, Part, open_arm_executor
from etymon.lab.compare_plan import (
    COMPARE_FILE,
    TRIAL_FACTORS,
    Arm,
    Design,
    budget_text,
    count_kept,
    read_arms,
    read_budget,
    read_saved,
    round_shares,
)
from etymon.lab.compare_report import write_compare_report
from etymon.lab.compare_results import Compared, judge
from etymon.lab.compare_suites import copy_probes, list_probes, open_suite
from etymon.lab.compare_text import cut_pairs, cut_table, cut_text, read_task
from etymon.lab.pairs import read_pairs
from etymon.lab.sweep_jobs import RunEnd, RunJob
from etymon.plugin_settings import as_plain, read_records, records_in, require_records
from etymon.runs.folder import Job, lock_folder, require_free
from etymon.runs.run_file import RunFile
from etymon.runs.sizing import choose_size, sized_as
from etymon.runs.text_data import TextData
from etymon.settings.reading import EncodingSettings
from etymon.text.sources import TextSource
from etymon.training.distributed import World, open_world
from etymon.training.progress import NotebookProgress, format_seconds, make_progress

HELD_OUT = 0.02
"""Of the text to train on, for the curves of single runs; nothing is decided by it."""


class Tournament:
    """One comparison in its folder. What is finished there is not done again."""

    def __init__(
        self,
        folder: Path,
        design: Design,
        given: dict[str, Any],
        overrides: Sequence[str],
        source: TextSource | None,
        *,
        reading: EncodingSettings,
        resume: bool,
        progress: Any = "auto",
        on: str | None = None,
        **options: Any,
    ) -> None:
        """Checks all that can be checked before any work. `given` and `overrides` are settings of all arms;
        tables, pairs and probes are read by `reading`; `options` are those of `Job` (device, workers)."""
        # As JSON reads them back, so that a resumed comparison can be compared with what it began with.
        overrides = list(overrides)
        self.folder, self.marker = folder, folder / COMPARE_FILE
        settings = {"design": asdict(design), "given": given, "overrides": overrides}
        settings["reading"] = reading.reader_options
        saved: dict[str, Any] = {"failed": {}}
        if resume:
            saved = read_saved(self.marker, design, settings)
            settings = saved["settings"]
            design = Design.of(settings["design"])
            given, overrides = settings["given"], settings["overrides"]
            reading = EncodingSettings(**settings.get("reading", {}))
        elif self.marker.exists():
            raise EtymonError(
                f"{folder} holds a comparison already: go on with --resume, or give another --out",
                code="run-exists",
            )
        else:
            require_free(folder)
            if source is None:
                raise EtymonError(
                    "there is no text to train on: give --data with files, folders or globs", code="no-data"
                )
        # Each of torchrun's processes would hold a tournament of its own in the same folder.
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise EtymonError("a comparison runs in one process: start it without torchrun")
        if design.trials > len(TRIAL_FACTORS):
            raise EtymonError(f"an arm has {len(TRIAL_FACTORS)} trials at most, not {design.trials}")
        self.design, self.settings, self.source, self.resuming = design, settings, source, resume
        self.budget = read_budget(design.budget)
        text = {"data": [str(folder / "text" / "train.jsonl")], "validation": HELD_OUT, "seed": design.seed}
        self.progress, self.progress_kind, self.on, self.options = (
            make_progress(progress),
            progress,
            on,
            options,
        )
        self.sizes: dict[str, dict[str, Any]] = dict(saved.get("sizes", {}))
        self.arms = read_arms(design.arms, given | text, overrides, folder, self._choose_size)
        # Only now: the arms have opened their plugins.
        plugins = read_records(saved.get("plugins", []), str(self.marker))
        require_records(plugins, str(folder), changed=bool(options.get("changed_plugins")))
        # An arm that failed stays out: rounds have been decided without it.
        for arm in self.arms:
            arm.reason = saved["failed"].get(arm.name, "")
            arm.lost = {int(trial): why for trial, why in saved.get("lost", {}).get(arm.name, {}).items()}
        self.reading = reading
        self.tables = [read_task(task, folder / "tasks", reading) for task in design.tasks]
        self.tasks = tuple(task for task, _ in self.tables)
        most = 2 * design.pair_examples
        self.pairs = read_pairs(design.pairs, how=reading, most=most) if design.pairs else []
        self.probes = list_probes(design.probes, reading)
        self.suite = open_suite(design.suite, design.suite_data)
        self.criteria = criteria_of(self.arms, self.tasks, bool(self.pairs), bool(self.probes), self.suite)
        self.shares = round_shares(len(self.arms), design.finalists)
        self.entries: list[Entry] = []
        self.command = f"etymon compare {shlex.join(design.arms)} --out {shlex.quote(str(folder))} --resume"
        self.began, self.units_done = time.monotonic(), 0.0

    def run(self) -> Compared:
        """Runs whatever is not finished, and writes results.json, report.html, table.md and table.tex."""
        # What does not fit into memory is refused now, and not in the last round.
        with open_world(self.options.get("device")) as world:
            for arm in self.arms:
                TextData(Job(self.folder / "new", arm.file), None).require_memory(world)
        with lock_folder(self.folder, World()):
            self._prepare()
            gpus = int(str(self.options.get("device") or "").startswith("cuda"))
            self.progress.note(self._plan_text())
            try:
                with open_arm_executor(self.on, torch.get_num_threads(), gpus) as self.executor:
                    signal = self._compete()
            except KeyboardInterrupt:
                self.progress.note(f"interrupted; go on with: {self.command}")
                raise
            if signal:
                return Compared(self.folder, command=self.command, signal=signal)
            result = judge(
                self.folder, self.arms, self.entries, self.criteria, self.tasks, self.budget, self.design
            )
            write_json(self.folder / "results.json", finite(result.record()))
            write_compare_report(result)
        return result

    def _choose_size(self, name: str, file: RunFile) -> RunFile:
        """An arm's shape, batch and rate for the budget of the final; rounds are trained with the same."""
        if name not in self.sizes:
            self.progress.note(f"{name}:")
            budget = replace(file, budget=self.design.budget)
            chosen = choose_size(budget, self.source, self.progress.note, device=self.options.get("device"))
            self.sizes[name] = chosen.sizing
        return sized_as(file, self.sizes[name])

    # --- the rounds

    def _compete(self) -> int | None:
        """All rounds, the final and the test; returns the signal that stopped it, if one did."""
        arms = list(self.arms)
        for number, share in enumerate(self.shares, 1):
            # Trials outermost: were the machine lost, every arm would have had its own rate.
            entries = [
                Entry(
                    arm.name,
                    number,
                    share,
                    self.design.seed,
                    self._folder(arm, f"round-{number}", trial),
                    trial,
                )
                for trial in range(self.design.trials if number == 1 else 1)
                for arm in arms
                if number > 1 or trial not in arm.lost
            ]
            if signal := self._run_entries(entries, "validation"):
                return signal
            if number == 1:
                self._choose_trials(arms)
            arms = self._keep_best(arms, number)
        finalists = arms
        # Seeds outermost: whatever was done when it is stopped, all arms have as much of it.
        final = [
            Entry(arm.name, 0, 1.0, self.design.seed + number, self._folder(arm, f"seed-{number}"))
            for number in range(1, self.design.seeds + 1)
            for arm in finalists
        ]
        # All training is over before anything of the test part is read: nobody can be tempted to go on from a
        # test score, and no choice depends on one.
        return self._run_entries(final, "validation") or self._run_entries(final, "test")

    def _run_entries(self, entries: list[Entry], part: Part) -> int | None:
        arms = {arm.name: arm for arm in self.arms}
        waiting = [entry for entry in entries if not arms[entry.arm].reason]
        if part == "validation":
            self.entries += waiting
        todo = [entry for entry in waiting if not (entry.folder / f"scores-{part}.json").is_file()]
        # Lazily: a job is made when it begins, since earlier ones tell its steps, and an arm may be out by
        # then.
        jobs = (self._arm_job(arms[entry.arm], entry, part) for entry in todo if not arms[entry.arm].reason)
        for job, end in self.executor.run(jobs):
            entry = next(entry for entry in todo if entry.folder == job.folder)
            if end.is_stopped:
                return end.signal or 15
            self._note_end(arms[entry.arm], entry, end, part)
        return None

    def _note_end(self, arm: Arm, entry: Entry, end: RunEnd, part: Part) -> None:
        # All arms would fail one after the other, through no fault of theirs.
        if end.is_disk_full:
            raise EtymonError(f"{end.reason}; make room, then go on with: {self.command}")
        if end.reason:
            arm.fail(entry.trial if entry.round == 1 else None, end.reason, self.design.trials)
            self.progress.note(f"{arm.name if arm.reason else entry.title} is out: {end.reason}")
            self._write()
            if all(each.reason for each in self.arms):
                raise EtymonError(f"no arm could be trained; the last one, {arm.name}: {end.reason}")
            return
        if part == "validation":
            # In units of the final's budget: runs of a round cost a fraction of one.
            self.units_done += entry.share
            score = validation_score(entry, self._primary(arm))
            left = self._units_left() * self._seconds_a_unit()
            about = f"; about {format_seconds(left)} left for all" if left else ""
            self.progress.note(f"{entry.title}: {self._primary(arm).shown(score)}{about}")

    def _choose_trials(self, arms: list[Arm]) -> None:
        """Every arm goes on with the learning rate that was best on validation."""
        for arm in arms:
            tried = [entry for entry in self.entries if entry.arm == arm.name and entry.is_scored]
            if arm.reason or self.design.trials < 2:
                continue
            criterion = self._primary(arm)
            best = min(tried, key=lambda entry: criterion.order(validation_score(entry, criterion)))
            arm.file = arm.trials(self.design.trials)[best.trial]
            # The others stay in the results, as what tuning has cost, but are no points of the arm's curve.
            for entry in tried:
                entry.is_dropped = entry is not best
            self.progress.note(f"{arm.name} goes on with learning rate {arm.file.learning_rate:g}")

    def _keep_best(self, arms: list[Arm], number: int) -> list[Arm]:
        """The better half of every group of arms that can be compared."""
        kept: list[Arm] = []
        groups: dict[str, list[Arm]] = {}
        for arm in arms:
            if not arm.reason:
                groups.setdefault(self._primary(arm).group, []).append(arm)
        for group in groups.values():
            criterion = self._primary(group[0])
            scores = {
                entry.arm: validation_score(entry, criterion)
                for entry in self.entries
                if entry.round == number and not entry.is_dropped and entry.is_scored
            }
            # Sorting is stable: a tie goes to the arm that was named first, also when the comparison is
            # resumed.
            ranked = sorted(group, key=lambda arm: criterion.order(scores[arm.name]))
            kept += ranked[: count_kept(len(group), self.design.finalists)]
        out = [arm.name for arm in arms if arm not in kept and not arm.reason]
        if out:
            self.progress.note(f"round {number} is over; out: {', '.join(out)}")
        return [arm for arm in arms if arm in kept]

    def _primary(self, arm: Arm) -> Criterion:
        """The criterion that decides about an arm."""
        return next(each for each in self.criteria if each.is_primary and arm.name in each.arms)

    # --- jobs

    def _arm_job(self, arm: Arm, entry: Entry, part: Part) -> ArmJob:
        self.progress.note(f"{entry.title}{' on the test part' if part == 'test' else ''}")
        file = arm.trials(self.design.trials)[entry.trial] if entry.round == 1 else arm.file
        file = replace(file, seed=entry.seed, budget=self._run_budget(arm, entry))
        # Bars of several machines would be drawn over each other; a notebook would get hundreds of lines.
        is_silent = self.on is not None or isinstance(self.progress, NotebookProgress)
        progress = "silent" if is_silent else self.progress_kind
        # What this run itself takes is told by its own bar.
        later = max(0.0, self._units_left() - entry.share) * self._seconds_a_unit()
        run = RunJob(
            entry.folder, file, None, self._shared_store(arm), progress, self.options, self.marker, later
        )
        pairs = self.folder / "pairs" if self.pairs else None
        probes = self.folder / "probes" if self.probes else None
        text, budget = self.folder / "text", self.design.task_budget
        suite, reading = self.design.suite_place, self.reading
        return ArmJob(run, text, arm.kind, self.tasks, budget, pairs, part, probes, suite, reading)

    def _seconds_a_unit(self) -> float:
        """Of the final's budget, by the runs so far; of a time, what was asked for until one is done."""
        if self.units_done:
            return (time.monotonic() - self.began) / self.units_done
        return self.budget.amount if self.budget.unit == "seconds" else 0.0

    def _run_budget(self, arm: Arm, entry: Entry) -> str:
        """Of a time, the arm's first run measures how many steps it is, and its others take as many in
        proportion: a busy moment of the machine would favour one of them."""
        if self.budget.unit == "seconds":
            for other in self.entries:
                path = other.folder / "run.yaml"
                if other.arm == arm.name and other.folder != entry.folder and path.is_file():
                    training = load_yaml(path, RunFile).training
                    assert training is not None
                    return f"{max(1, round(training.steps * entry.share / other.share))}steps"
        return budget_text(self.budget, entry.share)

    def _shared_store(self, arm: Arm) -> Path | None:
        """The encoded text of an earlier run of the arm, or of another arm with the same tokenizer."""
        # Its own first: the split of a store is that of the seed it was made with, and all runs of an arm
        # share it. A store without a run.yaml may still be in the making.
        for other in [arm, *(each for each in self.arms if each.text_key == arm.text_key)]:
            for store in sorted((self.folder / "runs" / other.folder).glob("*/store")):
                if (store / "tokenizer").is_dir() and (store.parent / "run.yaml").is_file():
                    return store
        return None

    def _folder(self, arm: Arm, name: str, trial: int = 0) -> Path:
        return self.folder / "runs" / arm.folder / (f"{name}-trial-{trial + 1}" if trial else name)

    # --- what is written, and said

    def _prepare(self) -> None:
        """Cuts text and tables, once. A comparison that is refused here leaves nothing behind."""
        has_text = (self.folder / "text" / "text.json").is_file()
        if self.source is None and not has_text:
            raise EtymonError(f"{self.folder} has no text yet: give --data as before")
        try:
            self._write()
            if self.source is not None and not has_text:
                shares = (self.design.validation, self.design.test)
                cut_text(self.source, self.folder / "text", *shares, self.design.seed, self.progress.note)
            for task, table in self.tables:
                cut_table(task, table)
            if self.pairs:
                cut_pairs(self.pairs, self.folder / "pairs")
            if self.probes:
                copy_probes(self.probes, self.folder / "probes")
        except EtymonError:
            # A mistake in the command is to be mended and tried again in the same folder.
            if not (self.folder / "runs").is_dir():
                for name in ("text", "tasks", "pairs", "probes"):
                    shutil.rmtree(self.folder / name, ignore_errors=True)
                self.marker.unlink(missing_ok=True)
            raise

    def _write(self) -> None:
        failed = {arm.name: arm.reason for arm in self.arms if arm.reason}
        lost = {arm.name: arm.lost for arm in self.arms if arm.lost}
        plugins = as_plain(records_in([asdict(arm.file) for arm in self.arms]))
        saved = {
            "etymon": etymon.__version__,
            "settings": self.settings,
            "plugins": plugins,
            "failed": failed,
            "lost": lost,
            "sizes": self.sizes,
        }
        write_json(self.marker, finite(saved))

    def _planned_units(self) -> Iterator[tuple[float, int]]:
        """(share of the budget, runs) of every round and the final, if no arm fails."""
        sizes: dict[str, int] = {}
        for arm in self.arms:
            group = self._primary(arm).group
            sizes[group] = sizes.get(group, 0) + 1
        # As if no arm failed: what is said to be left can only become less.
        for number, share in enumerate(self.shares):
            yield share, sum(sizes.values()) * (self.design.trials if number == 0 else 1)
            sizes = {group: count_kept(size, self.design.finalists) for group, size in sizes.items()}
        yield 1.0, sum(sizes.values()) * self.design.seeds

    def _units_left(self) -> float:
        total = sum(share * runs for share, runs in self._planned_units())
        return max(0.0, total - sum(each.share for each in self.entries if each.is_scored))

    def _plan_text(self) -> str:
        units = sum(share * runs for share, runs in self._planned_units())
        runs = sum(runs for _, runs in self._planned_units())
        whole = (
            f", about {format_seconds(units * self.budget.amount)}" if self.budget.unit == "seconds" else ""
        )
        rounds = ", ".join(budget_text(self.budget, share) for share in self.shares)
        return (
            f"{len(self.arms)} arms, {runs} runs at most{whole}: rounds of {rounds}, then "
            f"{self.design.seeds} seeds of {self.design.budget} for every finalist"
        )
