"""Fair comparisons: both sides in one process, alternating rounds after warm-up, medians with their spread."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
THREADS = 2


@dataclass
class Comparison:
    """Seconds of every round on both sides; `ratio` is how many times faster ours is."""

    name: str
    ours: list[float]
    theirs: list[float]
    peer: str
    what: str
    target: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(self.theirs) / statistics.median(self.ours)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest ratio of neighbouring rounds."""
        ratios = [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return min(ratios), max(ratios)

    def line(self) -> str:
        low, high = self.spread
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        verdict = (
            ""
            if self.target is None
            else f", wanted {self.target:g}x: {'met' if self.ratio >= self.target else 'MISSED'}"
        )
        return (
            f"{self.name}: {self.ratio:.2f}x {self.peer} (rounds {low:.2f}-{high:.2f}; "
            f"{ours:.3f} s against {theirs:.3f} s{verdict})"
        )


class Seconds(float):
    """A time that a side has taken itself, without the way to it and back."""


def alternate(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7, warmup: int = 2
) -> tuple[list[float], list[float]]:
    """Seconds of each side, round by round, each side first in turn."""
    times = in_turn({"ours": ours, "theirs": theirs}, rounds, warmup)
    return times["ours"], times["theirs"]


def in_turn(
    sides: Mapping[str, Callable[[], object]], rounds: int = 7, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of every side, round by round, in an order that turns around every round."""
    for _ in range(warmup):
        for run in sides.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 == 0 else reversed(list(sides)):
            begin = time.perf_counter()
            said = sides[name]()
            times[name].append(said if isinstance(said, Seconds) else time.perf_counter() - begin)
    return times


class Peer:
    """A side in a process of its own, which says something when it is ready and then answers each line with its seconds."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            cwd=Path(__file__).parents[1], env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline().strip()):
            raise RuntimeError(f"this process has ended: {self.process.args}")
        return line

    def ask(self) -> Seconds:
        self.say("go")
        return Seconds(self.hear())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def answer(run: Callable[[], object]) -> None:
    """The other end of a `Peer`: what the first round gives, then the seconds of every further one that is asked for."""
    print(json.dumps(run()), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        run()
        print(time.perf_counter() - begin, flush=True)


def peak_memory(module: str, *arguments: str) -> float:
    """Bytes that a fresh process needed at most beyond its imports, as it reports itself."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    return float(json.loads(done.stdout.splitlines()[-1])["beyond_imports"])


def peak_resident() -> float:
    """The largest resident size of this process so far, in bytes (`getrusage` would count the parent's as well)."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return 1024 * float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def record_memory(memory: dict[str, float], target: float | None) -> dict[str, Any]:
    """Peak memory of both sides and its ratio, printed and kept."""
    ratio = memory["ours"] / memory["theirs"]
    verdict = "" if target is None else f", wanted {target:g}x: {'met' if ratio <= target else 'MISSED'}"
    ours, theirs = (memory[side] / 1e6 for side in ("ours", "theirs"))
    print(f"  peak memory {ratio:.2f}x ({ours:,.0f} MB against {theirs:,.0f} MB{verdict})")
    return {"peak_memory": memory, "memory_ratio": round(ratio, 3), "memory_target": target}


def machine() -> dict[str, Any]:
    import transformers

    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def record(results: list[Comparison]) -> None:
    """Prints a line a comparison and writes it, with all rounds, to `benchmarks/results/`."""
    RESULTS.mkdir(exist_ok=True)
    for result in results:
        print(result.line(), flush=True)
        kept = {
            **asdict(result), "ratio": round(result.ratio, 3),
            "spread": [round(part, 3) for part in result.spread], "machine": machine(),
        }  # fmt: skip
        (RESULTS / f"{result.name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def shared_data() -> Path | None:
    """The folder of real corpora, where there is one."""
    place = Path(os.environ.get("ETYMON_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    return place if place.is_dir() else None
