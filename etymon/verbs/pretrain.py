"""`etymon pretrain`: from raw text to a trained model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from etymon.data.sources import TextSource
    from etymon.families.model import Model


@dataclass
class Pretrained:
    """What a run gave: the model's folder, its figures, and where to look."""

    folder: Path
    model_folder: Path
    report: Path | None
    model: Model
    metrics: dict[str, float]
    steps: int
    stopped: bool
    command: str = ""
    """How to go on, when it was stopped."""
    samples: list[tuple[int, str]] = field(default_factory=list)


def pretrain(
    family: Annotated[str, "gpt2, bert or t5"],
    *,
    data: Annotated[
        Sequence[str | Path] | Path | TextSource | None,
        "text files, folders or globs (.txt, .md, .jsonl, also gzipped)",
    ] = None,
    size: Annotated[str, "a published or pocket size of the family"] = "pocket",
    out: Annotated[str | Path | None, "the run's folder (runs/FAMILY-SIZE)"] = None,
    budget: Annotated[
        str | None, "time to train for, such as 90s, 10m or 2h (10m if no steps are given)"
    ] = None,
    steps: Annotated[int | None, "optimiser steps to take, instead of a budget"] = None,
    batch: Annotated[int | None, "samples a step (about 4,096 tokens unless told)"] = None,
    slices: Annotated[int, "parts that a step is computed in, to need less memory"] = 1,
    length: Annotated[int | None, "tokens a sample (up to 256, as the model allows)"] = None,
    learning_rate: Annotated[float | None, "peak rate (the size's own)"] = None,
    objective: Annotated[str | None, "what to learn from the text (the family's own)"] = None,
    tokenizer: Annotated[
        str | Path | None, "folder of a tokenizer to use (one is trained on the text)"
    ] = None,
    vocabulary: Annotated[int | None, "size of the tokenizer to train (the size's own)"] = None,
    documents: Annotated[Literal["file", "blank", "line"], "what ends a document in a text file"] = "file",
    column: Annotated[str, "the field of .jsonl records that holds the text"] = "text",
    validation: Annotated[float, "share of the text held out to judge by"] = 0.05,
    validate_every: Annotated[int | None, "steps between validations (about ten a run)"] = None,
    save_every: Annotated[int | None, "steps between checkpoints (about four a run)"] = None,
    seed: Annotated[int, "of everything that is drawn"] = 0,
    resume: Annotated[bool, "go on with a stopped run in OUT, exactly"] = False,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Pretrained:
    """Train a model on your own text.

    Trains a tokenizer, prepares the text, then the model, and writes a Hugging Face folder OUT/model and OUT/report.html.
    Ctrl-C finishes the step and saves; `--resume` goes on from there as if nothing had happened.
    """
    from etymon.data.sources import TextFiles
    from etymon.errors import EtymonError
    from etymon.verbs.pretraining import Pretraining, RunFile

    target = Path(out or Path("runs") / f"{family}-{size}")
    if isinstance(data, str | Path):
        data = [data]
    source = None if data is None or isinstance(data, Sequence) else data
    paths = tuple(str(path) for path in data) if isinstance(data, Sequence) else ()
    given: dict[str, Any] = {
        "family": family, "size": size, "data": list(paths), "documents": documents,
        "column": column, "validation": validation, "objective": objective, "length": length, "batch": batch,
        "slices": slices, "learning_rate": learning_rate, "vocabulary": vocabulary, "steps": steps,
        "budget": budget, "validate_every": validate_every, "save_every": save_every, "seed": seed,
        "tokenizer": None if tokenizer is None else str(tokenizer),
    }  # fmt: skip
    if resume:
        return Pretraining.resumed(target, RunFile.checked(given), source, progress).go()
    if source is None:
        if not paths:
            raise EtymonError("there is no text to train on: give --data with files, folders or globs")
        source = TextFiles(paths, documents, column)
    if steps is None and budget is None:
        given["budget"] = "10m"
    return Pretraining(target, RunFile.checked(given), source, progress).go()


def present(result: Pretrained) -> None:
    if result.stopped:
        print(f"stopped at step {result.steps:,} and saved; go on with: {result.command}")
        return
    print()
    for name, value in result.metrics.items():
        print(f"validation {name.replace('_', ' ')}: {value:.4f}")
    print(f"model   {result.model_folder}")
    if result.report is not None:
        print(f"report  {result.report}")
