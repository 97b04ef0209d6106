"""Which recipe a pocket encoder learns most with: `make bench-recipes`.

One cause at a time is taken away from BERT as published; then arms of every encoder compete at 10, 30 and 100 Tflop. An arm is a few settings of
`etymon pretrain`. Operations are counted, not seconds, so runs may share the machine. Choices are made by the masked loss on validation novels and by a
small panel cut out of *training* files; four novels, and the test files of all tasks, are never read here. Every run is kept in ETYMON_BENCH_RUNS and goes
on where it was stopped; `NAME@TFLOPS` or `NAME@TFLOPS@SEED` runs one arm, `NAME@200steps` a
small model of it, `--panel` also fine-tunes (`--panel=tags` on one task),
`--share=0.5` does so at that share of the rate, `--table` prints what there is.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import etymon
from benchmarks.arms import RARELY, folder, small
from benchmarks.harness import machine, needed_corpora, sized, write_result
from benchmarks.recipe_arms import ARMS
from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.tables.table import read_table
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.feeding import validation_slices
from etymon.training.state import VALIDATION_PREFIX
from etymon.training.unit import TrainingUnit, evaluate

RUNS = folder("recipes")
PRECISION = os.environ.get("ETYMON_BENCH_PRECISION", "bf16")
VOCABULARY, LENGTH, BATCH = sized((8192, 64, 32), (200, 32, 2))
JUDGED = sized(1024, 4)
"""Samples of validation novels."""
TEST_NOVELS, VALIDATION_NOVELS = sized((4, 4), (0, 1))
NOVELS = int(os.environ.get("ETYMON_BENCH_NOVELS", "8"))
"""Of the novels to train on, one in so many is read."""
SMALL_SHAPE = [
    f"shape.{name}={value}" for name, value in (("dim", 128), ("layers", 2), ("heads", 4), ("inner_dim", 512))
]
TUNING = sized("1Tflops", "1step")
ROUNDS = sized([("10", list(ARMS))], [("0", ["bert", "bert-rotary", "electra-rotary", "t5-text-near-match"])])


def data() -> Path:
    return needed_corpora("the novels and the tasks")


def novels() -> dict[str, list[str]]:
    """Novels to train on, to choose by, and those that nothing here reads."""
    files = [str(path) for path in sorted((data() / "eltec-novels").glob("*.txt"))]
    # Every tenth or so: the files are sorted by year.
    chosen = files[5 :: max(1, len(files) // (TEST_NOVELS + VALIDATION_NOVELS))]
    chosen = chosen[: TEST_NOVELS + VALIDATION_NOVELS]
    return {
        "train": [path for path in files if path not in chosen] or files,
        "validation": chosen[::2][:VALIDATION_NOVELS] or files[:1],
        "test": chosen[1::2][:TEST_NOVELS],
    }


PAIRED = {"t5": "span-corruption", "bart": "denoising", "transformer": "denoising"}
"""Encoder-decoders, and the objective that each is judged by, at its published noise."""


def home(family: str) -> str:
    """Whose tokenizer a family reads with here: all that can share BERT's, so that their losses compare."""
    return family if family in ("roberta", "xlnet", *PAIRED) else "bert"


def prepare(family: str) -> Path:
    """A tokenizer, a store to train on and one to choose by; the folder of all three."""
    place, parts = RUNS / f"text-{home(family)}", novels()
    # Twelve of the novels are more than 10 Tflop read.
    parts["train"] = parts["train"][:: sized(NOVELS, 1)]
    if not (place / "tokenizer" / "tokenizer.json").is_file():
        size = sized(get_family(family).sizes["pocket"]["vocabulary"], VOCABULARY)
        etymon.tokenizer(data=parts["train"], family=home(family), size=size, out=place / "tokenizer")
    for part, share in (("train", 0.002), ("validation", 0.0)):
        if not (place / part / "store.json").is_file():
            etymon.prepare(
                data=parts[part],
                tokenizer=place / "tokenizer",
                out=place / part,
                validation=sized(share, 0.1),
            )
    return place


@dataclass(frozen=True)
class Run:
    arm: str
    tflops: str
    """Or `200steps`, of a model that is small enough to compare many arms in minutes."""
    seed: int = 0

    @property
    def is_small(self) -> bool:
        return self.tflops.endswith("steps")

    @property
    def shape(self) -> list[str]:
        """Settings of the shape beside the arm's."""
        family = ARMS[self.arm]["family"]
        if not self.is_small:
            return small(family)
        return [*SMALL_SHAPE, *(["shape.inner_dim=320", "shape.head_dim=32"] if family == "t5" else [])]

    @property
    def out(self) -> Path:
        return RUNS / f"{self.arm}-{self.tflops}{'' if self.is_small else 'T'}-{self.seed}"

    def read(self, name: str) -> dict[str, Any] | None:
        path = self.out / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self, name: str, record: dict[str, Any]) -> None:
        (self.out / name).write_text(json.dumps(record), encoding="utf-8")


