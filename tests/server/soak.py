"""A server under rough clients for minutes: `python -m tests.server.soak --minutes 10`.

Some clients leave in the middle of a stream, some read slowly, some are killed with their connections, some ask for vectors. Every
answer that comes is compared with the one offline; the server's memory must not grow, and no row may be left at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

import etymon
from tests.server.conftest import make_folders

WORDS = "the cat sat on a mat in Paris and Rome with soup".split()
GROWTH = 1.05


class Client(threading.Thread):
    """Asks until the time is up, each time in another way."""

    def __init__(
        self, url: str, cases: list[dict[str, Any]], expected: list[Any], seed: int, end: float
    ) -> None:
        super().__init__(daemon=True)
        self.url, self.cases, self.expected, self.end = url, cases, expected, end
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.end:
            number = self.draw.randrange(len(self.cases))
            way = self.draw.choice(["whole", "stream", "slow", "leave", "kill", "vector"])
            try:
                got = getattr(self, way)(self.cases[number])
            except httpx2.HTTPError as error:
                got, way = None, f"{way} {type(error).__name__}"
            except (ValueError, KeyError) as error:  # an answer that is none
                got = None
                self.wrong.append(f"{way}: {self.cases[number]}: {error!r}")
            self.counts[way] += 1
            wanted = self.expected[number][1 if way == "vector" else 0]
            if got is not None and not (
                np.allclose(got, wanted, atol=1e-5) if way == "vector" else got == wanted
            ):
                self.wrong.append(f"{way}: {self.cases[number]}: {got!r} and not {wanted!r}")

    def whole(self, case: dict[str, Any]) -> str:
        answer = httpx2.post(f"{self.url}/v1/completions", json=case, timeout=120).json()
        return str(answer["choices"][0]["text"])

    def stream(self, case: dict[str, Any], pause: float = 0.0, most: int = sys.maxsize) -> str | None:
        text = ""
        with httpx2.stream(
            "POST", f"{self.url}/v1/completions", json={**case, "stream": True}, timeout=120
        ) as answer:
            for number, line in enumerate(answer.iter_lines()):
                if number >= most:
                    return None
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                time.sleep(pause)
        return text

    def slow(self, case: dict[str, Any]) -> str | None:
        return self.stream(case, pause=0.02)

    def leave(self, case: dict[str, Any]) -> str | None:
        return self.stream(case, most=3)

    def kill(self, case: dict[str, Any]) -> None:
        """Sends a request and closes the connection without waiting."""
        with suppress(httpx2.TimeoutException):
            httpx2.post(f"{self.url}/v1/completions", json=case, timeout=httpx2.Timeout(10, read=0.005))

    def vector(self, case: dict[str, Any]) -> list[float]:
        body = {"model": "bert", "input": case["prompt"]}
        answer = httpx2.post(f"{self.url}/v1/embeddings", json=body, timeout=120).json()
        return list(answer["data"][0]["embedding"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folders = make_folders(Path(place))
        cases, expected = draw_cases(folders)
        server = subprocess.Popen(
            [sys.executable, "-m", "etymon", "serve", str(folders["gpt2"]), str(folders["bert"]), "--port", "0"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "ETYMON_PRODUCTS": "plain", "ETYMON_LANGUAGE": "en"},
        )  # fmt: skip
        try:
            sys.exit(soak(server, cases, expected, options.minutes, options.clients))
        finally:
            server.terminate()
            server.wait(60)


def draw_cases(folders: dict[str, Path]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Requests, and the text and the vector that each is to get."""
    draw, models = random.Random(0), {name: etymon.load(folders[name]) for name in ("gpt2", "bert")}
    cases, expected = [], []
    for number in range(60):
        prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 30)))
        settings: dict[str, Any] = {"temperature": 0.9, "seed": number} if number % 2 else {}
        tokens = draw.randint(1, 60)
        cases.append({"model": "gpt2", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **settings})
        (text,) = etymon.generate(models["gpt2"], [prompt], max_new_tokens=tokens, **settings)
        expected.append((text.text, etymon.embed(models["bert"], [prompt])[0]))
    return cases, expected


def soak(server: subprocess.Popen[str], cases: Any, expected: Any, minutes: float, clients: int) -> int:
    assert server.stderr is not None
    match = re.search(r"at (http://[\d.:]+)/v1", server.stderr.readline())
    assert match is not None
    threading.Thread(
        target=lambda: [None for _ in server.stderr or ()], daemon=True
    ).start()  # the log is not read
    end = time.monotonic() + 60 * minutes
    threads = [Client(match[1], cases, expected, seed, end) for seed in range(clients)]
    for thread in threads:
        thread.start()
    process, memory = psutil.Process(server.pid), []
    while time.monotonic() < end:
        time.sleep(min(5.0, 6 * minutes))
        memory.append(process.memory_info().rss)
    for thread in threads:
        thread.join(180)
    counts: Counter[str] = Counter()
    for thread in threads:
        counts.update(thread.counts)
    wrong = [line for thread in threads for line in thread.wrong]
    # The first third fills caches and arenas; from then on it is to be flat.
    settled = memory[len(memory) // 3 :]
    growth = max(settled[len(settled) // 2 :]) / max(settled[: max(1, len(settled) // 2)])
    time.sleep(1)
    figures = httpx2.get(f"{match[1]}/metrics", timeout=60).text
    rows = float(next(line.split()[1] for line in figures.splitlines() if line.startswith("etymon_rows ")))
    print(f"{sum(counts.values()):,} requests: {dict(counts)}")
    print(
        f"wrong answers: {len(wrong)}; rows left: {rows:g}; memory {memory[-1] / 1e6:.0f} MB, grown {growth:.3f}x"
    )
    print(*wrong[:5], sep="\n")
    return int(bool(wrong) or rows > 0 or growth > GROWTH)


if __name__ == "__main__":
    main()
