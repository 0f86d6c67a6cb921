import contextlib
import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modalities.image.transforms import LUMA, preprocess, preprocess_batch
from zoo.data_config import INTERPOLATIONS, RESIZES, DataConfig
from zoo.errors import ConfigError, DataError
from zoo.placement import place

IMAGENET = DataConfig((3, 112, 112), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def random_picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_round_trip_through_json():
    config = DataConfig((1, 48, 64), "squash", 0.875, "bilinear", False, (0.25,), (0.5,))
    assert DataConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) == hash(config.replace())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.resize = "shortest"  # type: ignore[misc]


def test_defaults_follow_the_channel_count():
    assert DataConfig.from_dict({}) == DataConfig()
    config = DataConfig.from_dict({"input_size": [5, 32, 32]})
    assert config.mean == (0.0,) * 5 and config.std == (1.0,) * 5


def test_unknown_keys_warn_by_name():
    with pytest.warns(UserWarning, match="colour_space"):
        assert DataConfig.from_dict({"colour_space": "lab"}) == DataConfig()


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"input_size": [3, -8, 8]}, "out of range"),
        ({"input_size": [3, 10**9, 8]}, "out of range"),
        ({"input_size": [3, 8]}, "three integers"),
        ({"input_size": [3, 8.5, 8]}, "three integers"),
        ({"input_size": [True, 8, 8]}, "three integers"),
        ({"input_size": "3x8x8"}, "must be a list"),
        ({"input_size": {"$ref": "/etc/passwd"}}, "must be a list"),
        ({"resize": "__import__('os')"}, "resize must be one of"),
        ({"resize": ["squash"]}, "resize must be one of"),
        ({"interpolation": "lanczos"}, "interpolation must be one of"),
        ({"antialias": "yes"}, "true or false"),
        ({"crop_fraction": 10**400}, "finite"),
        ({"crop_fraction": 0}, "0.01..1"),
        ({"crop_fraction": 1e-12}, "0.01..1"),
        ({"crop_fraction": float("nan")}, "finite"),
        ({"mean": [0.5]}, "one value per input channel"),
        ({"mean": [0.5, 0.5, "0.5"]}, "finite number"),
        ({"std": [0.5, 0.5, 0.0]}, "positive"),
        ({"std": [0.5, 0.5, float("inf")]}, "finite"),
    ],
)
def test_hostile_values_are_refused(bad, word):
    with pytest.raises(ConfigError, match=word):
        DataConfig.from_dict(bad)


@pytest.mark.parametrize("key", ["input_size", "resize", "interpolation", "antialias", "crop_fraction", "mean"])
def test_messages_stay_short(key):
    with pytest.raises(ConfigError) as caught:
        DataConfig.from_dict({key: "x" * 10_000})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("size", ["64", 64.0, (64,), (64, 64, 3), None])
def test_bad_sizes(size):
    with pytest.raises(ConfigError, match=r"a side in pixels or \(height, width\)"):
        IMAGENET.with_size(size)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=6))
def test_any_value_is_accepted_or_a_config_error(value):
    for name in (field.name for field in dataclasses.fields(DataConfig)):
        with contextlib.suppress(ConfigError):
            assert DataConfig.from_dict({name: value}).to_dict()
    with pytest.raises(ConfigError):
        DataConfig.from_dict(value)


def test_with_channels_averages():
    config = IMAGENET.with_channels(4)
    assert config.input_size == (4, 112, 112)
    assert config.mean == pytest.approx((sum(IMAGENET.mean) / 3,) * 4)
    assert config.std == pytest.approx((sum(IMAGENET.std) / 3,) * 4)
    assert IMAGENET.with_channels(3) is IMAGENET
    with pytest.raises(ConfigError):
        IMAGENET.with_channels(0)


def test_with_size():
    assert IMAGENET.with_size(64).input_size == (3, 64, 64)
    assert IMAGENET.with_size((32, 64)).input_size == (3, 32, 64)
    for bad in (0, -8, (32,), "64", 1.5):
        with pytest.raises(ConfigError):
            IMAGENET.with_size(bad)  # type: ignore[arg-type]


def test_same_size_is_only_normalised():
    picture = random_picture(112, 112)
    expected = (picture / 255 - np.array(IMAGENET.mean)) / np.array(IMAGENET.std)
    out = preprocess(picture, IMAGENET)
    assert out.dtype == torch.float32 and out.shape == (3, 112, 112)
    np.testing.assert_allclose(out.numpy(), expected.transpose(2, 0, 1), atol=1e-5)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(120, 80), (31, 47), (200, 300)])
