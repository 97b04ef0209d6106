"""Fair comparisons: both sides in one process, alternating rounds after warm-up, medians with their spread."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any, TypeVar

import torch

from benchmarks.toy_data import make_corpora

TOY = bool(os.environ.get("ETYMON_BENCH_TOY"))
"""Whether everything runs at toy size, to see that it runs: the same code with smaller numbers, on made-up text, in one process. Its
figures mean nothing and are kept apart."""
THREADS = 1 if TOY else 2

INSTRUCTIONS = (
    "avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8",
    "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
"""Flags of `/proc/cpuinfo`, of x86 and of ARM."""

Value = TypeVar("Value")


def sized(real: Value, toy: Value) -> Value:
    """A number of a benchmark, and what it is at toy size."""
    return toy if TOY else real


def results_folder() -> Path:
    """Where figures are kept; those at toy size never beside the real ones."""
    if named := os.environ.get("ETYMON_BENCH_RESULTS"):
        return Path(named)
    return Path(gettempdir()) / "etymon-toy-results" if TOY else Path(__file__).parent / "results"


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
            times[name].append(timed(sides[name]))
    return times


class Process:
    """A process that answers each line with one of its own."""

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
        """The seconds of one more round."""
        self.say("go")
        return Seconds(self.hear())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Peer:
    """A side in a process of its own: `python -m MODULE ARGUMENTS`, which ends in `answer(side(ARGUMENTS))`. At toy size it is the
    module's `side` in this process."""

    def __init__(self, module: str, *arguments: object) -> None:
        words = [str(word) for word in arguments]
        if TOY:
            run = import_module(module).side(*words)
            self.first: Any = json.loads(json.dumps(run()))
            """What its first round gave."""
            self.ask: Callable[[], Seconds] = partial(timed, run)
            self.end: Callable[[], None] = lambda: None
        else:
            process = Process([sys.executable, "-m", module, *words])
            self.first = json.loads(process.hear())
            self.ask, self.end = process.ask, process.end


@contextmanager
def peers(module: str, sides: Mapping[str, Sequence[object]]) -> Iterator[dict[str, Peer]]:
    """A `Peer` for every side, by name, all ended afterwards."""
    started: dict[str, Peer] = {}
    try:
        for name, arguments in sides.items():
            started[name] = Peer(module, *arguments)
        yield started
    finally:
        for peer in started.values():
            peer.end()


def timed(run: Callable[[], object]) -> Seconds:
    """The seconds of a round, as the round tells them itself or from beginning to end."""
    begin = time.perf_counter()
    said = run()
    return said if isinstance(said, Seconds) else Seconds(time.perf_counter() - begin)


def answer(run: Callable[[], object]) -> None:
    """The other end of a `Peer`: what the first round gives, then the seconds of every further one that is asked for."""
    print(json.dumps(run()), flush=True)
    for _ in sys.stdin:
        print(timed(run), flush=True)


def peak_memory(module: str, *arguments: str) -> float:
    """Bytes that a fresh process needed at most beyond its imports: what `beyond_imports` of the module says there."""
    if TOY:
        return float(import_module(module).beyond_imports(*arguments))
    code = f"import sys, {module} as module; print(module.beyond_imports(*sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    return float(done.stdout.splitlines()[-1])


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


def processor() -> tuple[str, list[str]]:
    """The processor's name with its family and model, and those of its instructions that matrix products profit from."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(
        reversed([(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)])
    )
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [
        f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts
    ]
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    instructions = [
        torch.backends.cpu.get_cpu_capability(),
        *(flag for flag in INSTRUCTIONS if flag in flags),
    ]
    return ", ".join([name, *numbers]), instructions


def machine() -> dict[str, Any]:
    import transformers

    name, instructions = processor()
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "processor": name,
        "instructions": instructions,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def record(result: Comparison) -> None:
    """Prints a comparison's line and writes it, with all rounds, to the folder of results."""
    print(result.line(), flush=True)
    kept = {
        **asdict(result), "ratio": round(result.ratio, 3),
        "spread": [round(part, 3) for part in result.spread], "machine": machine(),
    }  # fmt: skip
    write_result(result.name, kept)


def write_result(name: str, record: Mapping[str, Any]) -> None:
    """Puts a record with its `machine` first among those of a file. It takes the place of an older one of the same
    processor and number of threads; figures of other machines are kept."""
    results_folder().mkdir(parents=True, exist_ok=True)
    path = results_folder() / f"{name}.json"
    older = json.loads(path.read_text(encoding="utf-8"))["machines"] if path.is_file() else []
    others = [before for before in older if machine_key(before["machine"]) != machine_key(record["machine"])]
    path.write_text(json.dumps({"machines": [record, *others]}, indent=2) + "\n", encoding="utf-8")


def machine_key(machine: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes figures comparable: the processor with its instructions, and the threads."""
    return machine["processor"], machine.get("instructions"), machine["threads"]


def measure(runs: Sequence[Callable[[], Iterable[Comparison]]]) -> list[str]:
    """Records every figure as soon as it is there. What fails is told and the others go on; gives the reasons."""
    failed = []
    for run in runs:
        try:
            for result in run():
                record(result)
        except Exception as error:
            traceback.print_exc()
            failed.append(f"{type(error).__name__}: {error}")
    return failed


@cache
def corpora() -> Path | None:
    """The folder of real corpora, where there is one; at toy size, made-up ones."""
    if TOY:
        return make_corpora(Path(mkdtemp(prefix="etymon-toy-")))
    place = Path(os.environ.get("ETYMON_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    return place if place.is_dir() else None


def needed_corpora(what: str) -> Path:
    """The same, for what cannot be measured without."""
    if (place := corpora()) is None:
        raise FileNotFoundError(f"this needs {what}: set ETYMON_SHARED to the folder of corpora")
    return place
