"""What prediction needs to know of clouds: how a file becomes inputs of a point model, and scores a class per point."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.points.batch import PointBatch
from modalities.points.data_config import PointDataConfig
from modalities.points.evaluate import point_scores
from modalities.points.normals import vertex_normals
from modalities.points.points import Points
from modalities.points.read import read_points
from modalities.points.results import PICTURE, CloudClasses, CloudSegments, DrawnCloud
from modalities.points.store import PointStore
from zoo.errors import ConfigError, DataError
from zoo.reading import Source

__all__ = ["PointFiles", "parts_of", "prepared"]

DRAWN = 10_000
"""Points drawn from a mesh for a classifier that takes any number, as in the resampled ModelNet40."""
LARGEST_PART = 2**20
"""Most points that are segmented together."""
_CROPS = 8  # at a time
_FILL: dict[str, Any] = {"rgb": np.full(3, 0.5), "normal": np.zeros(3), "intensity": np.zeros(1), "return": np.ones(2)}


class PointFiles:
    """Makes inputs of clouds, and results.

    A classifier sees a cloud of more points than its number through so many, spread evenly over the file; of a mesh so
    many points are drawn from the surface (with seed 0), 10,000 where it states no number. A segmenter gives every
    point a class: a cloud of more than 2^20 points is cut in halves, at the median of its longer horizontal axis, until
    each part has fewer; a part is covered with overlapping crops as in `modalities.points.evaluate.score_points`
    (where the model or `size` states a number of points; else it is seen whole up to 2^18), and the probabilities that
    a point gets in several are averaged. Points near a cut see nothing beyond it.

    Args:
        model: A point model.
        data_config: Its normalisation and features.
    """

    kind = "points"
    timed = False
    result_types = {"classification": CloudClasses, "segmentation": CloudSegments}

    def __init__(self, model: nn.Module, data_config: PointDataConfig) -> None:
        self.data_config = data_config
        self.segments = model.config["task"] == "segmentation"  # type: ignore[index]
        # Whole clouds of points wait for their turn: one at a time.
        self.most = 1 if self.segments else None

    def samples(self, source: Source, options: dict[str, Any]) -> Iterator[tuple[Points, dict[str, Any]]]:
        """The cloud of a source and the fields of its result.

        Args:
            source: A path, the bytes of a file, an array (N, 3) or `Points`.
            options: For `read_points`; `fill`: take neutral values for features that the file does not have (grey, no
                normal, no intensity, a single return), with a warning, instead of an error; and `unit`: the unit of the
                file in that of the model, 0.3048 for feet where it was trained on metres.
        """
        options = dict(options)
        fill, unit = bool(options.pop("fill", False)), _unit(options.pop("unit", 1.0))
        path = source.value if isinstance(source.value, Path) else None
        points = read_points(source.value, name=source.name, path=path, **options)
        if not len(points) and not self.segments:
            raise DataError(f"{points.name}: no points to classify")
        stated = float(points.info.get("unit_m", 1.0))
        if self.segments and unit == 1 and abs(stated - 1) > 0.01:
            warnings.warn(
                f"{points.name}: one unit of its coordinates is {stated:.6g} m by its coordinate system; for a model "
                f"trained on metres pass unit={stated:.6g} (--unit {stated:.6g})",
                stacklevel=2,
            )
        scaled = points if unit == 1 else replace(points, xyz=points.xyz * unit)
        ready = prepared(scaled, self.data_config, draw=not self.segments, fill=fill)
        draft: dict[str, Any] = {
            "name": points.name,
            "path": points.path,
            "size": PICTURE,
            "truncated": points.truncated,
        }
        if self.segments:
            yield ready, draft | {"points": points}
        else:
            yield ready, draft | {"count": len(points), "_picture": lambda: DrawnCloud(points)}

    def collate(self, inputs: list[Points], device: torch.device, dtype: torch.dtype) -> PointBatch:
        """A batch for a classifier."""
        clouds = []
        for points in inputs:
            batch = _store(points, self.data_config, device).whole([0])
            clouds.append((batch.xyz, batch.features))
        return PointBatch.from_clouds(clouds).to(device, dtype)

    def scores(self, model: nn.Module, points: Points) -> Tensor:
        """Softmax probabilities (N, classes) float32 of every point of a cloud, on the CPU."""
        found = torch.zeros(len(points), int(model.num_classes))  # type: ignore[arg-type]
        device = next(model.parameters()).device
        for index in parts_of(points.xyz, LARGEST_PART):
            store = _store(points[index], self.data_config, device)
            found[torch.from_numpy(index)] = point_scores(model, store, 0, batch_size=_CROPS).float().cpu()
        return found

    def video(self, path: str | os.PathLike[str], *, fps: float | None = None, window_us: int | None = None) -> Any:
        """Clouds have no video.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{path}: clouds make no video; save .ply, .npz, .html or .png")


