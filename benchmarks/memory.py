"""What memory, permutation and a mix of layers buy at pocket size, at equal counted operations: `make bench-memory`.

On wikitext-2: Transformer-XL with its memory, without it, and GPT-2, all with segments of 64 tokens and one tokenizer, judged in bits per
byte of the test text and by context length; XLNet's body trained by permutation and by masking, judged by probes; and ELMo,
whose layers are judged by tags of UD-EWT: the learned mix against the last one. Figures of runs are kept in `results/memory-runs.json`: what was
measured is not trained again.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import etymon
from benchmarks.arms import RARELY, SEEDS, Figures, conditions_of, folder, keep, probed, run_of, small
from benchmarks.harness import needed_corpora, sized

RUNS, FIGURES = folder("memory"), Figures("memory-runs")
LENGTH, PERMUTED_LENGTH, BATCH, MEMORY, LONGEST = sized((64, 128, 16, 128, 512), (16, 16, 2, 16, 32))
VOCABULARIES = sized({"gpt2": 4096, "xlnet": 8192, "elmo": 40_000}, {"gpt2": 400, "xlnet": 120, "elmo": 40})
ARMS: dict[str, dict[str, Any]] = {
    "xl": {"family": "transformer-xl"},
    "xl-forgetful": {"family": "transformer-xl", "set": ["options.memory=0"]},
    "gpt2": {"family": "gpt2"},
    "xlnet": {"family": "xlnet", "length": PERMUTED_LENGTH},
    # As many targets a sample as XLNet's recipe has.
    "xlnet-masked": {
        "family": "xlnet",
        "length": PERMUTED_LENGTH,
        "objective": "masked",
        "set": ["options.density=0.33"],
    },
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
    overlap by half."""
    test = data() / "wikitext-2" / "test.txt"
    asked: dict[str, Any] = {"memory": MEMORY, "segment": LENGTH} if arm == "xl" else {"window": LENGTH}
    (score,) = etymon.score(run, file=test, **asked)
    assert score.bits_per_byte is not None
    return score.bits_per_byte


def by_context(run: Path) -> list[float]:
    """Bits per byte by the length of the context."""
    out = run / "context"
    etymon.context([run], data=[data() / "wikitext-2" / "test.txt"], longest=LONGEST, out=out)
    (model,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["models"]
    bits: list[float] = model["bits_per_byte"]
    return bits


def conditions(arm: str) -> dict[str, Any]:
    return conditions_of(ARMS[arm], length=LENGTH, batch=BATCH)


def measure(arm: str, seed: int) -> dict[str, Any]:
    """The figures of a run, which is trained unless they are known."""
    name = f"{arm}-{seed}"
    if not FIGURES.get(name, conditions(arm)):
        run, figures = train(arm, seed), dict[str, Any]()
        if arm in LANGUAGE_MODELS:
            figures["bits_per_byte"] = bits(arm, run)
            if seed == 0:
                figures["context"] = by_context(run)
        elif arm == "elmo":
            figures["probes"] = probed(run, data=[data() / "ud-ewt"])
        else:
            tasks = [data() / "glue" / "SST-2" / name for name in ("train.tsv", "dev.tsv")]
            figures["probes"] = probed(run, data=[*tasks, data() / "senteval-probing"], text="sentence")
        FIGURES.keep(name, conditions(arm), **figures)
    return FIGURES.get(name, conditions(arm))


def judge() -> None:
    known = {arm: [measure(arm, seed) for seed in SEEDS] for arm in ARMS}
    record: dict[str, Any] = {"context": {}}
    for arm in LANGUAGE_MODELS:
        record[arm] = found = [each["bits_per_byte"] for each in known[arm]]
        told = ", ".join(f"{one:.3f}" for one in found)
        print(f"{arm:<14} {statistics.mean(found):.3f} bits per byte ({told})")
        record["context"][f"{arm}-0"] = contexts = known[arm][0]["context"]
        print(f"{arm:<14} by context: {', '.join(f'{bits:.3f}' for bits in contexts)}")
    for arm in ("xlnet", "xlnet-masked"):
        record[arm] = [each["probes"] for each in known[arm]]
        means = [statistics.mean(task["best"] for task in one.values()) for one in record[arm]]
        told = ", ".join(f"{100 * mean:.1f}" for mean in means)
        print(f"{arm:<14} mean accuracy {100 * statistics.mean(means):.1f} ({told})")
    record["elmo"] = [each["probes"] for each in known["elmo"]]
    for what in ("mix", "last", "best"):
        accuracies = [statistics.mean(task[what] for task in one.values()) for one in record["elmo"]]
        told = ", ".join(f"{100 * accuracy:.2f}" for accuracy in accuracies)
        print(f"elmo {what:<9} {100 * statistics.mean(accuracies):.2f} ({told})")
    keep("memory", record)


def main(arguments: Sequence[str]) -> None:
    chosen = [name for name in arguments if name in ARMS] or list(ARMS)
    for seed in SEEDS:
        for arm in chosen:
            measure(arm, seed)
    if chosen == list(ARMS):
        judge()


if __name__ == "__main__":
    main(sys.argv[1:])
