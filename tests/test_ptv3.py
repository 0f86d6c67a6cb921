"""Point Transformer V3: shapes, independence of clouds, odd inputs, gradients, and what every model offers."""

import itertools

import pytest
import torch
from ptv3_toys import cloud, clouds, tiny, tiny_config

import zoo
from modalities.points import PointBatch, PointClassifier, PointSegmenter
from modalities.points.presets import PTV3_ENCODINGS
from modalities.points.ptv3_blocks import PointBatchNorm, cloud_pool
from modalities.points.ptv3_config import PTv3Config
from modalities.points.ptv3_geometry import curve_schedule, patch_lengths
from zoo import ConfigError, DataError, registry

TASKS = ("classification", "segmentation")
ODD = {
    "an empty cloud": clouds(0, 30),
    "nothing at all": clouds(0, 0),
    "one point": clouds(1),
    "single points": clouds(1, 1, 1),
    "all in one voxel": PointBatch.from_clouds([(cloud(9)[0] * 1e-3 + 0.2, cloud(9)[1])]),
}


def rows(network, batch, number):
    """What a network gives for one cloud of a batch."""
    out = network(batch)
    if isinstance(network, PointClassifier):
        return out[number]
    return out[batch.offsets[number] : batch.offsets[number + 1]]


@pytest.mark.parametrize(("task", "encoding"), [*itertools.product(TASKS, PTV3_ENCODINGS)])
def test_a_cloud_does_not_depend_on_the_others(task, encoding):
    network = tiny(task, encoding=encoding)
    batch = clouds(40, 0, 150, 1, 33)
    with torch.no_grad():
        for number in range(len(batch)):
            alone = rows(network, batch.cloud(number), 0)
            torch.testing.assert_close(rows(network, batch, number), alone, atol=2e-6, rtol=1e-5)
        assert network(batch).std(0).min() > 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_moving_a_cloud_by_whole_voxels_changes_nothing(task):
    network = tiny(task)
    batch = clouds(80, 30)
    moved = PointBatch(batch.xyz + torch.tensor([-16.0, 32.0, 8.0]), batch.features, batch.offsets)
    with torch.no_grad():
        torch.testing.assert_close(network(moved), network(batch), atol=1e-5, rtol=1e-4)


def test_absolute_position_is_there_when_asked_for():
    network = tiny(encoding="sincos+pape")
    batch = clouds(80)
    moved = PointBatch(batch.xyz + torch.tensor([0.0, 0.0, 8.0]), batch.features, batch.offsets)
    with torch.no_grad():
        assert (network(moved) - network(batch)).abs().max() > 1e-3


def test_the_order_of_points_does_not_matter():
    network, batch = tiny("segmentation"), clouds(120)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    mixed = PointBatch(batch.xyz[order], batch.features[order], batch.offsets)
    with torch.no_grad():
        torch.testing.assert_close(network(mixed), network(batch)[order], atol=1e-5, rtol=1e-4)


def test_attention_sees_beyond_the_convolution():
    """A point far from the others, in their patch, moves their logits by attention alone."""
    network = tiny("segmentation", channels=[16], depths=[1], decoder_channels=[], decoder_depths=[], patch_size=64)
    near, features = cloud(20, extent=(0.5, 0.5, 0.5))
    one, two = (
        PointBatch.from_clouds(
            [(torch.cat([near, torch.tensor([[x, 0.0, 0.0]])]), torch.cat([features, features[:1]]))]
        )
        for x in (40.0, 60.0)
    )
    with torch.no_grad():
        assert (network(one)[:20] - network(two)[:20]).abs().max() > 1e-6
        network.encoder[0][0].block.attn.proj.weight.zero_()
        assert torch.equal(network(one)[:20], network(two)[:20])


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("task", TASKS)
def test_odd_inputs_are_finite_and_reach_every_parameter(task, name):
    batch = ODD[name]
    network = tiny(task, head_dims=[8] if task == "classification" else [], pool="mean+max").train()
    out = network(batch)
    assert out.shape == ((len(batch) if task == "classification" else len(batch.xyz)), 5) and out.isfinite().all()
    out.sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
    assert all(value.isfinite().all() for value in network.state_dict().values())
    with torch.no_grad():
        assert network.eval()(batch).isfinite().all()


