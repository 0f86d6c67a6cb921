"""Video classifiers: registered ones, tubelets, lengths and inputs that cannot be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from saved_models import randomise
from video_models import ENCODINGS, LENGTHS, VARIANTS, clips, logits, sequences, video_model, with_nan

import zoo
from modalities.video import VideoDataConfig
from zoo import registry

SMALL = zoo.list_models("*-video-vit-n-*")


# ---- the registry


@pytest.mark.parametrize("name", SMALL)
def test_every_small_entry_builds_and_runs(name):
    model = zoo.load(name, pretrained=False)
    randomise(model)
    patch, config = model.patch_size, registry.entry(name).config
    found = logits(model, torch.rand(2, 3, 4, 2 * patch, 3 * patch), torch.tensor([2, 0]))
    assert found.shape == (2, config["model"]["num_classes"]) and torch.isfinite(found).all() and found.std() > 1e-3
    assert model.config == config and model.data_config.to_dict() == config["data"]
    assert not model.training and model.load_report.source == "random"
    assert model.data_config.tubelet == model.embed.tubelet


def test_registered_settings():
    released = registry.entry("pape-video-vit-b-ucf101")
    model, data = released.config["model"], VideoDataConfig.from_dict(released.config["data"])
    assert released.weights == "release" and released.config["labels"] is None
    assert (model["coordinate_origin"], model["class_token_position"]) == (1, "origin")
    assert (data.input_size, data.frames, data.tubelets, data.frame_step) == ((3, 240, 320), 10, 5, 10)
    assert (data.sampling, data.pixel_range, data.duration_s) == ("released-ucf101", "bytes", None)
    labels = registry.entry("rope-video-vit-n-ucf101").config["labels"]
    assert len(set(labels)) == 101 and (labels[0], labels[35], labels[100]) == ("ApplyEyeMakeup", "HammerThrow", "YoYo")
    motion = registry.entry("pape-video-vit-t-imagenette-motion").config
    data = VideoDataConfig.from_dict(motion["data"])
    assert len(motion["labels"]) == 10 and (data.frames, data.duration_s) == (16, 1.0)
    assert motion["model"]["time_unit_s"] == data.tubelet / data.frame_rate


# ---- tubelets and their coordinates


def test_the_embedding_is_the_convolution():
    model = video_model()
    batch = clips(2, 6, 12, 8)
    expected = F.conv3d(batch, model.embed.proj.weight, model.embed.proj.bias, stride=(2, 4, 4))
    torch.testing.assert_close(model.embed(batch), expected.flatten(2).transpose(1, 2), rtol=0, atol=1e-5)


def test_tokens_run_by_time_then_row_then_column():
    model = video_model(coordinate_origin=1, class_token_position="origin")
    coords = sequences(model, clips(1, 4, 8, 12)).coords
    expected = [[0.0] * 3] + [[t, row, column] for t in (1, 2) for row in (1, 2) for column in (1, 2, 3)]
    assert coords.values[0].tolist() == expected and coords.integral and coords.prefix == 1
    assert coords.bounds == ((0.0, 2.0), (0.0, 2.0), (0.0, 3.0))
    assert coords.space().values[0].tolist() == [[0, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]
    assert coords.time(prefix=True).values.flatten().tolist() == [0, 1, 2]
    assert coords.time(prefix=False).values.flatten().tolist() == [1, 2]
    placed = coords.with_prefix(1).time(prefix=True)  # A prefix without a position in front of one with.
    assert placed.positioned.tolist() == [[False, True, True, True]]


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_where_a_clip_begins_does_not_matter(attention, pool):
    # A rotary encoding has a class token without position stand at the origin.
    for encoding in ("pape", "alibi", *(["rope"] if pool == "mean" else [])):
        shape = {"attention": attention, "pool": pool, "encoding": encoding}
        found = [logits(video_model(**shape, coordinate_origin=origin), clips(1)) for origin in (0, 1)]
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_order_matters_to_encodings_alone(attention, pool):
    """Along time, along rows and along columns."""
    batch = clips(1).double()
    for encoding, moves in (("pape", True), ("none", False)):
        model = video_model(attention=attention, pool=pool, encoding=encoding).double()
        expected = logits(model, batch)
        for axis, size in ((2, 2), (3, 4), (4, 4)):  # Whole tubelets change places.
            parts = batch.split(size, dim=axis)
            turned = torch.cat([parts[1], parts[0], *parts[2:]], dim=axis)
            change = (logits(model, turned) - expected).abs().max()
            assert change > 1e-7 if moves else change < 1e-12


# ---- lengths


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_changes_nothing(attention, pool, encoding):
    position = "origin" if pool == "token" else None
    model = video_model(attention=attention, pool=pool, encoding=encoding, class_token_position=position)
    batch = with_nan(clips())
    together = logits(model, batch, LENGTHS)
    assert together.std() > 1e-2 and torch.isfinite(together).all()
    for row, length in enumerate(LENGTHS.tolist()):
        one = batch[row : row + 1, :, : 2 * max(length, 1)]
        alone = logits(model, one, None if length else torch.tensor([0]))
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize("lengths", [LENGTHS, torch.tensor([0, 0, 0])])
def test_every_parameter_has_a_finite_gradient(attention, pool, lengths):
    model = video_model(attention=attention, pool=pool).train()
    model(with_nan(clips(), lengths), lengths).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() for g in gradients.values())
    if lengths.any():  # The class token has no position, so that where the head is on it nothing moves the last bias.
        still = {name for name, g in gradients.items() if not g.any()}
        assert not {name for name in still if ".encoding." not in name}
        assert not {name for name in still if "blocks.0." in name}


def test_the_mean_is_that_of_real_tokens():
    model = video_model(pool="mean")
    batch = with_nan(clips())
    with torch.no_grad():
        features = model.forward_features(batch, LENGTHS)
        pooled = model.forward_head(features, pre_logits=True)
    torch.testing.assert_close(pooled[2], features[2, :6].mean(dim=0), rtol=0, atol=1e-6)
    assert not pooled[1].any() and torch.equal(logits(model, batch, LENGTHS)[1], model.head.bias)


def test_lengths_may_be_int32_and_full():
    model = video_model()
    full = torch.full((3,), 5, dtype=torch.int32)
    torch.testing.assert_close(logits(model, clips(), full), logits(model, clips()), rtol=0, atol=1e-5)


# ---- other sizes


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize(("frames", "height", "width"), [(2, 4, 4), (22, 8, 12), (10, 28, 4)])
def test_any_length_and_size(attention, pool, frames, height, width):
    model = video_model(attention=attention, pool=pool)
    found = logits(model, clips(2, frames, height, width))
    assert found.shape == (2, 3) and torch.isfinite(found).all()


# ---- inputs that cannot be


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], r"clips must be a tensor \(B, 3, T, H, W\), got list"),
        (torch.rand(1, 3, 8, 12), r"clips must have shape \(B, 3, T, H, W\), got \(1, 3, 8, 12\)"),
        (torch.rand(1, 4, 3, 8, 12), r"clips must have shape \(B, 3,"),
        (torch.zeros(1, 3, 2, 8, 12, dtype=torch.uint8), "clips must be floating point"),
        (torch.rand(1, 3, 2, 8, 12).double(), "the model torch.float32"),
        (torch.rand(1, 3, 3, 8, 12), "3 frames do not divide into tubelets of 2 frames"),
        (torch.rand(1, 3, 0, 8, 12), r"0 frames do not divide .*\(0 for a clip without frames\)"),
        (torch.rand(1, 3, 2, 9, 12), r"9 x 12 pixels do not divide into 4 x 4 patches: resize .*8 x 12"),
        (torch.rand(1, 3, 2, 8, 0), "8 x 0 pixels"),
        (torch.rand(0, 3, 2, 8, 12), "at least one clip"),
    ],
)
def test_bad_clips_are_refused(batch, message):
    with pytest.raises(zoo.DataError, match=message):
        video_model()(batch)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 0, 1], r"lengths must be an int64 tensor of shape \(3,\).* got list"),
        (torch.tensor([5, 1]), r"got torch.int64 \(2,\)"),
        (torch.tensor([5.0, 1.0, 0.0]), "got torch.float32"),
        (torch.tensor([5, 6, 0]), "from 0 to 5, got 0 to 6"),
        (torch.tensor([5, -1, 0]), "from 0 to 5, got -1 to 5"),
    ],
)
def test_bad_lengths_are_refused(lengths, message):
    with pytest.raises(zoo.DataError, match=message):
        video_model()(clips(), lengths)


def test_bad_times_are_refused():
    with pytest.raises(zoo.DataError, match="leave times_s out, or load the model with time_unit_s"):
        video_model()(clips(), None, torch.zeros(3, 10))
    model = video_model(time_unit_s=1.0)
    for times in (torch.zeros(3, 5), torch.zeros(3, 10, dtype=torch.int64), [0.0]):
        with pytest.raises(zoo.DataError, match=r"times_s must be a floating-point tensor \(3, 10\)"):
            model(clips(), None, times)
    model.data_config = model.data_config.replace(frame_rate=None)
    with pytest.raises(zoo.DataError, match="data_config.frame_rate is not set: give times_s"):
        model(clips())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coordinate_origin": 2}, "coordinate_origin must be 0 or 1"),
        ({"time_unit_s": 0}, "time_unit_s must be null or"),
        ({"time_unit_s": True}, "time_unit_s must be null or"),
        ({"pool": "max"}, "pool must be one of token, mean"),
        ({"attention": "axial"}, "attention must be one of joint, divided, factorised"),
        ({"tubelet": 0}, "tubelet must be a whole number"),
        ({"tubelet": 3}, "10 frames do not divide into tubelets of 3"),
        ({"temporal_depth": 0}, "temporal_depth must be a whole number"),
        ({"pool": "mean", "class_token_position": "origin"}, "there is no class token"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(zoo.ConfigError, match=message):
        video_model(**changes)


def test_an_encoder_of_clips_needs_their_coordinates():
    encoder = video_model(attention="divided").encoder
    with pytest.raises(zoo.DataError, match="coordinates of a clip"):
        encoder(torch.rand(1, 4, 32), zoo.coordinates.text(4))
