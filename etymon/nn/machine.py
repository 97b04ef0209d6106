"""What was measured on this machine, kept from run to run.

Which of two ways to compute is faster depends on the processor, PyTorch's version and the number of
threads. So it is measured once for each of them, and kept in `measurements.json` in the user's cache folder
(`ETYMON_CACHE`, else `XDG_CACHE_HOME/etymon`, else `~/.cache/etymon`). Without a place to write, it is
measured again in every process.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from etymon.files import write_json

SECONDS = 0.05
"""Of one measurement: at most so long after the first three rounds."""


def cache_folder() -> Path:
    if given := os.environ.get("ETYMON_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etymon"


@cache
def processor_name() -> str:
    """The processor's name and the widest vector instructions that PyTorch uses on it."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        # The name alone does not tell two generations apart where a hypervisor hides it.
        wanted = ("model name", "cpu family", "model\t")
        parts = [line.partition(":")[2].strip() for line in lines if line.startswith(wanted)]
        name = " ".join(dict.fromkeys(parts)) or name
    except OSError:
        pass
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def machine_name(device: torch.device) -> str:
    """Everything that the speed of a kernel depends on beside its sizes."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    version = torch.__version__.partition("+")[0]
    return f"{device.type}: {where}, torch {version}, {torch.get_num_threads()} threads"


_measured: dict[tuple[str, str], Any] = {}


def measured_once(name: str, device: torch.device, measure: Callable[[], Any]) -> Any:
    """The result of `measure` on this machine: from this process, from the cache, or measured now. None says
    that nothing could be told, and is not kept for other processes."""
    key = machine_name(device), name
    if key not in _measured:
        table = _read_table()
        kept = table.get(key[0], {})
        if name in kept:
            _measured[key] = kept[name]
        else:
            _measured[key] = measure()
            if _measured[key] is not None:
                # Read again: another process may have measured something else meanwhile.
                table = _read_table()
                table.setdefault(key[0], {})[name] = _measured[key]
                _write_table(table)
    return _measured[key]


def _read_table() -> dict[str, Any]:
    try:
        table = json.loads((cache_folder() / "measurements.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, unreadable or damaged: all is measured anew
        return {}
    is_table = isinstance(table, dict) and all(isinstance(part, dict) for part in table.values())
    return table if is_table else {}


def _write_table(table: dict[str, Any]) -> None:
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_json(cache_folder() / "measurements.json", table)
    except Exception:  # a full or read-only disk costs a measurement, not the run
        pass


def best_time(run: Callable[[], object], device: torch.device, seconds: float = SECONDS) -> float:
    """The shortest of several rounds, in seconds: what else the machine does makes a round only longer."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 4 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])  # the first round warms caches and allocators up
