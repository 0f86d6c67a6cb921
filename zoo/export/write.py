"""Traces a model, writes the graph with what it needs to know, and compares the file with the model."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.encodings.base import AttentionEncoding
from zoo.errors import ConfigError, DataError, WeightsError, ZooError, require
from zoo.export.plan import Axis, Plan, make_plan
from zoo.export.run import NOTES, ExportedModel, backend_of
from zoo.files import write_whole
from zoo.tracing import exporting

__all__ = ["OPSET", "ExportReport", "export"]

OPSET = 20
"""Version of ONNX's operators in the files; runtimes of 2024 and later have it."""

FORMATS = {".onnx": "onnx", ".pt2": "torch.export"}
DTYPES = {"float32": torch.float32, "float16": torch.float16}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExportReport:
    """What `export` wrote.

    Attributes:
        path: The file.
        format: `"onnx"` or `"torch.export"`.
        opset: Version of ONNX's operators, `None` for torch.export.
        weights: `"float32"`, `"float16"` or `"int8"`.
        inputs: Name of each input and its sizes, as text.
        output: Name of the output.
        bytes: Size of the file.
        difference: Largest difference between file and model in float32, as a share of the largest number of the
            output (or of 1): logits, or of detections scores and, in pixels, boxes.
        compared: Shapes of the first input that were compared, of noise.
    """

    path: Path
    format: str
    opset: int | None
    weights: str
    inputs: dict[str, str]
    output: str
    bytes: int
    difference: float
    compared: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        opset = "" if self.opset is None else f", opset {self.opset}"
        inputs = ", ".join(f"{name} ({sizes})" for name, sizes in self.inputs.items())
        shapes = ", ".join(" x ".join(map(str, shape)) for shape in self.compared)
        return (
            f"{self.path}: {self.format}{opset}, {self.weights} weights, {self.bytes / 2**20:.1f} MiB\n"
            f"{inputs} -> {self.output}\n"
            f"differs from the model in float32 by {self.difference:.1e} of the largest output, on noise of {shapes}"
        )


def export(
    name_or_model: str | nn.Module,
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    dtype: str = "float32",
    int8: bool = False,
) -> ExportReport:
    """Writes a model as a graph that takes batches and inputs of any size, and compares it with the model.

    Inputs are float32, prepared as `data_config` says: `images` (B, C, H, W), or `clips` (B, C, T, H, W) and, of models
    whose time is in seconds, `times_s` (B, T) float64. Outputs are float32: `logits` (B, K), or `detections`
    (B, rows, 6) as in `zoo.detection.detections.Detections`, without non-maximum suppression. The file says how
    pictures are prepared and what the classes are called. `zoo.load(path)` runs it.

    Args:
        name_or_model: A name, as for `zoo.load`, or a model; it stays as it is.
        path: A file `.onnx`, or `.pt2` for torch.export.
        size: Side in pixels, or (height, width), that the graph is for alone; others are refused by it. By default any
            that the model takes, of at least two patches a side.
        dtype: Of the weights and of what is computed: `"float32"` or `"float16"`. Positions are float32 in both.
        int8: Linear layers of the encoder compute in 8-bit integers, with weights by channel and activations scaled
            when they are known; all else, the encodings too, is float32.

    Returns:
        What was written, and how far it is from the model.

    Raises:
        ConfigError: If the model makes no graph, or an option cannot be used.
        DataError: If the file cannot be written.
        WeightsError: If in float32 the file does not give what the model does; nothing is written then.
        MissingDependencyError: If a library is not installed.
    """
    target = Path(path)
    if target.suffix not in FORMATS:
        raise ConfigError(f"{target}: name a file {' or '.join(FORMATS)} (torch.export), which says what to write")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r:.60}")
    if int8 and dtype != "float32":
        raise ConfigError("int8 is for float32: what is not in 8 bit stays as it is")
    _require(target.suffix, int8)
    _check_target(target)
    model: Any = name_or_model
    if not isinstance(model, nn.Module):
        from zoo.loading import load

        model = load(model)
    plan = make_plan(model, size)
    reference = _frozen(model, torch.float32)
    weights = "int8" if int8 else dtype
    notes = _notes(model, plan, target.suffix, weights)
    with _quiet(), _named(model):
        graph = _Graph(_frozen(model, DTYPES[dtype]), plan.output, DTYPES[dtype])
        if target.suffix == ".onnx":
            from zoo.export.onnx_file import onnx_bytes

            data = onnx_bytes(_trace(graph, plan), plan, notes, OPSET, _layers(graph) if int8 else None)
        else:
            if int8:
                _to_int8(graph)
            buffer = io.BytesIO()
            torch.export.save(_trace(graph, plan), buffer, extra_files={NOTES: json.dumps(notes)})
            data = buffer.getvalue()
    difference, compared = _compare(data, target.suffix, notes, plan, reference)
    if weights == "float32" and not difference <= TOLERANCE:
        raise WeightsError(f"not written: the graph differs from the model by {difference:.1e}, at most {TOLERANCE:g}")
    try:
        write_whole(target, data)
    except OSError as error:
        raise DataError(f"cannot write {target} ({error.strerror or error})") from error
    opset = OPSET if target.suffix == ".onnx" else None
    sizes = {name: ", ".join(map(_size_text, axes)) for name, axes in plan.inputs.items()}
    return ExportReport(
        target, FORMATS[target.suffix], opset, weights, sizes, plan.output, len(data), difference, compared
    )


