"""From a key frame as it was read to what a driving model takes: pictures of one size, and cameras that fit them."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from modalities.driving.batch import DrivingInput
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.geometry_scene import resize_intrinsics
from modalities.driving.scene import Camera, Sample
from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.resizing import resize_batch

__all__ = ["Rig", "fit_picture", "model_input", "normalise_images", "read_rig"]


class Rig(NamedTuple):
    """The cameras of a key frame in the order of a model.

    Attributes:
        images: (V, 3, height, width) uint8; black where there is no picture.
        mask: (V,) bool, True where there is one.
        intrinsics: (V, 3, 3) float32, pixels of these images; where there is no picture the identity.
        camera_from_ego: (V, 4, 4) float32; where there is no picture the identity.
    """

    images: Tensor
    mask: Tensor
    intrinsics: Tensor
    camera_from_ego: Tensor


def fit_picture(rgb: np.ndarray, size: tuple[int, int]) -> tuple[Tensor, tuple[float, float], tuple[float, float]]:
    """Resizes a picture until it covers the size, then cuts rows off at its top, or columns off at both sides.

    What a car looks at is in the lower part: above is sky.

    Args:
        rgb: uint8 (H, W, 3).
        size: (height, width) wanted.

    Returns:
        uint8 (3, height, width), and the scale and the offset for `resize_intrinsics`.

    Raises:
        DataError: If it has no pixels.
    """
    (height, width), (rows, columns) = size, rgb.shape[:2]
    if not rows or not columns:
        raise DataError(f"a picture without pixels: {columns} x {rows}")
    scale = max(height / rows, width / columns)
    tall, wide = max(height, round(rows * scale)), max(width, round(columns * scale))
    whole = DataConfig(input_size=(3, tall, wide), resize="squash", interpolation="bilinear")
    resized = resize_batch(torch.from_numpy(rgb).permute(2, 0, 1).unsqueeze(0), whole)[0]
    top, left = tall - height, (wide - width) // 2
    image = resized[:, top:, left : left + width].round().to(torch.uint8)
    return image.contiguous(), (wide / columns, tall / rows), (float(left), float(top))


def read_rig(sample: Sample, data: DrivingDataConfig, damaged: Literal["raise", "mask"] = "raise") -> Rig:
    """Reads the pictures of a key frame.

    Args:
        sample: The key frame; cameras that it has not, or has no picture of, are absent.
        data: Names of the cameras, and the size of the images.
        damaged: What a picture that cannot be decoded is: an error, or an absent camera, with a warning.

    Raises:
        DataError: If a picture is damaged.
    """
    known = {camera.name: camera for camera in sample.cameras}
    count = len(data.cameras)
    images = torch.zeros((count, 3, *data.image_size), dtype=torch.uint8)
    mask = torch.zeros(count, dtype=torch.bool)
    intrinsics, poses = torch.eye(3).repeat(count, 1, 1), torch.eye(4).repeat(count, 1, 1)
    for row, name in enumerate(data.cameras):
        camera = known.get(name)
        rgb = None if camera is None or camera.image is None else _read(camera, damaged)
        if camera is None or rgb is None:
            continue
        images[row], scale, offset = fit_picture(rgb, data.image_size)
        intrinsics[row] = resize_intrinsics(torch.from_numpy(camera.intrinsics), scale, offset)
        poses[row] = torch.from_numpy(camera.camera_from_ego)
        mask[row] = True
    return Rig(images, mask, intrinsics, poses)


def _read(camera: Camera, damaged: str) -> np.ndarray | None:
    try:
        return camera.read()
    except DataError as error:
        if damaged == "raise":
            raise
        warnings.warn(f"{camera.name} is taken as absent: {error}", stacklevel=4)
        return None


def normalise_images(images: Tensor, data: DrivingDataConfig) -> Tensor:
    """Images as a model takes them.

    Args:
        images: (..., 3, H, W) uint8, or float in 0..255.
        data: Mean and standard deviation.

    Returns:
        float32 of the same shape, on the same device.
    """
    pixels = images.float() / 255
    return (pixels - pixels.new_tensor(data.mean).view(3, 1, 1)) / pixels.new_tensor(data.std).view(3, 1, 1)


def model_input(
    sample: Sample,
    data: DrivingDataConfig,
    *,
    cameras: bool = True,
    lidar: bool = True,
    damaged: Literal["raise", "mask"] = "raise",
) -> DrivingInput:
    """A key frame as a model takes it.

    Args:
        sample: As read, with as many sweeps as the model takes (`data.sweeps`).
        data: Of the model.
        cameras: Whether the model looks at pictures; they are not read otherwise.
        lidar: Whether it looks at points.
        damaged: See `read_rig`.

    Returns:
        The scene; its images are None where there is no picture at all.

    Raises:
        DataError: If a picture is damaged.
    """
    points = torch.from_numpy(sample.points) if lidar and sample.points is not None else None
    if not cameras:
        count = len(data.cameras)
        return DrivingInput(None, torch.eye(3).repeat(count, 1, 1), torch.eye(4).repeat(count, 1, 1), points)
    rig = read_rig(sample, data, damaged)
    images = normalise_images(rig.images, data) if bool(rig.mask.any()) else None
    return DrivingInput(images, rig.intrinsics, rig.camera_from_ego, points, rig.mask)
