"""Official event models: parity with the recorded outputs, settings of the tokenizer, and what does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import zoo
from modalities.events import EventTokens
from zoo import registry
from zoo.convert import convert_config

EVENTS = {"buckets": 10, "max_detection_events": 500_000, "ref_ms": 100, "threshold": 256, "time_scale": 50_000}
DETECTION = {"fpn_size": 256, "max_det": 100, "min_conf": 0.001, "reg_max": 16}


def settings(dataset, **changes):
    """The settings of an official configuration that say what the network is, of the base size."""
    return {
        "dataset": dataset,
        "positional": "pape",
        "pape": {"parabolas": 50},
        "model": {"size": "base"},
        "patch_size": 16,
        "events": dict(EVENTS),
        "detection": dict(DETECTION),
        **changes,
    }


def batch(reference):
    return EventTokens(
        reference["x"], reference["y"], reference["t_us"], reference["patches"], reference["padding_mask"] == 0
    )


def pair_rows(found, reference):
    """For each reference row the found one with its class, its box to 1e-3 pixels and its score to 1e-5."""
    boxes = (found[None, :, :4] - reference[:, None, :4]).abs().amax(2) <= 1e-3
    scores = (found[None, :, 4] - reference[:, None, 4]).abs() <= 1e-5
    fits = boxes & scores & (found[None, :, 5] == reference[:, None, 5])
    assert fits.any(dim=1).all()
    return fits.int().argmax(dim=1)


def test_parity_of_the_classifier(official, tmp_path):
    source = official("dvsgesture")
    zoo.convert(source, tmp_path / "ours")
    model = zoo.load(f"local-dir:{tmp_path / 'ours'}")
    expected = load_file(source / "expected.safetensors")
    tokens = batch(expected)
    assert not tokens.mask.all() and expected["logits"].std() > 0.1
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), expected["logits"], rtol=0, atol=2e-5)
    assert model.config["name"] == "pape-event-vit-custom-dvsgesture"
    assert model.config["model"]["class_token_position"] == "origin" and len(model.config["labels"]) == 11
    data = model.data_config
    assert (data.width, data.height, data.threshold, data.refractory_us) == (128, 128, 256, 0)
    assert (data.time_scale_us, data.time_reference, data.max_events) == (50_000.0, "start", None)


def test_parity_of_the_detector(official, tmp_path):
    source = official("gen1")
    zoo.convert(source, tmp_path / "ours")
    model = zoo.load(f"local-dir:{tmp_path / 'ours'}")
    expected = load_file(source / "expected.safetensors")
    tokens = batch(expected)
    with torch.no_grad():
        raw, found = model.forward_raw(tokens), model(tokens).tensor
    assert [tuple(level.shape) for level in raw["one2one"]] == [(2, 66, 30, 38), (2, 66, 15, 19), (2, 66, 7, 9)]
    torch.testing.assert_close(raw["one2one"][2], expected["one2one_stride32"], rtol=0, atol=2e-5)
    reference = expected["detections"]
    torch.testing.assert_close(found[..., 4], reference[..., 4], rtol=0, atol=1e-5)
    for sample in range(2):  # Rows whose scores agree to rounding may stand in either order.
        assert pair_rows(found[sample], reference[sample]).unique().numel() == 100
    assert model.config["name"] == "pape-event-det-custom-gen1"
    data = model.data_config
    assert (data.width, data.height, data.grid) == (304, 240, (15, 19))
    assert (data.time_reference, data.max_events) == ("end", 500_000)


@pytest.mark.parametrize("dataset", ["dvsgesture", "gen1"])
def test_every_tensor_is_accounted_for(official, tmp_path, dataset):
    source = official(dataset)
    state = torch.load(source / "model.pt", weights_only=True)
    zoo.convert(source, tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    left_out = {key for key in state if key.endswith("num_batches_tracked")} | {"head.dfl.conv.weight"}
    expected = sum(value.numel() for key, value in state.items() if key not in left_out)
    assert sum(value.numel() for value in ours.values()) == expected
    assert torch.equal(ours["embed.proj.weight"], state["embedding.projection.weight"])


@pytest.mark.parametrize(
    ("dataset", "name"), [("dvsgesture", "pape-event-vit-b-dvsgesture"), ("gen1", "pape-event-det-b-gen1")]
)
def test_a_network_with_the_settings_of_the_release_is_the_registered_one(dataset, name):
    assert convert_config(settings(dataset)) == registry.entry(name).config


def test_settings_of_the_tokenizer_are_taken_over():
    changes = {"buckets": 4, "max_detection_events": 7, "ref_ms": 3, "threshold": 9, "time_scale": 1234}
    found = convert_config(settings("gen1", events=changes, patch_size=8))
    assert found["model"]["in_chans"] == 8 and found["model"]["patch_size"] == 8
    expected = {"buckets": 4, "max_events": 7, "refractory_us": 3000, "threshold": 9, "time_scale_us": 1234.0}
    assert found["data"].items() >= expected.items()


def test_install_compares_with_the_released_models(official, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    for dataset, name in (("dvsgesture", "pape-event-vit-b-dvsgesture"), ("gen1", "pape-event-det-b-gen1")):
        with pytest.raises(zoo.ConfigError, match=f"not {name}: dim is 48, expected 768"):
            zoo.convert(official(dataset), tmp_path / "ours", install=True)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"events": None}, "lacks events.threshold"),
        ({"events": {**EVENTS, "threshold": 2.5}}, "events.threshold has an unusable value"),
        ({"events": {**EVENTS, "time_scale": "fast"}}, "events.time_scale has an unusable value"),
        ({"detection": {**DETECTION, "reg_max": 8}}, "reg_max must be 16"),
        ({"positional": "learned"}, "'learned' is not supported"),
    ],
)
def test_unusable_settings(change, message):
    with pytest.raises(zoo.ConfigError, match=message):
        convert_config(settings("gen1", **change))


@pytest.mark.parametrize(("key", "value"), [("time_scale", -1), ("time_scale", 0), ("threshold", 0), ("buckets", 99)])
def test_settings_out_of_range_are_refused_before_weights_are_read(tmp_path, key, value):
    folder = tmp_path / "official"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings("dvsgesture", events={**EVENTS, key: value})))
    with pytest.raises(zoo.ConfigError, match="data: "):
        zoo.convert(folder, tmp_path / "ours")
