"""Fine-tuning a classifier on SST-2, and answering with it, beside the `Trainer` of Transformers.

A BERT of base width with six layers (first values drawn, the same weights on both sides), batches of 32 rows, dropout 0.1, AdamW, gradients clipped.
The peer pads every batch to its longest row. Every side has a process of its own, with its texts as tokens before it begins to train. Answers begin
from texts on both sides. Rounds alternate; a round is 8 steps, or answers to 320 validation rows.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

import etymon
from benchmarks.harness import THREADS, Comparison, Seconds, answer, in_turn, needed_corpora, peers, sized
from benchmarks.sentence_encoding import model_folder
from etymon.text.tokenizer import Tokenizer

ROWS, STEPS, ANSWERED, SEED = sized((32, 8, 320, 0), (4, 1, 8, 0))
TRAINED, ROUNDS, WARMUP = sized((20_000, 5, 0), (40, 1, 0))
SHAPE = {
    **sized({"dim": 768, "layers": 6, "heads": 12, "inner_dim": 3072}, {"dim": 32, "layers": 1, "heads": 2, "inner_dim": 64}),
    "vocabulary": 30522,
}  # fmt: skip


def table(split: str) -> list[dict[str, Any]]:
    with open(
        needed_corpora("SST-2") / "glue" / "SST-2" / f"{split}.tsv", encoding="utf-8", newline=""
    ) as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [{"text": row["sentence"].strip(), "label": row["label"]} for row in rows]


def ours(folder: Path, what: str) -> Callable[[], Seconds]:
    from etymon.families.loading import load
    from etymon.tables.table import read_table
    from etymon.tasks import get_task, head_task
    from etymon.training.feeding import Feed, Phase, Position, StepStream
    from etymon.training.loop import Trainer
    from etymon.training.optimisers import OptimiserChoice
    from etymon.training.progress import make_progress
    from etymon.training.settings import TrainingSettings
    from etymon.training.state import RunFolder
    from etymon.training.unit import TrainingUnit

    model = load(folder)
    task: Any = get_task("classify", {}, model.family)
    task.bind_for_training(model, 128, frozen=False)
    if what == "predict":
        rows = read_table(table("dev")[:ANSWERED])
        together = int(ROWS * task.encode_texts(rows).sizes.mean())  # as many rows as the peer has

        def predict() -> Seconds:
            with mock.patch.object(head_task, "PREDICTED_TOKENS", together):
                begin = time.perf_counter()
                task.predict(model, rows)
                return Seconds(time.perf_counter() - begin)

        return predict
    task.batch_rows = ROWS
    examples = task.encode(read_table(table("train")[:TRAINED]), learn=True)
    unit = TrainingUnit(model, task)
    course = StepStream([Phase(0, Feed(task, examples, SEED, slices=1, rows=1))])
    settings = TrainingSettings(steps=1_000_000, optimiser=OptimiserChoice(learning_rate=5e-5), seed=SEED)
    trainer = Trainer(
        unit, course, settings, RunFolder(folder / "run"), progress=make_progress("silent"), validate=lambda *arguments: {},
        save_members=lambda folder: None,
    )  # fmt: skip
    steps = course.steps(0, Position(), 1_000_000)

    def train() -> Seconds:
        begin = time.perf_counter()
        for _ in range(STEPS):
            trainer.train_step(next(steps))
            trainer.state.step += 1
        return Seconds(time.perf_counter() - begin)

    return train


def theirs(folder: Path, what: str) -> Callable[[], Seconds]:
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(folder)

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, rows: list[dict[str, Any]]) -> None:
            self.encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=128)
            self.labels = [int(row["label"]) for row in rows]

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {
                **{name: each[number] for name, each in self.encoded.items()},
                "labels": self.labels[number],
            }

    class Clock(TrainerCallback):
        """From the beginning of a round's first step to the end of its last; the first step of a call is not counted."""

        begin = seconds = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 1:
                self.begin = time.perf_counter()
            self.seconds = time.perf_counter() - self.begin

    clock = Clock()
    arguments = TrainingArguments(
        str(folder / "trainer"), per_device_train_batch_size=ROWS, per_device_eval_batch_size=ROWS, max_steps=STEPS + 1,
        learning_rate=5e-5, lr_scheduler_type="constant", save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, seed=SEED,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, data_collator=DataCollatorWithPadding(tokenizer), callbacks=[clock],
        train_dataset=Rows(table("train")[:TRAINED]) if what == "train" else None,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    rows = table("dev")[:ANSWERED]

    def train() -> Seconds:
        trainer.train()
        return Seconds(clock.seconds)

    def predict() -> Seconds:
        begin = time.perf_counter()
        trainer.predict(Rows(rows))
        return Seconds(time.perf_counter() - begin)

    return train if what == "train" else predict


def side(name: str, what: str, folder: str) -> Callable[[], Seconds]:
    return {"ours": ours, "theirs": theirs}[name](Path(folder), what)


def finetuning(what: str) -> Iterable[Comparison]:
    rows = len(table("dev")[:ANSWERED])
    target, about = {
        "train": (1.7, f"{STEPS} steps of {ROWS} rows of SST-2"),
        "predict": (2.0, f"answers to {rows} rows of SST-2"),
    }[what]
    with TemporaryDirectory(prefix="etymon-") as place:
        model = etymon.build("bert", "base", heads=["classification"], labels=["0", "1"], shape=SHAPE)
        model.tokenizer = Tokenizer.load(model_folder())
        etymon.save(model, place)
        # Their first rounds are the warm-up.
        with peers(
            "benchmarks.finetuning", {name: (name, what, place) for name in ("ours", "theirs")}
        ) as sides:
            times = in_turn({name: side.ask for name, side in sides.items()}, ROUNDS, WARMUP)
    count = STEPS * ROWS if what == "train" else rows
    speed = {name: round(count / sorted(each)[len(each) // 2], 1) for name, each in times.items()}
    yield Comparison(
        f"finetuning-{what}", times["ours"], times["theirs"], peer="Transformers' Trainer", target=target,
        what=f"{about}, six layers x 768", details={"examples_per_second": speed},
    )  # fmt: skip


RUNS = [partial(finetuning, what) for what in ("train", "predict")]

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    answer(side(*sys.argv[1:]))