@pytest.mark.parametrize("encoding", PTV3_ENCODINGS)
def test_every_parameter_learns(encoding):
    network = tiny("segmentation", encoding=encoding).train()
    batch = clouds(150, 90)
    network(batch).square().mean().backward()
    still = [key for key, parameter in network.named_parameters() if not parameter.grad.abs().sum() > 0]
    biases = ("unpools", "pools", "linear.bias", "conv.bias", "qkv.bias")  # Of a key, or in front of a norm: cancel.
    assert [key for key in still if not any(part in key for part in biases)] == []


def test_gradients_by_differences():
    network = tiny("segmentation", patch_size=4).double()
    batch = clouds(8, 5).to(dtype=torch.float64)

    def run(features):
        return network(PointBatch(batch.xyz, features, batch.offsets))

    assert torch.autograd.gradcheck(run, batch.features.clone().requires_grad_(), atol=1e-4, fast_mode=True)


def test_orders_are_shuffled_in_training_alone_and_by_the_generator():
    network, batch = tiny("segmentation", drop_path=0.0), clouds(200)
    with torch.no_grad():
        assert torch.equal(network(batch), network(batch))
        network.train()
        for module in network.modules():
            if isinstance(module, PointBatchNorm):
                module.eval()
        seeded = [network(batch, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
        assert torch.equal(seeded[0], seeded[1]) and not torch.allclose(seeded[0], seeded[2], atol=1e-5)
        torch.manual_seed(3)
        first = network(batch)
        torch.manual_seed(3)
        assert torch.equal(network(batch), first)


def test_curves_are_taken_in_turn():
    assert curve_schedule([1, 2, 2], None, False) == [[0, 1, 2, 3], [1, 2, 3, 0], [3, 0, 1, 2]]
    drawn = curve_schedule([1] * 50, torch.Generator().manual_seed(0), True)
    assert all(sorted(row) == [0, 1, 2, 3] for row in drawn) and len({tuple(row) for row in drawn}) > 10


@pytest.mark.parametrize("voxels", [1, 7, 8, 9, 100, 1001])
def test_patches_are_few_and_equal(voxels):
    lengths = patch_lengths(voxels, 8)
    assert sum(lengths) == voxels and len(lengths) == -(-voxels // 8) and max(lengths) - min(lengths) <= 1
    assert patch_lengths(0, 8) == []


def test_coordinates_are_in_voxels_of_the_stage_around_the_middle_of_each_patch():
    network, batch = tiny(), clouds(100, 30)
    geometry = network.geometry(batch)
    for stage, level in enumerate(geometry.levels):
        serial = geometry.serial(stage, 0)
        offsets = serial.coords.cu_seqlens.tolist()
        xyz = serial.arrange(level.xyz)
        assert len(offsets) > 2 and torch.equal(serial.restore(xyz), level.xyz)
        for a, b in itertools.pairwise(offsets):
            low, high = xyz[a:b].amin(0), xyz[a:b].amax(0)
            expected = (xyz[a:b] - (low + high) / 2) / (0.5 * 2**stage)
            torch.testing.assert_close(serial.coords.values[a:b], expected, atol=1e-5, rtol=0)
        reach = serial.coords.values.abs().amax(0)
        torch.testing.assert_close(torch.tensor([high for _, high in serial.coords.bounds]), reach, atol=1e-5, rtol=0)


def test_the_published_sizes():
    # 46.2 M parameters, as the authors' repository lists for ScanNet.
    entry = registry.entry("none-ptv3-b-scannet")
    assert 46.1e6 < entry.parameters < 46.3e6
    config = entry.config["model"]
    assert config["channels"] == [32, 64, 128, 256, 512] and config["depths"] == [2, 2, 2, 6, 2]
    assert config["decoder_channels"] == [64, 64, 128, 256] and config["decoder_depths"] == [2, 2, 2, 2]
    assert registry.entry("pape-ptv3-n-modelnet10").parameters < 1.4e6
    assert registry.entry("pape-ptv3-n-als3").parameters < 1.4e6


@pytest.mark.parametrize("name", [name for name in zoo.list_models("*pape-ptv3-n-*")])
def test_small_registered_models_run(name):
    model = zoo.load(name, pretrained=False)
    entry = registry.entry(name)
    assert model.config == entry.config and model.load_report.source == "random"
    generator = torch.Generator().manual_seed(0)
    scale = 20.0 if "als3" in name else 1.0
    batch = PointBatch.from_clouds(
        [
            (
                (torch.rand(n, 3, generator=generator) * 2 - 1) * scale,
                torch.randn(n, model.sizes.in_chans, generator=generator),
            )
            for n in (200, 60)
        ]
    )
    with torch.no_grad():
        out = model(batch)
    classes = entry.config["model"]["num_classes"]
    assert out.shape == ((2, classes) if entry.task == "classification" else (260, classes))
    assert not model.training and out.isfinite().all()


@pytest.mark.parametrize("task", TASKS)
def test_saving_and_loading_gives_the_same_bits(task, tmp_path):
    network = tiny(task)
    network.train()(clouds(60, 50))  # Running statistics that are not those of the start.
    network.eval()
    zoo.save(network, tmp_path / "model")
    again = zoo.load(f"local-dir:{tmp_path / 'model'}")
    batch = clouds(50, 20)
    with torch.no_grad():
        assert torch.equal(again(batch), network(batch))
        half = zoo.save(network, tmp_path / "half", dtype="float16")
        rounded = zoo.load(f"local-dir:{half}")(batch)
        torch.testing.assert_close(rounded, network(batch), atol=0.05, rtol=0.05)
    assert again.config == network.config and type(again) is type(network)


def test_another_number_of_classes(tmp_path):
    network = tiny(head_dims=[8])
    zoo.save(network, tmp_path / "model")
    other = zoo.load(f"local-dir:{tmp_path / 'model'}", num_classes=7)
    assert other(clouds(9)).shape == (1, 7) and other.config["model"]["num_classes"] == 7
    assert "re-initialised" in other.load_report.adapted[0]
    bare = zoo.load(f"local-dir:{tmp_path / 'model'}", num_classes=0)
    with torch.no_grad():
        assert torch.equal(bare(clouds(9)), network.forward_head(network.forward_features(clouds(9)), pre_logits=True))
    with pytest.raises(ConfigError, match="channels of a point model cannot be adapted"):
        zoo.load(f"local-dir:{tmp_path / 'model'}", in_chans=4)
    with pytest.raises(ConfigError, match="segmenter needs num_classes from 1"):
        tiny("segmentation").reset_classifier(0)


def test_intermediate_features():
    network, batch = tiny("segmentation"), clouds(60, 20)
    with torch.no_grad():
        final, stages = network.forward_intermediates(batch)
        logits = network.forward_head(final)
        assert torch.equal(logits, network(batch))
        assert [one.features.shape[1] for one in stages] == [16, 32, 32, 16, 16]
        assert all(len(one.features) == len(one.level) for one in stages)
        none, few = network.forward_intermediates(batch, [1, -5], stop_early=True)
        assert (
            none is None
            and torch.equal(few[0].features, stages[1].features)
            and len(few[1].level) == len(stages[0].level)
        )
        assert network.forward_head(final, pre_logits=True).shape == (80, 16)
    with pytest.raises(ConfigError, match="output='tokens'"):
        network.forward_intermediates(batch, output="grid")


def test_groups_of_parameters():
    from timm.models import group_parameters

    network = tiny("segmentation", encoding="sincos+pape")
    names = {key for key, _ in network.named_parameters()}
    assert network.no_weight_decay() <= names and len(network.no_weight_decay()) == 6
    for coarse in (False, True):
        matched = group_parameters(network, network.group_matcher(coarse))
        assert {name for group in matched.values() for name in group} == names


def test_checkpointing_changes_no_gradient():
    batch, found = clouds(60, 20), []
    for enable in (False, True):
        network = tiny("segmentation").train()
        network.set_grad_checkpointing(enable)
        network(batch, torch.Generator().manual_seed(0)).square().sum().backward()
        found.append([parameter.grad for parameter in network.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_autocast_and_16_bit():
    network, batch = tiny("segmentation"), clouds(80, 30)
    with torch.no_grad():
        expected = network(batch)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(network(batch).float(), expected, atol=0.15, rtol=0.1)
        low = network.bfloat16()(batch)
    assert low.dtype == torch.bfloat16 and (low.float() - expected).abs().max() < 0.5


def test_batch_norm_of_few_rows():
    norm = PointBatchNorm(2)
    norm.running_mean.fill_(1.0)
    x = torch.tensor([[3.0, 1.0]])
    torch.testing.assert_close(norm(x), torch.tensor([[2.0, 0.0]]), atol=2e-3, rtol=0)
    assert norm.running_mean.tolist() == [1.0, 1.0] and norm(x[:0]).shape == (0, 2)
    many = torch.randn(30, 2)
    torch.testing.assert_close(norm(many).std(0, correction=0), torch.ones(2), atol=1e-2, rtol=0)
    assert norm.running_mean.tolist() != [1.0, 1.0]


def test_pooling_of_clouds():
    x = torch.tensor([[1.0], [3.0], [-5.0]], requires_grad=True)
    starts = torch.tensor([0, 2, 2, 3])
    assert cloud_pool(x, starts, "mean").tolist() == [[2.0], [0.0], [-5.0]]
    pooled = cloud_pool(x, starts, "max")
    pooled.sum().backward()
    assert pooled.tolist() == [[3.0], [0.0], [-5.0]] and x.grad.tolist() == [[0.0], [1.0], [1.0]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(3, 3), "take a PointBatch"),
        (PointBatch(torch.zeros(0, 3), torch.zeros(0, 3), torch.tensor([0])), "at least one cloud"),
        (PointBatch.from_clouds([(torch.zeros(2, 3), torch.zeros(2, 4))]), r"need 3 features \(xyz\)"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(DataError, match=message):
        tiny()(inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": [16, 24, 32]}, "multiples of head_dim 16"),
        ({"depths": [1, 1]}, "same number of stages"),
        ({"channels": "16"}, "list of at most 8"),
        ({"depths": [1, True, 1]}, "whole numbers from 1 to 64"),
        ({"decoder_channels": [16]}, "a decoder of an encoder with 3 stages has 2"),
        ({"decoder_channels": [16, 16], "decoder_depths": [1, 1]}, "classifier has no decoder"),
        ({"pool": "sum"}, "mean, mean.max"),
        ({"stem_kernel": 4}, "odd"),
        ({"head_dropout": 1.0}, "head_dropout"),
        ({"patch_size": 0}, "patch_size"),
        ({"encoding": "papa"}, "pape"),
        ({"in_chans": 4}, "must agree"),
    ],
)
def test_configurations_that_cannot_be_used(change, message):
    config = tiny_config(**change)
    with pytest.raises(ConfigError, match=message):
        registry.architecture(config).build(config)


def test_a_segmenter_needs_a_decoder_and_voxels():
    config = tiny_config("segmentation", decoder_channels=[], decoder_depths=[])
    with pytest.raises(ConfigError, match="segmenter needs a decoder"):
        registry.architecture(config).build(config)
    config = tiny_config()
    config["data"]["grid_size"] = 0
    with pytest.raises(ConfigError, match="grid_size must be above 0"):
        registry.architecture(config).build(config)
    assert PTv3Config.from_dict(PTv3Config(**tiny_config()["model"]).to_dict()).channels == [16, 32, 32]
    assert issubclass(PointSegmenter, torch.nn.Module)
