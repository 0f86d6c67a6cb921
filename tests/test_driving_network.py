"""The fusion network: sensors that are absent, independence of scenes, odd inputs, and what every model offers."""

import dataclasses
import json
import math

import pytest
import torch
from driving_toys import CAMERAS, DATA, HEIGHT, LABELS, WIDTH, scene, scenes, some_boxes, tiny, tiny_config

import zoo
from modalities.driving import DrivingBatch, FusionLoss, pad_boxes
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.pillars import PillarEncoder, make_pillars
from modalities.driving.presets import FUSION_ENCODINGS
from modalities.driving.query_head import FusionOutputs
from zoo import ConfigError, DataError, registry
from zoo.encodings.extension import PositionInterpolation

ENCODINGS = (*FUSION_ENCODINGS, "alibi", "sincos+pape")


def same(one: FusionOutputs, other: FusionOutputs, tolerance=2e-5):
    """Whether two outputs agree; queries of equal rank may change places."""
    torch.testing.assert_close(one.heatmap, other.heatmap, atol=tolerance, rtol=1e-4)
    assert torch.equal(one.cells, other.cells) and torch.equal(one.labels, other.labels)
    torch.testing.assert_close(one.classes, other.classes, atol=tolerance, rtol=1e-4)
    torch.testing.assert_close(one.boxes, other.boxes, atol=tolerance, rtol=1e-4)


def differ(one, other):
    return (one.heatmap - other.heatmap).abs().max() > 1e-4


def part(outputs, number):
    """The outputs of one scene."""
    return FusionOutputs(**{key: value[number : number + 1] for key, value in vars(outputs).items()})


