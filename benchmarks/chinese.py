"""Which tokenizer for Chinese: `make bench-chinese`.

4 MB of reviews and news (ChnSentiCorp, CLUENER), 8,000 tokens: characters as WordPiece, byte-level BPE, unigrams. How
each fits text that it has not read and how long it takes to train; bits per byte of small decoders of equal counted
operations; and what fine-tuning makes of them and of encoders with and without whole words. Runs are kept in
ETYMON_BENCH_RUNS and go on where they were stopped; `python -m benchmarks.chinese --figures` prints what there is.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import SEEDS, folder, keep, run_of, small
from benchmarks.harness import needed_corpora, sized
from etymon.tables.table import read_table
from etymon.text.sources import TextFiles

RUNS = folder("chinese")
BYTES = sized(4_000_000, 4000)
JUDGED = sized(300_000, 2000)
"""Bytes of the development texts that decoders are judged by."""
VOCABULARY = sized(8000, 600)
PRETRAINING, TUNING = sized(("6Tflops", "2Tflops"), ("1step", "1step"))
"""About a minute, and twenty seconds, of one quiet thread with bfloat16."""
KINDS = ("wordpiece", "byte-bpe", "unigram")
COMMON = ["validate_every=1000000", "save_every=200", "precision=bf16", "shape.dim=128", "shape.heads=2"]
# Batch and length: reviews have about a hundred characters.
SIZES = dict(zip(("batch", "length"), sized((16, 128), (2, 16)), strict=True))
WHOLE_WORDS = {"words": "jieba", "set": ["options.masking=whole-words"]}
ALL_ARMS: dict[str, dict[str, Any]] = {
    **{f"gpt2-{kind}": {"family": "gpt2", "kind": kind} for kind in KINDS},
    "bert-wordpiece": {"family": "bert", "kind": "wordpiece", "words": "tokens"},
    **{f"bert-{kind}-words": {"family": "bert", "kind": kind, **WHOLE_WORDS} for kind in KINDS},
}
ARMS = sized(ALL_ARMS, {name: ALL_ARMS[name] for name in ("gpt2-unigram", "bert-wordpiece-words")})
TASKS: dict[str, dict[str, Any]] = {
    "ChnSentiCorp": {
        "task": "classify", "train": "chnsenticorp/train.tsv", "validation": "chnsenticorp/dev.tsv", "text": "text_a",
        "metric": "accuracy",
    },
    "CLUENER": {
        "task": "tag", "train": "cluener/train.json", "validation": "cluener/dev.json", "text": "text",
        "entities": "label", "metric": "f1", "set": ["options.overlapping=longest"],
    },
}  # fmt: skip


def write_texts() -> None:
    """The text to learn from, and what is judged by: the training and development parts, a document a line."""
    RUNS.mkdir(parents=True, exist_ok=True)
    data = needed_corpora("ChnSentiCorp and CLUENER")
    for split, size in (("train", BYTES), ("dev", JUDGED)):
        reviews = TextFiles([data / "chnsenticorp" / f"{split}.tsv"], column="text_a").documents()
        lines = [document.text.replace("\n", " ") for document in reviews]
        lines += [row["text"] for row in read_table(data / "cluener" / f"{split}.json").rows]
        # Every n-th line, so that both kinds of text are there whatever is cut off.
        step = max(1, sum(len(line.encode()) for line in lines) // size)
        text = "\n".join(lines[::step]).encode()[:size].decode(errors="ignore")
        (RUNS / f"{split}.txt").write_text(text, encoding="utf-8")


def kept(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, which is computed if there is none."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(compute()), encoding="utf-8")
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def fit(family: str, kind: str) -> dict[str, Any]:
    """A tokenizer's figures on the development text, and the processor seconds of its training."""
    place = RUNS / f"{family}-{kind}-tokenizer"

    def compute() -> dict[str, Any]:
        begin = time.process_time()
        options: dict[str, Any] = {"documents": "line", "progress": "silent"}
        etymon.tokenizer(
            family=family, kind=kind, size=VOCABULARY, data=RUNS / "train.txt", out=place, **options
        )
        seconds = time.process_time() - begin
        report = etymon.tokenizer(show=place, data=RUNS / "dev.txt", **options).report
        assert report is not None
        return {
            "seconds": seconds,
            "tokens_per_character": report.tokens_per_character,
            "unknown_rate": report.unknown_rate,
            "unknown_character_rate": report.unknown_character_rate,
        }

    return kept(RUNS / "figures" / f"{family}-{kind}-tokenizer.json", compute)


