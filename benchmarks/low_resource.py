"""What to do with little text: `make bench-low-resource`.

Small decoders on slices of 1, 10 and 100 MB of the novels (the last is all of them, about 60 MB), with several
tokenizers, sizes and amounts of training, and on 1 MB of Chinese reviews: alone, beside English novels, and going on
from a model of them. Every arm has a number of counted operations, so a small slice is read for many epochs. All
arms of a language are judged by bits per byte of the same text, which none has read. Runs are kept in
ETYMON_BENCH_RUNS and go on where they were stopped; `python -m benchmarks.low_resource --figures` prints what there is.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import SEEDS, folder, keep, run_of, small
from benchmarks.harness import needed_corpora, sized
from etymon.text.sources import TextFiles
from etymon.text.store import TokenStore

RUNS = folder("low-resource")
SLICES = sized({"1MB": 1_000_000, "10MB": 10_000_000, "100MB": 100_000_000}, {"1MB": 2000, "10MB": 4000})
JUDGED = sized(200_000, 500)
"""Characters of the text that all arms of a language are judged by."""
SHORT, LONG = sized(("4Tflops", "16Tflops"), ("1step", "2steps"))
"""Less than one and about three minutes of one quiet thread with bfloat16."""
BATCH, LENGTH = sized((16, 128), (2, 16))
BYTES_A_TOKEN = 4
"""Samples of bytes are longer by so much, and a step has fewer: all arms see about as much text before a word."""
COMMON = ["validate_every=1000000", "save_every=200", "precision=bf16"]
TOKENIZERS: dict[str, dict[str, Any]] = sized(
    {
        "byte": {"tokenizer": "byte"},
        "1k": {"vocabulary": 1000},
        "4k": {"vocabulary": 4000},
        "16k": {"vocabulary": 16000},
    },
    {"byte": {"tokenizer": "byte"}, "4k": {"vocabulary": 300}},
)
USUAL = "4k"
SHAPES: dict[str, list[str]] = {
    "narrow": ["shape.dim=128", "shape.heads=2"],
    "tiny": ["shape.dim=64", "shape.heads=1", "shape.layers=2"],
    "pocket": [],
}
DROPOUT = [f"shape.{name}_dropout=0.1" for name in ("embedding", "attention", "residual")]
TEMPERATURE = 0.3


def arms() -> dict[str, dict[str, Any]]:
    """By name: the data and settings of a run, its budget, and the language that judges it."""
    chosen: dict[str, dict[str, Any]] = {}

    def add(
        size: str, tokenizer: str = USUAL, shape: str = "narrow", dropout: bool = False, long: bool = False
    ) -> None:
        name = f"en-{size}-{tokenizer}-{shape}{'-dropout' * dropout}{'-long' * long}"
        chosen[name] = {
            "data": [str(RUNS / f"en-{size}.txt")], "language": "en", "budget": LONG if long else SHORT,
            "set": [*SHAPES[shape], *(DROPOUT if dropout else [])], **TOKENIZERS[tokenizer],
        }  # fmt: skip

    for size in SLICES:
        for tokenizer in TOKENIZERS:
            add(size, tokenizer)
        add(size, shape="pocket")
    add("1MB", shape="tiny")
    for size in list(SLICES)[:2]:
        add(size, long=True)
        add(size, shape="pocket", long=True)
    add("1MB", dropout=True, long=True)
    chinese, english = str(RUNS / "zh-1MB.txt"), str(RUNS / "en-10MB.txt")
    common = {
        "language": "zh",
        "documents": "line",
        "budget": SHORT,
        "set": SHAPES["narrow"],
        **TOKENIZERS[USUAL],
    }
    both = [f"zh={chinese}", f"en={english}"]
    chosen |= {
        "zh-1MB-alone": {**common, "data": [chinese]},
        "zh-1MB-beside-en": {**common, "data": both, "language_temperature": TEMPERATURE},
        "zh-1MB-from-en": {
            **common, "data": [chinese], "set": [], "start": f"en-10MB-{USUAL}-narrow", "replace_tokenizer": True,
        },
    }  # fmt: skip
    return chosen


def write_slices() -> None:
    """The beginnings of the texts, and what all are judged by: the last novel, and the development reviews."""
    RUNS.mkdir(parents=True, exist_ok=True)
    if (RUNS / "zh-judged.txt").is_file():
        return
    data = needed_corpora("novels and Chinese reviews")
    *novels, last = sorted((data / "eltec-novels").glob("*.txt"))
    (RUNS / "en-judged.txt").write_text(last.read_text(encoding="utf-8")[:JUDGED], encoding="utf-8")
    for name, size in SLICES.items():
        _write(RUNS / f"en-{name}.txt", (path.read_text(encoding="utf-8") for path in novels), size)
    for split, name, size in (("train", "zh-1MB", SLICES["1MB"]), ("dev", "zh-judged", 3 * JUDGED)):
        reviews = TextFiles([data / "chnsenticorp" / f"{split}.tsv"], column="text_a").documents()
        _write(RUNS / f"{name}.txt", (document.text.replace("\n", " ") for document in reviews), size)


def _write(path: Path, texts: Iterator[str], size: int) -> None:
    """Whole texts, and the beginning of the last, up to so many bytes."""
    with path.open("wb") as file:
        for text in texts:
            file.write(text.encode()[: max(0, size - file.tell())])
            file.write(b"\n")
            if file.tell() >= size:
                break
    path.write_text(path.read_bytes().decode(errors="ignore"), encoding="utf-8")


def train(name: str, seed: int) -> Path:
    asked = dict(arms()[name])
    asked.pop("language")
    budget, settings = asked.pop("budget"), [*COMMON, *asked.pop("set")]
    length = LENGTH * (BYTES_A_TOKEN if asked.get("tokenizer") == "byte" else 1)
    if (base := asked.pop("start", None)) is not None:
        asked |= {"from_": train(base, seed) / "model", "size": None}
    else:
        # As many positions as a sample has tokens: others would be judged with vectors that nothing has trained.
        settings = [*small("gpt2"), *settings, f"shape.positions={length}"]
        asked["size"] = "pocket"
    batch = max(1, BATCH * LENGTH // length)

    def start(common: dict[str, Any]) -> Any:
        return etymon.pretrain(
            "gpt2", length=length, batch=batch, set=settings, **asked, **{**common, "budget": budget}
        )

    return run_of(RUNS / f"{name}-{seed}", seed, start)


def judge(name: str, seed: int) -> dict[str, float]:
    """Bits per byte of the text that judges an arm, and how often it read its own text."""
    run, language = RUNS / f"{name}-{seed}", arms()[name]["language"]
    kept = run / "judged.json"
    if not kept.is_file():
        text = (RUNS / f"{language}-judged.txt").read_text(encoding="utf-8")
        (score,) = etymon.score(run, [text])
        history, store = etymon.load(run / "model").history[-1], TokenStore.open(run / "store")
        words = max(1, int(store.train.words.sum()))
        figures = {"bits_per_byte": score.bits_per_byte, "epochs": history["seen"]["words"] / words}
        kept.write_text(json.dumps(figures), encoding="utf-8")
    read: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return read


def figures(seeds: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """Those of all arms that are done, by name."""
    return {
        name: scores
        for name in arms()
        if (scores := [judge(name, seed) for seed in seeds if (RUNS / f"{name}-{seed}" / "done").is_file()])
    }


def main(arguments: Sequence[str]) -> None:
    write_slices()
    if "--figures" not in arguments:
        chosen = [name for name in arguments if name in arms()] or list(arms())
        for seed in SEEDS:
            for name in chosen:
                train(name, seed)
                judge(name, seed)
    scores = figures(SEEDS)
    for name, each in scores.items():
        bits = [score["bits_per_byte"] for score in each]
        spread = f" +- {statistics.stdev(bits):.3f} ({len(bits)} seeds)" if len(bits) > 1 else ""
        print(f"{name:<28} {statistics.mean(bits):.3f}{spread} bits per byte, {each[0]['epochs']:.1f} epochs")
    keep("low_resource", {"operations": [SHORT, LONG], "scores": scores})


if __name__ == "__main__":
    main(sys.argv[1:])
