"""The vision transformer: any grid, features, heads, configuration, layer groups."""

import math
import warnings

import pytest
import torch

import zoo
from modalities.image.model import ViTConfig, build
from zoo import ConfigError, DataError


@pytest.fixture(params=zoo.encodings())
def model(request, tiny_config):
    torch.manual_seed(0)
    tiny_config["model"] |= {"encoding": request.param, "encoding_options": {}}
    net = build(tiny_config).eval()
    torch.nn.init.normal_(net.head.weight)
    return net


def images(rows, columns, batch=2, seed=0):
    torch.manual_seed(seed)
    return torch.randn(batch, 3, rows * 8, columns * 8)


@pytest.mark.parametrize("grid", [(2, 8), (8, 2), (4, 4), (1, 1), (7, 3)])
def test_any_grid_goes_in(model, grid):
    logits = model(images(*grid))
    assert logits.shape == (2, 3) and logits.isfinite().all()
    assert model.forward_features(images(*grid)).shape == (2, 1 + grid[0] * grid[1], 32)


def test_equal_token_counts_differ_and_state_carries_no_grid(model):
    reference = model(images(2, 8))
    reshaped = images(2, 8).unflatten(2, (2, 8)).unflatten(4, (8, 8)).permute(0, 1, 3, 5, 2, 4)
    assert reshaped.numel() == images(2, 8).numel()
    keys = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    model(images(6, 4))
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == keys
    assert not list(model.buffers())
    assert torch.equal(model(images(2, 8)), reference)


@pytest.mark.parametrize("name", ["pape-ri", "alibi"])
def test_transposing_the_picture_and_the_stem_transposes_the_features(name, tiny_config):
    tiny_config["model"] |= {"encoding": name, "encoding_options": {}}
    torch.manual_seed(0)
    net = build(tiny_config).eval()
    picture = images(2, 5)
    direct = net.forward_intermediates(picture, 1, output="grid")[1][0]
    with torch.no_grad():
        net.embed.proj.weight.copy_(net.embed.proj.weight.transpose(2, 3).clone())
    turned = net.forward_intermediates(picture.transpose(2, 3), 1, output="grid")[1][0]
    torch.testing.assert_close(turned.transpose(2, 3), direct, atol=1e-5, rtol=0)


def test_sizes_off_the_patch_are_refused_or_padded(tiny_config):
    net = build(tiny_config).eval()
    with pytest.raises(DataError, match="30 x 33 pixels do not divide into 8 x 8.*32 x 32.*size_policy='pad'"):
        net(torch.randn(1, 3, 30, 33))
    tiny_config["model"]["size_policy"] = "pad"
    padding = build(tiny_config).eval()
    padding.load_state_dict(net.state_dict())
    picture = torch.randn(1, 3, 30, 33)
    full = torch.nn.functional.pad(picture, (0, 7, 0, 2))
    assert torch.equal(padding(picture), net(full))


@pytest.mark.parametrize(
    "bad",
    [
        [[1.0]],
        torch.randn(1, 3, 16, 16).half(),
        torch.randn(1, 3, 16, 16, device="meta"),
        torch.randn(3, 16, 16),
        torch.randn(1, 4, 16, 16),
        torch.zeros(1, 3, 16, 16, dtype=torch.uint8),
        torch.randn(1, 3, 0, 16),
        torch.randn(0, 3, 16, 16),
    ],
)
def test_bad_inputs_are_refused(bad, tiny_config):
    with pytest.raises(DataError):
        build(tiny_config)(bad)


def test_intermediates(model):
    picture = images(2, 3)
    final, every = model.forward_intermediates(picture)
    assert len(every) == 2 and every[0].shape == (2, 7, 32)
    assert torch.equal(final, model.forward_features(picture))
    assert torch.equal(model.encoder.norm(every[-1]), final)
    stopped, first = model.forward_intermediates(picture, [0], output="grid", norm=True, stop_early=True)
    assert stopped is None and first[0].shape == (2, 32, 2, 3)
    tokens = model.encoder.norm(every[0])[:, 1:]
    assert torch.equal(first[0].flatten(2).transpose(1, 2), tokens)
    assert torch.equal(model.forward_intermediates(picture, [-1])[1][0], every[1])
    for wrong in ([2], [-3], [], 3, "a", [1.5], True, torch.tensor([1])):
        with pytest.raises(ConfigError, match="indices"):
            model.forward_intermediates(picture, wrong)
    with pytest.raises(ConfigError, match="tokens"):
        model.forward_intermediates(picture, output="NCHW")


