"""`etymon pretrain`: from raw text to a trained model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.families import REGISTRY
from etymon.language import translated
from etymon.runs.result import Pretrained
from etymon.settings import PathText, Spelling, argument, group, option, settings
from etymon.settings.training import PretrainSettings, TrainOptions
from etymon.verbs.terminal import say
from etymon.verbs.verb import resumes, verb

if TYPE_CHECKING:
    from etymon.text.sources import TextSource

TextLike = Annotated[Any, Spelling("Sequence[str | Path] | str | Path | TextSource | None", list[str])]


@settings
class PretrainOptions(TrainOptions):
    family: str = argument(", ".join(REGISTRY))
    data: TextLike = option(
        None,
        "text files, folders, globs or URLs (.txt .md .jsonl .csv .tsv .parquet, also compressed), "
        "or a prepared store",
    )
    out: PathText = option(None, "the run's folder (runs/FAMILY-SIZE)")
    run: dict[str, Any] = group(PretrainSettings, without="ignore_config_key")


@verb(PretrainOptions)
def pretrain(options: PretrainOptions) -> Pretrained:
    """Trains a tokenizer, prepares the text, trains the model, and writes a Hugging Face folder OUT/model and
    a page OUT/report.html. Ctrl-C finishes the step and saves; `--resume` then goes on exactly. A command
    with `--resume auto` can be given again whatever happened. Under `torchrun` it trains on several
    processes.
    """
    paths, source = split_text(options.data)
    given = options.run | {"family": options.family, "data": paths}
    return start_run(options, given, source, options.out)


def split_text(data: Any) -> tuple[list[Any] | None, TextSource | None]:
    """Text to train on as paths, or as a source of the program's own."""
    # A string is one path, and also a sequence of letters: it has to be looked at first.
    if isinstance(data, str | Path):
        return [data], None
    return (list(data) or None, None) if isinstance(data, Sequence) else (None, data)


def start_run(
    options: TrainOptions, given: dict[str, Any], source: TextSource | None, out: str | Path | None
) -> Pretrained:
    """A run with the settings that were given, from the beginning or from where it was stopped."""
    # Here and not above: these import torch, which `--help` does without.
    from etymon.runs.dry_run import rehearse
    from etymon.runs.folder import Job, resume_job
    from etymon.runs.run import run
    from etymon.runs.run_file import RunFile, assemble
    from etymon.runs.sizing import AUTO, choose_size
    from etymon.runs.text_data import TextData
    from etymon.text.filtering import filter_text
    from etymon.text.sources import text_source
    from etymon.training.progress import make_progress

    if options.steps is not None:
        if "budget" in given:
            raise EtymonError("give steps or a budget, not both", code="budget")
        # Run files know budgets alone, so that a resumed run has one thing to compare.
        given["budget"] = f"{options.steps}steps"
    # None, and not an empty list: what is not None beats the file of --config.
    given["ignore_config_key"] = options.ignore_config_key or None
    file = assemble(RunFile, given, options.config, options.set)
    folder = Path(out or Path("runs") / f"{file.family}-{file.size}")
    progress = make_progress(options.progress)
    job = Job(folder, file, progress, **options.placement())
    # Before the text is looked for: a resumed run has it in its store.
    if resumes(options.resume, folder):
        if options.dry_run:
            raise EtymonError("give --resume or --dry-run, not both: a resumed run does what it began with")
        job = resume_job(job)
        return run(job, TextData(job, source and filter_text(source, job.file)))
    if source is None:
        if not file.data:
            raise EtymonError(
                "there is no text to train on: give --data with files, folders or globs", code="no-data"
            )
        source = text_source(file.data, file)
    source = filter_text(source, file)
    if file.size == AUTO:
        job = replace(job, file=choose_size(file, source, job.note, device=options.device))
    if options.dry_run:
        return rehearse(job, TextData(job, source, beginning_only=True))
    return run(job, TextData(job, source))


def present(result: Pretrained, options: Any = None) -> None:
    # Of several processes, the first one speaks.
    if result.quiet:
        return
    if result.plan:
        for name, what in result.plan.items():
            print(f"{align_left(translated(name, 'result'), 14)} {translated(what, 'result')}")
        say("everything works; nothing was written")
        return
    if result.stopped:
        say(f"stopped at step {result.steps:,} and saved; go on with: {result.command}")
        return
    print()
    for name, value in result.metrics.items():
        say(f"validation {result.label_metric(name)}: {value:.4f}")
    if (bits := result.references.get("xz")) is not None:
        say(f"xz, a compressor that has read the same text, needs {bits:.4f} bits per byte; lower is better")
    say(f"model   {result.model_folder}")
    if result.report is not None:
        say(f"report  {result.report}")
