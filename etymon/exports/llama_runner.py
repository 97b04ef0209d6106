"""Questions to llama.cpp, which runs in a process of its own: in this environment, or in one that has nothing
else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.exports.gguf_tensors import ENCODERS
from etymon.exports.target import CheckInputs

ENVIRONMENT = "ETYMON_LLAMA"
"""Names the folder of an environment that has llama-cpp-python, where this one has not."""
WORKER = Path(__file__).with_name("llama_worker.py")


def find_llama() -> Path | None:
    """An interpreter that has llama-cpp-python, if there is one."""
    if folder := os.environ.get(ENVIRONMENT):
        python = Path(folder) / "bin" / "python"
        if not python.is_file():
            raise EtymonError(
                f"{ENVIRONMENT} is {folder}, but there is no {python}: name an environment, or unset it"
            )
        return python
    return Path(sys.executable) if find_spec("llama_cpp") is not None else None


class LlamaRunner:
    """A file, opened by llama.cpp."""

    def __init__(self, python: Path, path: Path) -> None:
        # A crash of the library is then an error of a line, and this process goes on.
        self.process = subprocess.Popen(
            [str(python), str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        weakref.finalize(self, _end, self.process)
        self.about = self._ask({"path": str(path), "threads": torch.get_num_threads()})

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        rows = [list(row) for row in inputs.rows]
        if self.about["architecture"] in ENCODERS:
            return self._arrays({"do": "classes" if self.about["classes"] else "states", "rows": rows})
        targets = None if inputs.targets is None else [list(row) for row in inputs.targets]
        return self._arrays({"do": "logits", "rows": rows, "targets": targets})

    def tokenize(self, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
        """The ids of texts; special tokens that are spelled out are recognised."""
        rows: list[list[int]] = self._ask(
            {"do": "tokenize", "texts": list(texts), "add_special": add_special}
        )["rows"]
        return rows

    def generate(self, rows: Sequence[Sequence[int]], new: int, start: int | None = None) -> list[list[int]]:
        """The likeliest `new` tokens behind every row or, of an encoder and a decoder, behind `start`."""
        question = {"do": "generate", "rows": [list(row) for row in rows], "new": new, "start": start}
        written: list[list[int]] = self._ask(question)["rows"]
        return written

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: what it said is read below
        line = self.process.stdout.readline()
        if not line:
            errors = self.process.communicate()[1].decode(errors="replace").strip().splitlines()
            raise EtymonError(
                f"llama.cpp did not run the file: {errors[-1] if errors else 'it ended without a word'}"
            )
        record: dict[str, Any] = json.loads(line)
        return record

    def _arrays(self, question: dict[str, Any]) -> list[np.ndarray]:
        shapes = self._ask(question)["shapes"]
        assert self.process.stdout is not None
        return [
            np.frombuffer(self.process.stdout.read(4 * int(np.prod(shape))), np.float32).reshape(shape)
            for shape in shapes
        ]


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker ends with its input."""
    # Pipes first: it waits for questions until there can be no more.
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None and not stream.closed:
            stream.close()
    process.wait()
