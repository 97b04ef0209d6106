"""ONNX files: traced from programs, and merged."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.onnx  # which needs onnxscript
from torch import nn

from etymon.files import remove

OPSET = 18
"""Of operators: old enough for the runtimes of browsers and phones."""
LARGEST = 1_800_000_000
"""Bytes of weights in one file: more than 2 GB cannot be."""


def trace_onnx(
    program: nn.Module,
    inputs: dict[str, Any],
    shapes: dict[str, Any],
    input_names: Sequence[str],
    output_names: Sequence[str],
    path: Path,
) -> None:
    """Writes a program as an ONNX file with free sizes."""
    # One buffer of protocol buffers cannot be larger; the rest goes into a file beside it.
    size = sum(parameter.numel() * parameter.element_size() for parameter in program.parameters())
    with quietly(), torch.no_grad():
        exported: Any = torch.onnx.export(
            program.eval(),
            (),
            kwargs=inputs,
            dynamic_shapes=shapes,
            input_names=list(input_names),
            output_names=list(output_names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        exported.save(str(path), external_data=size > LARGEST)


@contextmanager
def quietly() -> Iterator[None]:
    """Without what the exporter says of its own workings."""
    names = ("torch.onnx", "onnxscript", "onnx_ir", "root")
    levels = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def merge_decoders(first: Path, later: Path, merged: Path, *, free_caches: bool = False) -> None:
    """One file of two decoders that share their weights: `use_cache_branch` says which of them runs. Both
    files are removed. With `free_caches`, the file takes past keys and values of any heads and width, which
    the first branch does not read."""
    import onnx
    from onnx import TensorProto, helper

    models = [onnx.load(first), onnx.load(later)]
    # By content: both decoders have the same weights, which the exporter may name differently.
    shared: dict[bytes, str] = {}
    initializers: list[Any] = []
    branches = []
    for branch, model in zip(("first", "later"), models, strict=True):
        graph = model.graph
        # Names of inputs and weights are those of the file; all others are the branch's own.
        outer = {value.name: value.name for value in graph.input}
        for weight in graph.initializer:
            content = weight.SerializeToString().replace(weight.name.encode(), b"", 1)
            if content not in shared:
                shared[content] = f"weight_{len(shared)}"
                copied = TensorProto()
                copied.CopyFrom(weight)
                copied.name = shared[content]
                initializers.append(copied)
            outer[weight.name] = shared[content]
        _rename(graph, outer, f"{branch}/")
        branches.append(graph)
    names = [value.name.removeprefix("first/") for value in branches[0].output]
    for name in names:
        # The source's keys and values do not change: the later branch passes its own on.
        if f"later/{name}" not in {value.name for value in branches[1].output}:
            given = name.replace("present.", "past_key_values.")
            node = helper.make_node("Identity", [given], [f"later/{name}"])
            branches[1].node.append(node)
    # Both branches of an `If` have to agree on types: those of the first are free in all sizes.
    types = {value.name.split("/", 1)[1]: value for value in branches[0].output}
    bodies = []
    for branch, graph in zip(("first", "later"), branches, strict=True):
        outputs = []
        for name in names:
            value = onnx.ValueInfoProto()
            value.CopyFrom(types[name])
            value.name = f"{branch}/{name}"
            outputs.append(value)
        bodies.append(helper.make_graph(list(graph.node), branch, [], outputs))
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    choice = helper.make_node("If", ["use_cache_branch"], names, then_branch=bodies[1], else_branch=bodies[0])
    outputs = [_renamed_value(types[name], name) for name in names]
    graph = helper.make_graph([choice], "merged", [*models[1].graph.input, flag], outputs, initializers)
    for value in graph.input:
        if free_caches and value.name.startswith("past_key_values."):
            axes = value.type.tensor_type.shape.dim
            axes[1].dim_param, axes[3].dim_param = "cache_heads", "cache_width"
    opsets = {entry.domain: entry for model in models for entry in model.opset_import}
    whole = helper.make_model(graph, opset_imports=list(opsets.values()), ir_version=models[0].ir_version)
    whole.functions.extend(models[0].functions)
    onnx.save(whole, merged)
    for path in (first, later):
        remove(path)


def _renamed_value(value: Any, name: str) -> Any:
    import onnx

    renamed = onnx.ValueInfoProto()
    renamed.CopyFrom(value)
    renamed.name = name
    return renamed


def _rename(graph: Any, outer: dict[str, str], prefix: str) -> None:
    """Puts the prefix before every name of a graph but those that `outer` knows, in subgraphs as well."""

    def rename(name: str) -> str:
        return outer.get(name) or (f"{prefix}{name}" if name else "")

    for node in graph.node:
        node.name = f"{prefix}{node.name}"
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, outer, prefix)
    for value in [*graph.output, *graph.value_info]:
        value.name = rename(value.name)
    del graph.value_info[:]