def without(batch, camera):
    """The batch without one camera."""
    rest = [number for number in range(batch.cameras) if number != camera]
    return dataclasses.replace(
        batch,
        images=batch.images[:, rest],
        intrinsics=batch.intrinsics[:, rest],
        camera_from_ego=batch.camera_from_ego[:, rest],
        image_mask=batch.image_mask[:, rest],
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_a_scene_does_not_depend_on_the_others(encoding):
    network = tiny(encoding)
    together = network.forward_raw(scenes(150, 0, 60))
    for number, points in enumerate((150, 0, 60)):
        alone = network.forward_raw(DrivingBatch.from_samples([scene(points, number)]))
        same(part(together, number), alone)
    assert together.heatmap.std() > 1e-3


@torch.no_grad()
def test_the_order_of_points_does_not_matter():
    network, batch = tiny(), scenes(150, 80)
    order = torch.cat([torch.randperm(150), 150 + torch.randperm(80)])
    same(network.forward_raw(dataclasses.replace(batch, points=batch.points[order])), network.forward_raw(batch))


@pytest.mark.parametrize("camera", range(CAMERAS))
@torch.no_grad()
def test_a_dead_camera_is_a_rig_without_it(camera):
    network, batch = tiny(), scenes(150, 80)
    mask = batch.image_mask.clone()
    mask[:, camera] = False
    images, intrinsics, poses = batch.images.clone(), batch.intrinsics.clone(), batch.camera_from_ego.clone()
    images[:, camera] = intrinsics[:, camera] = poses[:, camera] = math.nan
    dead = dataclasses.replace(batch, images=images, intrinsics=intrinsics, camera_from_ego=poses, image_mask=mask)
    found = network.forward_raw(dead)
    same(found, network.forward_raw(without(batch, camera)))
    assert differ(found, network.forward_raw(batch))


@torch.no_grad()
def test_a_camera_that_is_dead_in_one_scene_alone():
    network, batch = tiny(), scenes(150, 80)
    mask = batch.image_mask.clone()
    mask[0, 1] = False
    found = network.forward_raw(dataclasses.replace(batch, image_mask=mask))
    same(part(found, 1), part(network.forward_raw(batch), 1))
    same(part(found, 0), part(network.forward_raw(without(batch, 1)), 0))


def no_cameras():
    """Fields of a scene whose rig has no cameras at all."""
    shapes = {"images": (0, 3, HEIGHT, WIDTH), "intrinsics": (0, 3, 3), "camera_from_ego": (0, 4, 4)}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@torch.no_grad()
def test_without_images_and_without_points():
    network, batch = tiny(), scenes(150, 80)
    whole = network.forward_raw(batch)
    blind = network.forward_raw(dataclasses.replace(batch, images=None))
    masked = dataclasses.replace(batch, image_mask=torch.zeros_like(batch.image_mask))
    same(network.forward_raw(masked), blind)
    none = {"points": None, "offsets": torch.zeros(3, dtype=torch.int64)}
    deaf = network.forward_raw(dataclasses.replace(batch, **none))
    empty = dataclasses.replace(batch, **none | {"points": batch.points[:0]})
    same(network.forward_raw(empty), deaf)
    far = dataclasses.replace(batch, points=batch.points + 1000.0)
    same(network.forward_raw(far), deaf)
    rigless = DrivingBatch.from_samples([scene(150)._replace(**no_cameras())])
    same(network.forward_raw(rigless), part(blind, 0))
    nothing = network(dataclasses.replace(batch, images=None, **none))
    for outputs in (whole, blind, deaf):
        assert all(value.isfinite().all() for value in vars(outputs).values())
    assert differ(whole, blind) and differ(whole, deaf) and differ(blind, deaf)
    assert len(nothing) == 2 and all(boxes.centre.isfinite().all() for boxes in nothing)


@pytest.mark.parametrize("sensors", ["camera", "lidar"])
@torch.no_grad()
def test_networks_of_one_sensor_do_not_look_at_the_other(sensors):
    network, batch = tiny(sensors=sensors), scenes(150, 80)
    found = network.forward_raw(batch)
    if sensors == "camera":
        other = {"points": torch.full_like(batch.points, math.nan)}
        missing = {"images": None}
        assert not any(key.startswith(("pillars", "neck.lidar")) for key in network.state_dict())
    else:
        other = {"images": torch.full_like(batch.images, math.nan)}
        missing = {"points": None, "offsets": torch.zeros(3, dtype=torch.int64)}
        assert not any(key.startswith(("embed", "neck.camera")) for key in network.state_dict())
    same(network.forward_raw(dataclasses.replace(batch, **other)), found)
    assert differ(network.forward_raw(dataclasses.replace(batch, **missing)), found)


@torch.no_grad()
def test_bad_points_are_left_out():
    network, batch = tiny(), scenes(100)
    bad = torch.tensor([[math.nan, 0, 0, 0, 0], [1, 1, 1, math.inf, 0], [1, 1, 99, 0, 0]])
    points = torch.cat([batch.points, bad])
    more = dataclasses.replace(batch, points=points, offsets=torch.tensor([0, 103]))
    same(network.forward_raw(more), network.forward_raw(batch))


@torch.no_grad()
def test_sensors_meet_in_attention():
    """Images move the tokens of the lidar and the other way round, through blocks of the image plane or of the map."""
    for blocks, meet in ((["own"], False), (["own", "image"], True), (["own", "bev"], True)):
        network, batch = tiny(blocks=blocks), scenes(150)
        before = network.forward_tokens(batch)
        lidar = before.lidar_count
        after = network.forward_tokens(dataclasses.replace(batch, images=batch.images + 1.0)).tokens
        assert ((after - before.tokens)[:lidar].abs().max() > 1e-5) == meet
        points = batch.points.clone()
        points[:, 3] = 1 - points[:, 3]
        after = network.forward_tokens(dataclasses.replace(batch, points=points)).tokens
        assert ((after - before.tokens)[lidar:].abs().max() > 1e-5) == meet


@torch.no_grad()
def test_where_tokens_are_matters_unless_there_is_no_encoding():
    batch = scenes(150)
    for encoding, matters in (("pape", True), ("rope", True), ("none", False)):
        network = tiny(encoding)
        scene_, sets = network.encoder.start(batch, network.embed, network.pillars)
        block, own = network.encoder.blocks[0], sets[0]
        stretched = [dataclasses.replace(one, coords=one.coords.scaled(0.5)) for one in own]
        moved = [dataclasses.replace(one, coords=one.coords.shifted(2.0)) for one in own]
        x = block(scene_.tokens, own)
        assert ((block(scene_.tokens, stretched) - x).abs().max() > 1e-6) == matters
        torch.testing.assert_close(block(scene_.tokens, moved), x, atol=1e-5, rtol=1e-4)


def test_boxes_of_the_result():
    network, batch = tiny(max_boxes=7), scenes(150, 0)
    with torch.no_grad():
        found = network(batch)
        raw = network.forward_raw(batch)
        assert isinstance(network.train()(batch), FusionOutputs)
    assert len(found) == 2
    for number, boxes in enumerate(found):
        assert len(boxes) == 7 and (boxes.score.diff() <= 0).all() and (boxes.size > 0).all()
        query = (raw.boxes[number, :, :3] == boxes.centre[0]).all(1).nonzero()[0, 0]
        label, cell = raw.labels[number, query], raw.cells[number, query]
        heat = raw.heatmap[number, label].flatten()[cell].sigmoid()
        own = raw.classes[number, query, label].sigmoid()
        torch.testing.assert_close(boxes.score[0], (heat * own).sqrt())
        sine, cosine = raw.boxes[number, query, 6:8]
        torch.testing.assert_close(boxes.yaw[0], torch.atan2(sine, cosine))
        assert boxes.label[0] == label
    network = tiny(min_score=0.9)
    with torch.no_grad():
        assert [len(boxes) for boxes in network(batch)] == [0, 0]


@pytest.mark.parametrize("case", ["both", "no images", "no points", "no boxes", "nothing"])
def test_every_parameter_has_a_gradient(case):
    network, batch = tiny().train(), scenes(150, 40)
    none = {"points": None, "offsets": torch.zeros(3, dtype=torch.int64)}
    changes = {"no images": {"images": None}, "no points": none, "nothing": {"images": None} | none}
    batch = dataclasses.replace(batch, **changes.get(case, {}))
    boxes = [some_boxes(0, 0 if case == "no boxes" else 5), some_boxes(1, 0)]
    loss = FusionLoss(config=network.sizes, data=network.data_config)(network(batch), pad_boxes(boxes))["loss"]
    loss.backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        if case == "both" and "qkv.bias" not in key:
            assert parameter.grad.abs().sum() > 0, key


def test_checkpointing_gives_the_same_gradients():
    batch, grads = scenes(150, 40), []
    for enable in (False, True):
        network = tiny().train()
        network.set_grad_checkpointing(enable)
        network(batch).heatmap.square().mean().backward()
        grads.append([parameter.grad for parameter in network.encoder.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_by_differences():
    config = FusionConfig.from_dict(tiny_config()["model"])
    data = DrivingDataConfig(**DATA)
    torch.manual_seed(0)
    encoder = PillarEncoder(config, data).double()
    batch = scenes(20)
    pillars = make_pillars(batch.points.double(), batch.offsets, data)

    def run(points):
        return encoder(dataclasses.replace(pillars, points=points))

    assert torch.autograd.gradcheck(run, pillars.points.clone().requires_grad_(), atol=1e-4, fast_mode=True)
    network = tiny().double()
    wide = dataclasses.replace(scenes(30), images=scenes(30).images.double(), points=scenes(30).points.double())
    scene_, sets = network.encoder.start(wide, network.embed, network.pillars)

    def attend(x):
        return network.encoder.blocks[1](x, sets[1])

    assert torch.autograd.gradcheck(attend, scene_.tokens.detach().requires_grad_(), atol=1e-4, fast_mode=True)


@torch.no_grad()
def test_float64_agrees_and_sixteen_bit_is_near():
    network, batch = tiny(), scenes(150, 80)
    exact = tiny().double().forward_raw(batch)
    found = network.forward_raw(batch)
    assert exact.heatmap.dtype == torch.float64
    torch.testing.assert_close(found.heatmap, exact.heatmap.float(), atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        near = network.forward_raw(batch)
    assert near.heatmap.dtype == near.boxes.dtype == torch.float32
    error = (near.heatmap - found.heatmap).abs().mean()
    assert 0 < error < 0.2 * found.heatmap.std()  # On the CPU autocast keeps norms and sums in 16 bit too.
    half = tiny().to(torch.bfloat16).forward_raw(batch.to(dtype=torch.bfloat16))
    assert (half.heatmap - found.heatmap).abs().mean() < 0.2 * found.heatmap.std()


@pytest.mark.parametrize("height_width", [(32, 48), (64, 40)])
@torch.no_grad()
def test_other_image_sizes(height_width):
    network, batch = tiny(), scenes(60)
    images = torch.randn(1, CAMERAS, 3, *height_width)
    assert len(network(dataclasses.replace(batch, images=images))) == 1
    with pytest.raises(DataError, match="multiples of the patch, 8 pixels; got 30 x 48"):
        network(dataclasses.replace(batch, images=torch.randn(1, CAMERAS, 3, 30, 48)))


def test_bad_batches_are_refused():
    network, batch = tiny(), scenes(20)
    with pytest.raises(DataError, match="take a DrivingBatch"):
        network(batch.images)
    with pytest.raises(DataError, match="need 5 numbers"):
        network(dataclasses.replace(batch, points=batch.points[:, :4]))


@torch.no_grad()
def test_features_after_chosen_blocks():
    network, batch = tiny(), scenes(80, 30)
    final, kept = network.forward_intermediates(batch, norm=True)
    assert len(kept) == 4 and torch.equal(final, network.forward_features(batch))
    assert torch.equal(kept[-1].tokens, network.forward_tokens(batch).tokens)
    final, (second,) = network.forward_intermediates(batch, [1], stop_early=True)
    assert final is None and torch.equal(network.encoder.norm(second.tokens), kept[1].tokens)
    with pytest.raises(ConfigError, match="output='tokens'"):
        network.forward_intermediates(batch, output="grid")
    with pytest.raises(ConfigError, match="block indices"):
        network.forward_intermediates(batch, [4])


@torch.no_grad()
def test_larger_windows_by_extension():
    config = tiny_config("rope", encoding_options={"base": 100.0})
    network = registry.architecture(config).build(config).eval()
    batch = scenes(80)
    before = network.forward_features(batch)
    network.extend(PositionInterpolation(2))
    assert (network.forward_features(batch) - before).abs().max() > 1e-5
    network.extend(None)
    assert torch.equal(network.forward_features(batch), before)
    assert registry.architecture(config).trained_extent(config) == (8.0, 8.0)


def test_what_every_model_offers(tmp_path):
    config = tiny_config()
    network = registry.architecture(config).build(config).eval()
    batch = scenes(80)
    with torch.no_grad():
        features = network.forward_features(batch)
        assert features.shape == (1, 16, 15, 10)
        same(network.forward_head(features), network.forward_raw(batch))
        assert network.forward_head(features, pre_logits=True) is features
    zoo.save(network, tmp_path / "saved")
    loaded = zoo.load(f"local-dir:{tmp_path / 'saved'}")
    assert loaded.data_config == network.data_config and loaded.config == network.config
    with torch.no_grad():
        for one, other in zip(
            vars(loaded.forward_raw(batch)).values(), vars(network.forward_raw(batch)).values(), strict=True
        ):
            assert torch.equal(one, other)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["labels"] == LABELS

    other = zoo.load(f"local-dir:{tmp_path / 'saved'}", num_classes=5)
    assert other.num_classes == 5 and other.config["labels"] is None
    with torch.no_grad():
        assert other.forward_raw(batch).heatmap.shape[1] == 5
        assert torch.equal(other.forward_features(batch), features)
    zoo.save(other, tmp_path / "other")
    assert zoo.load(f"local-dir:{tmp_path / 'other'}").num_classes == 5
    with pytest.raises(ConfigError, match="num_classes from 1"):
        network.reset_classifier(0)

    names = dict(network.named_parameters())
    assert network.no_weight_decay() <= set(names)
    assert any("encoding" in name for name in network.no_weight_decay())
    from timm.models import group_parameters

    groups = group_parameters(network, network.group_matcher())
    assert sorted(name for group in groups.values() for name in group) == sorted(names) and len(groups) == 10
