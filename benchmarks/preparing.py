"""A corpus of gigabytes into tokens: `etymon tokenizer` and `etymon prepare` in processes of their own, their peak
memory, and their speed beside `tokenizers`' own `encode_batch` on the same text and all cores.

The corpus is made up, from seeded sentences whose words follow Zipf's law: 2 GB, or ETYMON_BENCH_BYTES.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Comparison

BYTES = int(float(os.environ.get("ETYMON_BENCH_BYTES", "2e9")))
FILE = 64_000_000
WORDS = 60_000
MEMORY = 1_000_000_000  # what each command may need
PEER_BYTES = 40_000_000  # of the corpus, at each end of the run: its speed does not depend on more
COMMAND = """
import json, resource, sys, time
from etymon import cli
begin = time.perf_counter()
try:
    cli.main(json.loads(sys.argv[1]))
except SystemExit as leaving:
    assert not leaving.code, leaving.code
own, child = (resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print("\\n" + json.dumps({"seconds": time.perf_counter() - begin, "own": own, "child": child}))
"""


def make_corpus(folder: Path, size: int, seed: int = 0) -> int:
    """Text files with documents between blank lines; returns the bytes that were written."""
    draw = np.random.default_rng(seed)
    syllables = [one + two for one in "bdfgklmnprstvz" for two in ("a", "e", "i", "o", "u", "é", "an", "er")]
    words = np.array(["".join(draw.choice(syllables, draw.integers(1, 5))) for _ in range(WORDS)])
    ranks = 1 / np.arange(1, WORDS + 1)
    shares = np.cumsum(ranks / ranks.sum())
    written = number = 0
    while written < size:
        with open(folder / f"part-{number:04}.txt", "w", encoding="utf-8") as file:
            here = 0
            while here < min(FILE, size - written):
                chosen = words[np.minimum(np.searchsorted(shares, draw.random(200_000)), WORDS - 1)].tolist()
                lengths = draw.integers(4, 25, 20_000).tolist()
                place, sentences = 0, []
                for index, length in enumerate(lengths):
                    sentence = " ".join(chosen[place : place + length]).capitalize()
                    sentences.append(sentence + (".\n\n" if index % 30 == 29 else ". "))
                    place += length
                    if place >= len(chosen):
                        break
                text = "".join(sentences)
                here += len(text.encode())
                file.write(text)
        written += here
        number += 1
    return written


def command(*words: object) -> dict[str, Any]:
    """Runs the command line in a fresh process: its seconds and its peak memory, workers included."""
    arguments = [sys.executable, "-c", COMMAND, json.dumps([str(word) for word in words])]
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(arguments, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    workers = len(os.sched_getaffinity(0)) if figures["child"] else 0
    return {"seconds": figures["seconds"], "memory": figures["own"] + workers * figures["child"]}


def peer_speed(tokenizer: Path, file: Path) -> float:
    """Bytes a second of `encode_batch` alone, on text that is in memory already and cut into pieces."""
    code = (
        "import sys, time, tokenizers; from etymon.data.cutting import pieces\n"
        "text = open(sys.argv[2], 'rb').read(int(sys.argv[3])).decode('utf-8', 'ignore')\n"
        "cut = [text[start:stop] for start, stop in pieces(text)]\n"
        "backend = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
        "begin = time.perf_counter()\n"
        "for place in range(0, len(cut), 64):\n"
        "    backend.encode_batch(cut[place : place + 64], add_special_tokens=False)\n"
        "print(len(text.encode()) / (time.perf_counter() - begin))\n"
    )
    words = [sys.executable, "-c", code, str(tokenizer / "tokenizer.json"), str(file), str(PEER_BYTES)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout)


def run() -> list[Comparison]:
    with tempfile.TemporaryDirectory(prefix="etymon-bench-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        begin = time.perf_counter()
        size = make_corpus(folder / "corpus", BYTES)
        print(f"made {size / 1e6:,.0f} MB in {time.perf_counter() - begin:.0f} s", flush=True)
        data = ["--data", folder / "corpus", "--documents", "blank", "--progress", "silent"]
        tokenizer = command(
            "tokenizer", "--family", "gpt2", "--size", 16000, "--out", folder / "tokenizer", *data
        )
        files = sorted((folder / "corpus").iterdir())
        before = peer_speed(folder / "tokenizer", files[0])
        prepare = command("prepare", "--tokenizer", folder / "tokenizer", "--out", folder / "store", *data)
        after = peer_speed(folder / "tokenizer", files[-1])
    speeds = {
        "tokenizer": size / tokenizer["seconds"] / 1e6,
        "prepare": size / prepare["seconds"] / 1e6,
        "encode_batch": (before + after) / 2e6,
    }
    for verb, figures in (("tokenizer", tokenizer), ("prepare", prepare)):
        verdict = "met" if figures["memory"] < MEMORY else "MISSED"
        print(
            f"{verb}: {figures['memory'] / 1e6:,.0f} MB at most, wanted below {MEMORY / 1e6:,.0f} MB: {verdict}; "
            f"{figures['seconds']:.0f} s, {speeds[verb]:.1f} MB/s",
            flush=True,
        )
    return [
        Comparison(
            "preparing",
            [prepare["seconds"]],
            [size / ((before + after) / 2)],
            peer="tokenizers' encode_batch alone",
            what=f"{size / 1e6:,.0f} MB of made-up text into a store, byte-level BPE of 16,000 tokens",
            target=1.0,
            details={
                "bytes": size,
                "megabytes_per_second": {name: round(value, 2) for name, value in speeds.items()},
                "peak_memory": {"tokenizer": tokenizer["memory"], "prepare": prepare["memory"]},
                "tokenizer_seconds": round(tokenizer["seconds"], 1),
            },
        )
    ]
