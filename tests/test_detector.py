"""The image detector: levels, raw maps, detections, heads, configuration, saving."""

from __future__ import annotations

import pytest
import torch
from saved_models import randomise

import zoo
from modalities.image.detector import build
from zoo import registry
from zoo.detection.decode import decode, select
from zoo.detection.detections import Detections
from zoo.detection.pyramid import build_pyramid

NAMES = zoo.list_models(task="detection", modality="image")


@pytest.fixture
def config(tiny_config):
    """A detector of a few thousand parameters with three classes, patch 8."""
    tiny_config |= {"task": "detection", "architecture": "vit-det"}
    tiny_config["model"] |= {"pyramid": "simple", "pyramid_dim": 16, "class_width": 12}
    tiny_config["model"] |= {"max_detections": 20, "min_score": 0.0}
    tiny_config["data"] |= {"resize": "letterbox"}
    return tiny_config


def make(config, seed=0):
    torch.manual_seed(seed)
    model = build(config).eval()
    randomise(model, seed)
    return model


def images(rows=4, columns=6, batch=2, seed=0, patch=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, rows * patch, columns * patch, generator=generator)


# ---- shapes


@pytest.mark.parametrize("pyramid", ["simple", "vitdet"])
@pytest.mark.parametrize("patch", [7, 8, 16, 32])
@pytest.mark.parametrize("grid", [(4, 6), (5, 3), (2, 2)])
def test_strides_are_the_real_downsampling(config, pyramid, patch, grid):
    config["model"] |= {"pyramid": pyramid, "patch_size": patch}
    model = make(config)
    rows, columns = grid
    raw = model.forward_raw(images(rows, columns, patch=patch))
    scales = {"simple": (0.5, 1, 2), "vitdet": (0.25, 0.5, 1, 2)}[pyramid]
    assert model.strides == model.head.strides == tuple(patch * scale for scale in scales)
    for branch in ("one2one", "one2many"):
        shapes = [tuple(level.shape) for level in raw[branch]]
        assert shapes == [(2, 67, int(rows // scale), int(columns // scale)) for scale in scales]
        for level, stride in zip(raw[branch], model.strides, strict=True):  # As many whole cells as fit.
            assert level.shape[2:] == (rows * patch // stride, columns * patch // stride)


def test_a_cell_sees_the_place_it_stands_for(config):
    """A change in one patch moves the features of its own cells in the pyramid and no others."""
    pyramid = build_pyramid("simple", 8, 16, 8)
    grid = torch.randn(1, 8, 4, 6)
    moved = grid.clone()
    moved[:, :, 2, 5] += 1
    for level, after, cells in zip(
        pyramid(grid), pyramid(moved), [(4, 6, 10, 12), (2, 3, 5, 6), (1, 2, 2, 3)], strict=True
    ):
        changed = (level != after).any(dim=1)[0]
        expected = torch.zeros_like(changed)
        expected[cells[0] : cells[1], cells[2] : cells[3]] = True
        assert torch.equal(changed, expected)


def test_grids_without_a_coarsest_level_are_refused(config):
    with pytest.raises(zoo.DataError, match="2 x 2 patches or more, got 1 x 6"):
        make(config)(images(1, 6))


@pytest.mark.parametrize("bad", [[[1.0]], torch.rand(3, 16, 16), torch.rand(1, 4, 16, 16), torch.rand(0, 3, 16, 16)])
def test_bad_inputs_are_refused(config, bad):
    with pytest.raises(zoo.DataError):
        make(config)(bad)


# ---- decoding


def test_all_pairs_compete_and_rows_are_padded(config):
    config["model"]["max_detections"] = 1000
    model = make(config)
    with torch.no_grad():
        found = model(images(2, 2))
        boxes, scores = decode(model.forward_raw(images(2, 2))["one2one"], model.strides)
    assert found.tensor.shape == (2, 1000, 6)
    pairs = (16 + 4 + 1) * 3
    kept = found.tensor[0, :pairs]
    assert not found.tensor[:, pairs:].any()
    assert torch.equal(kept[:, 4], scores[0].flatten().sort(descending=True).values)
    assert sorted(map(tuple, kept[:, :4].tolist())) == sorted(map(tuple, boxes[0].repeat_interleave(3, 0).tolist()))


def test_detections_of_a_picture_do_not_depend_on_the_batch(config):
    model = make(config)
    pictures = images(batch=3)
    with torch.no_grad():
        together, alone = model(pictures).tensor[1:2], model(pictures[1:2]).tensor
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)


def test_training_gives_the_raw_maps_and_evaluation_the_one2one_branch(config):
    model = make(config)
    for parameter in model.head.cv3.parameters():
        parameter.data.add_(1.0)  # The branch that must not count.
    with torch.no_grad():
        found = model(images())
        expected = select(*decode(model.forward_raw(images())["one2one"], model.strides), 20, 0.0)
    assert isinstance(found, Detections) and torch.equal(found.tensor, expected)
    assert set(model.train()(images())) == {"one2one", "one2many"}


def test_the_one2one_branch_does_not_train_the_backbone(config):
    model = make(config).train()
    raw = model(images())
    sum(level.sum() for level in raw["one2one"]).backward(retain_graph=True)
    assert all(p.grad is None for name, p in model.named_parameters() if not name.startswith("head.one2one"))
    sum(level.square().sum() for level in raw["one2many"]).backward()
    assert all(p.grad is not None for p in model.parameters())


# ---- heads and configuration


def test_another_number_of_classes_covers_both_branches(config, tmp_path):
    config["labels"] = ["a", "b", "c"]
    zoo.save(make(config), tmp_path / "model")
    model = zoo.load(f"local-dir:{tmp_path / 'model'}", num_classes=7)
    assert model.num_classes == model.config["model"]["num_classes"] == 7
    assert model.config["labels"] is None and "3 -> 7 classes" in model.load_report.adapted[0]
    raw = model.forward_raw(images())
    assert {level.shape[1] for maps in raw.values() for level in maps} == {64 + 7}
    for towers in (model.head.cv3, model.head.one2one_cv3):
        for tower, stride in zip(towers, model.strides, strict=True):
            assert not tower[-1].weight.any()
            odds = 5 / (7 * (640 / stride) ** 2)
            assert tower[-1].bias.sigmoid().tolist() == pytest.approx([odds] * 7, rel=1e-4)
    zoo.save(model, tmp_path / "again")
    assert zoo.load(f"local-dir:{tmp_path / 'again'}").num_classes == 7
    for wrong in (0, -1, True, "x", 10**9):
        with pytest.raises(zoo.ConfigError, match="num_classes"):
            model.reset_classifier(wrong)


def test_a_classifier_gives_its_backbone(config, tiny_config):
    from modalities.image.model import build as build_classifier

    parts = ("pyramid", "pyramid_dim", "class_width", "max_detections", "min_score")
    model = {key: value for key, value in tiny_config["model"].items() if key not in parts}
    classifier = build_classifier({**tiny_config, "model": model})
    randomise(classifier, 5)
    detector, before = make(config), make(config).state_dict()
    detector.load_backbone(classifier)
    source = classifier.state_dict()
    for key, value in detector.state_dict().items():
        backbone = key.startswith(("embed.", "encoder."))
        assert torch.equal(value, source[key] if backbone else before[key]), key
    config["model"]["depth"] = 3
    with pytest.raises(zoo.WeightsError, match="missing: encoder.blocks.2"):
        make(config).load_backbone(classifier)


def test_mixed_precision_and_float64(config):
    model = make(config)
    with torch.no_grad():
        expected = model(images()).tensor
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(images()).tensor
        precise = model.double()(images().double()).tensor
    assert mixed.dtype == torch.float32 and precise.dtype == torch.float64
    assert (mixed[..., 4] - expected[..., 4]).abs().max() < 0.05
    torch.testing.assert_close(precise.float()[..., 4], expected[..., 4], rtol=1e-4, atol=1e-5)


def test_classifiers_only(config):
    import numpy as np

    from zoo.evaluate import evaluate

    with pytest.raises(zoo.ConfigError, match="accuracy is for classifiers; this is a model for detection"):
        evaluate(make(config), torch.zeros(1, 3, 32, 32, dtype=torch.uint8), np.zeros(1, np.int64), [32])


def test_the_bias_of_the_encoding_can_be_shown(config):
    from zoo.viz import position_bias

    assert position_bias(make(config), images(batch=1)).shape == (2, 2, 4, 6)


def test_saving_and_loading_is_bitwise(config, tmp_path):
    model = make(config)
    model.train()(images())  # Running statistics away from their start.
    model.eval()
    zoo.save(model, tmp_path / "model")
    again = zoo.load(f"local-dir:{tmp_path / 'model'}")
    with torch.no_grad():
        assert torch.equal(again(images()).tensor, model(images()).tensor)
    assert again.config == model.config
    assert not any("num_batches" in key for key in model.state_dict())
    grey = zoo.load(f"local-dir:{tmp_path / 'model'}", in_chans=1)
    assert grey(images()[:, :1]).tensor.shape == (2, 20, 6)
    half = zoo.load(f"local-dir:{tmp_path / 'model'}", dtype="bfloat16")
    assert half(images().bfloat16()).tensor.dtype == torch.float32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pyramid", "feature"), ("pyramid", None), ("pyramid_dim", 0), ("pyramid_dim", 2.0), ("class_width", -1),
        ("class_width", 10**9), ("max_detections", 0), ("min_score", 1.0), ("min_score", float("nan")),
        ("num_classes", 0), ("class_token_position", "origin"), ("dim", -1),
    ],
)  # fmt: skip
def test_hostile_values_are_refused(config, key, value):
    config["model"][key] = value
    with pytest.raises(zoo.ConfigError, match=key):
        registry.architecture(config).count_parameters(config["model"])
        build(config)


def test_missing_keys_are_named(config):
    del config["model"]["class_width"], config["model"]["pyramid_dim"]
    with pytest.raises(zoo.ConfigError, match="missing class_width, pyramid_dim"):
        build(config)


@pytest.mark.parametrize("pyramid", ["simple", "vitdet"])
@pytest.mark.parametrize("width", [8, 300])
def test_parameters_are_counted_without_torch(config, pyramid, width):
    config["model"] |= {"pyramid": pyramid, "pyramid_dim": width, "num_classes": 5, "class_width": 9}
    config["labels"] = None
    with torch.device("meta"):
        model = build(config)
    expected = registry.architecture(config).count_parameters(config["model"])
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if "-det-n-" in name])
def test_every_small_entry_builds_and_runs(name):
    model = zoo.load(name, pretrained=False)
    with torch.no_grad():
        found = model(torch.rand(1, 3, 64, 96))
    assert found.tensor.shape == (1, 100, 6) and found.tensor.isfinite().all()
    assert model.config == registry.entry(name).config
    assert registry.architecture(model.config).trained_extent(model.config) == (
        (40.0, 30.0) if "bccd" in name else (40.0, 40.0)
    )


