"""Programs of `torch.export`: one file that PyTorch runs, in Python or in C++, without etymon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from etymon.exports.program import HeadProgram, no_program, no_program_of_model, program_inputs, split_answers
from etymon.exports.target import CheckInputs, ExportTarget

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model

PROGRAM = "model.pt2"
SIGNATURE = "signature.json"
"""In the program: the head, and the names of its inputs and outputs."""


class TorchTarget(ExportTarget):
    name = "torch"
    packages = ("torch",)

    def unsupported(self, family: Family, head: str) -> str | None:
        return no_program(family, head)

    def unsupported_model(self, model: Model, head: str) -> str | None:
        return self.unsupported(model.family, head) or no_program_of_model(model, head)

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        program = HeadProgram(model, head).eval()
        inputs, shapes = program.example()
        with torch.no_grad():
            exported = torch.export.export(program, (), kwargs=inputs, dynamic_shapes=shapes)
        signature = {"head": head, "inputs": list(inputs), "outputs": program.output_names}
        torch.export.save(exported, folder / PROGRAM, extra_files={SIGNATURE: json.dumps(signature)})
        # A program reads ids: whoever runs it needs to make them.
        if model.tokenizer is not None:
            model.tokenizer.save(folder)

    def open(self, folder: Path) -> TorchRunner:
        return TorchRunner(folder)


class TorchRunner:
    def __init__(self, folder: Path) -> None:
        extra = {SIGNATURE: ""}
        self.program: Any = torch.export.load(folder / PROGRAM, extra_files=extra).module()
        self.signature = json.loads(extra[SIGNATURE])

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        head = self.signature["head"]
        arrays = program_inputs(self.signature["inputs"], inputs)
        if head == "choice":
            arrays = {name: array[:, None] for name, array in arrays.items()}
        with torch.no_grad():
            outputs = self.program(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        return split_answers(head, [output.numpy() for output in outputs], inputs)
