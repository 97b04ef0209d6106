"""What memory, permutation and a mix of layers buy at pocket size, at equal counted operations: `make bench-memory`.

On wikitext-2: Transformer-XL with its memory, without it, and GPT-2, all with segments of 64 tokens and one tokenizer, judged in bits per
byte of the test text and by context length; XLNet's body trained by permutation and by masking, judged by probes; and ELMo,
whose layers are judged by tags of UD-EWT: the learned mix against the last one.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import RARELY, SEEDS, folder, keep, probed, run_of, small
from benchmarks.harness import needed_corpora, sized

RUNS = folder("memory")
LENGTH, PERMUTED_LENGTH, BATCH, MEMORY, LONGEST = sized((64, 128, 16, 128, 512), (16, 16, 2, 16, 32))
VOCABULARIES = sized({"gpt2": 4096, "xlnet": 8192, "elmo": 40_000}, {"gpt2": 400, "xlnet": 120, "elmo": 40})
ARMS: dict[str, dict[str, Any]] = {
    "xl": {"family": "transformer-xl"},
    "xl-forgetful": {"family": "transformer-xl", "set": ["options.memory=0"]},
    "gpt2": {"family": "gpt2"},
    "xlnet": {"family": "xlnet", "length": PERMUTED_LENGTH},
    "xlnet-masked": {"family": "xlnet", "length": PERMUTED_LENGTH, "objective": "masked"},
    "elmo": {"family": "elmo"},
}
LANGUAGE_MODELS = ("xl", "xl-forgetful", "gpt2")


def data() -> Path:
    return needed_corpora("wikitext-2 and the tasks")


def prepared(family: str) -> Path:
    """One tokenizer and one store a kind of model: the language models share theirs."""
    name = "gpt2" if family in ("gpt2", "transformer-xl") else family
    text, store = [str(data() / "wikitext-2" / "train.txt")], RUNS / f"store-{name}"
    tokenizer = RUNS / f"tokenizer-{name}"
    if not (tokenizer / "tokenizer.json").is_file():
        # ELMo reads the letters of every word it has.
        etymon.tokenizer(data=text, family=name, size=VOCABULARIES[name], out=tokenizer)
    etymon.prepare(data=text, tokenizer=tokenizer, out=store, validation=0.01)
    return store


def train(arm: str, seed: int) -> Path:
    choice = dict(ARMS[arm])
    family = choice.pop("family")
    settings = [*RARELY, *small(family), *choice.pop("set", [])]
    store = prepared(family)
    return run_of(
        RUNS / f"{arm}-{seed}",
        seed,
        lambda common: etymon.pretrain(
            family, size="pocket", data=[str(store)], set=settings, batch=BATCH, **{"length": LENGTH, **choice}, **common
        ),
    )  # fmt: skip


def bits(arm: str, run: Path) -> float:
    """Bits per byte of the test text: with as long a memory as in training, or in windows as long as its segments that
    overlap by half; kept with the run."""
    if (kept := run / "bits.json").is_file():
        return float(json.loads(kept.read_text(encoding="utf-8")))
    test = data() / "wikitext-2" / "test.txt"
    asked: dict[str, Any] = {"memory": MEMORY, "segment": LENGTH} if arm == "xl" else {"window": LENGTH}
    (score,) = etymon.score(run, file=test, **asked)
    assert score.bits_per_byte is not None
    kept.write_text(json.dumps(score.bits_per_byte), encoding="utf-8")
    return score.bits_per_byte


def judge() -> None:
    record: dict[str, Any] = {}
    for arm in LANGUAGE_MODELS:
        found = [bits(arm, RUNS / f"{arm}-{seed}") for seed in SEEDS]
        record[arm] = found
        print(
            f"{arm:<14} {statistics.mean(found):.3f} bits per byte ({', '.join(f'{one:.3f}' for one in found)})"
        )
    contexts = RUNS / "context" / "results.json"
    if not contexts.is_file():
        test = data() / "wikitext-2" / "test.txt"
        etymon.context(
            [RUNS / f"{arm}-0" for arm in LANGUAGE_MODELS], data=[test], longest=LONGEST, out=contexts.parent
        )
    measured = json.loads(contexts.read_text(encoding="utf-8"))
    record["context"] = {Path(one["name"]).name: one["bits_per_byte"] for one in measured["models"]}
    for name, each in record["context"].items():
        print(f"{name:<14} by context: {', '.join(f'{bits:.3f}' for bits in each)}")
    tasks = [data() / "glue" / "SST-2" / name for name in ("train.tsv", "dev.tsv")]
    for arm in ("xlnet", "xlnet-masked"):
        each = [
            probed(RUNS / f"{arm}-{seed}", data=[*tasks, data() / "senteval-probing"], text="sentence")
            for seed in SEEDS
        ]
        means = [statistics.mean(task["best"] for task in one.values()) for one in each]
        record[arm] = each
        print(
            f"{arm:<14} mean accuracy {100 * statistics.mean(means):.1f} ({', '.join(f'{100 * m:.1f}' for m in means)})"
        )
    each = [probed(RUNS / f"elmo-{seed}", data=[data() / "ud-ewt"]) for seed in SEEDS]
    record["elmo"] = each
    for what in ("mix", "last", "best"):
        accuracies = [statistics.mean(task[what] for task in one.values()) for one in each]
        print(
            f"elmo {what:<9} {100 * statistics.mean(accuracies):.2f} ({', '.join(f'{100 * a:.2f}' for a in accuracies)})"
        )
    keep("memory", record)


def main(arguments: Sequence[str]) -> None:
    chosen = [name for name in arguments if name in ARMS] or list(ARMS)
    for seed in SEEDS:
        for arm in chosen:
            train(arm, seed)
    if "--train-only" not in arguments:
        judge()


if __name__ == "__main__":
    main(sys.argv[1:])
