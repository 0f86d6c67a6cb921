"""What the glue to ultralytics needs that does not import it.

Shapes: B batch, A cells of all levels (finest first), K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.detection.parameter_count import BINS
from zoo.errors import DataError

__all__ = ["Backbone", "flat", "same_names", "stem"]


class Backbone(nn.Module):
    """Patch embedding and encoder, of pictures as ultralytics gives them.

    Args:
        detector: What they belong to; all modules stay shared with it.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        # Not registered: its head is a part of the other layer, and each parameter has one name.
        self.__dict__["detector"] = detector
        self.embed, self.encoder = detector.embed, detector.encoder
        data = detector.data_config
        self.mean, self.std = data.mean, data.std  # Not tensors: their files are float16.

    def forward(self, images: Tensor) -> Tensor:
        """Pictures (B, channels, H, W) from 0 to 1 -> (B, C, rows, columns)."""
        if images.shape[1] != len(self.mean):
            raise DataError(f"the model takes {len(self.mean)} channels, got pictures with {images.shape[1]}")
        scaled = [
            (channel - mean) / std
            for channel, mean, std in zip(images.split(1, dim=1), self.mean, self.std, strict=True)
        ]
        detector: Any = self.detector
        features: Tensor = detector.forward_features(torch.cat(scaled, dim=1))
        return features


def flat(maps: Sequence[Tensor]) -> dict[str, Any]:
    """Raw maps of a branch as the losses of ultralytics take them.

    Returns:
        `"boxes"` (B, 64, A), `"scores"` (B, K, A) and `"feats"`, the maps.
    """
    cells = torch.cat([level.flatten(2) for level in maps], dim=2)
    boxes, scores = cells.split([4 * BINS, cells.shape[1] - 4 * BINS], dim=1)
    return {"boxes": boxes, "scores": scores, "feats": list(maps)}


def stem(config: Mapping[str, Any]) -> str:
    """The name of a model, as the stem of a file."""
    return str(config.get("name") or "pape-zoo").replace("/", "-").replace("\\", "-")


def same_names(source: Mapping[int, str], target: Mapping[int, str]) -> list[tuple[int, int]]:
    """Pairs (class of the target, class of the source) with the same name, other than a number."""
    known = {name.strip().lower(): index for index, name in source.items() if name != str(index)}
    keys = {index: name.strip().lower() for index, name in target.items()}
    return [(index, known[key]) for index, key in keys.items() if key in known]
