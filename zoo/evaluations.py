"""What measures models of each kind: one table, for `zoo eval`, for sweeps and for `zoo reproduce`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from zoo.errors import ConfigError

__all__ = ["EVALUATIONS", "evaluation"]

# Modality and task -> "module:function" that reads the data, measures, and gives a report with "results".
EVALUATIONS = {
    ("image", "classification"): "zoo.evaluate:evaluate_data",
    ("image", "detection"): "zoo.evaluate_detection:evaluate_detector_data",
    ("video", "classification"): "modalities.video.evaluate:evaluate_video",
    ("events", "classification"): "modalities.events.evaluate:evaluate_events",
    ("events", "detection"): "modalities.events.evaluate:evaluate_events",
    ("points", "classification"): "modalities.points.evaluate:evaluate_points",
    ("points", "segmentation"): "modalities.points.evaluate:evaluate_points",
    ("driving", "detection"): "modalities.driving.evaluate:evaluate_driving",
    ("sequence", "generation"): "modalities.sequence.evaluate:evaluate_sequences",
}


def evaluation(modality: str, task: str, name: str) -> Callable[..., dict[str, Any]]:
    """The function that measures models of a kind.

    Args:
        modality: Kind of input.
        task: Kind of output.
        name: Whose it is, for the error text.

    Returns:
        `function(model, data, *, split, sizes, name, batch_size, limit, dtype, extend, factor, skip_bad, quiet,
        command, share)`, where all but the first two are optional; see `zoo.evaluate.evaluate_data`, also for what
        it returns.

    Raises:
        ConfigError: If there is none.
    """
    if (modality, task) not in EVALUATIONS:
        known = ", ".join(map(" ".join, EVALUATIONS))
        raise ConfigError(f"{name}: no evaluation for {modality} {task}; there is one for {known}")
    module, function = EVALUATIONS[modality, task].split(":")
    found: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found
