"""Official detectors: parity with the recorded raw maps and boxes, the key map, and what does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo import registry
from zoo.convert import convert_config


@pytest.fixture
def official(shared):
    """Folder of a toy-size checkpoint in the released layout."""
    source = shared / "parity" / "coco-pape"
    if not source.is_dir():
        pytest.skip(f"no reference outputs at {source}")
    return source


@pytest.fixture
def copied(official, tmp_path):
    """Writes a changed copy of the checkpoint and gives its folder."""

    def write(edit_config=lambda config: None, edit_state=lambda state: None):
        config = json.loads((official / "config.json").read_text())
        state = torch.load(official / "model.pt", weights_only=True)
        edit_config(config)
        edit_state(state)
        folder = tmp_path / "official"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        torch.save(state, folder / "model.pt")
        return folder

    return write


def picture():
    b, c, y, x = torch.meshgrid(*(torch.arange(float(n)) for n in (1, 3, 640, 640)), indexing="ij")
    return 0.5 + 0.5 * torch.sin(0.031 * (c + 1) * x + 0.017 * y + 0.7 * b)


def test_parity_with_the_official_network(official, tmp_path):
    zoo.convert(official, tmp_path / "ours")
    model = zoo.load(f"local-dir:{tmp_path / 'ours'}")
    expected = load_file(official / "expected.safetensors")
    with torch.no_grad():
        raw = model.forward_raw(picture())
        found = model(picture())
    assert [tuple(level.shape) for level in raw["one2one"]] == [(1, 155, n, n) for n in (80, 40, 20)]
    assert expected["one2one_stride32"].std() > 0.01
    torch.testing.assert_close(raw["one2one"][2], expected["one2one_stride32"], rtol=0, atol=2e-5)
    reference = expected["detections"]
    torch.testing.assert_close(found.tensor[..., 4], reference[..., 4], rtol=0, atol=1e-5)
    assert torch.equal(found.tensor[..., 5], reference[..., 5])
    torch.testing.assert_close(found.tensor[..., :4], reference[..., :4], rtol=0, atol=1e-3)
    data = model.data_config
    assert (data.input_size, data.resize, data.mean, data.std) == ((3, 640, 640), "squash", (0.0,) * 3, (1.0,) * 3)
    assert model.config["name"] == "pape-vit-det-custom-coco"
    assert (model.max_detections, model.min_score, model.head.strides) == (100, 0.001, (8.0, 16.0, 32.0))
    assert model.config["model"]["coordinate_origin"] == 1


def test_every_tensor_is_accounted_for(official, tmp_path):
    state = torch.load(official / "model.pt", weights_only=True)
    zoo.convert(official, tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    left_out = {key for key in state if key.endswith("num_batches_tracked")} | {"head.dfl.conv.weight"}
    assert sum(value.numel() for value in ours.values()) == sum(
        value.numel() for key, value in state.items() if key not in left_out
    )
    assert torch.equal(ours["pyramid.fpn3.2.ln.weight"], state["fpn3.2.ln.weight"])
    key = "head.one2one_cv3.2.1.0.bn.running_var"
    assert torch.equal(ours[key], state[key])
    for branch in ("cv2", "one2one_cv2", "cv3", "one2one_cv3"):  # One key map for all: none is taken for another.
        keys = [key for key in state if key.startswith(f"head.{branch}.") and key not in left_out]
        assert keys and all(torch.equal(ours[key], state[key]) for key in keys)


def test_a_network_with_the_settings_of_the_release_is_the_registered_one(official):
    config = json.loads((official / "config.json").read_text())
    config["model"] = {"size": "base"}
    config["pape"]["parabolas"] = 50
    config["detection"]["fpn_size"] = 256
    assert convert_config(config) == registry.entry("pape-vit-det-b-coco").config


def test_install_compares_with_the_released_detector(official, tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(zoo.ConfigError, match="not pape-vit-det-b-coco: dim is 48, expected 768.*pyramid_dim is 16"):
        zoo.convert(official, tmp_path / "ours", install=True)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["detection"].update(reg_max=8), "reg_max must be 16"),
        (lambda c: c["detection"].update(fpn_size=-1), "pyramid_dim"),
        (lambda c: c["detection"].update(max_det=0), "max_detections"),
        (lambda c: c["detection"].update(min_conf=2), "min_score"),
        (lambda c: c.pop("detection"), "lacks detection.reg_max"),
    ],
)
def test_unusable_settings(copied, tmp_path, edit, message):
    with pytest.raises(zoo.ConfigError, match=message):
        zoo.convert(copied(edit_config=edit), tmp_path / "ours")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.pop("head.one2one_cv3.1.2.bias"), "missing: head.one2one_cv3.1.2.bias"),
        (lambda s: s.update({"fpn4.0.weight": torch.zeros(1)}), "unexpected tensor 'fpn4.0.weight'"),
        (lambda s: s.update({"head.cv4.0.weight": torch.zeros(1)}), "unexpected tensor 'head.cv4.0.weight'"),
        (lambda s: s.update({"head.dfl.conv.weight": torch.ones(1, 16, 1, 1)}), "must hold 0 to 15"),
        (lambda s: s.update({"head.dfl.conv.weight": torch.zeros(1).expand(10**12)}), "must hold 0 to 15"),
        (lambda s: s.update({"head.cv2.0.0.bn.running_var": torch.ones(63)}), "running_var is"),
    ],
)
def test_state_dicts_that_do_not_fit(copied, tmp_path, edit, message):
    with pytest.raises(zoo.WeightsError, match=message):
        zoo.convert(copied(edit_state=edit), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
