"""Exports to CTranslate2: folders that its `Generator`, `Translator` or `Encoder` opens.

A task head is a linear map at its end, which no class of CTranslate2 has: it lies beside the model in
`head.safetensors`, and is one product for whoever uses it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from etymon.exports.ctranslate2_spec import build_spec, find_misfit, task_head
from etymon.exports.sizes import find_family_misfit
from etymon.exports.target import EIGHT_BITS, EXACT, STATES, CheckInputs, ExportTarget, Runner
from etymon.families.model import Model
from etymon.families.special_tokens import start_id, token_ids

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.text.tokenizer import Tokenizer

HEAD_FILE = "head.safetensors"
SOURCE_FOLDER = "source"
"""Of a tokenizer that only sources are read with."""


class CTranslate2Target(ExportTarget):
    name = "ctranslate2"
    packages = ("ctranslate2",)
    extra = "ctranslate2"
    quantizations = {"float32": EXACT, "int8": EIGHT_BITS}

    def unsupported(self, family: Family, head: str) -> str | None:
        return find_family_misfit(family, head, find_misfit)

    def unsupported_model(self, model: Model, head: str) -> str | None:
        return find_misfit(model, head)

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        spec = build_spec(model, head)
        # Texts go in as tokens, and not as ids: every id needs a name.
        tokens = vocabulary_tokens(model.tokenizer, model.shape.vocabulary)
        if hasattr(spec, "decoder") and hasattr(spec, "encoder"):
            source = model.source_tokenizer or model.tokenizer
            spec.register_source_vocabulary(vocabulary_tokens(source, model.source_vocabulary))
            spec.register_target_vocabulary(tokens)
            spec.config.decoder_start_token = tokens[start_id(model, generating=True)]
        else:
            spec.register_vocabulary(tokens)
        # A token that there is not stands for nothing there; CTranslate2 wants one all the same.
        begin, end, unknown = (
            token_ids(model, role, generating=True) for role in ("begin", "end", "unknown")
        )
        spec.config.bos_token = tokens[next(iter((*begin, *end, 0)))]
        spec.config.eos_token = tokens[next(iter((*end, *begin, 0)))]
        spec.config.unk_token = tokens[next(iter((*unknown, *end, *begin, 0)))]
        # Equal matrices, as tied ones are, are written once.
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(folder))
        if model.tokenizer is not None:
            model.tokenizer.save(folder)
        if model.source_tokenizer is not None:
            model.source_tokenizer.save(folder / SOURCE_FOLDER)
        if head not in (STATES, "vocabulary"):
            _write_head(model, head, folder)

    def open(self, folder: Path) -> Runner:
        # A translator's folder has vocabularies of two sides, or one that both share.
        if (folder / "shared_vocabulary.json").exists() or (folder / "target_vocabulary.json").exists():
            return TranslatorRunner(folder)
        return EncoderRunner(folder) if _is_encoder(folder) else GeneratorRunner(folder)


def _is_encoder(folder: Path) -> bool:
    """Whether model.bin, which begins with the version of the format and the name of a specification, says
    so."""
    with open(folder / "model.bin", "rb") as file:
        return b"TransformerEncoderSpec" in file.read(64)


def vocabulary_tokens(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """A name of its own for every id: its token, or its number where there is none."""
    spelled = [] if tokenizer is None else tokenizer.tokens[:size]
    names = [token or f"<unused_{number}>" for number, token in enumerate(spelled)]
    return names + [f"<unused_{number}>" for number in range(len(names), size)]


def _write_head(model: Model, head: str, folder: Path) -> None:
    task = task_head(model, head)
    assert task is not None
    parts = {name: value.detach().float() for name, value in task.linear.named_parameters()}
    metadata = {"head": head, "reads": task.reads, "labels": json.dumps(model.labels)}
    # Not by `save_file`, whose file only its owner may read.
    (folder / HEAD_FILE).write_bytes(save(parts, metadata))


# --- what its runtime says


def _options() -> dict[str, Any]:
    # As many threads as PyTorch has: a check measures nothing.
    return {
        "device": "cpu",
        "compute_type": "default",
        "inter_threads": 1,
        "intra_threads": torch.get_num_threads(),
    }


class GeneratorRunner:
    """Logits of a decoder."""

    def __init__(self, folder: Path) -> None:
        import ctranslate2

        self.generator = ctranslate2.Generator(str(folder), **_options())

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        rows = [list(row) for row in inputs.rows]
        return _cut(np.array(self.generator.forward_batch(rows)), rows)


class EncoderRunner:
    """States of an encoder, and of a task head what its linear map makes of them."""

    def __init__(self, folder: Path) -> None:
        import ctranslate2

        self.encoder = ctranslate2.Encoder(str(folder), **_options())
        self.weight: np.ndarray | None = None
        self.bias: np.ndarray | None = None
        self.reads = "every"
        if (folder / HEAD_FILE).exists():
            with safe_open(folder / HEAD_FILE, "numpy") as file:
                self.weight, self.reads = file.get_tensor("weight"), file.metadata()["reads"]
                self.bias = file.get_tensor("bias") if "bias" in file.keys() else None  # noqa: SIM118

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        rows = [list(row) for row in inputs.rows]
        output = self.encoder.forward_batch(rows)
        states = np.array(output.last_hidden_state)
        if self.weight is None:
            return _cut(states, rows)
        # What is pooled is computed only where a head asks for it.
        read = {"pooled": lambda: np.array(output.pooler_output), "first": lambda: states[:, 0]}
        answers = read.get(self.reads, lambda: states)() @ self.weight.T
        answers = answers if self.bias is None else answers + self.bias
        return _cut(answers, rows) if self.reads == "every" else list(answers)


class TranslatorRunner:
    """Logits of a decoder over an encoder, for a text that it is made to write."""

    def __init__(self, folder: Path) -> None:
        import ctranslate2

        self.translator = ctranslate2.Translator(str(folder), **_options())
        self.source, self.target = (_read_vocabulary(folder, side) for side in ("source", "target"))

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        assert inputs.targets is not None
        # The decoder's start is CTranslate2's own business.
        written = [[self.target[number] for number in row[1:]] for row in inputs.targets]
        results = self.translator.translate_batch(
            [[self.source[number] for number in row] for row in inputs.rows],
            target_prefix=written,
            beam_size=1,
            # At least one token would forbid the end, and change its score.
            min_decoding_length=0,
            max_decoding_length=max(map(len, written)) + 1,
            # Otherwise sources are cut at 1,024 tokens without a word.
            max_input_length=0,
            return_logits_vocab=True,
        )
        logits = [np.stack([np.array(step) for step in result.logits[0]]) for result in results]
        return [steps[: len(row)] for steps, row in zip(logits, inputs.targets, strict=True)]


def _read_vocabulary(folder: Path, side: str) -> list[str]:
    path = folder / f"{side}_vocabulary.json"
    path = path if path.exists() else folder / "shared_vocabulary.json"
    tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return tokens


def _cut(padded: np.ndarray, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Rows without what fills them up."""
    return [padded[number, : len(row)] for number, row in enumerate(rows)]
