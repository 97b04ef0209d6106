"""Damaged requests: wrong types, huge numbers, deep JSON, control characters, bytes that are no text, odd addresses.

None may make the server fail (500), and none may learn where its files are. `python -m tests.server.fuzzing` sends many
(`make fuzz-serve`), `--case N` one of them again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

import etymon

VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "gpt2", "prompt": "The cat", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": "x",
        "logprobs": 2, "echo": True, "seed": 1, "presence_penalty": 0.1, "stream": False, "top_k": 3, "best_of": 2,
    },
    "/v1/embeddings": {"model": "bert", "input": ["The cat", "a"], "encoding_format": "float", "dimensions": None},
    "/fill": {"model": "bert", "texts": ["The [MASK]"], "top_k": 2},
    "/replaced": {"model": "discriminator", "texts": ["The cat"]},
    "/predict": {"model": "classifier", "texts": ["The cat"], "task": None, "beams": 1},
    "/rerank": {"model": "bert", "query": "a", "documents": ["b", "c"], "top_n": 1},
    "/translate": {"model": "t5", "texts": ["The cat"], "max_new_tokens": 3, "beams": 2, "prefix": "x: "},
    "/summarize": {"model": "t5", "texts": ["The cat"], "max_new_tokens": 3, "chunk": True},
    "/score": {"model": "gpt2", "texts": ["The cat"], "words": "tokens", "targets": ["a"]},
    "/attention": {"model": "bert", "text": "The cat", "target": "a", "layer": 1, "head": 1, "kind": "self"},
    "/lens": {"model": "gpt2", "text": "The cat", "top_k": 2},
    "/explain": {"model": "bert", "texts": ["The cat sat."], "objective": "masked", "seed": 1, "language": "zh"},
    "/task": {"model": "classifier", "task": "classify"},
    "/tokenize": {"model": "gpt2", "text": "The cat"},
}  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2.5, -0.0, 1e308, -1e308, 2**31, 2**63, -(2**63) - 1, 10**40, "", " ", "-", "x",
    "/etc/passwd", "../../..", "~", "\x00", "\x1b[31m\x07", "\u202e", "\ud800", "\ufffd", "日本語🙂", "a" * 3000, "[MASK]",
    [], [[]], [[[]]], {}, {"a": 1}, [1], [-1], [10**9], [1.5], ["a", 1], [None], [True], ["\x00"], [[1, 2], ["a"]],
    [{}], [{"text": "a"}], [{"text": None}], [{"text": ["a"]}], {"include_usage": "x"}, ["a"] * 100, list(range(300)),
]  # fmt: skip
METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
PATHS = (
    "/v1/chat/completions",
    "/v1/models/%00",
    "/%ff",
    "/static/%2e%2e%2f",
    "/v1/models/" + "a" * 2000,
    "/..",
    "//",
)
TYPES = (
    "application/json",
    "text/plain",
    "application/xml",
    "multipart/form-data",
    "application/json; charset=utf-16",
    "",
)


@dataclass(frozen=True)
class Case:
    method: str
    path: str
    body: bytes
    content_type: str = "application/json"


def case(seed: int, number: int) -> Case:
    """A function of both: what failed can be sent again."""
    draw = random.Random(seed * 1_000_003 + number)
    path = draw.choice(list(VALID))
    body: Any = dict(VALID[path])
    kind = number % 8
    if kind < 4:  # some fields are something else
        for name in draw.sample(list(body), k=min(len(body), draw.randint(1, 3))):
            body[name] = draw.choice(VALUES)
        return Case("POST", path, dump(body))
    if kind == 4:  # fields are missing, added, or nested where they should not be
        name = draw.choice(list(body))
        value = body.pop(name)
        body |= draw.choice(
            [{}, {f"{name}s": value}, {name: [value]}, {name: {"a": value}}, {"\ud800": 1}, {"": 2}]
        )
        return Case("POST", path, dump(body))
    if kind == 5:  # bytes are damaged
        raw = bytearray(dump(body))
        for _ in range(draw.randint(1, 4)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        cut = len(raw) if draw.random() < 0.7 else draw.randrange(len(raw))
        return Case("POST", path, bytes(raw[:cut]), draw.choice(TYPES) if draw.random() < 0.2 else TYPES[0])
    if kind == 6:  # no object at all, or a very deep one
        depth = draw.choice([50, 1000, 100_000])
        whole = [
            b"",
            b"null",
            b"[]",
            b'"a"',
            b"1e999",
            b"NaN",
            b"{",
            b"\xff\xfe",
            b"[" * depth,
            b'{"a":' * depth,
        ]
        deep = dump(body)[:-1] + b', "prompt": ' + b"[" * depth + b"]" * depth + b"}"
        return Case("POST", path, draw.choice([*whole, deep, b"9" * 5000]))
    if draw.random() < 0.5:
        return Case(draw.choice(METHODS), path, b"")
    return Case("GET", draw.choice(PATHS), b"")


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def fault_of(asked: Case, answer: httpx2.Response, secrets: list[str]) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    if answer.status_code >= 500:
        return f"status {answer.status_code}: {answer.text[:300]}"
    if leaked := [secret for secret in secrets if secret in answer.text]:
        return f"tells of {leaked}: {answer.text[:300]}"
    if answer.status_code >= 400 and asked.method not in ("HEAD",):
        try:
            error = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            return f"is no error in OpenAI's form: {answer.text[:300]}"
        if not isinstance(error["message"], str) or "\n" in error["message"]:
            return f"is no line: {error}"
    return None


def send(
    url: str, folder: Path, seed: int, numbers: range | list[int]
) -> Iterator[tuple[int, Case, int, str | None]]:
    """Every case with the status of its answer and what is wrong with it."""
    # Words of a path that no request has sent.
    secrets = [str(folder), folder.name, "site-packages", "Traceback", str(Path(etymon.__file__).parent)]
    with httpx2.Client(base_url=url, timeout=60) as client:
        for number in numbers:
            asked = case(seed, number)
            headers = {"content-type": asked.content_type} if asked.content_type else {}
            answer = client.request(asked.method, asked.path, content=asked.body, headers=headers)
            yield number, asked, answer.status_code, fault_of(asked, answer, secrets)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server.fuzzing", description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    import logging

    from tests.server.conftest import make_folders, running

    faults, statuses = 0, Counter[int]()
    with tempfile.TemporaryDirectory(prefix="secret-place-") as place:
        folders = make_folders(Path(place))
        with running(folders) as server:
            logging.getLogger("etymon.server").setLevel(logging.ERROR)
            numbers = range(options.count) if options.case is None else [options.case]
            for number, asked, status, fault in send(server.url, Path(place), options.seed, numbers):
                statuses[status] += 1
                if options.case is not None:
                    print(asked, status)
                if fault is not None:
                    faults += 1
                    print(
                        f"case {number}: {asked.method} {asked.path} {asked.body[:300]!r}: {fault}",
                        flush=True,
                    )
    print(
        f"{sum(statuses.values()):,} requests, {faults} faults, by status: {dict(sorted(statuses.items()))}"
    )
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
