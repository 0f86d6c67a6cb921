"""Augmentation of pictures with boxes: resampling against PyTorch's, boxes that follow, what is dropped, and seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from modalities.image.detection_augment import DetectionAugmentation, DetectionOptions
from modalities.image.transforms import BORDER, preprocess_batch
from zoo.data_config import DataConfig
from zoo.detection.targets import Targets
from zoo.errors import ConfigError

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "interpolation": "bilinear"}
STILL: dict[str, Any] = {"flip": 0.0, "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
STILL |= {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def config(height: int, width: int, resize: str = "squash") -> DataConfig:
    return DataConfig(input_size=(3, height, width), resize=resize, **PLAIN)


def targets_of(boxes: list[list[float]], labels: list[int] | None = None, batch: int = 1) -> Targets:
    made = torch.tensor([boxes] * batch, dtype=torch.float32)
    numbers = torch.tensor([labels or [0] * len(boxes)] * batch)
    return Targets(made, numbers, torch.ones(made.shape[:2], dtype=torch.bool))


def run(
    pictures: torch.Tensor, targets: Targets, data_config: DataConfig, seed: int = 0, **options: Any
) -> tuple[torch.Tensor, Targets]:
    sizes = torch.tensor([pictures.shape[2:]] * len(pictures), dtype=torch.float32)
    augment = DetectionAugmentation(DetectionOptions(**{**STILL, **options}), data_config, CPU)
    return augment(pictures, sizes, targets, seed)


def noise(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(batch, 3, 6, 8, generator=generator)
    return (255 * F.interpolate(small, (height, width), mode="bicubic").clamp(0, 1)).round().to(torch.uint8)


@pytest.mark.parametrize("size", [(48, 64), (20, 28), (31, 90), (96, 128)])
def test_without_draws_it_is_the_preprocessing_of_prediction(size: tuple[int, int]) -> None:
    pictures = noise(2, 48, 64)
    images, targets = run(pictures, targets_of([[8, 12, 32, 24]], batch=2), config(*size))
    expected = preprocess_batch(pictures, config(*size))
    assert images.dtype == torch.float32 and torch.allclose(images, expected, atol=2e-3)
    y, x = size[0] / 48, size[1] / 64
    assert torch.allclose(targets.boxes[0, 0], torch.tensor([8 * x, 12 * y, 32 * x, 24 * y]), atol=1e-4)


def test_letterbox_keeps_the_aspect_ratio_and_fills_with_grey() -> None:
    pictures = noise(1, 48, 64)
    images, targets = run(pictures, targets_of([[0, 0, 64, 48]]), config(64, 64, "letterbox"), seed=3)
    x1, y1, x2, y2 = targets.boxes[0, 0].tolist()
    assert (x1, x2) == (0, 64) and y2 - y1 == pytest.approx(48)
    outside = torch.ones(64, dtype=torch.bool)
    outside[int(y1) : int(y2) + 1] = False
    assert outside.any() and torch.allclose(images[0, :, outside], torch.tensor(BORDER / 255))


@pytest.mark.parametrize("seed", range(6))
def test_boxes_follow_the_picture(seed: int) -> None:
    pictures = torch.full((8, 3, 60, 80), 50, dtype=torch.uint8)
    pictures[:, :, 20:35, 30:60] = 250
    box = [30.0, 20.0, 60.0, 35.0]
    options = {"flip": 0.5, "flip_vertical": 0.5, "scale": (0.4, 2.0), "ratio": (0.7, 1.4)}
    images, targets = run(pictures, targets_of([box], batch=8), config(96, 96), seed=seed, **options)
    bright = images[:, 0] > (50 + 250) / 2 / 255
    found = 0
    for index in range(8):
        rows, columns = bright[index].nonzero(as_tuple=True)
        if not targets.mask[index, 0]:
            continue
        found += 1
        seen = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
        assert (seen - targets.boxes[index, 0]).abs().max() <= 1.0
    assert found >= 4


def test_flips() -> None:
    pictures = noise(1, 32, 40)
    both = {"flip": 1.0, "flip_vertical": 1.0}
    images, targets = run(pictures, targets_of([[4, 6, 10, 20]], [1]), config(32, 40), **both)
    assert torch.allclose(images, pictures.flip(2, 3) / 255, atol=1e-4)
    assert torch.allclose(targets.boxes[0, 0], torch.tensor([30.0, 12, 36, 26]), atol=1e-4)
    assert targets.labels.tolist() == [[1]]


def test_boxes_that_are_cut_off_are_masked_and_their_number_stays() -> None:
    boxes = [[0.0, 0, 20, 20], [44, 28, 64, 48], [30, 22, 34, 26]]
    for seed in range(8):
        _, targets = run(noise(1, 48, 64), targets_of(boxes, [1, 2, 3]), config(48, 64), seed=seed, scale=(2.0, 2.0))
        assert targets.boxes.shape == (1, 3, 4)
        kept = targets.boxes[targets.mask]
        assert (kept >= 0).all() and (kept[:, 2] <= 64).all() and (kept[:, 3] <= 48).all()
        areas = (kept[:, 2:] - kept[:, :2]).prod(dim=1)
        full = 4 * torch.tensor([(b[2] - b[0]) * (b[3] - b[1]) for b in boxes])
        assert (areas >= 0.25 * full[targets.mask[0]] - 1e-3).all()
        assert not targets.boxes[~targets.mask].any() and not targets.labels[~targets.mask].any()
        assert not targets.mask.all()  # Twice as large, two opposite corners do not fit.
    _, tiny = run(noise(1, 48, 64), targets_of([[5, 5, 6, 30]]), config(48, 64))
    assert not tiny.mask.any()  # Narrower than min_side.
    padded = Targets(torch.zeros(1, 2, 4), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.bool))
    assert not run(noise(1, 48, 64), padded, config(48, 64))[1].mask.any()


def test_smaller_pictures_lie_in_the_corner_of_their_canvas() -> None:
    canvas = torch.full((2, 3, 48, 64), 255, dtype=torch.uint8)  # What is beyond the picture must not be seen.
    small = noise(1, 30, 40)
    canvas[0, :, :30, :40] = small[0]
    canvas[1] = noise(1, 48, 64, seed=1)[0]
    augment = DetectionAugmentation(DetectionOptions(**STILL), config(24, 32), CPU)
    images, targets = augment(canvas, torch.tensor([[30.0, 40], [48, 64]]), targets_of([[0, 0, 40, 30]], batch=2), 0)
    assert torch.allclose(images[0], preprocess_batch(small, config(24, 32))[0], atol=2e-3)
    assert targets.boxes[0, 0].tolist() == pytest.approx([0, 0, 32, 24])
    assert targets.boxes[1, 0].tolist() == pytest.approx([0, 0, 20, 15])


def test_colours() -> None:
    grey = torch.full((64, 3, 8, 8), 100, dtype=torch.uint8)
    none = targets_of([[0, 0, 8, 8]], batch=64)
    images, _ = run(grey, none, config(8, 8), saturation=1.0, hue=0.5, contrast=1.0)
    assert torch.allclose(images, torch.tensor(100 / 255), atol=1e-4)  # Grey has no colour and no contrast.
    bright, _ = run(grey, none, config(8, 8), brightness=0.4)
    levels = 255 * bright[:, 0, 0, 0]
    assert levels.min() < 75 and levels.max() > 125 and levels.min() >= 59.9 and levels.max() <= 140.1
    colour = torch.zeros(64, 3, 8, 8, dtype=torch.uint8)
    colour[:, 0], colour[:, 1], colour[:, 2] = 200, 100, 50
    dull, _ = run(colour, none, config(8, 8), saturation=1.0)
    spread = 255 * (dull.amax(dim=1) - dull.amin(dim=1))[:, 0, 0]
    assert spread.min() < 60 and spread.max() > 200
    turned, _ = run(colour, none, config(8, 8), hue=0.1)
    assert torch.allclose(turned.mean(dim=1), torch.tensor(350 / 3 / 255), atol=2e-3)
    assert (turned - colour / 255).abs().amax() > 0.1
    assert (images >= 0).all() and (images <= 1).all()


def test_the_result_depends_on_the_seed_alone() -> None:
    options = DetectionOptions()
    augment = DetectionAugmentation(options, config(48, 48), CPU)
    pictures, sizes = noise(4, 48, 64), torch.tensor([[48.0, 64]] * 4)
    targets = targets_of([[4, 4, 40, 40]], batch=4)
    first = augment(pictures, sizes, targets, 5)
    torch.rand(7)
    second, other = augment(pictures, sizes, targets, 5), augment(pictures, sizes, targets, 6)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1].boxes, second[1].boxes)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][0], first[0][1])  # Each picture has draws of its own.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (2.0, 1.0)}, "scale must be two ascending"),
        ({"flip": 1.5}, "flip must be"),
        ({"hue": 0.7}, "hue must be"),
        ({"image_size": (0, 32)}, "image_size must be"),
        ({"dev_split": "validation", "dev_count": 3}, "set one of dev_split"),
        ({"min_side": float("inf")}, "min_side must be"),
        ({"box_gain": -1.0}, "box_gain must be"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DetectionOptions(**options)
