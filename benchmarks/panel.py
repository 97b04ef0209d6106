"""Does pretraining pay within ten minutes? Every family against new weights: `make bench-panel`.

Every family at its pocket size, pretrained on the same novels for 54 Tflop (ten minutes of two quiet cores in float32) as a user without
options would, and new weights with the same tokenizer; both fine-tuned for 5.4 Tflop, three seeds each, the model of the last step scored
on rows that no choice looked at. Beside them a plain Transformers loop (`plain_mlm`), masked losses against the frequencies of words, and
BLiMP's minimal pairs.
Operations are counted, not seconds, so cells may share the machine. All is kept in ETYMON_BENCH_RUNS; the same command goes on, and given
twice at a time it has two processes that share the families. Arguments are names of families, `plain` for the plain loop, or `--table` to
print what there is.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks import plain_mlm, tasks
from benchmarks.arms import RARELY, folder, keep, run_of, small, tuned
from benchmarks.harness import needed_corpora, sized
from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.text.store import TokenStore
from etymon.training.distributed import World
from etymon.training.feeding import validation_slices
from etymon.training.unit import TrainingUnit, evaluate

RUNS = folder("panel")
PRETRAINING = sized(os.environ.get("ETYMON_PANEL_PRETRAINING", "54Tflops"), "2steps")
TUNING = sized(os.environ.get("ETYMON_PANEL_TUNING", "5.4Tflops"), "2steps")
SEEDS = range(sized(int(os.environ.get("ETYMON_BENCH_SEEDS", "3")), 1))
PRECISION = sized(os.environ.get("ETYMON_PANEL_PRECISION", "auto"), "float32")
PAIRS = sized(2000, 20)
"""Of multi30k, to learn translating from."""
NEW, PRETRAINED, PLAIN = "new", "pretrained", "plain"
ORDER = (
    "bert", "t5", "electra", "gpt2", "roberta", "xlnet", "bart", "albert", "distilbert", "transformer", "gpt1", "gptj", "gpt3",
    "transformer-xl", "rnn", "elmo",
)  # fmt: skip
FAMILIES = sized(ORDER, ("bert", "t5"))
CHINESE_FAMILIES = sized(("bert", "gpt2", "electra"), ("bert",))
PLAIN_RATES = sized((1e-4, 3e-4, 1e-3), (1e-3,))
MASKED_FAMILIES = ("bert", "roberta", "albert", "distilbert")
"""Whose own head predicts masked words. ELECTRA keeps its discriminator, and XLNet has no mask."""
CHOSEN_BY, PAIRS_A_PARADIGM = sized((10, 200), (1, 4))
"""Paradigms of BLiMP, evenly spread over the alphabet, that recipes may be chosen by, and pairs of each of the others."""
MASKED_SAMPLES, MASKED_LENGTH = sized((512, 64), (8, 16))
STUDENT_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% of the t distribution, by the number of seeds."""


@dataclass(frozen=True)
class Cell:
    family: str
    task: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.task}-{self.start}-{self.seed}"

    @property
    def arm(self) -> str:
        """What it is chosen by: its family, or `plain`, which takes longer than any of them."""
        return PLAIN if self.start == PLAIN else self.family

    @property
    def language(self) -> str:
        return "zh" if self.task in tasks.CHINESE else "en"

    def result(self) -> dict[str, Any] | None:
        kept = RUNS / "cells" / self.name / "result.json"
        return json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else None


def cells() -> Iterator[Cell]:
    """The first seed of all families first: a stopped panel is broad."""
    for seed in SEEDS:
        for family in FAMILIES:
            english = ["SST-2", "UD-EWT"]
            if "encoder-decoder" in get_family(family).capabilities:
                english.append("multi30k")
            chinese = tasks.CHINESE if family in CHINESE_FAMILIES else ()
            for task in (*english, *chinese):
                for start in (NEW, PRETRAINED):
                    yield Cell(family, task, start, seed)
            if family == "bert":
                for task in english:
                    yield Cell(family, task, PLAIN, seed)


