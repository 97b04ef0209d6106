"""Compares this tree with another revision, bit for bit: `python -m tests.golden REVISION [--only PATTERN]`.

Both are run side by side on this machine by `record.py`, and nothing is kept: there is no file of expected figures that
another processor would contradict. What differs is listed, with how far weights are apart; the exit code is then 1.
With `--keep FOLDER`, what the other revision gave is kept there for the next stage of a day's work on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

TREE = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("record.py")


def record(tree: Path, work: Path, *options: str) -> dict[str, Any]:
    """What `record.py` writes down when it imports the library from `tree`."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with open(work.with_suffix(".log"), "w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, str(RECORD), str(work), *options],
            env=environment,
            stdout=log,
            stderr=log,
            check=True,
        )
    results: dict[str, Any] = json.loads((work / "results.json").read_text(encoding="utf-8"))
    return results


def expected(before: dict[str, Any], case: str) -> Any:
    """What the other revision gave for a case; of its own folders, what they gave there."""
    kind, _, name = case.partition("/")
    if kind == "take-over":
        return before[f"resume/{name}"]
    if kind == "reopen":
        told = before[f"pretrain/{name}/own"]
        return {part: value for part, value in told.items() if part not in ("weights", "figures")}
    return before.get(case)


def differences(case: str, then: Any, now: Any) -> list[str]:
    """The parts of a case that differ, in words."""
    if not isinstance(then, dict) or not isinstance(now, dict) or set(then) != set(now):
        return [f"{case}: was {str(then)[:300]}, is {str(now)[:300]}"]
    parts = [part for part in then if then[part] != now[part]]
    return [
        f"{case}: {part} differ" + (distance(then[part], now[part]) if part == "weights" else "")
        for part in parts
    ]


def distance(then: dict[str, Any], now: dict[str, Any]) -> str:
    names = [
        f"{file}:{name}"
        for file in then
        for name in then[file]
        if now.get(file, {}).get(name) != then[file][name]
    ]
    return f" ({len(names)} tensors, first {names[0]})" if names else " (other files)"


def farthest(one: Path, other: Path) -> float:
    """The largest difference between the weights of two folders of runs."""
    apart = 0.0
    for file in sorted(one.rglob("*.safetensors")):
        twin = other / file.relative_to(one)
        if twin.exists():
            theirs = load_file(twin)
            for name, tensor in load_file(file).items():
                if name in theirs and tensor.shape == theirs[name].shape and torch.is_floating_point(tensor):
                    apart = max(apart, float((tensor - theirs[name]).abs().max()))
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("revision", help="a commit, branch or tag to compare with")
    parser.add_argument("--only", default="*", help="a pattern of cases, e.g. 'finetune/bert/*'")
    parser.add_argument(
        "--keep", type=Path, help="a folder for what the other revision gave; used again if it is there"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="etymon-golden-") as folder:
        place = Path(folder)
        tree = place / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "-q", str(tree), options.revision], cwd=TREE, check=True
        )
        try:
            old = place / "before" if options.keep is None else options.keep.resolve()
            if (old / "results.json").exists():
                before = json.loads((old / "results.json").read_text(encoding="utf-8"))
            else:
                before = record(tree, old, "--only", options.only)
            after = record(TREE, place / "after", "--only", options.only, "--before", str(old))
            found = [
                line for case, now in after.items() for line in differences(case, expected(before, case), now)
            ]
            found += [
                f"{case}: failed in both\n{now['failed']}" for case, now in after.items() if "failed" in now
            ]
            found += [
                f"{case}: is gone" for case in before if case not in after and fnmatch(case, options.only)
            ]
            refused = sum("refused" in now for now in after.values())
            print(f"{len(after)} cases, {refused} of them refused by both; {len(found)} differences")
            if found:
                print("\n".join(found))
                print(f"weights are at most {farthest(old / 'runs', place / 'after' / 'runs'):g} apart")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=TREE, check=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
