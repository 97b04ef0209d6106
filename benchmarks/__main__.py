"""Runs the named benchmarks, or all of them, one after the other. What fails is told at the end; the figures of all others are kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import torch

from benchmarks.harness import THREADS, measure

BENCHMARKS = {
    "preparing": "benchmarks.preparing",
    "sentence-encoding": "benchmarks.sentence_encoding",
    "prompting": "benchmarks.prompting",
    "pairs": "benchmarks.pairs",
    "generation": "benchmarks.generation",
    "recurrent": "benchmarks.recurrent",
    "seq2seq": "benchmarks.seq2seq",
    "translation": "benchmarks.translation",
    "finetuning": "benchmarks.finetuning",
    "training-steps": "benchmarks.training_steps",
    "shakespeare": "benchmarks.shakespeare",
    "sharding": "benchmarks.sharding",
    "serving": "benchmarks.serving",
}


def main(names: Sequence[str]) -> int:
    """The exit code: 1 if a benchmark has failed."""
    torch.set_num_threads(THREADS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark {unknown[0]!r}: there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or BENCHMARKS:
        try:
            runs = import_module(BENCHMARKS[name]).RUNS
        except ImportError as error:
            failed.append(f"{name}: {error}")
            continue
        failed += [f"{name}: {reason}" for reason in measure(runs)]
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
