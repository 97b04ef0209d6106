"""Runs the named benchmarks, or all of them, one after the other."""

from __future__ import annotations

import os
import sys
from importlib import import_module

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks.harness import THREADS, record

BENCHMARKS = {
    "preparing": "benchmarks.preparing",
    "sentence-encoding": "benchmarks.sentence_encoding",
    "prompting": "benchmarks.prompting",
    "generation": "benchmarks.generation",
    "recurrent": "benchmarks.recurrent",
    "seq2seq": "benchmarks.seq2seq",
    "finetuning": "benchmarks.finetuning",
    "training-steps": "benchmarks.training_steps",
    "shakespeare": "benchmarks.shakespeare",
}


def main() -> None:
    torch.set_num_threads(THREADS)
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}: there are {', '.join(BENCHMARKS)}")
    for name in names:
        record(import_module(BENCHMARKS[name]).run())


main()
