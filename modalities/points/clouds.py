"""Clouds of equally many points on the device: what augmentation changes, and the batch that is made of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from modalities.points.batch import PointBatch
from modalities.points.data_config import PointDataConfig
from modalities.points.prepare import FEATURE_UNIT
from zoo.errors import DataError

__all__ = ["Clouds"]


@dataclass(frozen=True, eq=False)
class Clouds:
    """Clouds on their way from the data to a network.

    Legend: B clouds, P points of each.

    Attributes:
        xyz: (B, P, 3) float32 normalised coordinates, z up.
        fields: Further fields (B, P, channels) by name, scaled as `PointDataConfig.feature_names` says; of these
            `"normal"` turns with the cloud and `"rgb"` is what changes of colour change.
        labels: (B, P) int64 class of each point, `None` where a cloud has one class.
    """

    xyz: Tensor
    fields: dict[str, Tensor]
    labels: Tensor | None = None

    def replace(self, **changes: Tensor | dict[str, Tensor] | None) -> Clouds:
        """A copy with other coordinates, fields or labels."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def transformed(self, matrices: Tensor) -> Clouds:
        """Applies a matrix to each cloud: coordinates p -> M p, normals by the inverse transpose, again of length 1.

        Args:
            matrices: (B, 3, 3) or (1, 3, 3), invertible.
        """
        fields = dict(self.fields)
        if "normal" in fields:
            turned = _applied(torch.linalg.inv(matrices).transpose(1, 2), fields["normal"])
            fields["normal"] = torch.nn.functional.normalize(turned, dim=-1)
        return self.replace(xyz=_applied(matrices, self.xyz), fields=fields)

    def centred(self, config: PointDataConfig) -> Clouds:
        """Clouds with their origin where `config.normalise` puts it for clouds in units of length; others stay."""
        if config.normalise != "centre":
            return self
        low, high = self.xyz.amin(1, keepdim=True), self.xyz.amax(1, keepdim=True)
        origin = torch.cat([(low + (high - low) / 2)[..., :2], low[..., 2:]], dim=-1)
        return self.replace(xyz=self.xyz - origin)

    def taken(self, index: Tensor) -> Clouds:
        """Some points of every cloud: index (B, Q) int64."""

        def take(values: Tensor) -> Tensor:
            return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[2]))

        labels = None if self.labels is None else self.labels.gather(1, index)
        return Clouds(take(self.xyz), {name: take(values) for name, values in self.fields.items()}, labels)

    def to_batch(self, config: PointDataConfig) -> PointBatch:
        """The batch of a network, with features as `modalities.points.prepare.make_features` orders and scales them.

        Raises:
            DataError: If a field that the network takes is absent.
        """
        unit = 1.0 if config.normalise == "unit-box" else FEATURE_UNIT
        columns = []
        for name in config.feature_names:
            if name == "xyz":
                columns.append(self.xyz / unit)
            elif name == "height":
                height = self.xyz[..., 2:]
                columns.append((height - height.amin(1, keepdim=True)) / unit)
            elif name in self.fields:
                columns.append(self.fields[name])
            else:
                raise DataError(f"the model takes {name!r} of every point, which these clouds do not have")
        count, points = self.xyz.shape[:2]
        offsets = torch.arange(0, count * points + 1, points, device=self.xyz.device)
        return PointBatch(self.xyz.flatten(0, 1), torch.cat(columns, dim=-1).flatten(0, 1), offsets)


def _applied(matrices: Tensor, vectors: Tensor) -> Tensor:
    """M v for (B, 3, 3) or (1, 3, 3) and (B, P, 3); not as a product of matrices, which training may run in TF32."""
    x, y, z = (vectors[..., axis : axis + 1] * matrices[:, None, :, axis] for axis in range(3))
    return x + y + z
