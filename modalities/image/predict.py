"""What prediction needs to know of pictures: how a source becomes an input of an image model."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from modalities.image.transforms import preprocess
from zoo.data_config import DataConfig
from zoo.errors import ConfigError
from zoo.reading import Source, read

__all__ = ["Pictures"]


class Pictures:
    """Makes one input of each picture.

    Args:
        model: An image model.
        data_config: Preprocessing, at the size asked for.

    Raises:
        ConfigError: If the model takes no pictures, or no pictures of this size.
    """

    kind = "image"
    timed = False

    def __init__(self, model: nn.Module, data_config: DataConfig) -> None:
        self.data_config = data_config
        if data_config.input_size[0] not in (1, 3):
            raise ConfigError(
                f"{model.config.get('name')}: the model takes {data_config.input_size[0]} channels;"  # type: ignore[union-attr, operator]
                " a picture gives 3 (colour) or 1 (grayscale)"
            )
        _check_size(model, data_config)

    def samples(self, source: Source, options: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """The input (C, H, W) that a picture gives, with the fields of its results.

        Args:
            source: Of one picture.
            options: For `zoo.read`.
        """
        image = read(source, kind="image", **options)
        fields = {
            "name": image.name,
            "path": image.path,
            "size": image.size,
            "truncated": image.truncated,
            "_picture": functools.partial(read, source, kind="image", **options),
        }
        yield preprocess(image.rgb, self.data_config), fields

    def video(self, path: str | os.PathLike[str], **_: object) -> NoReturn:
        """Videos are of event recordings.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{path}: this is an image model and a video is made of an event recording; save to a folder")

    def collate(self, inputs: list[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
        """A batch for the model."""
        return torch.stack(inputs).to(device, dtype)


def _check_size(model: nn.Module, data_config: DataConfig) -> None:
    patch = getattr(model, "patch_size", 1)
    if model.config["model"].get("size_policy", "refuse") == "pad":  # type: ignore[index,union-attr]
        return
    for side in data_config.input_size[1:]:
        if side % patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(f"size {side} is not a multiple of the model's patch, {patch} pixels: use {nearest}")
