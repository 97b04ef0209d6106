"""Kills a comparison again and again, and lets it go on every time: python -m tests.lab.compare_crashes FOLDER.

As in `tests/training/crashes.py`, every attempt is a fork of this process, which has imported everything. It is killed when a
file appears: once in every part of the story. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from etymon.training.speed import matmul_peak
from tests.lab.small_comparisons import compare, small_comparisons, write_table, write_text
from tests.training.crashes import IMPORTED, ending

ARMS = ["gpt2", "fast=gpt2@learning_rate=0.01"]
MOMENTS = [
    "text/train.jsonl",
    "runs/gpt2/round-1/metrics.jsonl",
    "runs/gpt2/round-1/tasks/reviews/run.yaml",
    "runs/fast/round-1/model/config.json",
    "runs/fast/seed-2/tasks/reviews/metrics.jsonl",
    "runs/gpt2/seed-1/scores-test.json",
    "baselines.json",
    "report.html",
]


def attempt(folder: Path, out: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        table = folder / "reviews.csv"
        compare(ARMS, out, folder / "text.txt", tasks=[table], task_budget="3steps", order=3, resume="auto")
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
    return 0


def main() -> None:
    assert IMPORTED
    torch.set_num_threads(1)
    matmul_peak()  # measured once for all
    folder = Path(sys.argv[1])
    write_text(folder)
    write_table(folder)
    killed = []
    with small_comparisons():
        straight = ending(attempt(folder, folder / "straight"))
        out = folder / "crashed"
        for moment in MOMENTS:
            child = attempt(folder, out)
            while not (out / moment).exists():
                if os.waitpid(child, os.WNOHANG)[0]:
                    raise SystemExit(f"it ended by itself before {moment}")
                time.sleep(0.0005)
            os.kill(child, signal.SIGKILL)
            killed.append(ending(child))
        finished = ending(attempt(folder, out))
    print(json.dumps({"straight": straight, "killed": killed, "finished": finished}))


if __name__ == "__main__":
    main()
