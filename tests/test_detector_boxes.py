"""Boxes of detectors: decoded from raw maps, and back in the pixels of the user's picture."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import zoo
from modalities.image.transforms import preprocess
from zoo.data_config import DataConfig
from zoo.detection.decode import cell_centres, decode, select
from zoo.detection.detections import Detections
from zoo.placement import place


def test_cells_and_boxes_by_hand():
    centres, sizes = cell_centres([torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 1, 1)], (4.0, 8.0), torch.float32)
    assert centres.tolist() == [[2, 2], [6, 2], [10, 2], [2, 6], [6, 6], [10, 6], [4, 4]]
    assert sizes.flatten().tolist() == [4] * 6 + [8]
    level = torch.full((1, 66, 2, 3), -50.0)
    for side, distance in enumerate((1, 0, 3, 2)):  # left, top, right, bottom in cells
        level[0, 16 * side + distance] = 50.0
    level[0, 16 * 3 + 3] = 50.0  # Halfway between 2 and 3.
    level[0, 64:, 1, 2] = torch.tensor([0.0, 2.0])
    boxes, scores = decode([level], (4.0,))
    assert boxes[0, 5].tolist() == pytest.approx([10 - 4, 6, 10 + 12, 6 + 10])
    assert scores[0, 5].tolist() == pytest.approx([0.5, 1 / (1 + math.exp(-2))])
    best = select(boxes, scores, 3, 0.3)[0]
    assert best[0].tolist() == pytest.approx([6, 6, 22, 16, 1 / (1 + math.exp(-2)), 1])
    assert best[1].tolist() == pytest.approx([6, 6, 22, 16, 0.5, 0])
    assert not best[2].any()


@pytest.mark.parametrize("resize", ["squash", "letterbox", "shortest"])
@pytest.mark.parametrize("size", [(48, 64), (100, 37), (31, 200), (1, 3), (1, 9000)])
def test_boxes_come_back_where_the_picture_has_them(resize, size):
    """A bright rectangle is found in the model's input, and its box goes back onto the rectangle."""
    height, width = size
    data = DataConfig((3, 96, 128), resize, interpolation="bilinear", crop_fraction=0.9)
    truth = torch.tensor([width * 0.4, height * 0.3, width * 0.6, height * 0.8]).round()
    truth[2:] = torch.maximum(truth[2:], truth[:2] + 1)
    x1, y1, x2, y2 = map(int, truth)
    picture = np.zeros((height, width, 3), np.uint8)
    picture[y1:y2, x1:x2] = 255
    bright = preprocess(picture, data)[0] > 0.5
    ys, xs = bright.any(dim=1).nonzero(), bright.any(dim=0).nonzero()
    box = torch.tensor([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).float()
    placed = place(size, data)
    inside = placed.to_input(truth).clamp_min(0).minimum(torch.tensor([128.0, 96, 128, 96]))
    assert (box - inside).abs().max() <= 1.01
    torch.testing.assert_close(placed.to_original(placed.to_input(truth)), truth, rtol=1e-5, atol=1e-2)
    row = torch.cat([placed.to_input(truth), torch.tensor([0.9, 2.0])])
    found = Detections(row.expand(2, 1, 6), (96, 128), data).for_image(1, size)
    torch.testing.assert_close(found[0], torch.cat([truth, torch.tensor([0.9, 2.0])]), rtol=1e-5, atol=1e-2)


def test_for_image_uses_the_size_that_went_in():
    data = DataConfig((3, 64, 64), "letterbox")
    rows = torch.tensor([[[0.0, 16, 64, 48, 0.9, 1], [0, 0, 64, 16, 0.8, 0], [0, 0, 0, 0, 0, 0]]])
    found = Detections(rows, (64, 64), data).for_image(0, (50, 100))
    assert found.tolist() == [[0, 0, 100, 50, pytest.approx(0.9), 1]]  # The border and the padding are none.
    whole = Detections(rows, (64, 64), data).for_image(0, (50, 100), clip=False)
    assert whole[1, :4].tolist() == [0, -25, 100, 0]
    larger = Detections(2 * rows[:, :1], (128, 128), data).for_image(0, (50, 100))
    assert larger[0, :4].tolist() == [0, 0, 100, 50]
    empty = Detections(torch.zeros(1, 5, 6), (64, 64), data).for_image(-1, (50, 100))
    assert empty.shape == (0, 6)


@pytest.mark.parametrize(
    ("i", "size"), [(1, (5, 5)), (-2, (5, 5)), (0, (5, 0)), (0, (5,)), (0, 5), (0, (5.0, 5)), (True, (5, 5))]
)
def test_for_image_refuses_what_is_not_there(i, size):
    with pytest.raises(zoo.DataError, match="no picture|original_size"):
        Detections(torch.zeros(1, 5, 6), (64, 64), DataConfig()).for_image(i, size)


def test_letterbox_keeps_the_aspect_and_is_grey_around():
    out = preprocess(np.full((10, 40, 3), 255, np.uint8), DataConfig((3, 64, 64), "letterbox"))
    torch.testing.assert_close(out[:, 24:40], torch.ones(3, 16, 64))
    assert torch.equal(out[:, :24], torch.full((3, 24, 64), 114 / 255))
    assert torch.equal(out[:, 40:], out[:, :24])