def asked(task: str) -> dict[str, Any]:
    """What `etymon.finetune` is told of a task."""
    data = needed_corpora("the novels and the tasks")
    if task == "multi30k":
        sides = {}
        for name, most in (("train", PAIRS), ("test_2016_flickr", None)):
            lines = [
                (data / "multi30k" / f"{name}.{code}").read_text(encoding="utf-8").splitlines()[:most]
                for code in ("en", "de")
            ]
            sides[name] = [{"source": en, "target": de} for en, de in zip(*lines, strict=True)]
        return {
            "task": "text2text",
            "train": sides["train"],
            "validation": sides["test_2016_flickr"],
            "metric": ["bleu", "chrf"],
            "set": tasks.LAST,
        }
    told = tasks.asked(task)
    if task == "UD-EWT":
        told["validation"] = [data / "ud-ewt" / "en_ewt-ud-test.conllu"]
    return told


def pretrained(family: str, language: str, seed: int) -> Path:
    """A run that pretrained the family's pocket model, with the tokenizer of the first seed."""
    out = RUNS / "pretrained" / f"{family}-{language}-{seed}"
    teacher = pretrained("bert", language, seed) if family == "distilbert" else None
    toy = sized({}, {"length": 32, "batch": 2, "vocabulary": 160})
    first = None if seed == SEEDS[0] else pretrained(family, language, SEEDS[0]) / "tokenizer"

    def start(common: dict[str, Any]) -> Any:
        # What is not told is the recipe's, as for a user.
        common |= {"budget": PRETRAINING, "precision": PRECISION, "set": [*RARELY, *small(family)], **toy}
        if teacher is not None:
            common.pop("vocabulary", None)
            return etymon.distill(teacher, family=family, data=tasks.text(language), **common)
        if first is not None:
            common |= {"tokenizer": str(first), "vocabulary": None}
        documents = "line" if language == "zh" else "file"
        return etymon.pretrain(
            family, size="pocket", data=tasks.text(language), documents=documents, **common
        )

    return run_of(out, seed, start)


def plain(seed: int) -> Path:
    """A model of the plain loop, at the rate of the first seed's lowest masked loss."""
    run, half = pretrained("bert", "en", SEEDS[0]), PRECISION != "float32"

    def trained(rate: float, number: int) -> tuple[float, Path]:
        out = RUNS / "plain" / f"{rate:g}-{number}"
        found = plain_mlm.train(run, out, budget=PRETRAINING, rate=rate, seed=number, half=half)
        return found["masked"], out

    best = min(PLAIN_RATES, key=lambda rate: trained(rate, SEEDS[0])[0])
    return trained(best, seed)[1]


def done(cell: Cell) -> None:
    if cell.result() is not None:
        return
    base = pretrained(cell.family, cell.language, cell.seed)
    start: Any = {NEW: cell.family, PRETRAINED: base, PLAIN: None}[cell.start] or plain(cell.seed)
    scratch: dict[str, Any] = {}
    if cell.start == NEW:
        scratch = {"from_scratch": True, "size": "pocket", "tokenizer": base / "tokenizer"}
    told = asked(cell.task)
    if cell.start == NEW:
        told["set"] = [*told["set"], *small(cell.family)]
    told |= {"precision": PRECISION, "seed": cell.seed}
    tuned(RUNS / "cells" / cell.name, start, {**told, **scratch}, TUNING)


# --- masked losses against the frequencies of words


def masked_loss(run: Path) -> dict[str, float]:
    """Nats a masked token (15%) of the held-out text, by the model and by the frequencies of words in the training text; kept."""
    kept = run / "masked.json"
    if not kept.is_file():
        model = etymon.load(run, heads=frozenset({"vocabulary"})).eval()
        assert model.tokenizer is not None
        store = TokenStore.open(run / "store", model.tokenizer)
        objective = get_objective("masked", model.tokenizer, MASKED_LENGTH)
        slices = validation_slices(objective, store.validation, 0, rows=16, most=MASKED_SAMPLES)
        figures = evaluate(TrainingUnit(model, objective), list(slices), World())
        counts = store.train.token_counts.astype(float) + 1
        seen = store.validation.token_counts.astype(float)
        frequencies = -float(seen @ np.log(counts / counts.sum()) / seen.sum())
        found = {"masked": figures["bits_per_target"] * math.log(2), "frequencies": frequencies}
        kept.write_text(json.dumps(found), encoding="utf-8")
    read: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return read