def _unit(value: Any) -> float:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-9 <= value <= 1e9
    if not usable:
        raise ConfigError(f"unit must be a positive number, such as 0.3048 for feet, not {value!r:.60}")
    return float(value)


class _One:
    """A cloud as a data set of one."""

    def __init__(self, points: Points) -> None:
        self.name, self._points = points.name, points

    def __getitem__(self, index: int) -> Points:
        return self._points


def _store(points: Points, config: PointDataConfig, device: torch.device) -> PointStore:
    return PointStore(_One(points), [0], config, device)  # type: ignore[arg-type]


def prepared(points: Points, config: PointDataConfig, *, draw: bool, fill: bool = False) -> Points:
    """The cloud with what a model takes of every point.

    Args:
        points: As read.
        config: Of the model.
        draw: Of a mesh, draw points from the surface.
        fill: Take neutral values for what the file does not have, with a warning.

    Returns:
        Points whose fields hold all that `config.feature_names` names. Normals of a mesh are made of its faces.

    Raises:
        DataError: If the cloud has not what the model takes; says what it has.
    """
    if draw and points.faces is not None and len(points.faces):
        points = points.sample(config.num_points or DRAWN)
    elif points.faces is not None and "normal" in config.feature_names and "normal" not in points.fields:
        points = points.with_fields(normal=vertex_normals(points.xyz, points.faces))
    missing = [key for key in config.feature_names if key not in ("xyz", "height") and key not in points.fields]
    if missing and not fill:
        have = ", ".join(points.fields) or "coordinates alone"
        raise DataError(
            f"{points.name}: the model takes {', '.join(missing)} of every point, which this cloud has not (it has "
            f"{have}); fill=True (--fill) takes neutral values instead"
        )
    if missing:
        warnings.warn(f"{points.name}: neutral values are taken for {', '.join(missing)}", stacklevel=2)
        filled = {key: np.broadcast_to(_FILL[key], (len(points), len(_FILL[key]))) for key in missing}
        points = points.with_fields(**filled)
    return points


def parts_of(xyz: np.ndarray, most: int) -> list[np.ndarray]:
    """Cuts a cloud in halves, at the median of its longer horizontal axis, until no part has more points.

    Args:
        xyz: (N, 3).
        most: Points of a part.

    Returns:
        Indices of each part; every point is in one.
    """
    pending, done = [np.arange(len(xyz))] if len(xyz) else [], []
    while pending:
        index = pending.pop()
        if len(index) <= most:
            done.append(index)
            continue
        flat = xyz[index, :2]
        axis = int(np.argmax(np.ptp(flat, axis=0)))
        order = np.argpartition(flat[:, axis], len(index) // 2)
        # In the order of the file, so that a part does not depend on how the median was found.
        pending += [np.sort(index[order[len(index) // 2 :]]), np.sort(index[order[: len(index) // 2]])]
    return done
