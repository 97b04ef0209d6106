"""`etymon serve` under load: texts beside `transformers serve` and beside decoding offline, vectors beside a plain FastAPI server of
sentence-transformers.

GPT-2 124M of first values, float32 on all sides, each server in a process of its own, in turn. 16 and 64 clients ask
for 16 to 128 new tokens behind prompts of 16 to 256, all streamed: tokens a second, and the time of first tokens.
Transformers' better mode (with continuous batching or without) is the peer. Offline, the same texts are decoded in batches of
as many as there are clients. Times are those of a thousand new tokens, and of a thousand vectors.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx2
import tokenizers
import torch

import etymon
from benchmarks.harness import Comparison, Peer, sized
from benchmarks.sentence_encoding import model_folder, sentences
from benchmarks.servers import STARTING, etymon_server, sentence_transformers_server, transformers_server
from etymon.families.model import Model
from etymon.generation.decoding import decode
from etymon.settings.decoding import DecodingSettings
from etymon.text.tokenizer import Tokenizer

CLIENTS = sized((16, 64), (2, 3))
REQUESTS = sized(2, 1)  # of each client, offline; servers are asked for them again and again
FILLING, WINDOW = sized((5.0, 10.0), (0.1, 1.0))  # seconds until a server is busy, and that are counted then
PROMPTS, OUTPUTS = sized((16, 256), (4, 12)), sized((16, 128), (3, 6))
SHAPE: dict[str, Any] = sized({}, {"dim": 24, "layers": 2, "heads": 2, "positions": 64})
WORDS = sized(50_257, 120)
ROUNDS = sized(5, 1)
EMBEDDING_CLIENTS = sized(32, 2)
TEXTS = sized(872, 6)
MODES: dict[str, tuple[str, ...]] = {
    "plain": (),
    # At toy size servers are threads: one that hangs, as this did without a GPU, could not be ended.
    **sized({"continuous batching": ("--continuous-batching",)}, {}),
}


@dataclass(frozen=True)
class Request:
    prompt: str
    tokens: int


@cache
def gpt2_folder() -> Path:
    """A GPT-2 of first values whose words are w0, w1, ...: prompts have exactly as many tokens as they are to have."""
    end = "<|endoftext|>"
    words = {end: 0, **{f"w{number}": number for number in range(1, WORDS)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=end))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([end])
    model = etymon.build("gpt2", "small", heads=("vocabulary",), shape={**SHAPE, "vocabulary": WORDS})
    model.tokenizer = Tokenizer(backend, {"end": end})
    folder = Path(mkdtemp(prefix="etymon-serving-")) / "gpt2"
    etymon.save(model, folder)
    return folder


def draw_requests(clients: int) -> list[Request]:
    draw = random.Random(clients)
    return [
        Request(
            " ".join(f"w{draw.randrange(1, WORDS)}" for _ in range(draw.randint(*PROMPTS))),
            draw.randint(*OUTPUTS),
        )
        for _ in range(clients * REQUESTS)
    ]


# --- clients


@dataclass
class Load:
    """What clients saw of a server in a window of time."""

    seconds: float
    tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)
    """Of those who still waited for theirs at the end: how long they had waited, so that long ones are not left out."""

    @property
    def thousand(self) -> float:
        """Seconds of a thousand tokens."""
        return 1000 * self.seconds / max(self.tokens, 1)

    @property
    def figures(self) -> dict[str, float]:
        ordered = sorted(self.first_tokens)
        return {
            "tokens_a_second": round(self.tokens / self.seconds, 1),
            "first_token_p50": round(statistics.median(ordered), 3),
            "first_token_p99": round(ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], 3),
        }


def load(url: str, model: str, clients: int) -> Load:
    """As many clients, each with a request behind the other, for a fixed time: a slow server is not waited for."""
    return asyncio.run(_load(url, model, clients))


async def _load(url: str, model: str, clients: int) -> Load:
    waiting, seen = itertools.cycle(draw_requests(clients)), Load(WINDOW)
    begin = time.perf_counter()
    window_begin, window_end = begin + FILLING, begin + FILLING + WINDOW

    async def ask(client: httpx2.AsyncClient) -> None:
        for request in waiting:
            asked, first = time.perf_counter(), 0.0
            body = {
                "model": model,
                "prompt": request.prompt,
                "max_tokens": request.tokens,
                "temperature": 0,
                "stream": True,
            }
            try:
                async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                    if answer.status_code != 200:
                        raise RuntimeError((await answer.aread()).decode()[:300])
                    async for line in answer.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        event = json.loads(line.removeprefix("data: "))
                        if "error" in event:
                            raise RuntimeError(str(event["error"]))
                        if not event.get("choices") or not (text := event["choices"][0].get("text")):
                            continue
                        now = time.perf_counter()
                        if not first:
                            first = now - asked
                            seen.first_tokens.append(first)
                        # Every token is a word; some servers send several at a time.
                        if window_begin <= now < window_end:
                            seen.tokens += len(text.split())
            except asyncio.CancelledError:
                if not first:
                    seen.first_tokens.append(time.perf_counter() - asked)
                raise

    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx2.AsyncClient(timeout=3600, limits=limits) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(clients)]
        # An error of any of them ends the round.
        done, _ = await asyncio.wait(asking, timeout=FILLING + WINDOW, return_when=asyncio.FIRST_EXCEPTION)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for task in done:
            task.result()
    return seen


def warm_up(url: str, model: str) -> None:
    body = {"model": model, "prompt": "w1 w2 w3", "max_tokens": 4, "temperature": 0}
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=STARTING)
    if answer.status_code != 200:
        raise RuntimeError(answer.text[:300])


# --- comparisons


SERVERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "ours": (etymon_server, ()),
    "ours int8": (etymon_server, ("--quantize", "int8")),
    **{f"transformers {name}": (transformers_server, options) for name, options in MODES.items()},
}


def measure(folder: Path) -> tuple[dict[str, dict[int, list[Load]]], dict[str, str]]:
    """Rounds of every server by number of clients, in turn; and why servers could not be measured.

    Every round has a new process: what a server still computes for clients that have gone would slow down the next one.
    """
    loads: dict[str, dict[int, list[Load]]] = {name: {clients: [] for clients in CLIENTS} for name in SERVERS}
    failed: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, (server, options) in SERVERS.items():
            if name in failed:
                continue
            model = "model" if server is etymon_server else str(folder)
            try:
                for clients in CLIENTS:
                    with server(folder, *options) as url:
                        warm_up(url, model)
                        loads[name][clients].append(load(url, model, clients))
            except (RuntimeError, httpx2.HTTPError) as error:
                failed[name] = str(error)[:300]
    return loads, failed


def side(folder: str, clients: str) -> Callable[[], int]:
    """Offline: the same texts, in batches of as many as there are clients, the longest prompts first."""
    from etymon.nn.products import choose_products

    model: Model = etymon.load(folder)
    choose_products(model)
    assert model.tokenizer is not None
    asked = sorted(draw_requests(int(clients)), key=lambda request: -len(request.prompt))
    ids = [model.tokenizer.encode(request.prompt).tolist() for request in asked]

    @torch.inference_mode()
    def run() -> int:
        for first in range(0, len(asked), int(clients)):
            part = slice(first, first + int(clients))
            limits = [request.tokens for request in asked[part]]
            decode(model, ids[part], DecodingSettings(max_new_tokens=max(limits)), limits=limits)
        return sum(request.tokens for request in asked)

    return run


def texts() -> Iterable[Comparison]:
    folder = gpt2_folder()
    loads, failed = measure(folder)
    peers = [name for name in loads if name.startswith("transformers") and name not in failed]
    if not peers:
        raise RuntimeError(f"transformers serve does not run: {failed}")
    for clients in CLIENTS:
        thousands = {name: [each.thousand for each in rounds[clients]] for name, rounds in loads.items()}
        better = min(peers, key=lambda name: statistics.median(thousands[name]))
        details = {
            **{name: rounds[clients][-1].figures for name, rounds in loads.items() if name not in failed},
            "failed": failed,
        }
        what = (
            f"{clients} clients, texts of {OUTPUTS} new tokens behind {PROMPTS}, {WINDOW:g} s a round after {FILLING:g} s, "
            "seconds of 1,000 new tokens"
        )
        yield Comparison(
            f"serving-{clients}", thousands["ours"], thousands[better], peer=better.replace("transformers", "transformers serve,"),
            what=what, target=2.0, details=details,
        )  # fmt: skip
        offline = Peer("benchmarks.serving", folder, clients)
        total = sum(request.tokens for request in draw_requests(clients))
        try:
            times = [1000 * offline.ask() / total for _ in range(ROUNDS)]
        finally:
            offline.end()
        yield Comparison(
            f"serving-offline-{clients}", thousands["ours"], times, peer="our own decoding offline",
            what=what, target=0.8,
        )  # fmt: skip


async def _embed(url: str, clients: int) -> float:
    waiting = iter(sentences()[0][:TEXTS])

    async def ask(client: httpx2.AsyncClient) -> None:
        for text in waiting:
            answer = await client.post(
                f"{url}/v1/embeddings", json={"model": "model", "input": text, "encoding_format": "base64"}
            )
            answer.raise_for_status()

    async with httpx2.AsyncClient(timeout=3600, limits=httpx2.Limits(max_connections=clients)) as client:
        begin = time.perf_counter()
        await asyncio.gather(*(ask(client) for _ in range(clients)))
        return 1000 * (time.perf_counter() - begin) / TEXTS


def vectors() -> Iterable[Comparison]:
    times = []
    for server in (etymon_server(model_folder()), sentence_transformers_server()):
        with server as url:
            asyncio.run(_embed(url, EMBEDDING_CLIENTS))
            times.append([asyncio.run(_embed(url, EMBEDDING_CLIENTS)) for _ in range(ROUNDS)])
    yield Comparison(
        "serving-embeddings", *times, peer="FastAPI and sentence-transformers", target=2.0,
        what=f"{TEXTS} {sentences()[1]}, one a request, {EMBEDDING_CLIENTS} clients, seconds of 1,000 vectors",
    )  # fmt: skip


RUNS = [texts, vectors]


if __name__ == "__main__":
    from benchmarks.harness import answer

    answer(side(*sys.argv[1:]))