def test_labels_of_coco_are_at_their_category_ids():
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights

    labels = registry.entry("pape-vit-det-b-coco").config["labels"]
    theirs = FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    unused = {0: "unused 0"} | {index: f"unused {index}" for index, name in enumerate(theirs) if name == "N/A"}
    assert labels == [unused.get(index, name) for index, name in enumerate(theirs)]
    assert len(labels) - len(unused) == 80


def test_intermediates(config):
    model = make(config)
    picture = images(2, 3)
    final, every = model.forward_intermediates(picture, norm=True, output="grid")
    assert torch.equal(final, model.forward_features(picture)) and torch.equal(every[-1], final)
    assert every[0].shape == (2, 32, 2, 3)
    stopped, (first,) = model.forward_intermediates(picture, [0], norm=True, stop_early=True)
    assert stopped is None and torch.equal(first, every[0].flatten(2).transpose(1, 2))
    levels = model.forward_head(final, pre_logits=True)
    assert [level.shape[1] for level in levels] == [16] * 3
    with pytest.raises(zoo.ConfigError, match="tokens"):
        model.forward_intermediates(picture, output="NCHW")


@pytest.mark.parametrize("encoding", ["pape", "learned", "sincos+pape"])
def test_groups_cover_every_parameter(config, encoding):
    from timm.models._manipulate import group_parameters

    config["model"] |= {"encoding": encoding, "encoding_options": {}}
    model = make(config)
    for coarse in (False, True):
        layers = group_parameters(model, model.group_matcher(coarse), reverse=True)
        assert set(layers) == {name for name, _ in model.named_parameters()}
        assert layers["embed.proj.weight"] < layers["encoder.blocks.0.norm1.weight"]
        assert layers["head.cv2.0.2.weight"] >= layers["encoder.norm.weight"] > layers["encoder.blocks.0.norm1.weight"]
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


def test_checkpointed_gradients_are_the_same(config):
    model = make(config).train()
    grads = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        sum(level.square().mean() for level in model(images())["one2many"]).backward()
        grads.append(model.embed.proj.weight.grad.clone())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_detector_compiles_without_a_break(config, dynamic):
    model = make(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=dynamic)
    with torch.no_grad():
        for grid in ((3, 4), (5, 2)) if dynamic else ((3, 4),):
            found, expected = compiled(images(*grid)), model(images(*grid))
            torch.testing.assert_close(found.tensor, expected.tensor)
            assert found.input_size == expected.input_size == (8 * grid[0], 8 * grid[1])


@pytest.mark.slow
def test_detect_exports_with_dynamic_sizes(config):
    class Detect(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, pictures):
            return self.model.detect(pictures)

    model = make(config)
    rows, columns = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("columns", min=2, max=64)
    exported = torch.export.export(
        Detect(model), (images(4, 6),), dynamic_shapes=({2: 8 * rows, 3: 8 * columns},), strict=False
    ).module()
    with torch.no_grad():
        for grid in ((4, 6), (7, 5)):
            torch.testing.assert_close(exported(images(*grid)), model.detect(images(*grid)))