def train(run: Run) -> None:
    if run.read("cost.json") is not None:
        return
    asked = {"length": LENGTH, "batch": BATCH, **ARMS[run.arm]}
    family = asked.pop("family")
    settings = [*RARELY, *run.shape, *asked.pop("set")]
    budget = run.tflops if run.is_small else f"{run.tflops}Tflops"
    begin, processor = time.perf_counter(), time.process_time()
    result = etymon.pretrain(
        family, size="pocket", data=[str(prepare(family) / "train")], out=run.out, budget=sized(budget, "1step"), seed=run.seed,
        precision=PRECISION, set=settings, progress="silent", resume=(run.out / "run.yaml").is_file(), **asked,
    )  # fmt: skip
    if result.stopped:
        sys.exit("stopped: the same command goes on")
    run.write(
        "cost.json",
        {
            "seconds": round(time.perf_counter() - begin),
            "processor": round(time.process_time() - processor),
            "steps": result.steps,
        },
    )


# --- how good it is


@cache
def judged_by(family: str, objective_name: str, shifted: bool) -> tuple[Any, Any, float]:
    """The objective that a family is judged by, slices of the validation novels, and the loss of who knows but the frequencies of words."""
    place = prepare(family)
    tokenizer = Tokenizer.load(place / "tokenizer")
    options = {"shifted": True} if shifted else {}
    length = sized(128, LENGTH) if family in PAIRED else LENGTH
    objective = get_objective(objective_name, tokenizer, length, **options)
    slices = validation_slices(
        objective,
        TokenStore.open(place / "validation").train,
        0,
        rows=BATCH,
        most=JUDGED // 4 if family in PAIRED else JUDGED,
    )
    counts = torch.from_numpy(TokenStore.open(place / "train").train.token_counts.astype("float64")) + 1
    targets = torch.cat([part.targets for part in slices])
    if family in PAIRED:  # no text has the sentinels that a decoder writes
        counts = torch.bincount(targets).double()
    return objective, slices, -float((counts / counts.sum()).log()[targets].mean())


def masked_loss(run: Run) -> dict[str, float]:
    """Nats a target of BERT's masking, 15% of the tokens, on the validation novels; of ELECTRA the generator's, of XLNet its own."""
    family = ARMS[run.arm]["family"]
    name = "generator" if family == "electra" else "model"
    model = etymon.load(run.out / name, heads=("vocabulary",))
    own = str(model.history[-1]["objective"])
    asked = PAIRED.get(family, "permutation" if own == "permutation" else "masked")
    objective, slices, base = judged_by(family, asked, model.predicts_shifted)
    found = evaluate(TrainingUnit(model, objective), slices)
    name = next(each for each in ("masked", "permuted", "spans", "denoising") if each in found)
    judged = {"masked": found[name], "accuracy": found.get(f"{name}_accuracy", 0.0), "frequencies": base}
    return judged | (encoder_figures(model, slices[0]) if family in PAIRED else {})


@torch.inference_mode()
def encoder_figures(model: Any, micro: Any) -> dict[str, float]:
    """How alike the states of an encoder are: the mean cosine of two of different tokens, and the number of dimensions
    that they fill (the exponential of the entropy of their principal components)."""
    states = model.encode(micro.source).hidden_MD[:1024].float()
    unit = torch.nn.functional.normalize(states, dim=-1)
    count = len(unit)
    cosine = ((unit.sum(0) ** 2).sum() - count) / (count * (count - 1))
    shares = torch.linalg.svdvals(states - states.mean(0)) ** 2
    shares = shares / shares.sum()
    return {
        "cosine": float(cosine),
        "dimensions": float(torch.exp(-(shares * shares.clamp(min=1e-12).log()).sum())),
    }


