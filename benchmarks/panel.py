"""Does pretraining pay within ten minutes? Every family against new weights: `make bench-panel`.

Every family at its pocket size, pretrained on the same novels for 54 Tflop (ten minutes of two quiet cores in float32) as a user without
options would, and new weights with the same tokenizer; both fine-tuned for 5.4 Tflop on a whole training file and for 1 Tflop on 500 of its
rows, three seeds each, the model of the last step scored on rows that no choice looked at. Beside them a plain
Transformers loop (`plain_mlm`), masked losses against the frequencies of words, and BLiMP's minimal pairs.
Operations are counted, not seconds, so cells may share the machine. Runs are kept in ETYMON_BENCH_RUNS and figures in `results/panel.json`:
the same command goes on, on another machine as well, and given twice at a time it has two processes that share the families. A figure whose
recipe has changed since is measured again. Arguments are names of families, `plain` for the plain loop, `--seed=0` for one seed, `--language=zh`
for one language, or `--table` to print what there is.
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
from benchmarks.arms import RARELY, Figures, folder, recipe_of, run_of, small, tuned
from benchmarks.harness import needed_corpora, sized
from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.tables.table import read_table
from etymon.text.store import TokenStore
from etymon.training.distributed import World
from etymon.training.feeding import validation_slices
from etymon.training.unit import TrainingUnit, evaluate

RUNS, FIGURES = folder("panel"), Figures("panel")
PRETRAINING = sized(os.environ.get("ETYMON_PANEL_PRETRAINING", "54Tflops"), "2steps")
TUNING = sized(os.environ.get("ETYMON_PANEL_TUNING", "5.4Tflops"), "2steps")
SEEDS = range(sized(int(os.environ.get("ETYMON_BENCH_SEEDS", "3")), 1))
PRECISION = sized(os.environ.get("ETYMON_PANEL_PRECISION", "auto"), "float32")
FEW_TUNING = sized(os.environ.get("ETYMON_PANEL_FEW_TUNING", "1Tflops"), "2steps")
FEW, FEW_ROWS = "-few", sized(500, 8)
"""Behind the name of a task: so many rows of its training file, drawn once."""
ENGLISH = sized(("SST-2", "UD-EWT", f"SST-2{FEW}", f"UD-EWT{FEW}"), (f"UD-EWT{FEW}",))
PAIRS = sized(2000, 20)
"""Of multi30k, to learn translating from."""
NEW, UNIFORM, PRETRAINED, PLAIN = "new", "uniform", "pretrained", "plain"
"""What is fine-tuned: new weights by the recipe; new weights whose attention begins as papers have it, where the recipe's begins at
neighbours; the pretrained model; the one of the plain loop."""
BEGUN_EVENLY = ("bert", "albert")
"""Of these families the first values were asked about; both gave the same answer."""
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

    def result(self) -> dict[str, Any]:
        """Empty where there is none yet."""
        return FIGURES.get(self.name, conditions(self.family))


def conditions(family: str) -> dict[str, Any]:
    """What a figure depends on beside the code."""
    return {"operations": PRETRAINING, "tuning": TUNING, "few": FEW_TUNING, "recipe": recipe_of(family)}


def cells() -> Iterator[Cell]:
    """The first seed of all families first: a stopped panel is broad."""
    for seed in SEEDS:
        for family in FAMILIES:
            english = list(ENGLISH)
            if "encoder-decoder" in get_family(family).capabilities:
                english.append("multi30k")
            chinese = tasks.CHINESE if family in CHINESE_FAMILIES else ()
            for task in (*english, *chinese):
                for start in (NEW, *((UNIFORM,) if family in BEGUN_EVENLY else ()), PRETRAINED):
                    yield Cell(family, task, start, seed)
            if family == "bert":
                for task in english:
                    yield Cell(family, task, PLAIN, seed)


def asked(task: str) -> dict[str, Any]:
    """What `etymon.finetune` is told of a task."""
    if task.endswith(FEW):
        told = asked(task.removesuffix(FEW))
        rows = read_table(told["train"][0]).rows
        places = np.random.default_rng(0).permutation(len(rows))[:FEW_ROWS]
        return {**told, "train": [rows[place] for place in places]}
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


def begin(family: str, language: str, common: dict[str, Any]) -> Any:
    """Pretrains as a user without options would: what is not told is the recipe's."""
    toy = sized({}, {"length": 32, "batch": 2, "vocabulary": 160})
    common = {"precision": PRECISION, "set": [*RARELY, *small(family)], **toy, **common}
    documents = "line" if language == "zh" else "file"
    return etymon.pretrain(family, size="pocket", data=tasks.text(language), documents=documents, **common)


