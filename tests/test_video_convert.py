"""Official video models: parity with the recorded outputs, and settings of the sampler."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo import registry
from zoo.convert import convert_config

OFFICIAL = {
    "dataset": "ucf101",
    "positional": "pape",
    "pape": {"parabolas": 50},
    "model": {"size": "base"},
    "patch_size": 16,
    "video": {"frame_length": 2, "frame_step": 10, "max_samples": 5},
}


def wave():
    """The clips (2, 3, 10, 240, 320) of the recorded outputs: a formula in float32."""
    sizes = {"b": 2, "c": 3, "f": 10, "y": 240, "x": 320}
    b, c, f, y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in sizes.values()), indexing="ij")
    return 127.5 + 127.5 * torch.sin(0.031 * (c + 1) * x + 0.017 * y + 0.23 * f + 0.7 * b)


def test_parity(official, tmp_path):
    source = official("ucf101")
    zoo.convert(source, tmp_path / "ours")
    model = zoo.load(f"local-dir:{tmp_path / 'ours'}")
    expected = load_file(source / "expected.safetensors")
    lengths = expected["lengths"]
    assert lengths.tolist() == [5, 3] and expected["logits"].std() > 0.1
    clips = wave()
    with torch.no_grad():
        torch.testing.assert_close(model(clips, lengths), expected["logits"], rtol=0, atol=2e-5)
        assert (model(clips)[1] - expected["logits"][1]).abs().max() > 1e-3  # Padding is seen without lengths.
        clips[1, :, 6:] = float("nan")
        torch.testing.assert_close(model(clips, lengths), expected["logits"], rtol=0, atol=2e-5)
    assert model.config["name"] == "pape-video-vit-custom-ucf101" and model.config["labels"] is None
    assert model.data_config.to_dict() == registry.entry("pape-video-vit-b-ucf101").config["data"]


def test_every_tensor_is_accounted_for(official, tmp_path):
    source = official("ucf101")
    state = torch.load(source / "model.pt", weights_only=True)
    zoo.convert(source, tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert sum(value.numel() for value in ours.values()) == sum(value.numel() for value in state.values())
    assert torch.equal(ours["embed.proj.weight"], state["embedding.weight"])


def test_a_network_with_the_settings_of_the_release_is_the_registered_one():
    assert convert_config(OFFICIAL) == registry.entry("pape-video-vit-b-ucf101").config


def test_settings_of_the_sampler_are_taken_over():
    video = {"frame_length": 4, "frame_step": 6, "max_samples": 3}
    found = convert_config({**OFFICIAL, "video": video, "positional": "rope", "rope": {"base": 100.0}})
    assert found["name"] == "rope-video-vit-b-ucf101" and found["model"]["tubelet"] == 4
    assert found["data"].items() >= {"frames": 12, "tubelet": 4, "frame_step": 6}.items()


def test_install_compares_with_the_released_model(official, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(zoo.ConfigError, match="not pape-video-vit-b-ucf101: dim is 48, expected 768"):
        zoo.convert(official("ucf101"), tmp_path / "ours", install=True)


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (None, "lacks video.frame_length"),
        ({**OFFICIAL["video"], "max_samples": 2.5}, "video.max_samples has an unusable value"),
        ({**OFFICIAL["video"], "frame_step": "far"}, "video.frame_step has an unusable value"),
    ],
)
def test_bad_settings_are_named(video, message):
    with pytest.raises(zoo.ConfigError, match=message):
        convert_config({**OFFICIAL, "video": video})