def own_figures(run: Run) -> dict[str, float]:
    """The last validation of the run's own objective."""
    lines = (run.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    last = [record for record in records if any(name.startswith(VALIDATION_PREFIX) for name in record)][-1]
    return {name: value for name, value in last.items() if name.startswith(VALIDATION_PREFIX)}


def judge(run: Run) -> dict[str, Any]:
    if (kept := run.read("judged.json")) is None:
        kept = {**masked_loss(run), **own_figures(run)}
        run.write("judged.json", kept)
    return kept


@torch.inference_mode()
def attention_figures(run: Run) -> dict[str, list[float]]:
    """Layer by layer, on a validation batch: the entropy of attention as a share of the largest, and its share on the two neighbours."""
    family = ARMS[run.arm]["family"]
    name = "discriminator" if family == "electra" else "model"
    model = etymon.load(run.out / name)
    _, slices, _ = judged_by(family, "masked", False)
    with etymon.trace(model) as seen:
        model.hidden(slices[0].batch)
    figures: dict[str, list[float]] = {"entropy": [], "neighbours": []}
    for weights_RHQT in next(iter(seen.values())).attention:
        length = weights_RHQT.shape[-1]
        entropy = -(weights_RHQT * weights_RHQT.clamp(min=1e-9).log()).sum(-1).mean() / math.log(length)
        beside = sum(weights_RHQT.diagonal(offset, -2, -1).sum(-1).mean() for offset in (-1, 1)) / length
        figures["entropy"].append(round(float(entropy), 3))
        figures["neighbours"].append(round(float(beside), 3))
    return figures


def panel(run: Run, share: float | None = None, only: str = "") -> dict[str, float]:
    """Accuracies after a short fine-tuning on parts of training files, of this model and of new weights; `share` is that
    of the rate of pretraining (None: the recipe's), and `only` names one of the tasks."""
    kept = run.read("panel.json") or {}
    tags = read_table(data() / "ud-ewt" / "en_ewt-ud-train.conllu").rows
    reviews = read_table(data() / "glue" / "SST-2" / "train.tsv").rows
    tasks: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "tags": (tags, {"task": "tag", "tokens": "tokens", "tags": "upos", "batch": 32}),
        "sentiment": (reviews, {"task": "classify", "text": "sentence", "label": "label", "batch": 64}),
    }
    arm = ARMS[run.arm]
    family, shape = arm["family"], [each for each in arm["set"] if each.startswith("shape.")]
    for name, (rows, asked) in tasks.items():
        if only not in ("", name):
            continue
        chosen, few = rows[: sized(9000, 16)], sized(1000, 8)
        told: dict[str, Any] = {
            "train": chosen[few:], "validation": chosen[:few], "budget": TUNING, "metric": "accuracy", "precision": PRECISION,
            "baselines": False, "progress": "silent", "seed": run.seed, "set": ["validate_every=1000000"], **asked,
        }  # fmt: skip
        suffix = "" if share is None else f" at {share:g}"
        if f"{name} pretrained{suffix}" not in kept:
            if share is not None:
                told["learning_rate"] = share * get_family(family).recipe_for("pocket").learning_rate
            result = etymon.finetune(run.out, out=run.out / f"{name}{suffix}", **told)
            kept[f"{name} pretrained{suffix}"] = result.scores["accuracy"].value
            told.pop("learning_rate", None)
        if f"{name} new" not in kept:
            kept[f"{name} new"] = new_weights(family, name, [*run.shape, *shape], told)
    run.write("panel.json", kept)
    return kept


def new_weights(family: str, task: str, shape: list[str], told: dict[str, Any]) -> float:
    """The same of new weights, once for all arms of a shape."""
    fields = "-".join(each.removeprefix("shape.") for each in sorted(shape))
    out = RUNS / "new" / f"{family}-{task}-{told['seed']}-{fields}"
    if not (out / "accuracy.json").is_file():
        told = told | {"set": [*shape, *told["set"]]}
        result = etymon.finetune(
            family, out=out, from_scratch=True, size="pocket", tokenizer=prepare(family) / "tokenizer", **told
        )
        (out / "accuracy.json").write_text(json.dumps(result.scores["accuracy"].value), encoding="utf-8")
    value: float = json.loads((out / "accuracy.json").read_text(encoding="utf-8"))
    return value


def table() -> list[dict[str, Any]]:
    """What there is, the best first."""
    records = []
    for path in sorted(RUNS.glob("*/judged.json")):
        name, tflops, seed = path.parent.name.rsplit("-", 2)
        run = Run(name, tflops.removesuffix("T"), int(seed))
        cost, panel_record = run.read("cost.json") or {}, run.read("panel.json") or {}
        records.append(
            {
                "arm": name,
                "tflops": 0.0 if run.is_small else float(run.tflops),
                "seed": run.seed,
                **judge(run),
                **cost,
                **panel_record,
            }
        )
    records.sort(key=lambda record: (record["tflops"], record["masked"]))
    for record in records:
        tasks = " ".join(f"{name} {100 * record[name]:.1f}" for name in record if " " in name)
        print(
            f"{record['tflops']:>4g} {record['arm']:<26} {record['masked']:.3f} ({record['masked'] - record['frequencies']:+.2f}) "
            f"{record['accuracy']:.1%} {record.get('steps')} steps {record.get('processor')} s {tasks}"
            + (f" cosine {record['cosine']:.2f}" if "cosine" in record else "")
        )
    return records


def main(arguments: Sequence[str]) -> None:
    named = [each for each in arguments if "@" in each]
    wanted = [each.split("@") for each in named]
    if "--attention" in arguments:
        for each in wanted:
            print(each, attention_figures(Run(each[0], each[1])))
        return
    if not named and "--table" not in arguments:
        wanted = [[arm, tflops] for tflops, arms in ROUNDS for arm in arms]
    for arm_name, tflops, *seed in wanted:
        run = Run(arm_name, tflops, int(seed[0]) if seed else 0)
        train(run)
        judged = judge(run)
        print(
            f"{run.out.name}: {judged['masked']:.3f} of {judged['frequencies']:.3f}, {run.read('cost.json')}",
            flush=True,
        )
        shares = [float(each.removeprefix("--share=")) for each in arguments if each.startswith("--share=")]
        panels = [
            each.removeprefix("--panel").removeprefix("=") for each in arguments if each.startswith("--panel")
        ]
        if panels or sized(False, True):
            for share in shares or (None,):
                print(panel(run, share, *panels), flush=True)
    write_result("recipes", {"runs": table(), "machine": machine()})


if __name__ == "__main__":
    main(sys.argv[1:])
