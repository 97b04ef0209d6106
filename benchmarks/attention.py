"""What attention buys by the length of a sentence, at equal counted operations: `make bench-attention`.

Recurrent translators of pocket size, English to German (multi30k), with Bahdanau's attention and with one fixed vector for the source.
The test sentences are cut into thirds by their length, and every third has a chrF of its own. Figures of runs are kept in
`results/attention-runs.json`: what was measured is not trained again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

import etymon
from benchmarks.arms import RARELY, SEEDS, Figures, folder, keep, recipe_of, small
from benchmarks.harness import needed_corpora, sized

RUNS, FIGURES = folder("attention"), Figures("attention-runs")
OPERATIONS = sized("10Tflops", "1step")
"""A recurrent step is short and its operations slow: about five minutes of a core."""
VOCABULARY = sized(4096, 160)
ARMS: dict[str, list[str]] = {"attention": [], "fixed": ["shape.attention=none"]}
THIRDS = ("short", "middle", "long")


def read(name: str, code: str) -> list[str]:
    path = needed_corpora("multi30k") / "multi30k" / f"{name}.{code}"
    return path.read_text(encoding="utf-8").splitlines()


def conditions(arm: str) -> dict[str, Any]:
    recipe = recipe_of("rnn")
    return {"operations": OPERATIONS, "vocabulary": VOCABULARY, "arm": ARMS[arm], "recipe": recipe}


def measure(arm: str, seed: int) -> dict[str, float]:
    """chrF of every third of the test sentences by their words; a model is trained unless that is known."""
    name = f"{arm}-{seed}"
    if not FIGURES.get(name, conditions(arm)):
        out = RUNS / name
        if not (out / "done").is_file():
            pairs = zip(read("train", "en"), read("train", "de"), strict=True)
            result = etymon.finetune(
                "rnn", from_scratch=True, size="pocket", task="text2text", vocabulary=VOCABULARY,
                train=[{"source": en, "target": de} for en, de in pairs], hold_out=0.01, budget=OPERATIONS, seed=seed,
                set=[*RARELY, *small("rnn"), *ARMS[arm]], out=out, progress="silent", resume=(out / "run.yaml").is_file(),
            )  # fmt: skip
            if result.stopped:
                sys.exit("stopped: the same command goes on")
            (out / "done").touch()
        FIGURES.keep(name, conditions(arm), chrf=score(out))
    scores: dict[str, float] = FIGURES.get(name, conditions(arm))["chrf"]
    return scores


def score(run: Any) -> dict[str, float]:
    from sacrebleu import corpus_chrf

    sources, references = read("test_2016_flickr", "en"), read("test_2016_flickr", "de")
    written = [each.text for each in etymon.translate(run, sources)]
    ranked = sorted(range(len(sources)), key=lambda place: len(sources[place].split()))
    scores = {}
    for number, third in enumerate(THIRDS):
        places = ranked[number * len(ranked) // 3 : (number + 1) * len(ranked) // 3]
        chrf = corpus_chrf([written[place] for place in places], [[references[place] for place in places]])
        scores[third] = float(chrf.score)
    return scores


def main(arguments: Sequence[str]) -> None:
    for seed in SEEDS:
        for arm in ARMS:
            measure(arm, seed)
    scores = {arm: [measure(arm, seed) for seed in SEEDS] for arm in ARMS}
    for arm, each in scores.items():
        told = ", ".join(f"{third} {statistics.mean(one[third] for one in each):.1f}" for third in THIRDS)
        print(f"{arm:<10} chrF {told}")
    keep("attention", {"scores": scores, "operations": OPERATIONS})


if __name__ == "__main__":
    main(sys.argv[1:])