def test_head_reset_follows_the_config(model):
    features = model.forward_features(images(2, 2))
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
    model.reset_classifier(7)
    assert model(images(2, 2)).shape == (2, 7)
    assert model.head.bias.tolist() == pytest.approx([-math.log(7)] * 7)
    assert model.config["model"]["num_classes"] == 7 and model.config["labels"] is None
    for wrong in ("x", 2.5, None, True, -1, 10**12):
        with pytest.raises(ConfigError, match="num_classes"):
            model.reset_classifier(wrong)
    model.reset_classifier(0)
    assert torch.equal(model(images(2, 2)), features[:, 0])


def test_groups_cover_every_parameter(model):
    from timm.models._manipulate import group_parameters

    for coarse in (False, True):
        layers = group_parameters(model, model.group_matcher(coarse), reverse=True)
        assert set(layers) == {name for name, _ in model.named_parameters()}
        assert layers["cls_token"] < layers["encoder.blocks.0.norm1.weight"] < layers["encoder.blocks.1.norm1.weight"]
        assert layers["head.weight"] >= layers["encoder.norm.weight"] >= layers["encoder.blocks.1.mlp.fc2.weight"]
    assert {"cls_token"} <= model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


def test_drop_path_acts_in_training_alone(tiny_config):
    tiny_config["model"]["drop_path"] = 0.9
    net = build(tiny_config)
    torch.nn.init.normal_(net.head.weight)
    picture = images(2, 2, batch=8)
    assert not torch.equal(net(picture), net(picture))
    net.eval()
    assert torch.equal(net(picture), net(picture))


def test_released_convention_places_the_class_token(tiny_config):
    tiny_config["model"] |= {"coordinate_origin": 1, "class_token_position": "origin"}
    net = build(tiny_config)
    coords = net._sequences(images(2, 2)).coords
    assert coords.positioned is None and coords.values[0, :2].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("pape", "origin"),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in zoo.encodings()),
    ],
)
def test_the_whole_network_compiles_without_a_break(name, position, tiny_config):
    tiny_config["model"] |= {"encoding": name, "encoding_options": {}, "class_token_position": position}
    net = build(tiny_config).eval()
    torch.compiler.reset()  # Every case compiles the same code objects anew.
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    for grid in ((2, 3), (4, 2)):
        torch.testing.assert_close(compiled(images(*grid)), net(images(*grid)))


def test_unknown_keys_warn_by_name(tiny_config):
    tiny_config["model"]["windows"] = 3
    with pytest.warns(UserWarning, match="windows"):
        build(tiny_config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del tiny_config["model"]["windows"]
        build(tiny_config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dim", -1), ("dim", 10**9), ("dim", 2.0), ("dim", "../x"), ("depth", True), ("depth", None),
        ("num_classes", -2), ("encoding", "__import__('os')"), ("encoding", 3), ("encoding_options", [1]),
        ("coordinate_origin", 5), ("class_token_position", "middle"), ("size_policy", "crop"), ("drop_path", 1.0),
        ("drop_path", float("nan")), ("patch_size", 0),
    ],
)  # fmt: skip
def test_hostile_values_are_refused(key, value, tiny_config):
    tiny_config["model"][key] = value
    with pytest.raises(ConfigError, match=key if key != "encoding" else "encoding"):
        build(tiny_config)


def test_missing_keys_are_named():
    with pytest.raises(ConfigError, match="missing depth"):
        ViTConfig.from_dict({"dim": 8, "num_heads": 1, "head_dim": 8, "mlp_dim": 8, "patch_size": 4, "num_classes": 2})
    with pytest.raises(ConfigError, match="'model' part"):
        build({})
