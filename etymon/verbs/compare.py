"""`etymon compare`: an equal-budget tournament that ends in a recommendation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etymon.settings import (
    ClusterOptions,
    DeviceOptions,
    Files,
    PathText,
    PluginOptions,
    ProgressOptions,
    Words,
    argument,
    group,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings, TextSettings
from etymon.settings.training import PretrainSettings
from etymon.verbs.pretrain import TextLike, split_text
from etymon.verbs.terminal import message_text, report_text, result_text, say
from etymon.verbs.verb import resumes, verb

if TYPE_CHECKING:
    from etymon.lab.compare_results import Compared


TEXT_SETTINGS = {field.name for field in fields(TextSettings)}


@settings
class CompareOptions(ProgressOptions, DeviceOptions, ClusterOptions, PluginOptions):
    arms: Words = argument(
        "what to compare, two or more: each [NAME=]FAMILY[:RECIPE][@OBJECTIVE][@key=value,...] or a "
        "YAML file of pretrain",
        leads=True,
    )
    data: TextLike = option(None, "text files, folders, globs or URLs")
    budget: str = option("20m", "budget of each run of the final: 20m, 20Tflops, 10Mwords or 20Mtokens")
    tasks: Files = option(
        (),
        "tables with text and label, or YAML files of finetune: every arm is fine-tuned on them, and "
        "they decide",
    )
    task_budget: str = option("3epochs", "budget of each fine-tuning run")
    pairs: Files = option(
        (),
        "minimal pairs, which compare all arms: BLiMP's folder, tables of good and bad sentences, or "
        "two files",
    )
    probes: Files = option(
        (),
        "files or folders of probing tasks for all arms, as in `etymon probe`; they decide if nothing "
        "else does",
    )
    suite: str | None = option(
        None,
        "suite that scores the finalists at the end, as `etymon evaluate` does: blimp, glue, probing, "
        "lm or FILE.yaml",
    )
    suite_data: PathText = option(None, "folder of the suite's files (the variable ETYMON_SUITES)")
    pair_examples: int = option(100, "most pairs per paradigm, each for validation and for the test", ge=1)
    seeds: int = option(3, "runs per finalist, each with a fresh seed", ge=3)
    trials: int = option(1, "learning rates that every arm may try in the first round", ge=1)
    finalists: int = option(2, "how many arms reach the final, of every kind that can be compared", ge=2)
    validation: float = option(0.05, "share of the text that decides the rounds", gt=0, lt=0.4)
    test: float = option(0.05, "share of the text for the test, which is read once, at the end", gt=0, lt=0.4)
    order: int = option(5, "order of the n-gram model that stands beside the networks; 0: none", ge=0, le=8)
    seed: int = option(0, "random seed of the split and the rounds; the final has the seeds after it")
    out: PathText = option(None, "the folder of the comparison (comparisons/ARM-ARM-...)")
    run: dict[str, Any] = group(
        PretrainSettings,
        "size precision batch length vocabulary tokenizer words documents column encoding errors "
        "max_replaced deduplicate similarity min_length max_length text_language",
    )
    set: Words = option((), "give a setting of all arms a value by its dotted name: warmup=0.1")
    resume: bool | Literal["auto"] = option(
        False, "go on with the stopped comparison in OUT; auto: start one if there is none"
    )
    changed_plugins: bool = option(False, "go on even if a plugin of an arm has changed")
    workers: int = option(0, "number of processes that prepare samples (0: a thread does it)", ge=0)


@verb(CompareOptions)
def compare(options: CompareOptions) -> Compared:
    """Each arm is a family with its settings, and all get the same text and budget. Rounds with growing
    budgets keep the best arms; these are trained anew with fresh seeds and tested once. OUT gets
    report.html, results.json, table.md and table.tex: intervals, baselines, costs, and the command that
    goes on with the winner. "No winner at this budget" is an answer, too. After a stop, give the command
    again with `--resume`.
    """
    from etymon.lab.compare import Tournament
    from etymon.lab.compare_plan import COMPARE_FILE, Design
    from etymon.text.filtering import filter_text
    from etymon.text.sources import text_source

    # Names of arms as they are given; what stands behind them would make no name of a folder.
    names = [re.split("[@:=]", arm)[0] for arm in options.arms]
    folder = Path(options.out or Path("comparisons") / "-".join(Path(name).stem for name in names)[:80])
    paths, source = split_text(options.data)
    given = dict(options.run)
    reading = {name: given.pop(name) for name in [*given] if name in TEXT_SETTINGS}
    # The text is written anew as UTF-8 and JSON: runs need not know how it was read. But words are found in
    # it by every run.
    if "words" in reading:
        given["words"] = reading["words"]
    how = TextSettings(**reading)
    if source is None and paths:
        source = text_source([str(path) for path in paths], how)
    if source is not None:
        source = filter_text(source, how)
    design = Design(
        tuple(options.arms),
        options.budget,
        tuple(map(str, options.tasks)),
        options.task_budget,
        tuple(map(str, options.pairs)),
        options.pair_examples,
        options.seeds,
        options.trials,
        options.finalists,
        options.validation,
        options.test,
        options.order,
        options.seed,
        tuple(map(str, options.probes)),
        options.suite,
        None if options.suite_data is None else str(options.suite_data),
    )
    return Tournament(
        folder,
        design,
        given,
        options.set,
        source,
        reading=EncodingSettings(**how.reader_options),
        resume=resumes(options.resume, folder, COMPARE_FILE),
        progress=options.progress,
        on=options.on,
        device=options.device,
        workers=options.workers,
        changed_plugins=options.changed_plugins,
    ).run()


def present(result: Compared, options: CompareOptions) -> None:
    if result.signal:
        say(f"stopped; go on with: {result.command}")
        return
    from etymon.lab.compare_report import table_of, verdict_sentences

    header, rows = table_of(result)
    print()
    for row in rows:
        scores = (
            f"{result_text(str(cell))} {result_text(name)}"
            for name, cell in zip(header[1:], row[1 : len(result.results) + 1])
            if cell
        )
        print(f"  {result_text(str(row[0]))}: {', '.join(scores) or result_text(str(row[-1]))}")
    for arm in result.failed:
        print(f"  {arm.name}: {message_text(arm.reason)}")
    print()
    for each in result.answers:
        for sentence in verdict_sentences(each):
            print(report_text(sentence))
    print()
    say(f"report  {result.report}")
    for each in result.primary:
        say(f"{each.leader} with ten times the budget:\n  {result.continue_command(each.leader)}")
