"""`make fuzz`: many damaged inputs through every verb, and a count of what they were and what they broke.

python -m tests.fuzz --count 10000 --seed 1       # cases 0 to 9999
python -m tests.fuzz --seed 1 --case 1234         # one of them again, with its whole output
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests import conftest  # noqa: F401  (no network, one thread)
from tests.fuzz.engine import case_of, run_case, run_cases
from tests.fuzz.workspace import Workspace


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, default=None)
    parser.add_argument("--kind", default=None, help="only cases of this kind")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        space = Workspace(Path(place) / "space")
        space.make()
        if asked.case is not None:
            _replay(space, asked.seed, asked.case)
        else:
            sys.exit(_run(space, asked.seed, asked.count, asked.kind))


def _replay(space: Workspace, seed: int, number: int) -> None:
    kind, case = case_of(seed, number, space)
    print(f"{kind}: {case}")
    outcome = run_case(case)
    print(f"{outcome.out}\n{outcome.err}\nexit code {outcome.code}")


def _run(space: Workspace, seed: int, count: int, kind: str | None) -> int:
    from tests.fuzz.kinds import KINDS

    numbers = [number for number in range(count) if kind in (None, list(KINDS)[number % len(KINDS)])]
    began = time.monotonic()
    inputs: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    slowest = 0.0
    for result in run_cases(space.scratch.parent, seed, numbers):
        inputs[result.kind] += 1
        refused[result.kind] += result.code == 2
        slowest = max(slowest, result.seconds)
        if result.fault is not None:
            faults[result.kind] += 1
            print(
                f"\nFAULT {result.kind}: {result.fault}; again with: make fuzz SEED={seed} CASE={result.number}"
            )
            print(result.input, flush=True)
    print(f"\n{'kind':<14} {'inputs':>7} {'refused':>8} {'faults':>7}")
    for name in inputs:
        print(f"{name:<14} {inputs[name]:>7,} {refused[name]:>8,} {faults[name]:>7,}")
    total = sum(inputs.values())
    print(f"{'all':<14} {total:>7,} {sum(refused.values()):>8,} {sum(faults.values()):>7,}")
    print(f"{time.monotonic() - began:.0f} s, the slowest input {slowest:.1f} s, seed {seed}")
    return 1 if faults else 0


if __name__ == "__main__":
    main()
