"""The oracle's runner on cases without a memory, and on labels that are left out in unequal numbers a row."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import etymon
from etymon.nn.batch import Batch
from tests.oracle.case import Case
from tests.oracle.runner import check
from tests.peers.environment import run_peer

VARIANTS = ["forgetful", "forgetful-clamped", "forgetful-plain", "remembering", "remembering-plain"]
SHAPE: dict[str, Any] = {
    "vocabulary": 90, "dim": 24, "layers": 2, "heads": 3, "head_dim": 8, "inner_dim": 40, "same_length": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    run_peer("segments.py", folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformer_xl_is_the_references_with_and_without_a_memory(cases: Path, variant: str) -> None:
    report = check(Case(cases / variant))
    assert report.problems == []
    assert report.status == "ok"
    assert {"outputs", "ragged", "gradients", "scores"} <= set(report.worst)


def written_case(folder: Path, cutoffs: list[int]) -> Path:
    """A case of a model that remembers nothing, with values that come from one row and one token at a time."""
    shape = {**SHAPE, "memory": 0, "cutoffs": cutoffs, "divisor": 2 if cutoffs else 1}
    model = etymon.build("transformer-xl", "pocket", shape=shape, heads=["vocabulary"]).eval()
    etymon.save(model, folder)
    ids = torch.randint(3, 90, (3, 6), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, 2:4] = labels[2, 1:5] = -100
    with torch.no_grad():
        rows = [model.hidden(Batch.of([row]))[0] for row in ids.tolist()]
        scores = torch.stack([model.heads["vocabulary"].log_probs(row) for row in rows])
    edges = [0, *cutoffs, 90]
    losses = [
        (
            -scores[row, at - 1, labels[row, at]] if labels[row, at] >= 0 else torch.zeros(()),
            int(labels[row, at]),
        )
        for row in range(3)
        for at in range(1, 6)
    ]
    if cutoffs:  # bin after bin, and then the zeros
        bins = [[loss for loss, label in losses if low <= label < high] for low, high in pairwise(edges)]
        ordered = [loss for part in bins for loss in part]
        ordered += [torch.zeros(())] * (len(losses) - len(ordered))
    else:
        ordered = [loss for loss, _ in losses]
    outputs = {
        "fwd.prediction_scores": scores,
        "fwd.losses": torch.stack(ordered).view(3, 5),
        "fwd.loss": torch.stack([loss for loss, label in losses if label >= 0]).mean(),
    }
    save_file({"ids": ids, "labels": labels}, folder / "inputs.safetensors")
    save_file(outputs, folder / "outputs.safetensors")
    fields = ["prediction_scores", "mems", "losses", "loss"]
    call = {"name": "fwd", "tensors": {"input_ids": "ids", "labels": "labels"}, "fields": fields}
    following = {**call, "carry": {"mems": "fwd:mems"}}
    tolerance = {"outputs_atol": 1e-5, "outputs_rtol": 1e-5, "grad_rel": 1e-4}
    manifest = {"name": folder.name, "calls": [call, following], "tolerance": tolerance}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("cutoffs", [[], [20, 50]], ids=["plain", "adaptive"])
def test_runner_copes_with_no_memory_and_uneven_labels(tmp_path: Path, cutoffs: list[int]) -> None:
    report = check(Case(written_case(tmp_path / "case", cutoffs)))
    assert report.problems == []
    assert report.status == "ok"


def test_runner_still_sees_a_wrong_loss(tmp_path: Path) -> None:
    folder = written_case(tmp_path / "case", [20, 50])
    outputs = Case(folder).open().outputs
    outputs["fwd.losses"][2, 1] += 0.01
    save_file(outputs, folder / "outputs.safetensors")
    report = check(Case(folder))
    assert report.status == "FAIL"
    assert any("fwd.losses" in problem for problem in report.problems)
