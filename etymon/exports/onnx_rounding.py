"""Rounding ONNX files: eight bits, or half precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etymon.exports.onnx_files import quietly
from etymon.files import remove

TURNED = "_turned"
"""Ends the name of a copy of a matrix, turned round."""
LAST_AXIS = "last_axis"


def round_file(path: Path, quantization: str) -> Path:
    """The file with rounded weights, under the name that runtimes look for; the whole one is removed."""
    if quantization == "float32":
        return path
    suffix = {"int8": "_quantized", "fp16": "_fp16"}[quantization]
    rounded = path.with_name(f"{path.stem}{suffix}.onnx")
    if quantization == "int8":
        _round_to_eight_bits(path, rounded)
    else:
        _round_to_half(path, rounded)
    remove(path)
    remove(path.with_name(f"{path.name}.data"))
    return rounded


def _round_to_eight_bits(path: Path, rounded: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    _split_products(model.graph)
    onnx.save(model, path)
    lookups = _tied_lookups(model.graph)
    with quietly():
        # Unsigned weights: signed ones overflow on processors without VNNI.
        quantize_dynamic(
            path, rounded, weight_type=QuantType.QUInt8, per_channel=True, nodes_to_exclude=list(lookups)
        )
    model = onnx.load(rounded)
    _store_tied_once(model.graph, lookups)
    onnx.save(model, rounded)


def _split_products(graph: Any) -> None:
    """Every `Gemm` as a product and a sum, the matrix turned round in a copy of its own. ONNX Runtime's
    quantizer would turn it in place, even where word vectors are looked up in it."""
    from onnx import helper, numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    nodes, turned = [], set()
    for node in graph.node:
        options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        plain = options.get("alpha", 1.0) == options.get("beta", 1.0) == 1.0 and not options.get("transA")
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights:
            nodes.append(node)
            continue
        x, matrix, *bias = node.input
        if options.get("transB"):
            name = f"{matrix}{TURNED}"
            if name not in turned:
                turned.add(name)
                array = numpy_helper.to_array(weights[matrix]).T
                graph.initializer.append(numpy_helper.from_array(array.copy(), name))
            matrix = name
        product = f"{node.output[0]}_product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [x, matrix], [product], f"{node.name}_product"))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], node.output, f"{node.name}_sum"))
    # A matrix that was turned and is looked up nowhere would be stored twice.
    used = _names_read(nodes)
    kept = [weight for weight in graph.initializer if weight.name in used]
    _replace(graph, nodes, kept)


def _tied_lookups(graph: Any) -> dict[str, str]:
    """Of tables of words that are also a product's matrix, the nodes that look words up, with its name."""
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    tables = [
        weight.name.removesuffix(TURNED) for weight in graph.initializer if weight.name.endswith(TURNED)
    ]
    return {
        node.name: table
        for table in tables
        # What else reads the table wants it as a whole.
        if all(node.op_type == "Gather" for node in readers.get(table, ()))
        for node in readers.get(table, ())
    }


def _store_tied_once(graph: Any, lookups: Mapping[str, str]) -> None:
    """Only the product's copy of a tied matrix was rounded, a column at a time. It serves both: as a
    table with a word a row and its scale beside it, which the product reads turned round."""
    from onnx import helper, numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    turns, rows = [], []
    for table in dict.fromkeys(lookups.values()):
        turned = f"{table}{TURNED}_quantized"
        by_word = numpy_helper.to_array(weights[turned]).T.copy()
        rows.append(numpy_helper.from_array(by_word, f"{table}_words"))
        # Runtimes turn it when they open the file, once.
        turns.append(
            helper.make_node("Transpose", [f"{table}_words"], [turned], f"{table}_turn", perm=[1, 0])
        )
    if not turns:
        return
    nodes = list(turns)
    for node in graph.node:
        table = lookups.get(node.name, "")
        nodes += _look_up_words(table, node.input[1], node.output[0]) if table else [node]
    gone = {node.output[0] for node in turns}
    axis = numpy_helper.from_array(np.array([-1]), LAST_AXIS)
    used = _names_read(nodes)
    _replace(graph, nodes, [part for part in [*graph.initializer, *rows, axis] if part.name in used - gone])


def _look_up_words(table: str, ids: str, output: str) -> list[Any]:
    """Nodes that look words up in a matrix of eight bits with a scale a row."""
    from onnx import TensorProto, helper

    def node(kind: str, inputs: list[str], result: str, **options: Any) -> Any:
        return helper.make_node(kind, inputs, [result], result, **options)

    # Names that ONNX Runtime's quantizer does not make.
    row, scale, zero = (f"{output}_words_{part}" for part in ("row", "scale", "zero"))
    nodes = [
        node("Gather", [f"{table}_words", ids], row),
        node("Cast", [row], f"{row}_whole", to=TensorProto.FLOAT),
    ]
    for part, value in (("scale", scale), ("zero_point", zero)):
        nodes += [
            node("Gather", [f"{table}{TURNED}_{part}", ids], f"{value}_of"),
            node("Unsqueeze", [f"{value}_of", LAST_AXIS], value),
        ]
    return [
        *nodes,
        node("Cast", [zero], f"{zero}_whole", to=TensorProto.FLOAT),
        node("Sub", [f"{row}_whole", f"{zero}_whole"], f"{row}_steps"),
        node("Mul", [f"{row}_steps", scale], output),
    ]


def _replace(graph: Any, nodes: list[Any], weights: list[Any]) -> None:
    for field, values in ((graph.node, nodes), (graph.initializer, weights), (graph.value_info, [])):
        del field[:]
        field.extend(values)


def _names_read(nodes: Sequence[Any]) -> set[str]:
    """Whatever nodes read, in the bodies of loops as well."""
    names = {name for node in nodes for name in node.input}
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _names_read(attribute.g.node)
    return names


def _round_to_half(path: Path, rounded: Path) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with quietly():
        model = onnx.load(path)
        # Inputs and outputs stay float32, so that callers need not know.
        half = OnnxModel(
            convert_float_to_float16(model, keep_io_types=True, node_block_list=_angle_nodes(model.graph))
        )
        # The converter adds the same cast for every node that reads a number.
        unique = list({tuple(node.output): node for node in half.model.graph.node}.values())
        del half.model.graph.node[:]
        half.model.graph.node.extend(unique)
        # Casts of inputs are added at the end: a branch of a merged decoder has to be in order.
        half.topological_sort()
    onnx.save(half.model, rounded)


def _angle_nodes(graph: Any) -> list[str]:
    """Sines and cosines, and all that they are computed from: a rounded angle is another position."""
    makers = {output: node for node in graph.node for output in node.output}
    waiting = [node for node in graph.node if node.op_type in ("Sin", "Cos")]
    names: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in names:
            names.add(node.name)
            waiting += [makers[name] for name in node.input if name in makers]
    return sorted(names)