def test_resize_agrees_with_pillow(mode, size):
    """Pillow rounds and clamps after each of its two passes, ours at the end: so no values near black and white."""
    import PIL.Image

    picture = np.kron(random_picture(10, 15) // 2 + 64, np.ones((12, 12, 1), dtype=np.uint8))
    config = DataConfig((3, *size), resize="squash", interpolation=mode)
    expected = PIL.Image.fromarray(picture).resize(size[::-1], getattr(PIL.Image.Resampling, mode.upper()))
    ours = preprocess(picture, config).permute(1, 2, 0).numpy() * 255
    assert np.abs(ours - np.asarray(expected)).max() < 1.5


def test_values_stay_in_range_where_bicubic_overshoots():
    picture = np.zeros((40, 40, 3), np.uint8)
    picture[:, 20:] = 255
    out = preprocess(picture, DataConfig((3, 97, 97)))
    assert out.min() == 0 and out.max() == 1


def test_shortest_crops_the_centre():
    picture = np.zeros((60, 180, 3), np.uint8)
    picture[:, 60:120] = 255
    out = preprocess(picture, DataConfig((3, 60, 60)))
    assert (out == 1).all()
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[4:60, 4:60] = 255
    assert (preprocess(picture, DataConfig((3, 56, 56), crop_fraction=0.875)) == 1).all()
    assert (preprocess(picture, DataConfig((3, 64, 64)))[:, 0, 0] == 0).all()


def test_shortest_equals_resize_then_crop_for_panoramas():
    """Pictures far wider than the crop are cut before the resize; that must not move or scale anything."""
    picture = np.kron(random_picture(10, 800), np.ones((8, 8, 1), dtype=np.uint8))  # 80 x 6400
    config = DataConfig((3, 40, 40))
    whole = preprocess(picture, config.replace(input_size=(3, 40, 3200), resize="squash"))
    assert (preprocess(picture, config) - whole[:, :, 1580:1620]).abs().max() < 1e-3


def test_a_strip_does_not_explode():
    assert preprocess(random_picture(1, 100_000), IMAGENET).shape == (3, 112, 112)
    assert preprocess(random_picture(100_000, 1), IMAGENET.with_size(224)).shape == (3, 224, 224)


def test_large_pictures_are_resized_channel_by_channel_alike(monkeypatch):
    from zoo import resizing

    picture = random_picture(90, 70)
    expected = preprocess(picture, IMAGENET)
    monkeypatch.setattr(resizing, "_SPLIT_PIXELS", 100)
    assert torch.equal(preprocess(picture, IMAGENET), expected)


def test_grayscale_model_gets_luma():
    picture = random_picture(32, 32)
    out = preprocess(picture, DataConfig((1, 32, 32), mean=(0.0,), std=(1.0,)))
    np.testing.assert_allclose(out[0].numpy(), picture @ np.array(LUMA) / 255, atol=1e-5)


@pytest.mark.parametrize(
    ("picture", "config", "word"),
    [
        (random_picture(8, 8), DataConfig.from_dict({"input_size": [5, 32, 32]}), "5 channels"),
        (random_picture(8, 8)[..., :2], IMAGENET, r"\(height, width, 3\)"),
        (random_picture(8, 8).astype(np.float32), IMAGENET, "uint8"),
        (np.zeros((0, 8, 3), np.uint8), IMAGENET, "without pixels"),
    ],
)
def test_wrong_pictures_are_refused(picture, config, word):
    with pytest.raises(DataError, match=word):
        preprocess(picture, config)


@settings(max_examples=60, deadline=None)
@example(2, 1, (3, 1), "squash", "bicubic", True, 1.0)  # One column, in the memory order of decoded pictures.
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.sampled_from(RESIZES),
    st.sampled_from(INTERPOLATIONS),
    st.booleans(),
    st.floats(0.3, 1),
)
def test_any_picture_to_any_size(height, width, size, resize, interpolation, antialias, crop_fraction):
    config = DataConfig((3, *size), resize, crop_fraction, interpolation, antialias)
    picture = torch.from_numpy(random_picture(height, width))
    out = preprocess(picture, config)
    assert out.shape == (3, *size) and out.min() >= 0 and out.max() <= 1
    batch = torch.stack([picture, picture.flip(0)]).permute(0, 3, 1, 2)
    torch.testing.assert_close(preprocess_batch(batch, config)[0], out, atol=1e-5, rtol=0)
    constant = torch.full((height, width, 3), 200, dtype=torch.uint8)
    expected = torch.full((3, *size), 200 / 255)
    if resize == "letterbox":  # The picture lies within a grey border, on two sides at most.
        placed = place((height, width), config)
        (top, left), (rows, columns) = placed.offset, placed.resized
        expected.fill_(114 / 255)[:, top : top + rows, left : left + columns] = 200 / 255
        assert rows == size[0] or columns == size[1]
    torch.testing.assert_close(preprocess(constant, config), expected, atol=1e-5, rtol=0)
