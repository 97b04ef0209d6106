"""The demonstration beside `xz`: bits per byte of held-out prose, three seeds and two precisions: `make bench-demo`.

16 Tflop are what three minutes of two quiet cores compute in float32 without wider instructions than AVX2. Every seed holds other documents
out, so `xz`, which has read the same training text, has other figures as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

import etymon
from benchmarks.arms import SEEDS, folder, keep, small
from benchmarks.harness import sized
from etymon.config import load_yaml
from etymon.runs.report import xz_bits_per_byte
from etymon.runs.run_file import RunFile
from etymon.text.prose import StandardLibrary
from etymon.text.sources import Texts
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer

RUNS = folder("demo")
OPERATIONS = sized(os.environ.get("ETYMON_BENCH_FLOPS", "16Tflops"), "2steps")
PRECISIONS = sized(("bf16", "float32"), ("float32",))


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    made_up = Texts([f"The function number {n} returns a list of {n} values." for n in range(200)], "made up")
    text: Any = sized(StandardLibrary(), made_up)
    sizes: dict[str, Any] = sized({}, {"vocabulary": 300, "length": 32, "batch": 2})
    scores: dict[str, list[dict[str, float]]] = {}
    for precision in PRECISIONS:
        for seed in SEEDS:
            out = RUNS / f"{precision}-{seed}"
            result = etymon.pretrain(
                "gpt2", data=text, out=out, budget=OPERATIONS, precision=precision, seed=seed, progress="silent",
                resume="auto", set=small("gpt2"), **sizes,
            )  # fmt: skip
            if result.stopped:
                sys.exit("stopped: the same command goes on")
            tokenizer = Tokenizer.load(out / "tokenizer")
            xz = xz_bits_per_byte(TokenStore.open(out / "store", tokenizer), tokenizer)
            assert xz is not None and load_yaml(out / "run.yaml", RunFile).precision == precision
            found = {"bits_per_byte": result.metrics["bits_per_byte"], "xz": xz, "steps": result.steps}
            scores.setdefault(precision, []).append(found)
            print(
                f"{precision}, seed {seed}: {found['bits_per_byte']:.3f} bits per byte, xz {xz:.3f}, {result.steps} steps",
                flush=True,
            )
    keep("demo", {"operations": OPERATIONS, "scores": scores})


if __name__ == "__main__":
    main(sys.argv[1:])
