"""`--compile`: the same curve, one graph for ragged rows, and a refusal where there is no compiler."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.errors import EtymonError
from tests import tiny

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++ to compile with")


def pretrain(tmp_path: Path, name: str, **more: Any) -> Any:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(tiny.texts(60)), encoding="utf-8")
    return etymon.pretrain(
        "bert", data=[text], documents="blank", out=tmp_path / name, steps=4, batch=8, length=24, vocabulary=300,
        objective="masked", set=["shape.dim=32", "shape.layers=2", "shape.heads=2", "shape.inner_dim=48"],
        progress="silent", **more,
    )  # fmt: skip


@needs_compiler
def test_compiled_parts_learn_the_same_with_one_graph_for_ragged_rows(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    plain = pretrain(tmp_path, "plain")
    torch._dynamo.reset()
    counters.clear()
    compiled = pretrain(tmp_path, "compiled", compile=True)
    assert compiled.metrics == pytest.approx(plain.metrics, rel=1e-5)
    assert counters["stats"]["unique_graphs"] <= 3, "not one for every number of tokens"
    assert not counters["graph_break"]
    torch._dynamo.reset()


def test_without_a_compiler_it_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EtymonError, match=r"--compile needs a C\+\+ compiler"):
        pretrain(tmp_path, "run", compile=True)
    assert not (tmp_path / "run").exists()
