"""ONNX: files for ONNX Runtime, its relatives on phones, and browsers, as Optimum and Transformers.js name
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from etymon.exports.cache_program import CausalProgram, DecoderProgram, EncoderProgram
from etymon.exports.onnx_files import merge_decoders, round_file, trace_onnx
from etymon.exports.program import (
    HeadProgram,
    no_program,
    no_program_of_model,
    pad_rows,
    program_inputs,
    split_answers,
)
from etymon.exports.target import EIGHT_BITS, EXACT, HALF, CheckInputs, ExportTarget
from etymon.families.saving import save
from etymon.files import remove, write_json

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model

FILES = "onnx"
"""The folder in which Transformers.js looks for the files."""
SIGNATURE = "signature.json"
"""Beside them: the head that they compute."""


class OnnxTarget(ExportTarget):
    name = "onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    extra = "onnx"
    quantizations = {"float32": EXACT, "fp16": HALF, "int8": EIGHT_BITS}

    def unsupported(self, family: Family, head: str) -> str | None:
        return no_program(family, head)

    def unsupported_model(self, model: Model, head: str) -> str | None:
        return no_program_of_model(model, head)

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        # Configuration and tokenizer as everywhere: both libraries begin with them.
        save(model, folder, with_weights=False)
        # What is said there is of a folder with weights.
        for name in ("README.md", "etymon.json", "history.json"):
            remove(folder / name)
        files = folder / FILES
        files.mkdir()
        write_json(files / SIGNATURE, {"head": head})
        if head == "vocabulary" and keeps_keys(model):
            write = _write_encoder_decoder if model.encoder_decoder else _write_decoder
            write(model, files, quantization)
        else:
            program = HeadProgram(model, head, splits_axes=True)
            inputs, shapes = program.example()
            path = files / "model.onnx"
            trace_onnx(program, inputs, shapes, list(inputs), program.output_names, path)
            round_file(path, quantization)

    def open(self, folder: Path) -> OnnxRunner:
        return OnnxRunner(folder / FILES)


def keeps_keys(model: Model) -> bool:
    """Whether what a decode carries from token to token is keys and values."""
    from etymon.nn.blocks import Stack

    decoder = model.body.decoder if model.encoder_decoder else model.body
    return "state" in model.capabilities and type(getattr(decoder, "stack", None)) is Stack


def _write_decoder(model: Model, files: Path, quantization: str) -> None:
    program = CausalProgram(model)
    inputs, shapes = program.example()
    path = files / "model.onnx"
    trace_onnx(program, inputs, shapes, program.input_names, program.output_names, path)
    round_file(path, quantization)


def _write_encoder_decoder(model: Model, files: Path, quantization: str) -> None:
    inputs, shapes = HeadProgram(model, "states").example()
    path = files / "encoder_model.onnx"
    trace_onnx(EncoderProgram(model), inputs, shapes, list(inputs), ["last_hidden_state"], path)
    round_file(path, quantization)
    paths = [files / "decoder_model.onnx", files / "decoder_with_past_model.onnx"]
    for path, with_past in zip(paths, (False, True), strict=True):
        program = DecoderProgram(model, with_past)
        inputs, shapes = program.example()
        trace_onnx(program, inputs, shapes, program.input_names, program.output_names, path)
    # Rounded first: equal weights of the two are then still equal, and are stored once.
    first, later = (round_file(path, quantization) for path in paths)
    merge_decoders(first, later, files / first.name.replace("decoder_model", "decoder_model_merged"))


class OnnxRunner:
    """The files of an export in ONNX Runtime. Decoders are asked twice, so that their caches are checked: the
    beginnings of rows first, then the rest behind what they gave back."""

    def __init__(self, files: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        self.head: str = json.loads((files / SIGNATURE).read_text(encoding="utf-8"))["head"]
        self.sessions: dict[str, Any] = {
            path.stem.removesuffix("_quantized").removesuffix("_fp16"): onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            for path in files.glob("*.onnx")
        }

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        if "encoder_model" in self.sessions:
            outputs = [self._write_on(inputs)]
        elif any("past_key" in value.name for value in self.sessions["model"].get_inputs()):
            outputs = [self._read_in_two(inputs)]
        else:
            session = self.sessions["model"]
            arrays = program_inputs([value.name for value in session.get_inputs()], inputs)
            if self.head == "choice":
                arrays = {name: array[:, None] for name, array in arrays.items()}
            outputs = session.run(None, arrays)
        return split_answers(self.head, outputs, inputs)

    def _read_in_two(self, inputs: CheckInputs) -> np.ndarray:
        session, padded = self.sessions["model"], pad_rows(inputs.rows)
        length = padded.ids_RT.shape[1]
        caches, logits = _empty_caches(session, len(inputs.rows)), []
        # A row of one token is asked for once.
        for begin, end in ((0, length // 2), (length // 2, length)):
            if begin == end:
                continue
            places = np.broadcast_to(np.arange(begin, end), (len(inputs.rows), end - begin))
            given = {
                "input_ids": padded.ids_RT[:, begin:end],
                "attention_mask": padded.mask_RT[:, :end],
                "position_ids": np.ascontiguousarray(places),
            }
            outputs = _run(session, given | caches)
            logits.append(outputs["logits"])
            caches = _next_caches(outputs)
        return np.concatenate(logits, 1)

    def _write_on(self, inputs: CheckInputs) -> np.ndarray:
        assert inputs.targets is not None
        source, ids_RT = pad_rows(inputs.rows), pad_rows(inputs.targets).ids_RT
        encoder, decoder = self.sessions["encoder_model"], self.sessions["decoder_model_merged"]
        arrays = {"input_ids": source.ids_RT, "attention_mask": source.mask_RT}
        memory = encoder.run(None, arrays)[0]
        caches, logits = _empty_caches(decoder, len(inputs.rows)), []
        length = ids_RT.shape[1]
        # The first call has at least one token: it makes the keys of the source.
        for begin, end in ((0, (length + 1) // 2), ((length + 1) // 2, length)):
            if begin == end:
                continue
            given = {
                "encoder_attention_mask": source.mask_RT,
                "input_ids": ids_RT[:, begin:end],
                "encoder_hidden_states": memory,
                "use_cache_branch": np.array([begin > 0]),
            }
            outputs = _run(decoder, given | caches)
            logits.append(outputs["logits"])
            caches = _next_caches(outputs)
        return np.concatenate(logits, 1)


def _run(session: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, arrays), strict=True))


def _empty_caches(session: Any, rows: int) -> dict[str, np.ndarray]:
    """Keys and values of no tokens, as every decode begins."""
    values = [value for value in session.get_inputs() if "past_key" in value.name]
    return {value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), np.float32) for value in values}


def _next_caches(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [name for name in outputs if name.startswith("present")]
    return {name.replace("present", "past_key_values"): outputs[name] for name in names}
