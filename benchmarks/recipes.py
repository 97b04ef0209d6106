"""Which recipe a pocket encoder learns most with: `make bench-recipes`.

One cause at a time is taken away from BERT as published; then arms of every encoder compete at 10, 30 and 100 Tflop. An arm is a few settings of
`etymon pretrain`. Operations are counted, not seconds, so runs may share the machine. Choices are made by the masked loss on validation novels and by a
small panel cut out of *training* files; four novels, and the test files of all tasks, are never read here. Every run is kept in ETYMON_BENCH_RUNS and goes
on where it was stopped; `NAME@TFLOPS` runs one arm, `--panel` also fine-tunes, `--table` prints what there is.
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
TUNING = sized("1Tflops", "1step")
ROTARY = "shape.position_kind=rotary"
NO_DROPOUT = ("shape.dropout=0.0", "shape.attention_dropout=0.0")
WIDER = "shape.deviation=0.06"
MORE_MASKS = "options.density=0.3"
MASKED = {"objective": "masked"}


def arm(family: str, *settings: str, **asked: Any) -> dict[str, Any]:
    """What pocket sizes did before, with some settings otherwise."""
    return {"family": family, "recipe": "muon", "set": settings, **asked}


# Why does a masked model stall? BERT with one thing otherwise.
CAUSES: dict[str, dict[str, Any]] = {
    "bert": arm("bert", **MASKED),
    "bert-nsp": arm("bert"),
    "bert-rotary": arm("bert", ROTARY, **MASKED),
    "bert-relative-key": arm("bert", "shape.position_kind=relative_key", **MASKED),
    "bert-relative-bias": arm("bert", "shape.position_kind=relative_bias", **MASKED),
    "bert-no-dropout": arm("bert", *NO_DROPOUT, **MASKED),
    "bert-warmup": arm("bert", **MASKED, warmup=0.4),
    "bert-slower": arm("bert", **MASKED, learning_rate=1e-3),
    "bert-adamw": arm("bert", **MASKED, optimiser="adamw", learning_rate=1e-3),
    "bert-deviation": arm("bert", WIDER, **MASKED),
    "bert-density": arm("bert", MORE_MASKS, **MASKED),
    "bert-short": arm("bert", **MASKED, length=32, batch=64),
    "bert-small-batch": arm("bert", **MASKED, batch=16),
    # All of the recipe but rotary positions.
    "bert-learned-16-30": arm("bert", *NO_DROPOUT, MORE_MASKS, **MASKED, batch=16),
}
# What to add to rotary positions.
BEST = (ROTARY, *NO_DROPOUT, MORE_MASKS)
LEVERS: dict[str, dict[str, Any]] = {
    "bert-rotary-16": arm("bert", ROTARY, *NO_DROPOUT, **MASKED, batch=16),
    "bert-rotary-16-30": arm("bert", *BEST, **MASKED, batch=16),
    "bert-rotary-16-40": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.4", **MASKED, batch=16),
    "bert-rotary-16-50": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.5", **MASKED, batch=16),
    "bert-rotary-deviation": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, batch=16
    ),
    "bert-rotary-deviation-12": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", "shape.deviation=0.12", **MASKED, batch=16
    ),
    "bert-rotary-deviation-32": arm("bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED),
    "bert-rotary-deviation-15": arm("bert", ROTARY, *NO_DROPOUT, WIDER, **MASKED, batch=16),
    "bert-rotary-deviation-128": arm(
        "bert", ROTARY, *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, length=128, batch=8
    ),
    "bert-learned-deviation": arm("bert", *NO_DROPOUT, "options.density=0.4", WIDER, **MASKED, batch=16),
    "roberta-deviation": arm("roberta", ROTARY, *NO_DROPOUT, WIDER, "options.density=0.4", batch=16),
    "distilbert-deviation": arm("distilbert", ROTARY, *NO_DROPOUT, WIDER, "options.density=0.4", batch=16),
    "albert-deviation": arm(
        "albert", ROTARY, WIDER, "options.density=0.4", "options.masking=bert", **MASKED, batch=16
    ),
    "electra-deviation": arm("electra", ROTARY, *NO_DROPOUT, WIDER, batch=16),
    "electra-deviation-masked-first": arm(
        "electra",
        ROTARY,
        *NO_DROPOUT,
        WIDER,
        "phases=[{share: 0.5, objective: masked, options: {density: 0.4}}, {share: 0.5, objective: replaced}]",
        batch=16,
    ),
    "xlnet-deviation": arm("xlnet", "shape.dropout=0.0", WIDER, "options.predict=3", batch=16),
    "bert-rotary-32-30": arm("bert", *BEST, **MASKED),
    "bert-rotary-8-30": arm("bert", *BEST, **MASKED, batch=8),
    "bert-rotary-128-30": arm("bert", *BEST, **MASKED, length=128, batch=8),
    "bert-rotary-short-30": arm("bert", *BEST, **MASKED, length=32, batch=32),
    "bert-rotary-16-30-8e-3": arm("bert", *BEST, **MASKED, batch=16, learning_rate=8e-3),
    "bert-rotary-16-30-2e-3": arm("bert", *BEST, **MASKED, batch=16, learning_rate=2e-3),
    "bert-rotary-16-30-nsp": arm("bert", *BEST, batch=16),
    "bert-rotary-decay": arm(
        "bert",
        ROTARY,
        *NO_DROPOUT,
        **MASKED,
        batch=16,
    )
    | {
        "set": (
            ROTARY,
            *NO_DROPOUT,
            "phases=[{share: 0.6, options: {density: 0.4}}, {share: 0.4, options: {density: 0.2}}]",
        )
    },
    "bert-hybrid": {"family": "bert", "recipe": "hybrid", "set": (MORE_MASKS,), "batch": 16},
    "bert-causal-first": {"family": "bert", "recipe": "causal-first", "set": (), "batch": 16},
    "roberta": arm("roberta"),
    "roberta-rotary": arm("roberta", *BEST, batch=16),
    "albert": arm("albert"),
    "albert-rotary": arm("albert", ROTARY, MORE_MASKS, "options.masking=bert", **MASKED, batch=16),
    "albert-rotary-ngram": arm("albert", ROTARY, MORE_MASKS, "options.masking=ngram", **MASKED, batch=16),
    "albert-rotary-2e-3": arm(
        "albert", ROTARY, MORE_MASKS, "options.masking=bert", **MASKED, batch=16, learning_rate=2e-3
    ),
    "distilbert": arm("distilbert"),
    "distilbert-rotary": arm("distilbert", *BEST, batch=16),
    "electra": arm("electra"),
    "electra-rotary": arm("electra", ROTARY, *NO_DROPOUT, batch=16),
    "electra-rotary-30": arm("electra", *BEST, batch=16),
    "electra-masked-first": arm(
        "electra",
        ROTARY,
        *NO_DROPOUT,
        "phases=[{share: 0.5, objective: masked, options: {density: 0.3}}, {share: 0.5, objective: replaced}]",
        batch=16,
    ),
    "electra-wide": arm(
        "electra", *BEST, "generator.dim=128", "generator.heads=2", "generator.inner_dim=512", batch=16
    ),
    "xlnet": arm("xlnet"),
    "xlnet-no-dropout": arm("xlnet", "shape.dropout=0.0", batch=16),
    "xlnet-third": arm("xlnet", "shape.dropout=0.0", "options.predict=3", batch=16),
    "xlnet-single": arm("xlnet", "shape.dropout=0.0", "options.predict=3", "options.longest=1", batch=16),
    "xlnet-masked": arm("xlnet", "shape.dropout=0.0", MORE_MASKS, **MASKED, batch=16),
}
ARMS = CAUSES | LEVERS
ROUNDS = sized([("10", list(ARMS))], [("0", ["bert", "bert-rotary", "electra-rotary"])])


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


def home(family: str) -> str:
    """Whose tokenizer a family reads with here: all that can share BERT's, so that their losses compare."""
    return family if family in ("roberta", "xlnet") else "bert"


