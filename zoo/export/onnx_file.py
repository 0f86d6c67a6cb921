"""ONNX files: conversion, names of inputs and sizes, notes, and weights of 8 bit."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

from zoo.errors import WeightsError
from zoo.export.plan import Axis, Plan

__all__ = ["onnx_bytes"]

_PRODUCTS = ("MatMul", "Gemm")


def onnx_bytes(
    program: torch.export.ExportedProgram, plan: Plan, notes: dict[str, Any], opset: int, layers: Set[str] | None
) -> bytes:
    """The file of a traced model.

    Args:
        program: What torch.export gave.
        plan: What was traced.
        notes: What the file says of itself.
        opset: Version of ONNX's operators.
        layers: Names of linear layers that become 8 bit; `None` for none.
    """
    import onnx

    with torch.no_grad():
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            verbose=False,
            input_names=list(plan.inputs),
            output_names=[plan.output],
        )
    assert converted is not None
    proto = converted.model_proto
    if layers is not None:
        proto = _quantized(proto, layers)
    for part in (*proto.graph.node, *proto.graph.value_info):  # Lines of our code, and the folder that it is in.
        del part.metadata_props[:]
    _name_sizes(proto, plan)
    proto.producer_name, proto.producer_version = "pape-zoo", notes["version"]
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, _properties(notes))
    return proto.SerializeToString()


def _properties(notes: dict[str, Any]) -> dict[str, str]:
    """Notes as ONNX keeps them, texts by name; the first is what `zoo.load` reads, the others are for other readers."""
    config = notes["config"]
    return {
        "pape_zoo": json.dumps(notes),
        "name": str(config.get("name")),
        "task": str(config["task"]),
        "preprocessing": json.dumps(config["data"]),
        "labels": json.dumps(config.get("labels")),
        "weights": notes["graph"]["weights"],
    }


def _name_sizes(proto: Any, plan: Plan) -> None:
    for value in proto.graph.input:
        for axis, size in zip(plan.inputs[value.name], value.type.tensor_type.shape.dim, strict=True):
            if isinstance(axis, Axis) and axis.fixed is None:
                size.dim_param = axis.name
    for value in proto.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


def _quantized(proto: Any, layers: Set[str]) -> Any:
    """Linear layers as products of 8-bit integers.

    Weights are signed and have a scale for each channel; 7 bit of them, since CPUs without VNNI would overflow on 8.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    nodes = [node.name for node in proto.graph.node if node.op_type in _PRODUCTS and _modules(node) & layers]
    if len(nodes) != len(layers):
        raise WeightsError(f"not written: {len(layers)} linear layers became {len(nodes)} products of matrices")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        quantize_dynamic(
            proto,
            out,
            op_types_to_quantize=list(_PRODUCTS),
            nodes_to_quantize=nodes,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(out)


def _modules(node: Any) -> set[str]:
    """Names of the modules that a node comes from."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            return set(ast.literal_eval(entry.value))
    return set()