@contextlib.contextmanager
def _named(model: Any) -> Iterator[None]:
    """Says of which model a graph could not be made."""
    try:
        yield
    except (ZooError, MemoryError):
        raise
    except Exception as error:  # Exporters raise what they please.
        encoding = model.config["model"]["encoding"]
        reason = " ".join(str(error).split())[:400]
        raise ConfigError(
            f"{model.config.get('name')}: torch {torch.__version__} made no graph of it (encoding {encoding}): {reason}"
        ) from error


def _require(suffix: str, int8: bool) -> None:
    if suffix == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            require(module, "export")
    elif int8:
        require("torchao", "quant")


def _check_target(target: Path) -> None:
    """Before a minute of work."""
    try:
        if target.is_dir():
            raise DataError(f"cannot write {target}: it is a folder")
        if not target.parent.is_dir():
            raise DataError(f"cannot write {target}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise DataError(f"cannot write {target}: no permission to write to {target.parent}")
        if "\0" in str(target):
            raise DataError(f"cannot write {str(target)!r}: a null byte is in its name")
    except OSError as error:  # A name that is too long, a folder that may not be read.
        raise DataError(f"cannot write {str(target)[:200]}: {error.strerror or error}") from error


def _size_text(axis: Axis | int) -> str:
    if isinstance(axis, int):
        return str(axis)
    if axis.fixed is not None:
        return f"{axis.name} {axis.fixed}"
    return f"{axis.name} a multiple of {axis.step}" if axis.step > 1 and axis.whole else axis.name


def _notes(model: Any, plan: Plan, suffix: str, weights: str) -> dict[str, Any]:
    """What the file says of itself."""
    from zoo import __version__
    from zoo.config_file import SCHEMA_VERSION

    config = {**copy.deepcopy(model.config), "schema_version": SCHEMA_VERSION, "data": model.data_config.to_dict()}
    sizes = {
        name: [axis if isinstance(axis, int) else axis.fixed or axis.name for axis in axes]
        for name, axes in plan.inputs.items()
    }
    graph = {"format": FORMATS[suffix], "weights": weights, "inputs": sizes, "output": plan.output}
    return {"version": __version__, "config": config, "graph": graph}


def _frozen(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy for inference on the CPU."""
    copied = copy.deepcopy(model).to("cpu", dtype).eval().requires_grad_(False)
    for module in copied.modules():
        if isinstance(module, AttentionEncoding):
            module.freeze()
    return copied


class _Graph(nn.Module):
    """What is traced: float32 in and out, whatever is between."""

    def __init__(self, model: Any, output: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.output, self.dtype = model, output, dtype

    def forward(self, inputs: Tensor, times_s: Tensor | None = None) -> Tensor:
        """The output of the model."""
        inputs = inputs.to(self.dtype)
        if self.output == "detections":
            return self.model.detect(inputs).float()
        if times_s is not None:
            return self.model(inputs, None, times_s).float()
        return self.model(inputs).float()


def _trace(graph: nn.Module, plan: Plan) -> torch.export.ExportedProgram:
    with torch.no_grad(), exporting():
        return torch.export.export(graph, plan.example(), dynamic_shapes=plan.shapes(), strict=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters say to those who write them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _layers(graph: _Graph) -> set[str]:
    """Names of the linear layers of blocks: those of encodings are positions, which 8 bit are too few for."""
    names = (name for name, module in graph.named_modules() if isinstance(module, nn.Linear))
    return {name for name in names if name.startswith("model.encoder.blocks.") and ".encoding." not in name}


def _to_int8(graph: _Graph) -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    layers = _layers(graph)
    quantize_(graph, Int8DynamicActivationInt8WeightConfig(), filter_fn=lambda _, name: name in layers)


def _compare(
    data: bytes, suffix: str, notes: dict[str, Any], plan: Plan, reference: Any
) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Largest difference from the model, on sizes that were not traced: larger than trained, and small."""
    exported = ExportedModel(backend_of(data, suffix), notes)

    def large(axis: Axis) -> int:
        side = {"height": 1, "width": 2}.get(axis.name)
        trained = 0 if side is None else reference.data_config.input_size[side] // axis.step
        return axis.of(trained + {"batch": 1, "frames": 2, "height": 3, "width": 1}[axis.name])

    def small(axis: Axis) -> int:
        return axis.of({"batch": 3, "frames": 4, "height": 4, "width": 3}[axis.name])

    worst, shapes = 0.0, []
    for steps in (large, small):
        example = plan.example(steps, seed=1)
        inputs = example if len(example) == 1 else (example[0], None, example[1])
        with torch.inference_mode():
            expected, found = reference(*inputs), exported(*inputs)
        worst = max(worst, _difference(expected, found))
        shapes.append(tuple(example[0].shape))
    return worst, tuple(shapes)


def _difference(expected: Any, found: Any) -> float:
    if isinstance(expected, Tensor):
        return float((expected - found).abs().max() / expected.abs().max().clamp_min(1))
    worst, height_width = 0.0, expected.input_size
    for ours, theirs in zip(expected.tensor, found.tensor, strict=True):
        ours, theirs = ours[ours[:, 4] > 0], theirs[theirs[:, 4] > 0]
        if not len(ours):
            continue
        # Of equal scores, rows may come in another order, and the last ones may be others.
        scale = ours.new_tensor([*[max(height_width)] * 4, 1.0, 1e-3])
        nearest = ((ours[:, None] - theirs[None]).abs() / scale).amax(dim=2).amin(dim=1) if len(theirs) else ours[:, 4]
        sure = ours[:, 4] > ours[-1, 4] + TOLERANCE
        worst = max(worst, float(nearest[sure].max()) if sure.any() else 0.0)
    return worst