def first_tokenizer(family: str, language: str) -> Path:
    """The tokenizer of the first seed's run; where that is on another machine, the same one again, trained by a run of one step."""
    run = RUNS / "pretrained" / f"{family}-{language}-{SEEDS[0]}"
    if not (run / "done").is_file():
        out = RUNS / "tokenizers" / f"{family}-{language}"
        run = run_of(out, SEEDS[0], lambda common: begin(family, language, {**common, "budget": "1step"}))
    return run / "tokenizer"


def pretrained(family: str, language: str, seed: int) -> Path:
    """A run that pretrained the family's pocket model, with the tokenizer of the first seed."""

    def start(common: dict[str, Any]) -> Any:
        common |= {"budget": PRETRAINING}
        if family == "distilbert":
            teacher = pretrained("bert", language, seed)
            told = {"precision": PRECISION, "set": [*RARELY, *small(family)]}
            toy = sized({}, {"length": 32, "batch": 2})
            return etymon.distill(teacher, family=family, data=tasks.text(language), **told, **toy, **common)
        if seed != SEEDS[0]:
            common |= {"tokenizer": str(first_tokenizer(family, language)), "vocabulary": None}
        return begin(family, language, common)

    return run_of(RUNS / "pretrained" / f"{family}-{language}-{seed}", seed, start)


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
    if cell.result():
        return
    base = pretrained(cell.family, cell.language, cell.seed)
    start: Any = base if cell.start == PRETRAINED else cell.family
    if cell.start == PLAIN:
        start = plain(cell.seed)
    scratch: dict[str, Any] = {}
    told = asked(cell.task)
    if cell.start in (NEW, UNIFORM):
        scratch = {"from_scratch": True, "size": "pocket", "tokenizer": base / "tokenizer"}
        told["set"] = [*told["set"], *small(cell.family)]
    if cell.start == UNIFORM:
        told["set"] = [*told["set"], "shape.neighbours=0.0"]
    told |= {"precision": PRECISION, "seed": cell.seed}
    out = RUNS / "cells" / cell.name
    tuned(out, start, {**told, **scratch}, FEW_TUNING if cell.task.endswith(FEW) else TUNING)
    figures = json.loads((out / "result.json").read_text(encoding="utf-8"))
    FIGURES.keep(cell.name, conditions(cell.family), **figures)


# --- masked losses against the frequencies of words


def masked_loss(run: Path) -> dict[str, float]:
    """Nats a masked token (15%) of the held-out text, by the model and by the frequencies of words in the training text."""
    model = etymon.load(run, heads=frozenset({"vocabulary"})).eval()
    assert model.tokenizer is not None
    store = TokenStore.open(run / "store", model.tokenizer)
    objective = get_objective("masked", model.tokenizer, MASKED_LENGTH)
    slices = validation_slices(objective, store.validation, 0, rows=16, most=MASKED_SAMPLES)
    figures = evaluate(TrainingUnit(model, objective), list(slices), World())
    counts = np.bincount(store.train.tokens, minlength=model.tokenizer.size).astype(float) + 1
    seen = np.bincount(store.validation.tokens, minlength=len(counts)).astype(float)
    frequencies = -float(seen @ np.log(counts / counts.sum()) / seen.sum())
    return {"masked": figures["bits_per_target"] * math.log(2), "frequencies": frequencies}


# --- minimal pairs


