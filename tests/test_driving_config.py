"""Configurations of fusion networks: what is refused, what comes back, and how many parameters they describe."""

import json
import math

import pytest
import torch
from driving_toys import DATA, tiny_config

import zoo
from modalities.driving import DrivingDataConfig
from modalities.driving.config import FusionConfig
from modalities.driving.presets import FUSION_ENCODINGS, GRIDS, SIMDRIVE_LABELS
from zoo import ConfigError, registry
from zoo.card_text import render_config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensors": "radar"}, "sensors must be one of camera\\+lidar, camera, lidar"),
        ({"blocks": ["own", "sky"]}, "blocks must be a list"),
        ({"query_window": 4}, "query_window must be odd"),
        ({"dim": 0}, "dim must be a whole number"),
        ({"lift_heights": []}, "lift_heights"),
        ({"ground": "low"}, "ground must be a height"),
        ({"in_chans": 1}, "in_chans 3"),
        ({"num_classes": 0}, "num_classes from 1"),
        ({"min_score": 1}, "min_score"),
        ({"point_features": 2}, "point_features must be 3"),
    ],
)
def test_bad_sizes_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        FusionConfig.from_dict(tiny_config()["model"] | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": [0, 4]}, "image_size"),
        ({"pillar_size": 0.7}, "whole number of pillars"),
        ({"pillar_size": math.nan}, "finite"),
        ({"point_range": [0, 0, 0, 1, 1, 0]}, "smallest"),
        ({"point_range": [0, 0, 0]}, "6 finite numbers"),
        ({"cameras": ["A", "A"]}, "different names"),
        ({"std": [0, 1, 1]}, "positive"),
        ({"sweeps": 0}, "sweeps"),
        ({"colour": 1}, "unknown settings colour"),
    ],
)
def test_bad_data_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        DrivingDataConfig.from_dict(DATA | change)


def test_data_config_comes_back_from_json():
    data = DrivingDataConfig(**DATA)
    assert DrivingDataConfig.from_dict(json.loads(json.dumps(data.to_dict()))) == data
    assert data.grid == (30, 20) and data.input_size == (3, 32, 48)
    assert data.with_size((64, 96)).image_size == (64, 96) and data.with_channels(3) is data
    with pytest.raises(ConfigError, match="3 channels"):
        data.with_channels(4)
    with pytest.raises(ConfigError, match="missing image_size"):
        DrivingDataConfig.from_dict({key: value for key, value in DATA.items() if key != "image_size"})
    config = tiny_config() | {"labels": ["car"]}
    with pytest.raises(ConfigError, match="labels"):
        registry.architecture(config).build(config)


@pytest.mark.parametrize("encoding", ["pape", "rope", "none", "learned+pape", "kerple"])
@pytest.mark.parametrize("sensors", ["camera+lidar", "camera", "lidar"])
def test_parameters_are_counted_without_building(encoding, sensors):
    options = {"learned+pape": {"learned": {"grid": 9}}, "pape": {"parabolas": 4}}.get(encoding, {})
    config = tiny_config(encoding, sensors=sensors, encoding_options=options)
    built = registry.architecture(config)
    with torch.device("meta"):
        network = built.build(config)
    assert built.count_parameters(config["model"]) == sum(one.numel() for one in network.parameters())


def test_the_card_of_a_saved_model():
    config = tiny_config()
    config["data"] |= {"cameras": ["a|b"]}
    config["labels"] = ["<b>", "pedestrian", "barrier"]
    card = render_config(config)
    assert 'predict("DATAROOT", sample="TOKEN")' in card and "autonomous-driving" in card
    assert "1 cameras" not in card and r"1 camera (a\|b" in card and r"class (\<b\>, pedestrian, barrier)" in card


def test_registered_networks():
    names = zoo.list_models(modality="driving")
    expected = {f"{e}-fusion-{s}-nuscenes" for e in FUSION_ENCODINGS for s in "ntb"}
    expected |= {f"{e}-fusion-{s}-simdrive" for e in FUSION_ENCODINGS for s in "nt"}
    expected |= {f"{e}-fusion-n-simdrive-{one}" for e in FUSION_ENCODINGS for one in ("camera", "lidar")}
    assert set(names) == expected
    entry = registry.entry("pape-fusion-n-simdrive")
    assert 2 * entry.parameters < 3_000_000 and entry.config["labels"] == list(SIMDRIVE_LABELS)
    published = FusionConfig.from_dict(registry.entry("pape-fusion-b-nuscenes").config["model"])
    assert (published.dim, published.num_heads, published.head_dim, published.mlp_dim) == (128, 8, 16, 256)
    assert len(published.blocks) == 4 and published.set_size == 90 and published.window == 30
    data = DrivingDataConfig(**registry.entry("pape-fusion-b-nuscenes").config["data"])
    assert data.grid == (360, 360) and data.image_size == (256, 704) and published.num_queries == 200
    assert set(GRIDS) == set("ntb")
    for name in names:
        card = str(zoo.card(name))
        assert ("simulated data" in card.lower() or "is simulated" in card) == ("simdrive" in name)
        assert "UniTR-style" in card and ("pillars" in card) == (not name.endswith("-camera"))
        assert ("CAM_BACK_LEFT" in card) == (not name.endswith("-lidar")) and "length, width, height) in m" in card
        assert f"class ({', '.join(registry.entry(name).config['labels'])})" in card
        assert f"zoo train {'simdrive' if 'simdrive' in name else 'nuscenes'} --model {name} --data DIR" in card
    for name in zoo.list_models("pape-fusion-*"):
        with torch.device("meta"):
            network = registry.architecture(registry.entry(name).config).build(registry.entry(name).new_config())
        assert registry.entry(name).parameters == sum(one.numel() for one in network.parameters())
