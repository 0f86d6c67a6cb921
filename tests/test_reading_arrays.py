import numpy as np
import pytest
import torch
from pictures import RGB

import zoo
from zoo.errors import DataError


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (RGB, RGB),
        (RGB[..., 0], np.repeat(RGB[..., :1], 3, 2)),
        (RGB[..., :1], np.repeat(RGB[..., :1], 3, 2)),
        (RGB.astype(np.uint16) * 257, RGB),
        ((RGB.astype(np.uint16) * 257).astype(">u2"), RGB),
        (RGB.astype(np.int64), RGB),
        (RGB / 255, RGB),
        ((RGB / 255).astype(np.float32), RGB),
        (RGB > 127, (RGB > 127) * np.uint8(255)),
        (RGB[::-2, ::3], RGB[::-2, ::3]),
        (np.asfortranarray(RGB), RGB),
        (RGB[..., 0].copy().view(np.matrix), np.repeat(RGB[..., :1], 3, 2)),
        (torch.from_numpy(RGB).permute(2, 0, 1), RGB),
        (torch.from_numpy(RGB).permute(2, 0, 1).float() / 255, RGB),
        (torch.from_numpy(RGB[..., 0].copy()), np.repeat(RGB[..., :1], 3, 2)),
        (torch.from_numpy(RGB[..., 0].copy())[None], np.repeat(RGB[..., :1], 3, 2)),
        ((torch.from_numpy(RGB).permute(2, 0, 1).double() / 255).requires_grad_(), RGB),
    ],
)
def test_arrays_and_tensors(array, expected):
    image = zoo.read(array)
    assert np.array_equal(image.rgb, expected) and image.rgb.flags.c_contiguous and image.rgb.flags.writeable
    assert image.name == ("array" if isinstance(array, np.ndarray) else "tensor") and image.path is None
    assert not isinstance(array, np.ndarray) or not np.shares_memory(image.rgb, array)


def test_narrow_floats():
    for dtype in (torch.float16, torch.bfloat16):
        rgb = zoo.read((torch.from_numpy(RGB).permute(2, 0, 1) / 255).to(dtype)).rgb
        assert np.abs(rgb.astype(int) - RGB).max() <= (1 if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros((0, 8, 3), np.uint8), "no pixels"),
        (np.zeros((8, 0), np.uint8), "no pixels"),
        (torch.zeros(3, 0, 8), "no pixels"),
        (np.zeros((8, 8, 2), np.uint8), r"shape \(8, 8, 2\)"),
        (np.zeros((8, 8, 5), np.uint8), "shape"),
        (np.zeros((), np.uint8), "shape"),
        (np.zeros(7, np.uint8), "shape"),
        (np.zeros((3, 8, 8), np.uint8), "channels come last"),
        (torch.zeros(8, 8, 3), "channels come first"),
        (torch.zeros(2, 3, 8, 8), "batch as a list"),
        (np.full((8, 8, 3), np.nan), "NaN or infinite"),
        (np.full((8, 8, 3), np.inf, np.float16), "NaN or infinite"),
        (torch.full((3, 8, 8), float("nan")), "NaN or infinite"),
        (RGB.astype(np.float32), r"must be in 0\.\.1"),
        (torch.randn(3, 64, 64), r"must be in 0\.\.1"),
        (np.full((8, 8, 3), -1), "integer values"),
        (np.full((8, 8, 3), 256), "integer values"),
        (np.full((8, 8, 3), 2**63, np.uint64), "integer values"),
        (np.zeros((8, 8, 3), complex), "complex"),
        (np.full((8, 8, 3), "a"), "of type"),
        (np.full((8, 8, 3), None), "object"),
        (torch.empty(3, 8, 8, device="meta"), "tensor that cannot be read"),
    ],
)
def test_bad_arrays(array, word):
    with pytest.raises(DataError, match=rf"^(array|tensor): .*{word}"):
        zoo.read(array)


def test_float_rounding_just_outside_is_no_error():
    assert zoo.read(np.full((4, 4), 1 + 1e-3)).rgb.max() == 255
    assert zoo.read(np.full((4, 4), -1e-3)).rgb.max() == 0
