"""Normalisation and features of clouds, and the configuration that states them."""

import numpy as np
import pytest

from modalities.points import PointDataConfig
from modalities.points.prepare import make_features, normalise
from zoo import ConfigError, DataError

XYZ = np.array([[500000.0, 4.0, 100.0], [500010.0, 6.0, 104.0], [500004.0, 5.0, 101.0]])


def test_normalisation_leads_back():
    for how, low, high in (
        ("unit-box", [-1.0, -0.2, -0.4], [1.0, 0.2, 0.4]),
        ("centre", [-5.0, -1.0, 0.0], [5.0, 1.0, 4.0]),
        ("none", XYZ.min(0), XYZ.max(0)),
    ):
        xyz, origin, scale = normalise(XYZ, how)
        np.testing.assert_allclose(xyz.min(0), low, atol=1e-12)
        np.testing.assert_allclose(xyz.max(0), high, atol=1e-12)
        np.testing.assert_allclose(xyz * scale + origin, XYZ, atol=1e-9)


@pytest.mark.parametrize("points", [0, 1])
def test_clouds_without_extent(points):
    for how in ("unit-box", "centre", "none"):
        xyz, _, scale = normalise(XYZ[:points], how)
        assert xyz.shape == (points, 3) and scale == 1.0 and np.isfinite(xyz).all()


@pytest.mark.parametrize(
    ("xyz", "message"), [(XYZ[:, :2], r"\(N, 3\)"), (np.full((2, 3), np.nan), "NaN"), (np.full((2, 3), np.inf), "NaN")]
)
def test_clouds_that_cannot_be_normalised(xyz, message):
    with pytest.raises(DataError, match=message):
        normalise(xyz, "centre")


def test_features_have_their_order_and_scale():
    config = PointDataConfig(
        normalise="centre", feature_names=("return", "height", "intensity", "rgb", "normal", "xyz")
    )
    xyz = normalise(XYZ, "centre")[0]
    fields = {
        "return": np.array([[1, 1], [1, 2], [6, 6]], dtype=np.uint8),
        "intensity": np.array([0, 65535, 255], dtype=np.uint16),
        "rgb": np.array([[0, 255, 0], [255, 0, 0], [51, 0, 0]], dtype=np.uint8),
        "normal": np.eye(3),
    }
    made = make_features(xyz, fields, config)
    assert made.dtype == np.float32 and made.shape == (3, config.in_chans) == (3, 13)
    np.testing.assert_allclose(made[:, :2], [[1, -1], [0, -0.5], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(made[:, 2], [0, 0.4, 0.1], atol=1e-6)
    np.testing.assert_allclose(made[:, 3], [-1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(made[:, 4:7], [[-1, 1, -1], [1, -1, -1], [-0.6, -1, -1]], atol=1e-6)
    np.testing.assert_allclose(made[:, 7:10], np.eye(3))
    np.testing.assert_allclose(made[:, 10:], xyz / 10, atol=1e-6)
    floats = make_features(xyz, {"intensity": np.array([0, 0.25, 1.0])}, config.replace(feature_names=("intensity",)))
    assert floats[:, 0].tolist() == [-1.0, -0.5, 1.0]
    assert make_features(xyz[:0], {}, config.replace(feature_names=("height", "xyz"))).shape == (0, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({}, "takes 'rgb' of every point.*it has: none"), ({"rgb": np.zeros((3, 2))}, r"must be \(3, 3\), got \(3, 2\)")],
)
def test_fields_that_are_not_there(fields, message):
    with pytest.raises(DataError, match=message):
        make_features(XYZ, fields, PointDataConfig(feature_names=("rgb",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid_size": -1.0}, "grid_size"),
        ({"grid_size": float("nan")}, "grid_size"),
        ({"normalise": "sphere"}, "unit-box, centre, none"),
        ({"feature_names": []}, "different names"),
        ({"feature_names": ["xyz", "xyz"]}, "different names"),
        ({"feature_names": "xyz"}, "list of names"),
        ({"num_points": 0}, "num_points"),
        ({"ignore_label": 1.5}, "ignore_label"),
        ({"voxel": 1}, "unknown settings voxel"),
    ],
)
def test_configurations_that_cannot_be_used(change, message):
    with pytest.raises(ConfigError, match=message):
        PointDataConfig.from_dict(change)


def test_configuration_restores_itself():
    config = PointDataConfig(grid_size=1, feature_names=("height",))
    assert PointDataConfig.from_dict(config.to_dict()) == config
    assert PointDataConfig.from_dict({**config.to_dict(), "class_names": ["a", "b"]}) == config  # Of former files.
    assert (config.input_size, config.with_size(9).input_size, config.with_channels(1)) == ((1,), (1, 9), config)
    with pytest.raises(ConfigError, match="cannot be adapted"):
        config.with_channels(2)
    with pytest.raises(ConfigError, match="number of points"):
        config.with_size((3, 4))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64])
def test_eight_bits_mean_the_same_in_any_dtype(dtype):
    colours = np.array([[0, 255, 51], [255, 0, 0], [51, 0, 0]])
    config = PointDataConfig(feature_names=("rgb",))
    made = make_features(XYZ, {"rgb": colours.astype(dtype)}, config)
    np.testing.assert_allclose(made, make_features(XYZ, {"rgb": colours.astype(np.uint8)}, config), atol=1e-6)
    config = PointDataConfig(feature_names=("intensity",))
    values = np.array([0, 120, 250])
    made = make_features(XYZ, {"intensity": values.astype(dtype)}, config)
    np.testing.assert_allclose(made, make_features(XYZ, {"intensity": values.astype(np.uint8)}, config), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float64])
def test_sixteen_bits_too(dtype):
    colours = np.array([[0, 65535, 13107], [65535, 0, 0], [256, 0, 0]])
    made = make_features(XYZ, {"rgb": colours.astype(dtype)}, PointDataConfig(feature_names=("rgb",)))
    np.testing.assert_allclose(made, 2 * colours / 65535 - 1, atol=1e-6)
