"""The parts of an evaluation suite: what is read, what a model does with it, and the score that comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.decoding import first_tokens
from etymon.generation.input_rows import InputRow, score_rows
from etymon.generation.likelihood import score_texts
from etymon.generation.sentence_scores import score_sentences, scoring_method
from etymon.generation.text import tokenizer_of
from etymon.lab.pairs import judge_pairs, read_pairs
from etymon.lab.probe import probe_model
from etymon.lab.probe_files import ProbeColumns, read_tasks
from etymon.runs.folder import Job, resume_job
from etymon.runs.run import run
from etymon.runs.run_file import assemble
from etymon.runs.table_data import TableData
from etymon.runs.task_file import TaskFile
from etymon.settings import option, settings
from etymon.settings.reading import EncodingSettings
from etymon.tables.table import read_table
from etymon.tasks.scores import mean_score
from etymon.text.charsets import read_whole
from etymon.text.reading import Reading
from etymon.text.sentences import sentence_starts

Kind = Literal["pairs", "finetune", "probe", "text", "last-word"]
# The last model is scored, and not the best by the rows that it is scored on.
LAST = "validate_every=1000000"


@settings
class SuitePart:
    """One score of a suite."""

    name: str = option(..., "of the column")
    kind: Kind = option(..., "what is done: pairs, finetune, probe, text or last-word")
    data: tuple[str, ...] = option(
        ..., "files or folders, below the suite's folder; of finetune, to train on"
    )
    validation: tuple[str, ...] = option((), "finetune: tables to score on")
    columns: tuple[str, ...] = option((), "names of the columns of files without a header")
    task: str | None = option(None, "finetune: classify, regress, tag, choose ...")
    options: dict[str, Any] = option(dict, "finetune: the task's options, such as the columns to read")
    metric: str | None = option(None, "finetune: what is scored (the task's own)")
    budget: str = option("3epochs", "finetune: how long, at most")
    batch: int | None = option(None, "finetune: rows of a step", ge=1)
    rows: int | None = option(
        None, "rows to train on, examples of a probe or pairs of a paradigm at most", ge=1
    )
    seed: int = option(0, "of fine-tuning and probing")
    characters: int | None = option(None, "text: so many of its beginning", ge=1)


@dataclass(frozen=True)
class PartScore:
    """A score; of 100 unless it `falls`."""

    value: float
    low: float | None
    high: float | None
    metric: str
    falls: bool = False
    count: int | None = None
    """Of pairs, rows, words or bytes."""
    details: dict[str, float] | None = None


@dataclass(frozen=True)
class PartInput:
    """A part with its files, and the model that it is about."""

    part: SuitePart
    files: list[Path]
    validation: list[Path]
    model_place: str
    """Of fine-tuning: the folder or hub id to begin with."""
    open_model: Callable[[], Model]
    run_folder: Path
    """For what a part leaves on its way."""
    on_progress: Callable[[str], None]
    how: EncodingSettings
    """What the bytes of its files mean."""


def score_pairs(given: PartInput) -> PartScore:
    pairs = read_pairs(given.files, how=given.how, most=given.part.rows)
    accuracies = judge_pairs(given.open_model(), pairs, given.part.name, on_progress=given.on_progress)
    whole = accuracies.overall["sum"]
    fields = {name: measures["sum"].value for name, measures in accuracies.fields.items()}
    metric = f"accuracy by {accuracies.method}"
    return PartScore(whole.value, whole.low, whole.high, metric, count=whole.pairs, details=fields)


def score_finetuning(given: PartInput) -> PartScore:
    """Trains a copy for the part's budget and scores the model of the last step. A run that was killed goes
    on from its last checkpoint."""
    part = given.part
    train, validation = (
        read_table(files, part.columns, given.how).rows
        for files in (given.files, given.validation or given.files)
    )
    if part.rows is not None and len(train) > part.rows:
        # Evenly spread: published tables may be sorted by label or by source.
        train = [train[place] for place in np.linspace(0, len(train) - 1, part.rows).round().astype(int)]
    from etymon.families.loading import read_shape

    settings_given = {
        "family": read_shape(given.model_place)[0].name,
        "start": given.model_place,
        "task": part.task,
        "options": dict(part.options) or None,
        "metrics": [part.metric] if part.metric else None,
        "budget": part.budget,
        "batch": part.batch,
        "seed": part.seed,
    }
    named = {name: value for name, value in settings_given.items() if value is not None}
    job = Job(given.run_folder, assemble(TaskFile, named, None, [LAST]))
    # A run that a kill has stopped left its file and its checkpoints.
    if (given.run_folder / "run.yaml").is_file():
        job = resume_job(job)
    given.on_progress(f"fine-tuning for {part.name}")
    result: Any = run(job, TableData(job, list(train), list(validation)))
    metric = part.metric or next(iter(result.scores))
    score = result.scores[metric]
    return PartScore(score.value, score.low, score.high, metric, score.falls, score.rows)


def score_probe(given: PartInput) -> PartScore:
    """The test accuracy of the layer that is best by validation."""
    files: list[str | Path] = list(given.files)
    examples, seed = given.part.rows or 5000, given.part.seed
    tasks = read_tasks(files, ProbeColumns(), examples=examples, seed=seed, how=given.how)
    probes = probe_model(
        given.open_model(), tasks, twin=False, seed=given.part.seed, on_progress=given.on_progress
    )
    task = probes.tasks[0]
    value, margin = 100 * task.best.accuracy, 100 * task.margin
    return PartScore(
        value, value - margin, value + margin, "accuracy", count=task.test, details={"layer": task.best.layer}
    )


def score_text(given: PartInput) -> PartScore:
    """Bits per byte of a text, read as a whole; of models without a likelihood, the pseudo-log-likelihood of
    its sentences, which is another thing and has another name."""
    reading = Reading(**given.how.reader_options)
    text = "\n".join(read_whole(path, reading) for path in given.files)[: given.part.characters]
    model = given.open_model()
    method = scoring_method(model)
    given.on_progress(f"reading {given.part.name}")
    if method == "likelihood":
        (score,) = score_texts(model, [text])
        # `bits_per_byte` counts the bytes of the tokens that were predicted.
        return PartScore(score.bits_per_byte or 0.0, None, None, "bits per byte", True, score.bytes)
    starts = sentence_starts(text).tolist()
    sentences = [text[start:stop].strip() for start, stop in zip(starts, [*starts[1:], len(text)])]
    limit = None if model.positions is None else model.positions - 8
    tokenizer = tokenizer_of(model)
    fitting = [each for each in sentences if each and (limit is None or len(tokenizer.encode(each)) <= limit)]
    if not fitting:
        raise EtymonError(
            f"no sentence of {given.part.name} fits into the model's {model.positions} positions"
        )
    scores = score_sentences(model, fitting)
    size = sum(score.bytes for score in scores)
    bits = -sum(score.log_prob for score in scores) / math.log(2) / size
    left_out = {"sentences too long": float(len([each for each in sentences if each]) - len(fitting))}
    return PartScore(bits, None, None, f"bits per byte by {method}", True, size, left_out)


def score_last_words(given: PartInput) -> PartScore:
    """How often the likeliest tokens in the place of a text's last word are that word (LAMBADA)."""
    model = given.open_model()
    tokenizer, method = tokenizer_of(model), scoring_method(model)
    texts = [text.strip() for text in read_table(given.files, given.part.columns, given.how).texts("text")]
    if method not in ("likelihood", "pseudo-likelihood"):
        raise EtymonError(f"{model.family.title} does not predict the last word of a text in one step")
    rows = []
    room = (model.window or 10**9) - 1
    for number, text in enumerate(texts):
        before, _, _ = text.rpartition(" ")
        context, whole = tokenizer.encode(before), tokenizer.encode(text)
        # The word as it stands in the text: with its space.
        shared = next((n for n, pair in enumerate(zip(context, whole)) if pair[0] != pair[1]), len(context))
        target = whole[shared:]
        if method == "likelihood":
            ids = np.concatenate((np.array(first_tokens(model), np.int32), whole[:-1]))[-room:]
            rows.append(InputRow(number, ids, len(ids) - len(target), target))
            continue
        mask = np.full(len(target), tokenizer.id("mask"), np.int32)
        kept = whole[:shared][-(room - len(target) - 4) :]
        framed = tokenizer.framing.frame(np.concatenate((kept, mask)))
        first = int(np.flatnonzero(framed.ids == tokenizer.id("mask"))[-len(target)])
        rows.append(InputRow(number, framed.ids, first, target))

    def ranks(head: Any, hidden_ND: Tensor, at: Tensor | None, targets_n: Tensor, context: Any) -> Tensor:
        return head.ranks(hidden_ND, at, targets_n, context)

    # All tokens of the word have to be the likeliest, as the task's authors counted.
    right = []
    for _, _, places in score_rows(model, rows, ranks):
        right.append(100.0 * (max(places) == 0))
        given.on_progress(f"{given.part.name}: {len(right):,} of {len(rows):,}")
    score = mean_score(right, 1000)
    how = "accuracy" if method == "likelihood" else "accuracy with masks"
    return PartScore(score.value, score.low, score.high, how, count=len(right))


KINDS: dict[Kind, Callable[[PartInput], PartScore]] = {
    "pairs": score_pairs,
    "finetune": score_finetuning,
    "probe": score_probe,
    "text": score_text,
    "last-word": score_last_words,
}


def part_files(part: SuitePart, folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Where a part's files are, below the first of the folders that has them."""

    def find(name: str) -> Path:
        for folder in folders:
            if (folder / name).exists():
                return folder / name
        raise EtymonError(
            f"{part.name} needs {name}, and it is not in {folders[0]}: say --suite-data DIR (or "
            "ETYMON_SUITES) with the folder that holds it; nothing is downloaded"
        )

    return [find(name) for name in part.data], [find(name) for name in part.validation]
