"""The clouds of a data set as tensors on the device, and training samples of a constant number of points from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from modalities.points.augment import uniform
from modalities.points.batch import PointBatch
from modalities.points.clouds import Clouds
from modalities.points.data_config import PointDataConfig
from modalities.points.datasets import PointSet
from modalities.points.points import Points
from modalities.points.prepare import make_features, normalise
from zoo.errors import DataError
from zoo.progress import progress_bar

__all__ = ["PointStore"]

_DEVICE_SHARE = 0.5  # of the free device memory that the data may take; larger sets stay on the host
_GEOMETRY = ("xyz", "height")  # features that follow from coordinates, so that augmentation changes them


class PointStore:
    """Normalised coordinates, scaled fields and labels of clouds, read once.

    Args:
        data: Where the clouds come from.
        indices: Which ones; number i of the store is `indices[i]` of the data.
        config: Normalisation and fields of the model.
        device: Where to put them if they fit; samples are made where they lie and come out on this device.
        pointwise: Also keep the label of every point.
        quiet: Show no progress bar.

    Raises:
        DataError: If a cloud is empty or lacks a field that the model takes.
    """

    def __init__(
        self,
        data: PointSet,
        indices: Sequence[int] | np.ndarray,
        config: PointDataConfig,
        device: torch.device,
        *,
        pointwise: bool = False,
        quiet: bool = True,
    ) -> None:
        self.config, self.device = config, device
        names = [name for name in config.feature_names if name not in _GEOMETRY]
        clouds: list[np.ndarray] = []
        fields: dict[str, list[np.ndarray]] = {name: [] for name in names}
        labels: list[np.ndarray] = []
        with progress_bar(f"reading {data.name}", len(indices), quiet) as update:
            for done, index in enumerate(np.asarray(indices).tolist(), start=1):
                points = data[index]
                if not len(points):
                    raise DataError(f"{points.name}: a cloud without points cannot be trained on")
                xyz = normalise(points.xyz, config.normalise)[0]
                clouds.append(xyz.astype(np.float32))
                for name in names:
                    only = config.replace(feature_names=(name,))
                    fields[name].append(make_features(xyz, points.fields, only))
                if pointwise:
                    labels.append(_point_labels(points))
                update(done, "")
        lengths = np.array([0, *map(len, clouds)])
        self.offsets = np.cumsum(lengths)
        self.xyz = torch.from_numpy(np.concatenate(clouds))
        self.fields = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in fields.items()}
        self.labels = torch.from_numpy(np.concatenate(labels)) if pointwise else None
        size = self.xyz.nbytes + sum(values.nbytes for values in self.fields.values()) + 8 * len(self.xyz)
        if device.type == "cuda" and size < _DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
            self.xyz = self.xyz.to(device)
            self.fields = {name: values.to(device) for name, values in self.fields.items()}
            self.labels = None if self.labels is None else self.labels.to(device)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 (clouds,): points of each."""
        return np.diff(self.offsets)

    @property
    def home(self) -> torch.device:
        """Where the data lie."""
        return self.xyz.device

    def sample(self, rows: Sequence[int], points: int, generator: Generator) -> Clouds:
        """Random points of each cloud: all of them, in their order, where a cloud has just as many.

        Args:
            rows: Clouds of the store.
            points: How many points of each; smaller clouds give some of theirs again.
            generator: On `home`.

        Returns:
            Clouds (len(rows), points) on the device.
        """
        lengths = self.lengths[np.asarray(rows)]
        starts = torch.from_numpy(self.offsets[np.asarray(rows)]).to(self.home).unsqueeze(1)
        if (lengths == points).all():
            places = torch.arange(points, device=self.home).expand(len(lengths), -1)
        else:
            count = torch.from_numpy(lengths).to(self.home).unsqueeze(1)
            longest = int(lengths.max())
            order = uniform(generator, (len(lengths), longest))
            hidden = torch.arange(longest, device=self.home) >= count
            order = order.masked_fill(hidden, 2.0).argsort(1)
            places = order.gather(1, torch.arange(points, device=self.home) % count)
        return self._gathered(starts + places)

    def crop(self, row: int, centre: Tensor, points: int) -> Tensor:
        """The points of a cloud nearest to a place.

        Args:
            row: Cloud of the store.
            centre: (3,) normalised coordinates, on `home`.
            points: How many at most.

        Returns:
            Their numbers in the store, int64 (min(points, size of the cloud),), nearest first.
        """
        start, stop = self.offsets[row : row + 2].tolist()
        distance = (self.xyz[start:stop] - centre).square().sum(-1)
        return start + distance.topk(min(points, stop - start), largest=False).indices

    def at(self, numbers: Tensor) -> Clouds:
        """Clouds (B, P) of points given by their numbers in the store, on the device."""
        return self._gathered(numbers)

    def whole(self, rows: Sequence[int], matrices: Tensor | None = None) -> PointBatch:
        """Clouds with all their points as a batch on the device.

        Of a cloud with more points than the model's number, so many spread evenly over the file are taken.

        Args:
            rows: Clouds of the store.
            matrices: (len(rows), 3, 3) by which they are transformed.
        """
        spans = [self.offsets[row : row + 2].tolist() for row in rows]
        most = self.config.num_points or int(self.lengths.max())
        numbers = [
            torch.linspace(start, stop - 1, min(most, stop - start), dtype=torch.float64).round().long()
            for start, stop in spans
        ]
        if len({len(one) for one in numbers}) == 1:
            parts = [(torch.stack(numbers), matrices)]
        else:
            parts = [(one[None], None if matrices is None else matrices[i : i + 1]) for i, one in enumerate(numbers)]
        batches = []
        for places, changes in parts:
            clouds = self._gathered(places.to(self.home))
            clouds = clouds if changes is None else clouds.transformed(changes.to(self.device))
            batches.append(clouds.to_batch(self.config))
        if len(batches) == 1:
            return batches[0]
        return PointBatch.from_clouds([(batch.xyz, batch.features) for batch in batches])

    def _gathered(self, numbers: Tensor) -> Clouds:
        labels = None if self.labels is None else self.labels[numbers].to(self.device)
        fields = {name: values[numbers].to(self.device) for name, values in self.fields.items()}
        return Clouds(self.xyz[numbers].to(self.device), fields, labels)


def _point_labels(points: Points) -> np.ndarray:
    labels: Any = points.fields.get("label")
    if labels is None:
        raise DataError(f"{points.name}: has no labels of its points to train on")
    return np.asarray(labels).astype(np.int64).reshape(-1)
