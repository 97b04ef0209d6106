"""Cases of every class in the oracle's format, written by Transformers on the spot: the judge accepts them all.

The stored cases hold only some of the classes; this keeps the runner ready for the others, and for left padding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.families.reference import REFERENCES, Reference
from tests.families.test_transformers import flattened
from tests.oracle.case import MANIFEST, Case
from tests.oracle.judge import fingerprint
from tests.oracle.runner import check

pytest.importorskip("transformers")

CAUSAL = ("gpt1", "gpt2", "gpt3", "gptj")


def write_case(reference: Reference, folder: Path, side: str) -> None:
    """Everything that Transformers computes for a class, as a case."""
    model = reference.write(folder)
    arguments = reference.arguments(padded=True)
    if side == "left":
        # Turned round: padding comes first. Targets stay where they are: any labels will do.
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            if name in arguments:
                arguments[name] = arguments[name].flip(-1)
    outputs = model(**arguments, output_hidden_states=True, output_attentions=True)
    fields = {name: value for name, value in outputs.items() if name != "past_key_values"}
    losses = [name for name in ("loss", "mc_loss") if name in fields]
    gradients: dict[str, Any] = {}
    if losses:
        torch.stack([fields[name] for name in losses]).sum().backward()
        for name, parameter in model.named_parameters():
            used = parameter.grad is not None
            gradients[name] = (
                {**fingerprint(parameter.grad), "shape": list(parameter.shape)} if used else None
            )
    mask = arguments["attention_mask"].reshape(-1, arguments["attention_mask"].shape[-1])
    compared = {}
    if (
        side == "left" and reference.family in CAUSAL
    ):  # leading pads see nothing at all: anything may come out
        for name, dim in (("hidden_states", 1), ("attentions", 2), ("last_hidden_state", 1), ("logits", 1)):
            compared[f"fwd.{name}"] = {"mask": "mask", "dim": dim}
    manifest = {
        "name": reference.name,
        "kind": "hf",
        "calls": [
            {
                "name": "fwd",
                "tensors": {name: name for name in arguments},
                "const": {"output_hidden_states": True, "output_attentions": True},
                "fields": list(fields),
            }
        ],
        "backward": {"call": "fwd", "loss": losses} if losses else None,
        "tied_parameters": _tied(model),
        "compare_mask": compared,
        "tolerance": {"outputs_atol": 3e-5, "outputs_rtol": 1e-4, "grad_rel": 1e-4},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (folder / "grads.json").write_text(json.dumps({"params": gradients}))
    save_file({**_whole(arguments), "mask": mask.clone()}, folder / "inputs.safetensors")
    save_file({f"fwd.{k}": v for k, v in _whole(flattened(outputs)).items()}, folder / "outputs.safetensors")


def _whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def _tied(model: Any) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(parameter.data_ptr(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def sides(reference: Reference) -> list[str]:
    # Losses over padding, rows of several choices and a last token that is told by its id are as they are on one side.
    plain = not reference.heads & {"choice", "classification", "span", "tagging"}
    causal = reference.family in CAUSAL and "vocabulary" in reference.heads
    return ["right", "left"] if plain and not causal else ["right"]


CASES = [(reference, side) for reference in REFERENCES for side in sides(reference)]


@pytest.mark.parametrize(("reference", "side"), CASES, ids=[f"{r}-{side}" for r, side in CASES])
def test_a_case_written_on_the_spot(reference: Reference, side: str, tmp_path: Path) -> None:
    write_case(reference, tmp_path / "case", side)
    report = check(Case(tmp_path / "case"))
    assert report.problems == []
    assert report.status == "ok"
    assert ("gradients" in report.worst) == bool(reference.heads - {"pooler", "encoder"})
