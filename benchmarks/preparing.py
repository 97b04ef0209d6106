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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasketch
import numpy as np

from benchmarks.harness import TOY, Comparison, sized
from benchmarks.peers.command import run as run_command
from benchmarks.peers.encode_batch import run as encode_batch
from etymon.text.filtering import shingles

BYTES = sized(int(float(os.environ.get("ETYMON_BENCH_BYTES", "2e9"))), 40_000)
FILE, WORDS, DRAWN, VOCABULARY = sized((64_000_000, 60_000, 200_000, 16_000), (30_000, 200, 2_000, 400))
MEMORY = 1_000_000_000  # what each command may need
PEER_BYTES = 40_000_000  # of the corpus, at each end of the run: its speed does not depend on more
FILTERED_BYTES = sized(int(float(os.environ.get("ETYMON_BENCH_BYTES", "2e8"))), 40_000)
PEER_DOCUMENTS = sized(20_000, 20)  # its speed does not depend on more
PEERS = Path(__file__).parent / "peers"


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
                chosen = words[np.minimum(np.searchsorted(shares, draw.random(DRAWN)), WORDS - 1)].tolist()
                lengths = draw.integers(4, 25, DRAWN // 10).tolist()
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
    """A command's seconds and its peak memory, workers included, in a fresh process (at toy size, in this one)."""
    asked = [str(word) for word in words]
    if TOY:
        figures = run_command(asked)
    else:
        environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
        figures = json.loads(_last_line([PEERS / "command.py", json.dumps(asked)], environment))
    workers = len(os.sched_getaffinity(0)) if figures["child"] else 0
    return {"seconds": figures["seconds"], "memory": figures["own"] + workers * figures["child"]}


def peer_speed(tokenizer: Path, file: Path) -> float:
    """Bytes a second of `encode_batch` alone."""
    arguments = (str(tokenizer / "tokenizer.json"), str(file), PEER_BYTES)
    if TOY:
        return encode_batch(*arguments)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    return float(_last_line([PEERS / "encode_batch.py", *arguments], environment))


def _last_line(words: Sequence[object], environment: Mapping[str, str]) -> str:
    root = str(Path(__file__).parents[1])
    environment = {**environment, "PYTHONPATH": f"{root}:{environment.get('PYTHONPATH', '')}"}
    arguments = [sys.executable, *map(str, words)]
    done = subprocess.run(arguments, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.splitlines()[-1]


def preparing() -> Iterable[Comparison]:
    with tempfile.TemporaryDirectory(prefix="etymon-bench-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        begin = time.perf_counter()
        size = make_corpus(folder / "corpus", BYTES)
        print(f"made {size / 1e6:,.0f} MB in {time.perf_counter() - begin:.0f} s", flush=True)
        data = ["--data", folder / "corpus", "--documents", "blank", "--progress", "silent"]
        tokenizer = command(
            "tokenizer", "--family", "gpt2", "--size", VOCABULARY, "--out", folder / "tokenizer", *data
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
    yield Comparison(
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


def deduplicating() -> Iterable[Comparison]:
    """`etymon prepare --deduplicate near` in documents a second, beside datasketch on the same sequences of words and
    one core; a tenth of the documents are copies, and another tenth copies with a word changed."""
    with tempfile.TemporaryDirectory(prefix="etymon-bench-") as name:
        folder = Path(name)
        (folder / "made").mkdir()
        make_corpus(folder / "made", FILTERED_BYTES)
        texts = [
            text
            for path in sorted((folder / "made").iterdir())
            for text in path.read_text(encoding="utf-8").split("\n\n")
            if text.strip()
        ]
        tenth = max(1, len(texts) // 10)
        texts += texts[:tenth] + [text.replace(" ", " changed ", 1) for text in texts[tenth : 2 * tenth]]
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
        data = ["--data", folder / "corpus.jsonl", "--progress", "silent"]
        command("tokenizer", "--family", "gpt2", "--size", VOCABULARY, "--out", folder / "tokenizer", *data)
        into = ["prepare", "--tokenizer", folder / "tokenizer", *data, "--out"]
        seconds = {
            kind: command(*into, folder / kind, *(["--deduplicate", kind] if kind != "none" else []))[
                "seconds"
            ]
            for kind in ("none", "exact", "near")
        }
        report = json.loads((folder / "near" / "filtering.json").read_text(encoding="utf-8"))
    peer = min(len(texts), PEER_DOCUMENTS)
    begin = time.perf_counter()
    index = datasketch.MinHashLSH(threshold=0.8, num_perm=128)
    for number, text in enumerate(texts[:peer]):
        signature = datasketch.MinHash(num_perm=128)
        signature.update_batch([shingle.encode() for shingle in shingles(text)])
        if not index.query(signature):
            index.insert(number, signature)
    peer_seconds = (time.perf_counter() - begin) * len(texts) / peer
    speeds = {kind: round(len(texts) / value) for kind, value in seconds.items()}
    print(f"documents a second: {speeds}; dropped: {report['dropped']}", flush=True)
    yield Comparison(
        "deduplicating",
        [seconds["near"]],
        [peer_seconds],
        peer="datasketch's MinHash alone, one core",
        what=f"{len(texts):,} documents without near copies into a store",
        details={"documents_per_second": speeds, "dropped": report["dropped"]},
    )


RUNS = [preparing, deduplicating]
