"""ONNX: files for ONNX Runtime, its relatives on phones, and browsers, as Optimum and Transformers.js name
them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from etymon.exports.cache_program import CausalProgram, DecoderProgram, EncoderProgram
from etymon.exports.check import model_answers
from etymon.exports.onnx_files import merge_decoders, trace_onnx
from etymon.exports.onnx_rounding import round_file
from etymon.exports.program import (
    HeadProgram,
    no_program,
    no_program_of_model,
    pad_rows,
    program_inputs,
    read_words,
    split_answers,
)
from etymon.exports.state_program import (
    MemoryProgram,
    RecurrentDecoderProgram,
    RecurrentEncoderProgram,
    memory_length,
)
from etymon.exports.target import EIGHT_BITS, EXACT, HALF, STATES, CheckInputs, ExportTarget
from etymon.families.elmo.lstm import Lstm
from etymon.families.saving import save
from etymon.files import remove, write_json
from etymon.nn.batch import Batch

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.families.model import Model

FILES = "onnx"
"""The folder in which Transformers.js looks for the files."""
SIGNATURE = "signature.json"
"""Beside them: the head that they compute; where they remember, how many tokens at most (`memory`), and how
many of zeros they begin behind (`zeros`)."""
CARRIED = {"present": "past_key_values", "present_states": "past_states", "present_memory": "past_memory"}
"""Outputs that the next call takes, and as what."""
PIECES = 3
"""In which rows are checked where a model carries something from call to call."""


class OnnxTarget(ExportTarget):
    name = "onnx"
    packages = ("onnx", "onnxscript", "onnxruntime")
    extra = "onnx"
    quantizations = {"float32": EXACT, "fp16": HALF, "int8": EIGHT_BITS}

    def unsupported(self, family: Family, head: str) -> str | None:
        return no_program(family, head)

    def unsupported_model(self, model: Model, head: str) -> str | None:
        return no_program_of_model(model, head)

    def unsupported_rounding(self, model: Model, head: str, quantization: str) -> str | None:
        # ONNX Runtime 1.31 dies of a loop in fp16, and takes the process with it.
        if quantization == "fp16" and any(isinstance(part, nn.RNNBase | Lstm) for part in model.modules()):
            return "a state that is rounded at every token drifts: say --quantize int8, or none"
        return None

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        # Configuration and tokenizer as everywhere: both libraries begin with them.
        save(model, folder, with_weights=False)
        # What is said there is of a folder with weights.
        for name in ("README.md", "etymon.json", "history.json"):
            remove(folder / name)
        files = folder / FILES
        files.mkdir()
        write_json(files / SIGNATURE, _signature(model, head))
        if head == "vocabulary" and keeps_keys(model):
            write = _write_encoder_decoder if model.encoder_decoder else _write_decoder
            write(model, files, quantization)
        elif head == "vocabulary" and model.encoder_decoder:
            _write_recurrent(model, files, quantization)
        elif remembers(model, head):
            _write_program(MemoryProgram(model, head), files / "model.onnx", quantization)
        else:
            program = HeadProgram(model, head, splits_axes=True)
            inputs, shapes = program.example()
            path = files / "model.onnx"
            trace_onnx(program, inputs, shapes, list(inputs), program.output_names, path)
            round_file(path, quantization)

    def answers(self, model: Model, head: str, inputs: CheckInputs) -> list[np.ndarray]:
        return (
            read_in_pieces(model, head, inputs)
            if remembers(model, head)
            else model_answers(model, head, inputs)
        )

    def open(self, folder: Path) -> OnnxRunner:
        return OnnxRunner(folder / FILES)


def _signature(model: Model, head: str) -> dict[str, Any]:
    if not remembers(model, head):
        return {"head": head}
    length = memory_length(model)
    return {
        "head": head,
        "memory": length,
        "zeros": length if getattr(model.body, "zero_start", False) else 0,
    }


def keeps_keys(model: Model) -> bool:
    """Whether what a decode carries from token to token is keys and values."""
    from etymon.nn.blocks import Stack

    decoder = model.body.decoder if model.encoder_decoder else model.body
    return "state" in model.capabilities and type(getattr(decoder, "stack", None)) is Stack


def remembers(model: Model, head: str) -> bool:
    """Whether an export reads a text in pieces, behind what it remembers of those before."""
    return head in ("vocabulary", STATES) and memory_length(model) > 0


@torch.inference_mode()
def read_in_pieces(model: Model, head: str, inputs: CheckInputs) -> list[np.ndarray]:
    """What the model itself says of rows that it reads in pieces."""
    state, parts = model.remember(len(inputs.rows)), []
    for begin, end in piece_borders(max(map(len, inputs.rows))):
        batch = Batch.of([row[begin:end] for row in inputs.rows])
        hidden_ND, _ = model.hidden(batch, state)
        outputs = hidden_ND if head == STATES else read_words(model, hidden_ND)
        parts.append([part.numpy() for part in outputs.split(batch.layout.lengths)])
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def piece_borders(length: int) -> list[tuple[int, int]]:
    """A row in three pieces, or fewer where it has fewer tokens."""
    borders = [length * part // PIECES for part in range(PIECES + 1)]
    return [(begin, end) for begin, end in pairwise(borders) if begin < end]


def _write_decoder(model: Model, files: Path, quantization: str) -> None:
    _write_program(CausalProgram(model), files / "model.onnx", quantization)


def _write_program(program: Any, path: Path, quantization: str) -> None:
    inputs, shapes = program.example()
    trace_onnx(program, inputs, shapes, program.input_names, program.output_names, path)
    round_file(path, quantization)


def _write_recurrent(model: Model, files: Path, quantization: str) -> None:
    encoder, path = RecurrentEncoderProgram(model), files / "encoder_model.onnx"
    inputs, shapes = HeadProgram(model, STATES).example()
    trace_onnx(encoder, inputs, shapes, list(inputs), encoder.output_names, path)
    round_file(path, quantization)
    _write_program(RecurrentDecoderProgram(model), files / "decoder_model.onnx", quantization)


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
    # Optimum begins with empty caches of the encoder's heads, each of width dim / heads. A T5 may have wider
    # heads, a BART other ones in its decoder: ONNX Runtime would refuse such caches where sizes are fixed.
    guess = model.shape.heads, model.shape.dim // model.shape.heads
    other = any(sizes != guess for sizes in (*program.own_sizes, *program.cross_sizes))
    merged = files / first.name.replace("decoder_model", "decoder_model_merged")
    merge_decoders(first, later, merged, free_caches=other)


class OnnxRunner:
    """The files of an export in ONNX Runtime. Decoders are asked twice, so that their caches are checked: the
    beginnings of rows first, then the rest behind what they gave back."""

    def __init__(self, files: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        # As many as PyTorch has: otherwise it takes every core, whatever it was told.
        options.intra_op_num_threads = torch.get_num_threads()
        self.signature = json.loads((files / SIGNATURE).read_text(encoding="utf-8"))
        self.head: str = self.signature["head"]
        self.sessions: dict[str, Any] = {
            path.stem.removesuffix("_quantized").removesuffix("_fp16"): onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            for path in files.glob("*.onnx")
        }

    def answer(self, inputs: CheckInputs) -> list[np.ndarray]:
        if "decoder_model" in self.sessions:
            outputs = [self._write_from_states(inputs)]
        elif "encoder_model" in self.sessions:
            outputs = [self._write_on(inputs)]
        elif any("past_memory" in value.name for value in self.sessions["model"].get_inputs()):
            outputs = [self._remember_pieces(inputs)]
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
            caches = _next_inputs(outputs)
        return np.concatenate(logits, 1)

    def _remember_pieces(self, inputs: CheckInputs) -> np.ndarray:
        session, padded, outputs = self.sessions["model"], pad_rows(inputs.rows), []
        rows, length = padded.ids_RT.shape
        # Models that were trained behind zeros begin with as many as they remember.
        zeros = self.signature["zeros"]
        memory = {
            value.name: np.zeros((rows, zeros, value.shape[2]), np.float32)
            for value in session.get_inputs()
            if "past_memory" in value.name
        }
        mask = np.ones((rows, zeros), np.int64)
        for begin, end in piece_borders(length):
            mask = np.concatenate([mask, padded.mask_RT[:, begin:end]], 1)
            given = {"input_ids": padded.ids_RT[:, begin:end], "attention_mask": mask}
            given["token_type_ids"] = np.zeros_like(given["input_ids"])
            names = {value.name for value in session.get_inputs()}
            answers = _run(session, {name: part for name, part in given.items() if name in names} | memory)
            outputs.append(next(iter(answers.values())))
            memory = _next_inputs(answers)
            # As many cells as are remembered now: older ones were dropped.
            mask = mask[:, mask.shape[1] - memory["past_memory.0"].shape[1] :]
        return np.concatenate(outputs, 1)

    def _write_from_states(self, inputs: CheckInputs) -> np.ndarray:
        assert inputs.targets is not None
        source, ids_RT = pad_rows(inputs.rows), pad_rows(inputs.targets).ids_RT
        encoder, decoder = self.sessions["encoder_model"], self.sessions["decoder_model"]
        read = _run(encoder, {"input_ids": source.ids_RT, "attention_mask": source.mask_RT})
        states, logits = _next_inputs(read), []
        given = {"encoder_hidden_states": read["last_hidden_state"], "encoder_attention_mask": source.mask_RT}
        given |= {name: part for name, part in read.items() if name == "encoder_keys"}
        given = {name: given[name] for name in given.keys() & {value.name for value in decoder.get_inputs()}}
        for begin, end in piece_borders(ids_RT.shape[1]):
            outputs = _run(decoder, {"input_ids": ids_RT[:, begin:end]} | given | states)
            logits.append(outputs["logits"])
            states = _next_inputs(outputs)
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
            caches = _next_inputs(outputs)
        return np.concatenate(logits, 1)


def _run(session: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, arrays), strict=True))


def _empty_caches(session: Any, rows: int) -> dict[str, np.ndarray]:
    """Keys and values of no tokens, as every decode begins."""
    caches = {}
    for value in session.get_inputs():
        if "past_key" in value.name:
            # Free sizes have names; the branch that is given such caches does not read them, so 1 will do.
            _, heads, _, width = (size if isinstance(size, int) else 1 for size in value.shape)
            caches[value.name] = np.zeros((rows, heads, 0, width), np.float32)
    return caches


def _next_inputs(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a call gives and the next one takes."""
    carried = {}
    for name, array in outputs.items():
        kind, _, rest = name.partition(".")
        if kind in CARRIED:
            carried[f"{CARRIED[kind]}.{rest}"] = array
    return carried
