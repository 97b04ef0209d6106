"""Which pretraining buys what, at equal counted operations: `make bench-encoders`.

Pocket encoders on the same novels (or the demonstration's text where the shared data are absent), the same tokenizer,
three seeds an arm, every arm trained for the same number of floating-point operations, which are counted and not timed:
the runs may share the machine. Then every model is judged by linear probes on its frozen states: SST-2 and SentEval's
probing tasks. Runs are kept in ETYMON_BENCH_RUNS and their figures in `results/encoders-runs.json`: what was measured is not trained again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import RARELY, SEEDS, Figures, conditions_of, folder, keep, probed, run_of, small
from benchmarks.harness import corpora, needed_corpora, sized

RUNS, FIGURES = folder("encoders"), Figures("encoders-runs")
LENGTH, BATCH, VOCABULARY, STUDENT_LAYERS = sized((64, 16, 8192, 2), (32, 2, 200, 1))
ARMS: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert"},
    "electra": {"family": "electra"},
    "bert-static": {"family": "bert", "set": ["options.copies=1"]},
    "student": {"family": "distilbert"},
    "student-distilled": {"family": "distilbert", "teacher": "bert", "set": ["options.masking=bert"]},
    "bert-nsp": {"family": "bert", "objective": "masked-next-sentence", "set": ["options.density=0.4"]},
    "bert-sop": {"family": "bert", "objective": "masked-sentence-order", "set": ["options.density=0.4"]},
}
"""Pocket recipes, with one thing otherwise."""
TIMED = ("bert", "student-distilled")
PAIRS = [
    ("electra", "bert"),
    ("bert", "bert-static"),
    ("student-distilled", "student"),
    ("student-distilled", "bert"),
    ("bert-sop", "bert-nsp"),
]


def text() -> tuple[list[str], str]:
    data = corpora()
    if data is not None:
        return [str(data / "eltec-novels")], "file"
    from etymon.text.prose import stdlib_documents

    RUNS.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": document.text}) + "\n" for document in stdlib_documents()]
    (RUNS / "prose.jsonl").write_text("".join(lines), encoding="utf-8")
    return [str(RUNS / "prose.jsonl")], "file"


def prepare() -> Path:
    """One tokenizer and one store for all arms."""
    store = RUNS / "store"
    paths, documents = text()
    if not (RUNS / "tokenizer" / "tokenizer.json").is_file():
        etymon.tokenizer(
            data=paths, family="bert", size=VOCABULARY, out=RUNS / "tokenizer", documents=documents
        )
    etymon.prepare(data=paths, tokenizer=RUNS / "tokenizer", out=store, documents=documents, validation=0.01)
    return store


def train(arm: str, seed: int, store: Path) -> Path:
    choice = dict(ARMS[arm])
    shape = [] if "teacher" in choice else small(choice["family"])  # a student's is its teacher's
    settings = [*RARELY, *shape, *choice.pop("set", [])]
    asked: dict[str, Any] = {"data": [str(store)], "length": LENGTH, "batch": BATCH, "set": settings}

    def start(common: dict[str, Any]) -> Any:
        if "teacher" in choice:
            teacher = train(choice["teacher"], seed, store)
            return etymon.distill(teacher, family=choice["family"], layers=STUDENT_LAYERS, **asked, **common)
        return etymon.pretrain(choice.pop("family"), size="pocket", **choice, **asked, **common)

    return run_of(RUNS / f"{arm}-{seed}", seed, start)


def conditions(arm: str) -> dict[str, Any]:
    return conditions_of(ARMS[arm], length=LENGTH, batch=BATCH)


def score(arm: str, seed: int) -> dict[str, Any]:
    """Test accuracies of the best layers, by validation, and the size of the model; trained and probed unless that is known."""
    name = f"{arm}-{seed}"
    if not FIGURES.get(name, conditions(arm)):
        run = train(arm, seed, prepare())
        data = needed_corpora("SST-2 and SentEval's probing tasks")
        tasks = [data / "glue" / "SST-2" / name for name in ("train.tsv", "dev.tsv")]
        found = probed(run, data=[*tasks, data / "senteval-probing"], text="sentence")
        probes = {task: each["best"] for task, each in found.items()}
        timed = {"sentences_a_second": round(sentences_a_second(arm))} if seed == 0 and arm in TIMED else {}
        parameters = etymon.load(run).parameter_count()
        FIGURES.keep(name, conditions(arm), probes=probes, parameters=parameters, **timed)
    return FIGURES.get(name, conditions(arm))


def sentences_a_second(arm: str) -> float:
    """How fast an arm's model embeds SST-2's development sentences."""
    data = needed_corpora("SST-2")
    lines = (data / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts, model = [line.split("\t")[0] for line in lines], etymon.load(RUNS / f"{arm}-0")
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        etymon.embed(model, texts)
        times.append(time.perf_counter() - begin)
    return len(texts) / statistics.median(times[1:])


def judge() -> None:
    """A table of all arms and the differences of interest, each over the same seeds."""
    known = {arm: [score(arm, seed) for seed in SEEDS] for arm in ARMS}
    scores = {arm: [each["probes"] for each in seeds] for arm, seeds in known.items()}
    tasks = sorted(scores["bert"][0])
    means = {arm: [statistics.mean(one.values()) for one in each] for arm, each in scores.items()}
    for arm, each in scores.items():
        parts = " ".join(f"{name} {100 * statistics.mean(one[name] for one in each):.1f}" for name in tasks)
        spread = statistics.stdev(means[arm]) if len(means[arm]) > 1 else 0.0
        print(f"{arm:<18} mean {100 * statistics.mean(means[arm]):.1f} +- {100 * spread:.1f}  {parts}")
    differences = {}
    for one, other in PAIRS:
        each = [100 * (a - b) for a, b in zip(means[one], means[other], strict=True)]
        differences[f"{one} - {other}"] = each
        print(
            f"{one} - {other}: {statistics.mean(each):+.1f} points ({', '.join(f'{d:+.1f}' for d in each)})"
        )
    size = {arm: seeds[0]["parameters"] for arm, seeds in known.items()}
    speed = {arm: known[arm][0]["sentences_a_second"] for arm in TIMED}
    keep(
        "encoders",
        {
            "scores": scores, "means": means, "differences": differences, "parameters": size,
            "sentences_a_second": speed,
        },
    )  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    chosen = [name for name in arguments if name in ARMS] or list(ARMS)
    for seed in SEEDS:
        for arm in chosen:
            score(arm, seed)
    if chosen == list(ARMS):
        judge()


if __name__ == "__main__":
    main(sys.argv[1:])