def masked_losses() -> dict[str, dict[str, float]]:
    """Of all runs that are done, and of the plain loop."""
    found = {
        f"{family}-{seed}": masked_loss(run) for family, seed, run in done_runs() if family in MASKED_FAMILIES
    }
    for kept in sorted((RUNS / "plain").glob("*/plain.json")):
        found[f"plain-{kept.parent.name}"] = json.loads(kept.read_text(encoding="utf-8"))
    return found


# --- minimal pairs


def minimal_pairs(run: Path) -> dict[str, float]:
    """The mean accuracy over BLiMP's paradigms but those that recipes may be chosen by; kept."""
    kept = run / "pairs.json"
    if not kept.is_file():
        place = needed_corpora("BLiMP") / "blimp"
        names = sorted(path.stem for path in place.glob("*.jsonl"))
        reserved = set(names[:: len(names) // CHOSEN_BY][:CHOSEN_BY])
        files = [place / f"{name}.jsonl" for name in names if name not in reserved]
        (judged,) = etymon.pairs(run, data=files, examples=PAIRS_A_PARADIGM).models
        overall = judged.overall["sum"]
        found = {
            "accuracy": overall.value,
            "low": overall.low,
            "high": overall.high,
            "paradigms": overall.paradigms,
        }
        kept.write_text(json.dumps(found), encoding="utf-8")
    read: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return read


def done_runs() -> Iterator[tuple[str, int, Path]]:
    """Pretraining on English that has come to its end."""
    for family in FAMILIES:
        for seed in SEEDS:
            run = RUNS / "pretrained" / f"{family}-en-{seed}"
            if (run / "done").is_file():
                yield family, seed, run


def pair_accuracies() -> dict[str, dict[str, float]]:
    found = {}
    for family, seed, run in done_runs():
        try:
            found[f"{family}-{seed}"] = minimal_pairs(run)
        except etymon.EtymonError as error:  # a family that cannot score
            print(f"{family}: {error}", flush=True)
    return found


# --- the table


def interval(values: Sequence[float]) -> str:
    """The mean and the 95% interval of it, by Student's t over seeds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    half = STUDENT_T.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def table() -> None:
    """What there is, and into `benchmarks/results/`."""
    known = {cell: result for cell in cells() if (result := cell.result()) is not None}

    def values(family: str, task: str, start: str) -> dict[int, float]:
        return {
            cell.seed: result["value"]
            for cell, result in known.items()
            if (cell.family, cell.task, cell.start) == (family, task, start)
        }

    print("| family | task | new | pretrained | gain, 95% over seeds | seeds |")
    print("|---|---|---|---|---|---|")
    for family, task in dict.fromkeys((cell.family, cell.task) for cell in known):
        before, after = values(family, task, NEW), values(family, task, PRETRAINED)
        for name, start in ((family, after), (f"{family}, plain loop", values(family, task, PLAIN))):
            if both := sorted(set(before) & set(start)):
                means = [statistics.mean(each[seed] for seed in both) for each in (before, start)]
                gain = interval([start[seed] - before[seed] for seed in both])
                print(f"| {name} | {task} | {means[0]:.1f} | {means[1]:.1f} | {gain} | {len(both)} |")
    pairs = pair_accuracies()
    for name, pair in pairs.items():
        print(
            f"{name}: BLiMP {pair['accuracy']:.1f} ({pair['low']:.1f} to {pair['high']:.1f}) over {pair['paradigms']} paradigms"
        )
    losses = masked_losses()
    for name, loss in losses.items():
        print(
            f"{name}: masked {loss['masked']:.3f} nats, frequencies {loss.get('frequencies', math.nan):.3f}"
        )
    keep(
        "panel",
        {
            "operations": PRETRAINING,
            "tuning": TUNING,
            "cells": {cell.name: result for cell, result in known.items()},
            "masked": losses,
            "pairs": pairs,
        },
    )


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    chosen = [name for name in arguments if not name.startswith("--")] or (*FAMILIES, PLAIN)
    if "--table" not in arguments:
        whole = [cell for cell in cells() if cell.arm in chosen]
        for arm, seed in dict.fromkeys((cell.arm, cell.seed) for cell in whole):
            with tasks.taken(RUNS, f"{arm}-{seed}") as mine:
                for cell in whole if mine else ():
                    if (cell.arm, cell.seed) == (arm, seed):
                        try:
                            done(cell)
                        except etymon.EtymonError as error:
                            print(f"{cell.name}: {error}", flush=True)
    table()


if __name__ == "__main__":
    main(sys.argv[1:])
