"""What a model's graph takes and gives, which of its sizes are open, and which models make no graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.errors import ConfigError

__all__ = ["Axis", "Plan", "make_plan"]

_REASONS = {
    "events": "its tokens come from a tokenizer of events that runs outside of the network",
    "points": "points are grouped and sorted by code that makes no graph",
    "driving": "views and points are gathered by code that makes no graph, other for every scene",
    "sequence": "a decoder runs step by step with a cache of what it has seen, which a single graph has not",
}
# Steps along each axis of the example that is traced: no two alike, none like one that models are trained at.
_TRACED = {"batch": 2, "frames": 3, "height": 5, "width": 7}


@dataclass(frozen=True)
class Axis:
    """A size of an input.

    Attributes:
        name: `"batch"`, `"frames"`, `"height"` or `"width"`.
        step: A token is made of so many along it.
        whole: It must be a multiple of the step.
        fixed: It is this; `None` where it is open.
    """

    name: str
    step: int = 1
    whole: bool = True
    fixed: int | None = None

    def of(self, steps: int) -> int:
        """Size of so many tokens, the last of them not a whole one where that is permitted; or the fixed one."""
        return self.fixed or steps * self.step - (0 if self.whole else 1)

    @property
    def least(self) -> int | None:
        """Smallest size that a padded input may have: two tokens; `None` where torch.export finds it."""
        return None if self.whole else self.step + 1

    @property
    def traced(self) -> int:
        """Size of the example."""
        return self.of(_TRACED[self.name])


@dataclass(frozen=True)
class Plan:
    """Inputs and output of a graph.

    Attributes:
        inputs: Name of each input and its sizes in order; a number is a size that no input of the model may differ in.
        output: `"logits"` (batch, classes) or `"detections"` (batch, rows, 6), see `zoo.detection.detections`.
    """

    inputs: dict[str, tuple[Axis | int, ...]]
    output: str

    def example(self, steps: Callable[[Axis], int] | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """Noise as inputs (times rise by a thirtieth of a second); `steps` gives the size along an axis."""
        size = steps or (lambda axis: axis.traced)
        generator = torch.Generator().manual_seed(seed)
        found = []
        for name, axes in self.inputs.items():
            shape = [axis if isinstance(axis, int) else size(axis) for axis in axes]
            if name == "times_s":
                found.append((torch.arange(shape[1], dtype=torch.float64) / 30).expand(shape).contiguous())
            else:
                found.append(torch.randn(shape, generator=generator))
        return tuple(found)

    def shapes(self) -> tuple[dict[int, Any], ...]:
        """What torch.export calls dynamic shapes, one mapping for each input."""
        sizes: dict[str, Any] = {}
        for axes in self.inputs.values():
            for axis in axes:
                if isinstance(axis, Axis) and axis.fixed is None and axis.name not in sizes:
                    many = axis.step > 1 and axis.whole
                    one = torch.export.Dim(f"{axis.name}_steps" if many else axis.name, min=axis.least)
                    sizes[axis.name] = axis.step * one if many else one
        return tuple(
            {place: sizes[axis.name] for place, axis in enumerate(axes) if isinstance(axis, Axis) and not axis.fixed}
            for axes in self.inputs.values()
        )


def make_plan(model: nn.Module, size: int | tuple[int, int] | None = None) -> Plan:
    """Plans the graph of a model.

    Args:
        model: Of this library.
        size: Side in pixels, or (height, width), that the graph is for alone; `None` = any.

    Raises:
        ConfigError: If it makes no graph, or none of this size; says why.
    """
    config: Any = getattr(model, "config", None)
    data: Any = getattr(model, "data_config", None)
    if not isinstance(config, dict) or data is None or not hasattr(model, "encoder"):
        raise ConfigError(
            f"{type(model).__name__} is not a network of pape-zoo, which is what can be exported: for others there is "
            "torch.onnx.export"
        )
    modality, task, name = config["modality"], config["task"], config.get("name")
    if modality in _REASONS:
        raise ConfigError(f"{name}: {modality} models cannot be exported: {_REASONS[modality]}")
    if (modality, task) not in (("image", "classification"), ("image", "detection"), ("video", "classification")):
        raise ConfigError(f"{name}: no export for {modality} {task}")
    if not getattr(model, "num_classes", 0):
        raise ConfigError(f"{name}: the model has no classes; call reset_classifier(n) and train it")
    padded = config["model"].get("size_policy") == "pad"
    height, width = (None, None) if size is None else data.with_size(size).input_size[1:]
    patch = int(config["model"]["patch_size"])
    for side in (height, width):
        if side is not None and side % patch and not padded:
            raise ConfigError(f"size {side} is not a multiple of the model's patch, {patch} pixels")
    sides = (Axis("height", patch, not padded, height), Axis("width", patch, not padded, width))
    channels = int(config["model"]["in_chans"])
    if modality == "image":
        output = "logits" if task == "classification" else "detections"
        return Plan({"images": (Axis("batch"), channels, *sides)}, output)
    frames = Axis("frames", int(config["model"]["tubelet"]))
    inputs: dict[str, tuple[Axis | int, ...]] = {"clips": (Axis("batch"), channels, frames, *sides)}
    if config["model"].get("time_unit_s") is not None:
        inputs["times_s"] = (Axis("batch"), frames)
    return Plan(inputs, "logits")
