"""`etymon pretrain`: from raw text to a trained model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.verbs.options import (
    Column,
    Documents,
    Errors,
    IgnoreConfigKey,
    Optimiser,
    Resume,
    Slices,
    opens_models,
    resumes,
)

if TYPE_CHECKING:
    from etymon.text.sources import TextSource


@opens_models
def pretrain(
    family: Annotated[
        str,
        "gpt1, gpt2, gpt3, gptj, transformer-xl, xlnet, elmo, bert, roberta, albert, distilbert, electra, bart, transformer, rnn or t5",
    ],
    *,
    data: Annotated[
        Sequence[str | Path] | Path | TextSource | None,
        "text files, folders or globs (.txt .md .jsonl .csv .tsv .parquet, also compressed), or a prepared store",
    ] = None,
    size: Annotated[str | None, "a published or pocket size of the family (pocket)"] = None,
    out: Annotated[str | Path | None, "the run's folder (runs/FAMILY-SIZE)"] = None,
    budget: Annotated[
        str | None, "how long: 90s, 10m, 2h; 5000steps, 20Mtokens, 3epochs, 100Mwords, 20Tflops (10m)"
    ] = None,
    steps: Annotated[int | None, "optimiser steps to take, instead of a budget"] = None,
    batch: Annotated[int | None, "samples a step (about 2,048 tokens unless told)"] = None,
    slices: Slices = None,
    length: Annotated[int | None, "tokens a sample (up to 256, as the model allows)"] = None,
    objective: Annotated[str | None, "what to learn from the text (the family's own)"] = None,
    from_: Annotated[str | Path | None, "folder or hub id of a model to go on from"] = None,
    tokenizer: Annotated[
        str | Path | None,
        "folder of a tokenizer, or the kind to train on the text: char, byte, ... (the family's)",
    ] = None,
    vocabulary: Annotated[
        int | None, "size of the tokenizer to train (the size's own); with --from, to grow to"
    ] = None,
    documents: Documents = None,
    column: Column = None,
    errors: Errors = None,
    validation: Annotated[float | None, "share of the text held out to judge by (0.05)"] = None,
    optimiser: Optimiser = None,
    learning_rate: Annotated[float | None, "peak rate (the size's own)"] = None,
    weight_decay: Annotated[float | None, "decoupled weight decay (the family's own)"] = None,
    layer_decay: Annotated[float | None, "factor by which lower layers learn more slowly"] = None,
    unfreeze: Annotated[
        float | None, "share of the steps after which all layers train, from the top down"
    ] = None,
    adversarial: Annotated[
        Literal["fgm", "pgd", "freelb"] | None,
        "also learn from word vectors moved to where the loss is larger",
    ] = None,
    schedule: Annotated[
        str | None, "constant, linear, cosine, inverse-square-root, noam, wsd or wsd-sqrt"
    ] = None,
    warmup: Annotated[float | None, "share of the steps in which the rate rises"] = None,
    clip: Annotated[float | None, "largest norm of the gradient, 0 for no limit (the family's own)"] = None,
    validate_every: Annotated[int | None, "steps between validations (about ten a run)"] = None,
    save_every: Annotated[int | None, "steps between checkpoints (with every validation)"] = None,
    save_at: Annotated[Sequence[str] | None, "keep the model at these amounts: 1Mwords,2Mwords"] = None,
    keep: Annotated[int | None, "newest checkpoints to keep, beside the best (2)"] = None,
    tensorboard: Annotated[bool | None, "write TensorBoard events too"] = None,
    workers: Annotated[int, "processes that prepare samples (a thread does it unless told)"] = 0,
    ignore_config_key: IgnoreConfigKey = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    seed: Annotated[int | None, "of everything that is drawn (0)"] = None,
    config: Annotated[Path | None, "a YAML file with any of these settings; options beat it"] = None,
    set: Annotated[Sequence[str] | None, "override a setting by its dotted name: shape.layers=6"] = None,
    resume: Resume = False,
    dry_run: Annotated[bool, "try everything once, train nothing, and say what would be done"] = False,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Pretrained:
    """Train a model on your own text.

    Trains a tokenizer, prepares the text, then the model, and writes a Hugging Face folder OUT/model and OUT/report.html.
    Ctrl-C finishes the step and saves; `--resume` goes on from there as if nothing had happened, and a command with
    `--resume auto` can be given again whatever happened. Under `torchrun` the same command trains on several processes.
    """
    asked = dict(locals())
    from etymon.runs.run_file import RunFile, settings_of

    paths, source = texts(data)
    if steps is not None:
        if budget is not None:
            raise EtymonError("give steps or a budget, not both")
        if not isinstance(steps, int):
            raise EtymonError(f"steps must be a whole number, not {steps!r}")
        if steps < 1:
            raise EtymonError(f"steps must be at least 1, not {steps}")
        budget = f"{steps}steps"
    given = settings_of(
        RunFile, asked, data=paths, budget=budget, start=from_,
        adversarial={"name": adversarial} if adversarial else None,
        save_at=[part for each in save_at for part in each.split(",")] if save_at else None,
    )  # fmt: skip
    return started(
        given, source, out=out, config=config, set=set, resume=resume, dry_run=dry_run,
        progress=progress, device=device, workers=workers,
    )  # fmt: skip


def texts(data: Any) -> tuple[list[Any] | None, TextSource | None]:
    """Text to train on: what names files, or a source of the program's own."""
    if isinstance(data, str | Path):
        return [data], None
    return (list(data) or None, None) if isinstance(data, Sequence) else (None, data)


def started(
    given: Mapping[str, Any],
    source: TextSource | None = None,
    *,
    out: str | Path | None,
    config: Path | None,
    set: Sequence[str] | None,
    resume: bool | Literal["auto"],
    dry_run: bool,
    progress: Literal["auto", "rich", "plain", "silent"],
    device: str | None,
    workers: int,
) -> Pretrained:
    """Runs what was asked for, from the beginning or from where it was stopped."""
    from etymon.runs.dry_run import rehearse
    from etymon.runs.folder import Job, resume_job
    from etymon.runs.run import run
    from etymon.runs.run_file import RunFile, assemble
    from etymon.runs.text_data import TextData
    from etymon.text.sources import text_source
    from etymon.training.progress import make_progress

    file = assemble(RunFile, given, config, tuple(set or ()))
    target = Path(out or Path("runs") / f"{file.family}-{file.size}")
    job = Job(target, file, make_progress(progress), device=device, workers=workers)
    resume = resumes(resume, target)
    if resume and dry_run:
        raise EtymonError("give --resume or --dry-run, not both: a resumed run does what it began with")
    if resume:
        job = resume_job(job)
        return run(job, TextData(job, source))
    if source is None:
        if not file.data:
            raise EtymonError("there is no text to train on: give --data with files, folders or globs")
        source = text_source(file.data, file.documents, file.column, file.errors)
    if dry_run:
        return rehearse(job, TextData(job, source, beginning_only=True))
    return run(job, TextData(job, source))


def present(result: Pretrained) -> None:
    if result.quiet:
        return
    if result.plan:
        for name, what in result.plan.items():
            print(f"{name:<14} {what}")
        print("everything works; nothing was written")
        return
    if result.stopped:
        print(f"stopped at step {result.steps:,} and saved; go on with: {result.command}")
        return
    print()
    for name, value in result.metrics.items():
        print(f"validation {name.replace('_', ' ')}: {value:.4f}")
    print(f"model   {result.model_folder}")
    if result.report is not None:
        print(f"report  {result.report}")
