"""What is held at once, and what the machine leaves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from etymon.nn.footprint import Footprint, container_memory, extrapolate

GB = 10**9


def control_group(root: Path, limit: str, used: int, cache: int, names: tuple[str, str]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / names[0]).write_text(f"{limit}\n")
    (root / names[1]).write_text(f"{used}\n")
    (root / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


V1, V2 = ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")


def test_a_container_leaves_what_its_strictest_group_does_and_files_that_were_read_are_given_back(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/app\n")
    root = tmp_path / "fs"
    control_group(root / "pod" / "app", "max", GB, 0, V2)
    assert container_memory(root, own) == math.inf
    control_group(root / "pod", str(4 * GB), 2 * GB, GB // 2, V2)
    assert container_memory(root, own) == 2.5 * GB
    control_group(root / "pod" / "app", str(2 * GB), 3 * GB, 0, V2)
    assert container_memory(root, own) == 0


def test_control_groups_of_the_first_version_have_a_tree_for_memory(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("5:cpu,cpuacct:/\n4:memory:/job\n")
    control_group(tmp_path / "fs" / "memory" / "job", str(3 * GB), GB, 0, V1)
    assert container_memory(tmp_path / "fs", own) == 2 * GB
    assert container_memory(tmp_path / "fs", tmp_path / "none") == math.inf


def test_gradients_come_as_activations_go_but_not_behind_the_first_slice():
    one = Footprint(weights=10, gradients=10, optimiser=20, activations=30, logits=2, update=1)
    assert one.total == 10 + 20 + 32
    assert Footprint(10, 10, 20, 30, 2, 1, slices=2).total == 10 + 20 + 32 + 10
    assert Footprint(10, 10, 20, 3, 2, 1).total == 10 + 20 + 12
    assert Footprint(10, 10, 20, 3, 0, 1).total == 10 + 20 + 11


def test_a_refusal_names_every_part():
    told = str(Footprint(weights=7e11, gradients=7e11, optimiser=1.4e12, activations=1.2e10))
    assert told == "about 2.8 TB (weights 700 GB, gradients 700 GB, optimiser 1.4 TB, activations 12 GB)"
    assert str(Footprint(weights=6.2e9)) == "about 6.2 GB"


def test_extrapolation_is_exact_for_lines_and_squares():
    line = extrapolate(10**8, (8, 16), lambda rows: Footprint(5.0, activations=3.0 * rows))
    assert (line.weights, line.activations) == pytest.approx((5.0, 3e8))
    square = extrapolate(
        4096, (8, 16, 32), lambda length: Footprint(1.0, activations=length + 2.0 * length**2)
    )
    assert square.activations == pytest.approx(4096 + 2 * 4096**2)