def prepare(family: str) -> Path:
    """A tokenizer, a store to train on and one to choose by; the folder of all three."""
    place, parts = RUNS / f"text-{home(family)}", novels()
    if not (place / "tokenizer" / "tokenizer.json").is_file():
        etymon.tokenizer(data=parts["train"], family=home(family), size=VOCABULARY, out=place / "tokenizer")
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
    seed: int = 0

    @property
    def out(self) -> Path:
        return RUNS / f"{self.arm}-{self.tflops}T-{self.seed}"

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
    settings = [*RARELY, *small(family), *asked.pop("set")]
    begin, processor = time.perf_counter(), time.process_time()
    result = etymon.pretrain(
        family, size="pocket", data=[str(prepare(family) / "train")], out=run.out, budget=sized(f"{run.tflops}Tflops", "1step"), seed=run.seed,
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
    objective = get_objective(objective_name, tokenizer, LENGTH, **options)
    slices = validation_slices(
        objective, TokenStore.open(place / "validation").train, 0, rows=BATCH, most=JUDGED
    )
    counts = torch.from_numpy(TokenStore.open(place / "train").train.token_counts.astype("float64")) + 1
    targets = torch.cat([part.targets for part in slices])
    return objective, slices, -float((counts / counts.sum()).log()[targets].mean())


def masked_loss(run: Run) -> dict[str, float]:
    """Nats a target of BERT's masking, 15% of the tokens, on the validation novels; of ELECTRA the generator's, of XLNet its own."""
    family = ARMS[run.arm]["family"]
    name = "generator" if family == "electra" else "model"
    model = etymon.load(run.out / name, heads=("vocabulary",))
    own = str(model.history[-1]["objective"])
    asked = "permutation" if own == "permutation" else "masked"
    objective, slices, base = judged_by(family, asked, model.predicts_shifted)
    found = evaluate(TrainingUnit(model, objective), slices)
    loss, accuracy = (
        next(found[each + end] for each in ("masked", "permuted") if each in found)
        for end in ("", "_accuracy")
    )
    return {"masked": loss, "accuracy": accuracy, "frequencies": base}


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


def panel(run: Run) -> dict[str, float]:
    """Accuracies after a short fine-tuning on parts of training files, of this model and of new weights."""
    if (kept := run.read("panel.json")) is not None:
        return kept
    tags = read_table(data() / "ud-ewt" / "en_ewt-ud-train.conllu").rows
    reviews = read_table(data() / "glue" / "SST-2" / "train.tsv").rows
    tasks: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "tags": (tags, {"task": "tag", "tokens": "tokens", "tags": "upos", "batch": 32}),
        "sentiment": (reviews, {"task": "classify", "text": "sentence", "label": "label", "batch": 64}),
    }
    kept = {}
    for name, (rows, asked) in tasks.items():
        chosen, few = rows[: sized(9000, 16)], sized(1000, 8)
        for start in ("pretrained", "new"):
            out = run.out / f"{name}-{start}"
            scratch: dict[str, Any] = {}
            if start == "new":
                arm = ARMS[run.arm]
                shape = [each for each in arm["set"] if each.startswith("shape.")]
                scratch = {
                    "from_scratch": True,
                    "size": "pocket",
                    "tokenizer": prepare(arm["family"]) / "tokenizer",
                }
                scratch["set"] = [*shape, *small(arm["family"]), "validate_every=1000000"]
            result = etymon.finetune(
                ARMS[run.arm]["family"] if start == "new" else run.out, train=chosen[few:], validation=chosen[:few], out=out,
                budget=TUNING, metric="accuracy", precision=PRECISION, baselines=False, progress="silent",
                **{"set": ["validate_every=1000000"], **asked, **scratch},
            )  # fmt: skip
            kept[f"{name} {start}"] = result.scores["accuracy"].value
    run.write("panel.json", kept)
    return kept


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
                "tflops": float(run.tflops),
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
        if "--panel" in arguments or sized(False, True):
            print(panel(run), flush=True)
    write_result("recipes", {"runs": table(), "machine": machine()})


if __name__ == "__main__":
    main(sys.argv[1:])
