"""`etymon finetune`: teach a model a task, from a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.runs.result import Finetuned
from etymon.verbs import options
from etymon.verbs.pretrain import present as present_run


@options.opens_models
def finetune(
    model: Annotated[
        str | Path, "folder, run or hub id of a model; with --from-scratch, the name of a family"
    ],
    *,
    task: Annotated[
        str | None,
        "what to learn: classify, regress, choose, tag, answer, text2text (text2text), language-model",
    ] = None,
    train: Annotated[
        options.Rows,
        "a table (.csv .tsv .jsonl .parquet), or parallel text files: train.de train.en",
    ] = None,
    validation: Annotated[options.Rows, "the same, to judge by"] = None,
    mixture: Annotated[
        Path | None,
        "a YAML file of several tasks and objectives to learn together, instead of task and train",
    ] = None,
    text: options.Text = None,
    second: options.Second = None,
    label: options.Label = None,
    multi_label: options.MultiLabel = None,
    context: options.Context = None,
    choices: options.Choices = None,
    tokens: options.Tokens = None,
    tags: options.Tags = None,
    entities: options.Entities = None,
    question: options.Question = None,
    answers: options.Answers = None,
    source: options.Source = None,
    target: options.Target = None,
    prefix: options.Prefix = None,
    columns: options.Columns = None,
    metric: Annotated[
        Sequence[str] | str | None,
        "accuracy, f1, matthews, pearson, bleu, rougeL, loss ...; the first decides which model is kept (the task's own)",
    ] = None,
    from_scratch: Annotated[
        bool, "begin with an untrained model, and train its tokenizer on the table"
    ] = False,
    size: Annotated[str | None, "from scratch: a published or pocket size of the family (pocket)"] = None,
    out: Annotated[str | Path | None, "the run's folder (runs/TASK-FAMILY)"] = None,
    budget: Annotated[str | None, "how long: 90s, 10m, 2h; 5000steps, 20Mtokens, 3epochs (10m)"] = None,
    epochs: Annotated[float | None, "passes over the table, instead of a budget"] = None,
    steps: Annotated[int | None, "optimiser steps to take, instead of a budget"] = None,
    batch: Annotated[int | None, "rows a step (32; text2text counts tokens)"] = None,
    batch_tokens: Annotated[
        int | None, "tokens a step, of all texts together (4096; fewer of a small table)"
    ] = None,
    slices: options.Slices = None,
    length: Annotated[
        int | None, "tokens of a text at most; what is longer is cut (512, as the model allows)"
    ] = None,
    hold_out: Annotated[
        float | None, "share of the rows to judge by, without --validation (0.05; of small tables up to 0.2)"
    ] = None,
    baselines: Annotated[
        bool | None, "classify, regress: score a majority, TF-IDF and a typo baseline beside the model (yes)"
    ] = None,
    beams: Annotated[int | None, "of the last validation (1: greedy, as those on the way)"] = None,
    way: Annotated[
        Literal["auto", "head", "text"] | None,
        "how answers are given: by a head, or written (as the family was published)",
    ] = None,
    smoothing: Annotated[float | None, "classify, text2text: label smoothing (the family's own)"] = None,
    class_weights: Annotated[
        Literal["none", "balanced"] | None, "classify: rare labels count more (none)"
    ] = None,
    symmetric: Annotated[bool | None, "read both orders of a pair (GPT-1: of similarity)"] = None,
    language_model: Annotated[
        float | None, "weight of language modelling beside the task (GPT-1: 0.5)"
    ] = None,
    r_drop: Annotated[float | None, "weight of the divergence between two passes of dropout (0)"] = None,
    adversarial: Annotated[
        Literal["fgm", "pgd", "freelb"] | None, "train on word vectors that are moved against the model, too"
    ] = None,
    frozen: Annotated[
        Sequence[str] | None, "patterns of parameters that are not trained: 'body.embeddings.*'"
    ] = None,
    unfreeze: Annotated[
        float | None, "begin with the head alone; from the top down, all train after this share of the steps"
    ] = None,
    lora: Annotated[
        int | None, "train adapters of this rank instead of the weights, saved as PEFT does"
    ] = None,
    merge: Annotated[
        bool | None, "keep the whole model with its adapters added in, not the adapters alone"
    ] = None,
    features: Annotated[
        Literal["mix", "last-four", "last"] | None,
        "the body's layers feed a BiLSTM instead of a head (ELMo: mix)",
    ] = None,
    place: Annotated[Literal["input", "output", "both"] | None, "features: where they enter (input)"] = None,
    tune_body: Annotated[bool | None, "features: train the body, too; it is frozen otherwise"] = None,
    teacher: Annotated[
        str | Path | None, "a model that was fine-tuned for the task: its answers are followed, too"
    ] = None,
    patience: Annotated[int | None, "stop after so many validations without a better one"] = None,
    tokenizer: Annotated[
        str | Path | None, "folder of a tokenizer, or the kind to train (the family's)"
    ] = None,
    vocabulary: Annotated[int | None, "size of the tokenizer to train (the size's own)"] = None,
    source_tokenizer: Annotated[str | Path | None, "the same for a source with words of its own"] = None,
    source_vocabulary: Annotated[int | None, "the same: size of the source's own tokenizer"] = None,
    optimiser: options.Optimiser = None,
    learning_rate: Annotated[float | None, "peak rate (the family's own)"] = None,
    weight_decay: Annotated[float | None, "decoupled weight decay (the family's own)"] = None,
    layer_decay: Annotated[float | None, "factor by which lower layers learn more slowly"] = None,
    schedule: Annotated[str | None, "constant, linear, cosine, inverse-square-root, noam or wsd"] = None,
    warmup: Annotated[float | None, "share of the steps in which the rate rises"] = None,
    clip: Annotated[float | None, "largest norm of the gradient, 0 for no limit (the family's own)"] = None,
    validate_every: Annotated[int | None, "steps between validations (about ten a run)"] = None,
    save_every: Annotated[int | None, "steps between checkpoints (with every validation)"] = None,
    keep: Annotated[int | None, "newest checkpoints to keep, beside the best (2)"] = None,
    tensorboard: Annotated[bool | None, "write TensorBoard events too"] = None,
    workers: Annotated[int, "processes that prepare samples (a thread does it unless told)"] = 0,
    ignore_config_key: options.IgnoreConfigKey = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    seed: Annotated[int | None, "of everything that is drawn (0)"] = None,
    seeds: Annotated[
        Sequence[int] | int | None,
        "train so many models (3), or those of these seeds (3 5 8), for a mean and its deviation",
    ] = None,
    config: Annotated[Path | None, "a YAML file with any of these settings; options beat it"] = None,
    set: Annotated[
        Sequence[str] | None, "override a setting by its dotted name: options.separator=' => '"
    ] = None,
    resume: options.Resume = False,
    dry_run: Annotated[bool, "try everything once, train nothing, and say what would be done"] = False,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Finetuned:
    """Teach a model a task, from a table of examples.

    Validations really answer some of the held-out rows; the best model by the first metric is kept, scored on all of them
    and written as a Hugging Face folder OUT/model, with OUT/report.html beside. Ctrl-C finishes the step and saves;
    `--resume` goes on as if nothing had happened.
    """
    asked = dict(locals())
    from etymon.config import read_yaml
    from etymon.families import REGISTRY, get_family
    from etymon.families.loading import read_shape
    from etymon.runs.dry_run import rehearse
    from etymon.runs.folder import Job, resume_job
    from etymon.runs.mixture_data import MixtureData
    from etymon.runs.run import run
    from etymon.runs.run_file import assemble, begun, settings_of
    from etymon.runs.table_data import TableData
    from etymon.runs.task_file import TaskFile
    from etymon.tables.table import rows_or_paths
    from etymon.training.progress import make_progress

    train, validation = (None if given is None else rows_or_paths(given) for given in (train, validation))
    asked |= {"train": train, "validation": validation}
    amounts = [amount for amount in (budget, epochs, steps) if amount is not None]
    if len(amounts) > 1:
        raise EtymonError("give --budget, --epochs or --steps, not several of them")
    if epochs is not None:
        budget = f"{epochs:g}epochs"
    if steps is not None:
        budget = f"{steps}steps"
    if out is not None and seeds is None:
        resume = options.resumes(resume, Path(out))
    if from_scratch:
        family = get_family(str(model)).name
    elif resume and out is not None and seeds is None:
        before = begun(Path(out), TaskFile)
        family = before.family  # the model that it began with need not be there any more
        from_scratch = before.start is None and str(model) == family
    else:
        if size is not None:
            raise EtymonError(f"{model} has its size: leave --size out, or begin anew with --from-scratch")
        try:
            family = read_shape(model)[0].name
        except EtymonError as error:
            if str(model) not in REGISTRY:
                raise
            raise EtymonError(
                f"{error}; to begin with an untrained model of this family, say --from-scratch"
            ) from error
    overrides = [] if place is None else [f"features.place={place}"]
    overrides += set or ()
    told = features is not None or (config is not None and "features" in read_yaml(config))
    told = told or any(each.startswith("features.") for each in set or ())
    if place is not None and not told and resume is not True and get_family(family).features is None:
        raise EtymonError(
            f"{family} reads no features unless told, and --place is where they enter: say --features mix too, or leave --place out"
        )
    given = settings_of(
        TaskFile, asked, family=family, start=None if from_scratch else model, budget=budget,
        train=_paths(train), validation=_paths(validation), mixture=None if mixture is None else read_yaml(mixture),
        columns=None if columns is None else columns.split(","), text=None,  # which is a column here
        metrics=[metric] if isinstance(metric, str) else metric or None, options=options.task_options(asked) or None,
        adversarial=None if adversarial is None else {"name": adversarial}, lora=None if lora is None else {"rank": lora},
        features=None if features is None else {"source": features},
    )  # fmt: skip
    file = assemble(TaskFile, given, config, tuple(overrides))
    folder = Path(out or Path("runs") / f"{file.task}-{file.family}")
    job = Job(folder, file, make_progress(progress), device=device, workers=workers)
    if seeds is not None:
        if seed is not None or dry_run:
            raise EtymonError("give --seed, --dry-run or --seeds, not several of them")
        from etymon.runs.seeds import finetune_seeds

        wanted = [seeds] if isinstance(seeds, int) else list(seeds)
        if len(wanted) == 1 and wanted[0] < 2:
            raise EtymonError(
                f"--seeds {wanted[0]} asks for that many models, and a mean needs two or more: say --seeds 3, or --seed N for one model"
            )
        every_seed = [*range(wanted[0])] if len(wanted) == 1 else wanted
        return finetune_seeds(job, every_seed, _rows(train), _rows(validation), resume=bool(resume))
    resume = options.resumes(resume, folder)
    if resume and dry_run:
        raise EtymonError("give --resume or --dry-run, not both: a resumed run does what it began with")
    if resume:
        job = resume_job(job)
    is_mixture = job.file.mixture is not None
    if is_mixture and dry_run:
        raise EtymonError("a mixture cannot be rehearsed: try it with --steps 1")
    data = MixtureData(job) if is_mixture else TableData(job, _rows(train), _rows(validation))
    return rehearse(job, data) if dry_run else run(job, data)


def _paths(given: Any) -> list[str] | None:
    return None if given is None or _rows(given) is not None else [str(path) for path in given]


def _rows(given: Any) -> list[Mapping[str, Any]] | None:
    """Rows that the program holds itself."""
    return given if given and isinstance(given[0], Mapping) else None


def present(result: Finetuned) -> None:
    present_run(result)
    if result.seeds:
        from etymon.runs.seeds import spread

        for seed, metrics in result.seeds.items():
            print(f"seed {seed}: " + ", ".join(f"{name} {value:.2f}" for name, value in metrics.items()))
        found = spread(result.seeds)
        for name, mean in found["mean"].items():
            print(f"{name} {mean:.2f} ± {found['deviation'][name]:.2f}")
        return
    for who, scores in result.beside.items():
        print(f"{who}: " + ", ".join(f"{name} {score.value:.2f}" for name, score in scores.items()))
    for name, score in result.scores.items():
        interval = "" if score.low is None else f", 95% of resamples from {score.low:.2f} to {score.high:.2f}"
        how = f" ({score.signature})" if score.signature else ""
        print(f"{name} {score.value:.2f} of {score.counted}{interval}{how}")