def minimal_pairs(run: Path) -> dict[str, float]:
    """The mean accuracy over BLiMP's paradigms but those that recipes may be chosen by."""
    place = needed_corpora("BLiMP") / "blimp"
    names = sorted(path.stem for path in place.glob("*.jsonl"))
    reserved = set(names[:: len(names) // CHOSEN_BY][:CHOSEN_BY])
    files = [place / f"{name}.jsonl" for name in names if name not in reserved]
    (judged,) = etymon.pairs(run, data=files, examples=PAIRS_A_PARADIGM).models
    overall = judged.overall["sum"]
    return {
        "accuracy": overall.value,
        "low": overall.low,
        "high": overall.high,
        "paradigms": overall.paradigms,
    }


def measure_run(family: str, seed: int) -> None:
    """What a run that pretrained on English is asked beside its tasks."""
    name, run = f"run-{family}-{seed}", RUNS / "pretrained" / f"{family}-en-{seed}"
    if not (run / "done").is_file():
        return
    kept = FIGURES.get(name, conditions(family))
    if family in MASKED_FAMILIES and "masked" not in kept:
        FIGURES.keep(name, conditions(family), **masked_loss(run))
    if "pairs" not in kept:
        try:
            FIGURES.keep(name, conditions(family), pairs=minimal_pairs(run))
        except etymon.EtymonError as error:  # a family that cannot score
            FIGURES.keep(name, conditions(family), pairs=str(error))


def measure_plain() -> None:
    for kept in sorted((RUNS / "plain").glob("*/plain.json")):
        figures = json.loads(kept.read_text(encoding="utf-8"))
        FIGURES.keep(f"run-plain-{kept.parent.name}", conditions("bert"), **figures)


# --- the table


def interval(values: Sequence[float]) -> str:
    """The mean and the 95% interval of it, by Student's t over seeds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    half = STUDENT_T.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def table() -> None:
    """What there is."""
    known = {cell: result for cell in cells() if (result := cell.result())}

    def values(family: str, task: str, start: str) -> dict[int, float]:
        return {
            cell.seed: result["value"]
            for cell, result in known.items()
            if (cell.family, cell.task, cell.start) == (family, task, start)
        }

    print("| family | task | from | score | pretrained | gain, 95% over seeds | seeds |")
    print("|---|---|---|---|---|---|---|")
    for family, task in dict.fromkeys((cell.family, cell.task) for cell in known):
        after = values(family, task, PRETRAINED)
        for start in (NEW, UNIFORM, PLAIN):
            before = values(family, task, start)
            if both := sorted(set(before) & set(after)):
                means = [statistics.mean(each[seed] for seed in both) for each in (before, after)]
                gain = interval([after[seed] - before[seed] for seed in both])
                print(
                    f"| {family} | {task} | {start} | {means[0]:.1f} | {means[1]:.1f} | {gain} | {len(both)} |"
                )
    for name, figures in sorted(FIGURES.entries().items()):
        if isinstance(pair := figures.get("pairs"), dict):
            print(
                f"{name}: BLiMP {pair['accuracy']:.1f} ({pair['low']:.1f} to {pair['high']:.1f}) over {pair['paradigms']} paradigms"
            )
        if "masked" in figures:
            print(
                f"{name}: masked {figures['masked']:.3f} nats, frequencies {figures.get('frequencies', math.nan):.3f}"
            )


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    chosen = [name for name in arguments if not name.startswith("--")] or (*FAMILIES, PLAIN)
    seeds = [int(word.removeprefix("--seed=")) for word in arguments if word.startswith("--seed=")] or SEEDS
    languages = [word.removeprefix("--language=") for word in arguments if word.startswith("--language=")]
    languages = languages or ["en", "zh"]
    if "--table" not in arguments:
        whole = [
            cell
            for cell in cells()
            if cell.arm in chosen and cell.seed in seeds and cell.language in languages
        ]
        for arm, seed in dict.fromkeys((cell.arm, cell.seed) for cell in whole):
            with tasks.taken(RUNS, f"{arm}-{seed}") as mine:
                for cell in whole if mine else ():
                    if (cell.arm, cell.seed) == (arm, seed):
                        try:
                            done(cell)
                        except etymon.EtymonError as error:
                            print(f"{cell.name}: {error}", flush=True)
                if mine and arm == PLAIN:
                    measure_plain()
                elif mine:
                    measure_run(arm, seed)
    table()


if __name__ == "__main__":
    main(sys.argv[1:])