def pretrain(name: str, seed: int) -> None:
    asked = dict(ARMS[name])
    family, kind = asked.pop("family"), asked.pop("kind")
    fit(family, kind)
    settings = [*small(family), *COMMON, f"shape.positions={SIZES['length']}", *asked.pop("set", [])]

    def start(common: dict[str, Any]) -> Any:
        return etymon.pretrain(
            family, size="pocket", data=RUNS / "train.txt", documents="line", set=settings,
            tokenizer=RUNS / f"{family}-{kind}-tokenizer", **SIZES, **asked, **{**common, "budget": PRETRAINING},
        )  # fmt: skip

    run_of(RUNS / f"{name}-{seed}", seed, start)


def judge(name: str, seed: int) -> None:
    """Bits per byte of the development text."""

    def compute() -> dict[str, Any]:
        text = (RUNS / "dev.txt").read_text(encoding="utf-8")
        return {"bits_per_byte": etymon.score(RUNS / f"{name}-{seed}", [text])[0].bits_per_byte}

    kept(RUNS / "figures" / f"{name}-{seed}.json", compute)


def tune(name: str, task: str, seed: int) -> None:
    data, asked = needed_corpora(task), dict(TASKS[task])
    files = {split: [data / asked.pop(split)] for split in ("train", "validation")}
    settings = ["validate_every=1000000", "save_every=200", "precision=bf16", *asked.pop("set", [])]

    def start(common: dict[str, Any]) -> Any:
        return etymon.finetune(
            RUNS / f"{name}-{seed}" / "model", set=settings, baselines=False, length=SIZES["length"], **files, **asked,
            **{**common, "budget": TUNING},
        )  # fmt: skip

    def compute() -> dict[str, Any]:
        run = run_of(RUNS / f"{name}-{task}-{seed}", seed, start)
        found = etymon.evaluate(run, data=files["validation"], resamples=0, metric=asked["metric"])
        return {asked["metric"]: found.scores[asked["metric"]].value}

    kept(RUNS / "figures" / f"{name}-{task}-{seed}.json", compute)


def figures() -> dict[str, Any]:
    """Those that there are: of a tokenizer one record, of a model and of a task a list by seed."""
    there = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (RUNS / "figures").glob("*.json")
    }
    found = {name: there[name] for name in sorted(there) if name.endswith("-tokenizer")}
    for name in (each for arm in ARMS for each in (arm, *(f"{arm}-{task}" for task in TASKS))):
        if scores := [there[f"{name}-{seed}"] for seed in SEEDS if f"{name}-{seed}" in there]:
            found[name] = scores
    return found


def line(name: str, each: Any) -> str:
    if isinstance(each, dict):
        return f"{name:<32} {', '.join(f'{key} {value:.4g}' for key, value in each.items())}"
    (metric,) = each[0]
    values = [score[metric] for score in each]
    spread = f" +- {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    listed = ", ".join(f"{value:.4g}" for value in values)
    return f"{name:<32} {metric} {statistics.mean(values):.4g}{spread} ({listed})"


def main(arguments: Sequence[str]) -> None:
    if "--figures" not in arguments:
        write_texts()
        chosen = [name for name in arguments if name in ARMS] or list(ARMS)
        for seed in SEEDS:
            for name in chosen:
                pretrain(name, seed)
                if ARMS[name]["family"] == "gpt2":
                    judge(name, seed)
                for task in TASKS:
                    tune(name, task, seed)
    found = figures()
    for name, each in found.items():
        print(line(name, each))
    keep("chinese", {"operations": [PRETRAINING, TUNING], "scores": found})


if __name__ == "__main__":
    main(sys.argv[1:])
