"""What to do with little text: `make bench-low-resource`.

Pocket decoders on slices of 1, 10 and 100 MB of the novels (the last is all of them, about 60 MB), with several
tokenizers and sizes, and on 1 MB of Chinese reviews: alone, beside English novels, and going on from a model of
them. Every run has the same number of counted operations, so a small slice is read for many epochs. All arms of a
language are judged by bits per byte of the same text, which none has read. Runs are kept in ETYMON_BENCH_RUNS and
go on where they were stopped.
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
SLICES = sized({"1MB": 1_000_000, "10MB": 10_000_000, "100MB": 100_000_000}, {"1MB": 2000})
JUDGED = sized(200_000, 500)
"""Characters of the text that all arms of a language are judged by."""
BATCH, LENGTH = sized((16, 128), (2, 16))
VALIDATIONS = ["validate_every=1000000", "save_every=200"]
TOKENIZERS: dict[str, dict[str, Any]] = sized(
    {
        "byte": {"tokenizer": "byte"},
        "bpe-1k": {"vocabulary": 1000},
        "bpe-4k": {"vocabulary": 4000},
        "bpe-16k": {"vocabulary": 16000},
    },
    {"byte": {"tokenizer": "byte"}, "bpe-1k": {"vocabulary": 300}},
)
SHAPES: dict[str, list[str]] = {
    "pocket": [],
    "narrow": ["shape.dim=128", "shape.heads=2"],
    "dropout": [f"shape.{name}_dropout=0.1" for name in ("embedding", "attention", "residual")],
}
TEMPERATURE = 0.3


def arms() -> dict[str, dict[str, Any]]:
    """By name: the data and settings of a run, and the language that judges it."""
    chosen: dict[str, dict[str, Any]] = {}
    for size in SLICES:
        english = [str(RUNS / f"en-{size}.txt")]
        for tokenizer, settings in TOKENIZERS.items():
            chosen[f"en-{size}-{tokenizer}"] = {"data": english, "language": "en", **settings}
        middle = list(TOKENIZERS.values())[-2]
        for shape in ("narrow", "dropout"):
            chosen[f"en-{size}-{shape}"] = {
                "data": english, "language": "en", "set": SHAPES[shape], **middle
            }  # fmt: skip
    largest, vocabulary = list(SLICES)[-1], list(TOKENIZERS.values())[-1]["vocabulary"]
    chinese = str(RUNS / "zh-1MB.txt")
    common = {"language": "zh", "vocabulary": vocabulary, "documents": "line"}
    base = f"en-{largest}-{list(TOKENIZERS)[-1]}"
    chosen |= {
        "zh-alone": {"data": [chinese], **common},
        "zh-beside-en": {
            "data": [f"zh={chinese}", f"en={RUNS / f'en-{largest}.txt'}"], "language_temperature": TEMPERATURE, **common,
        },
        "zh-from-en": {"data": [chinese], "start": base, "replace_tokenizer": True, **common},
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
    settings = [*VALIDATIONS, *asked.pop("set", [])]
    if (base := asked.pop("start", None)) is not None:
        asked |= {"from_": train(base, seed) / "model", "size": None}
    else:
        settings = [*small("gpt2"), *settings]
        asked["size"] = "pocket"

    def start(common: dict[str, Any]) -> Any:
        return etymon.pretrain("gpt2", length=LENGTH, batch=BATCH, set=settings, **asked, **common)

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


def main(arguments: Sequence[str]) -> None:
    write_slices()
    chosen = [name for name in arguments if name in arms()] or list(arms())
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for seed in SEEDS:
        for name in chosen:
            train(name, seed)
            scores[name].append(judge(name, seed))
    for name, each in scores.items():
        bits = [score["bits_per_byte"] for score in each]
        spread = statistics.stdev(bits) if len(bits) > 1 else 0.0
        print(
            f"{name:<20} {statistics.mean(bits):.3f} +- {spread:.3f} bits per byte, {each[0]['epochs']:.1f} epochs"
        )
    keep("low_resource", {"scores": scores})


if __name__ == "__main__":
    main(sys.argv[1:])
