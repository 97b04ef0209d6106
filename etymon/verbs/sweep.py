"""`etymon sweep`: a small grid of settings, tried one after the other under the same budget, and ranked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.settings import ClusterOptions, PathText, Spelling, argument, group, option, settings
from etymon.settings.training import PretrainSettings, StartOptions
from etymon.verbs.pretrain import TextLike, split_text
from etymon.verbs.terminal import say
from etymon.verbs.verb import resumes, verb

if TYPE_CHECKING:
    from etymon.lab.sweep import Swept


@settings
class SweepOptions(StartOptions, ClusterOptions):
    family: str = argument("as for pretrain: gpt2, bert, t5, ...")
    grid: Annotated[Any, Spelling("Sequence[str] | Mapping[str, Sequence[Any]]", list[str])] = option(
        (), "a setting and the values to try: learning_rate=3e-4,1e-3; may be repeated"
    )
    seeds: int | None = option(None, "runs per combination, each with another seed (1)")
    data: TextLike = option(None, "text files, folders or globs, or a prepared store")
    out: PathText = option(None, "the sweep's folder (sweeps/FAMILY-SIZE)")
    run: dict[str, Any] = group(
        PretrainSettings,
        "size budget precision objective batch length vocabulary start documents column encoding errors "
        "max_replaced deduplicate similarity min_length max_length text_language",
    )


@verb(SweepOptions)
def sweep(options: SweepOptions) -> Swept:
    """Every combination gets the whole budget, so the sweep takes combinations x seeds times as long, which
    is said before it starts. Text and tokenizer are prepared once. Every run is an ordinary one in a
    folder of OUT; a table, OUT/sweep.json and OUT/report.html compare them. Ctrl-C saves the current run,
    and `--resume` goes on from there.
    """
    from etymon.lab.sweep import SWEEP_FILE, Sweep, read_grid
    from etymon.runs.run_file import RunFile, assemble

    paths, source = split_text(options.data)
    given = options.run | {
        "family": options.family,
        "data": paths,
        "ignore_config_key": options.ignore_config_key or None,
    }
    # Cells differ from this file by their values of the grid alone.
    file = assemble(RunFile, given, options.config, options.set)
    folder = Path(options.out or Path("sweeps") / f"{file.family}-{file.size}")
    return Sweep(
        folder,
        file,
        read_grid(options.grid),
        options.seeds,
        source,
        resume=resumes(options.resume, folder, SWEEP_FILE),
        progress=options.progress,
        device=options.device,
        workers=options.workers,
        changed_plugins=options.changed_plugins,
        on=options.on,
    ).run()


def present(result: Swept, options: SweepOptions) -> None:
    for ranking in result.rankings:
        common = f" ({ranking.shared})" if ranking.shared else ""
        print()
        say(f"validation {ranking.unit}{common}, the best first:")
        for place, cell in enumerate(ranking.cells, 1):
            spread = "" if cell.spread is None else f" ±{cell.spread:.4f}"
            print(f"{place:>4}  {cell.mean:.4f}{spread}  {cell.name}")
    # Bits per byte of a text compare across tokenizers; bits per target of two objectives do not.
    if len(result.rankings) > 1:
        print()
        say("figures of different rankings answer different questions: they cannot be compared")
    for cell in result.failed:
        print(f"   -  {cell.name}: {cell.reason}")
    print()
    say(f"report  {result.report}")
    if result.signal:
        say(f"stopped after {result.done} of {result.runs} runs; go on with: {result.command}")
        return
    for ranking in result.rankings:
        say(f"the best one with ten times the budget:\n  {ranking.repeat}")
