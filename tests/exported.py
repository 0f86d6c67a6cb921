"""Tiny models to export, and their files run by onnxruntime alone, for tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import TINY_CONFIG
from saved_models import make_model
from torch import Tensor

__all__ = ["difference", "noise", "run", "session", "tiny"]


def tiny(encoding: str = "pape", **changes: Any) -> Any:
    """An image classifier of one block with a class token at the origin and random weights."""
    config = copy.deepcopy(TINY_CONFIG)
    config["model"] |= {"depth": 1, "encoding": encoding, "encoding_options": {}, "coordinate_origin": 1}
    config["model"] |= {"class_token_position": "origin", **changes}
    config["labels"] = ["dark", "bright"] if config["model"]["num_classes"] == 2 else config["labels"]
    return make_model(config)


def noise(*shape: int) -> Tensor:
    """Noise that depends on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def session(path: Path) -> Any:
    """The file in onnxruntime, without anything of ours."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(opened: Any, *inputs: Tensor) -> np.ndarray:
    """Output of a session for inputs in their order."""
    (output,) = opened.run(
        None, {wanted.name: one.numpy() for wanted, one in zip(opened.get_inputs(), inputs, strict=True)}
    )
    return output


def difference(model: Any, opened: Any, images: Tensor) -> float:
    """Largest difference of logits from those of the model."""
    with torch.inference_mode():
        return float(np.abs(model(images).numpy() - run(opened, images)).max())
