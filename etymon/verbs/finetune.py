"""`etymon finetune`: teach a model a task, from a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from etymon.errors import EtymonError
from etymon.runs.result import Finetuned
from etymon.settings import PathText, Spelling, argument, group, option, settings
from etymon.settings.tasks import INPUT_COLUMNS, LEARNING, TARGET_COLUMNS, RowsLike, task_options
from etymon.settings.training import FinetuneSettings, TrainOptions
from etymon.verbs.pretrain import present as present_run
from etymon.verbs.terminal import say
from etymon.verbs.verb import resumes, verb


@settings
class FinetuneOptions(TrainOptions):
    model: str | Path = argument(
        "folder, run or hub id of a model; with --from-scratch, the name of a family"
    )
    train: RowsLike = option(
        None, "a table (.csv .tsv .jsonl .parquet), or parallel text files: train.de train.en"
    )
    validation: RowsLike = option(None, "the same, to validate on")
    mixture: PathText = option(
        None, "YAML file of several tasks and objectives to learn together, instead of --task and --train"
    )
    task_options: dict[str, Any] = group(task_options(), f"{LEARNING} {TARGET_COLUMNS} {INPUT_COLUMNS}")
    from_scratch: bool = option(False, "begin with an untrained model, and train its tokenizer on the table")
    out: PathText = option(None, "the run's folder (runs/TASK-FAMILY)")
    epochs: float | None = option(None, "passes over the table, instead of --budget")
    run: dict[str, Any] = group(FinetuneSettings, without="ignore_config_key start")
    place: Literal["input", "output", "both"] | None = option(
        None, "with --features: where they join, the BiLSTM's input, its output, or both (input)"
    )
    seeds: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(lambda value: (value,) if isinstance(value, int) else value),
        Spelling("Sequence[int] | int | None", list[int]),
    ] = option(
        None, "train several models, for a mean and its deviation: 3 (that many), or 3 5 8 (of these seeds)"
    )


@verb(FinetuneOptions)
def finetune(options: FinetuneOptions) -> Finetuned:
    """Some rows are held out, and validations answer some of them. The model with the best first metric is
    kept (the last one, where that is as good within the standard error). It answers all held-out rows and
    is written as a Hugging Face folder OUT/model, with a page OUT/report.html. Ctrl-C finishes the step and
    saves; `--resume` then goes on exactly.
    """
    from etymon.config import read_yaml
    from etymon.families import REGISTRY, get_family
    from etymon.families.loading import read_shape
    from etymon.plugin_settings import resolve
    from etymon.runs.dry_run import rehearse
    from etymon.runs.folder import Job, resume_job
    from etymon.runs.run import run
    from etymon.runs.run_file import assemble, read_run_file, require_plugins
    from etymon.runs.table_data import TableData
    from etymon.runs.task_file import TaskFile
    from etymon.tables.table import rows_or_paths
    from etymon.tasks.text2text import writes_text
    from etymon.training.progress import make_progress

    train, validation = (
        None if data is None else rows_or_paths(data) for data in (options.train, options.validation)
    )
    model, out, resume, dry_run = options.model, options.out, options.resume, options.dry_run
    given = dict(options.run)
    amounts = {"budget": given.get("budget"), "epochs": options.epochs, "steps": options.steps}
    if sum(amount is not None for amount in amounts.values()) > 1:
        raise EtymonError("give --budget, --epochs or --steps, not several of them", code="budget")
    if options.epochs is not None:
        given["budget"] = f"{options.epochs:g}epochs"
    if options.steps is not None:
        given["budget"] = f"{options.steps}steps"

    # The family decides about defaults: that of the model, or of the run to go on with.
    from_scratch = options.from_scratch
    # `auto` is decided here already, since the family may come from the run that goes on.
    if out is not None and options.seeds is None:
        resume = resumes(resume, Path(out))
    if from_scratch:
        # By its one name: GPT-2 and gpt2 are the same family.
        family = get_family(resolve("family", str(model))).name
    elif resume and out is not None and options.seeds is None:
        require_plugins(Path(out), changed=options.changed_plugins)
        before = read_run_file(Path(out), TaskFile)
        family = before.family  # the model that it began with need not be there any more
        from_scratch = before.start is None and str(model) == family
    else:
        if "size" in given:
            raise EtymonError(f"{model} has its size: leave --size out, or begin anew with --from-scratch")
        try:
            family = read_shape(model)[0].name
        except EtymonError as error:
            if str(model) not in REGISTRY:
                raise
            raise EtymonError(
                f"{error}; to begin with an untrained model of this family, say --from-scratch",
                code=error.code,
            ) from error

    overrides = list(options.set)
    if options.place is not None:
        has_features = (
            "features" in given
            or (options.config is not None and "features" in read_yaml(options.config))
            or any(override.startswith("features.") for override in overrides)
        )
        if not has_features and resume is not True and get_family(family).features is None:
            raise EtymonError(
                f"{family} reads no features unless told, and --place is where they enter: say --features "
                "mix too, or leave --place out"
            )
        # First, so that --set features.place=... still beats it.
        overrides.insert(0, f"features.place={options.place}")
    given |= {
        "family": family,
        "start": None if from_scratch else model,
        "train": _paths(train),
        "validation": _paths(validation),
        "mixture": None if options.mixture is None else read_yaml(options.mixture),
        "options": options.task_options or None,
        "ignore_config_key": options.ignore_config_key or None,
    }
    file = assemble(TaskFile, given, options.config, overrides)
    # Unless told, a model learns to write texts, which readers cannot: then nobody has asked for that.
    is_told = resume or options.config or any(given.get(name) for name in ("task", "mixture"))
    if not is_told and file.task == "text2text" and not writes_text(get_family(family)):
        raise EtymonError(
            f"say what {get_family(family).title} is to learn: --task classify, tag, answer, choose or "
            "regress (etymon tasks lists what each family can)"
        )
    folder = Path(out or Path("runs") / f"{file.task}-{file.family}")
    progress = make_progress(options.progress)
    job = Job(folder, file, progress, **options.placement())
    if options.seeds is not None:
        from etymon.runs.seeds import finetune_seeds

        seeds = options.seeds
        if "seed" in given or dry_run:
            raise EtymonError("give --seed, --dry-run or --seeds, not several of them")
        if len(seeds) == 1 and seeds[0] < 2:
            raise EtymonError(
                f"--seeds {seeds[0]} asks for that many models, and a mean needs two or more: say --seeds 3, "
                "or --seed N for one model"
            )
        # A single number says how many, several say which.
        numbers = [*range(seeds[0])] if len(seeds) == 1 else list(seeds)
        return finetune_seeds(job, numbers, _rows(train), _rows(validation), resume=bool(resume))
    resume = resumes(resume, folder)
    if resume and dry_run:
        raise EtymonError("give --resume or --dry-run, not both: a resumed run does what it began with")
    if resume:
        job = resume_job(job)
    is_mixture = job.file.mixture is not None
    if is_mixture and dry_run:
        raise EtymonError("a mixture cannot be rehearsed: try it with --steps 1")
    if is_mixture:
        from etymon.runs.mixture_data import MixtureData  # with objectives that a single task does not need

        return run(job, MixtureData(job))
    data = TableData(job, _rows(train), _rows(validation))
    return rehearse(job, data) if dry_run else run(job, data)


def _paths(data: Any) -> list[str] | None:
    # Rows that a program holds have no place that a run file could name.
    return None if data is None or _rows(data) is not None else [str(path) for path in data]


def _rows(data: Any) -> list[Mapping[str, Any]] | None:
    """Rows that the program holds itself."""
    return data if data and isinstance(data[0], Mapping) else None


def present(result: Finetuned, options: FinetuneOptions) -> None:
    present_run(result)
    if result.seeds:
        from etymon.runs.seeds import spread

        for seed, metrics in result.seeds.items():
            say(f"seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in metrics.items()))
        summary = spread(result.seeds)
        for name, mean in summary["mean"].items():
            print(f"{name} {mean:.2f} ± {summary['deviation'][name]:.2f}")
        return
    # Baselines first: the scores of the model are then read against them.
    for who, scores in result.beside.items():
        say(f"{who}: " + ", ".join(f"{name} {score.value:.2f}" for name, score in scores.items()))
    for name, score in result.scores.items():
        interval = "" if score.low is None else f", 95% of resamples from {score.low:.2f} to {score.high:.2f}"
        how = f" ({score.signature})" if score.signature else ""
        say(f"{name} {score.value:.2f} of {score.counted}{interval}{how}")
