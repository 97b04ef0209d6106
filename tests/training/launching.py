"""Jobs under torchrun, and whether two runs are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.verbs.small_runs import metrics, weight_files

ROOT = Path(__file__).parents[2]
ENOUGH = 900
"""Seconds after which something hangs: on a busy machine, a start of some processes may take a minute."""


def start(file: Path, jobs: list[dict[str, Any]], *options: str, **variables: str) -> subprocess.Popen[str]:
    """Torchrun with these options, at work on jobs; a prefix of its command is given as `before`."""
    before = variables.pop("before", "").split()
    file.write_text(json.dumps(jobs), encoding="utf-8")
    command = [
        *before,
        sys.executable,
        "-m",
        "torch.distributed.run",
        *options,
        "-m",
        "tests.training.processes",
        str(file),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str], seconds: float = ENOUGH) -> tuple[str, str]:
    """What it and its processes print, on standard output and on the other one."""
    with process:
        try:
            return process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its processes, who are in sessions of their own
            return process.communicate()


def kill(node: subprocess.Popen[str]) -> None:
    """Ends torchrun and its processes, as a power cut does."""
    if node.poll() is None:
        for process in [*psutil.Process(node.pid).children(recursive=True), node]:
            with suppress(psutil.Error, ProcessLookupError):
                process.send_signal(signal.SIGKILL)
    node.communicate()


def torchrun(
    file: Path, jobs: list[dict[str, Any]], *options: str, processes: int = 2, seconds: float = ENOUGH
) -> tuple[str, str]:
    """What processes print, on standard output and on the other one, while they do the jobs."""
    places = ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    process = start(file, jobs, "--nproc-per-node", str(processes), *places, *options)
    out, errors = finish(process, seconds)
    assert process.returncode == 0, errors[-3000:]
    return out, errors


def close(one: Any, two: Any) -> bool:
    """Equal, but for rounding of sums that were added in another order."""
    if isinstance(one, list):
        return len(one) == len(two) and all(map(close, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(close(one[name], two[name]) for name in one)
    return bool(one == (pytest.approx(two, rel=1e-6, abs=1e-9) if isinstance(one, float) else two))


def same_run(one: Path, two: Path, *, sharded: bool = False) -> bool:
    """Equal metrics and models, but for rounding.

    Sharded runs write samples of another length, and their norms are added up from parts: a rounding more,
    which AdamW and Muon scale up where a gradient is nearly zero.
    """
    files = weight_files(one)
    assert files and files == weight_files(two)
    curves = [
        [record for record in metrics(run) if not (sharded and "sample" in record)] for run in (one, two)
    ]
    return close(*curves) and all(
        torch.allclose(weight, load_file(two / file)[name], rtol=1e-5, atol=1e-5 if sharded else 1e-6)
        for file in files
        for name, weight in load_file(one / file).items()
    )
