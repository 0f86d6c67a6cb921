"""Video classifiers: tubelets, padding, clocks, attention over space and time apart, and timm's manners."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from saved_models import load, randomise
from video_models import VARIANTS, clips, video_model

import zoo
from modalities.video import VideoDataConfig
from modalities.video.axes import for_axes
from modalities.video.embed import clip_coordinates
from zoo import registry
from zoo.coordinates import Coordinates
from zoo.encodings.extendable import _encodings
from zoo.training.optim import parameter_groups

SMALL = zoo.list_models("*-video-vit-n-*")
ENCODINGS = ("pape", "pape-ri", "rope", "alibi", "sincos", "sincos+pape", "none")
LENGTHS = torch.tensor([5, 0, 1])


def logits(model, *inputs):
    with torch.no_grad():
        return model(*inputs)


def with_nan(batch, lengths=LENGTHS, tubelet=2):
    """The clips with NaN in place of padding."""
    batch = batch.clone()
    for sample, length in zip(batch, lengths.tolist(), strict=True):
        sample[:, length * tubelet :] = float("nan")
    return batch


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
    coords = model._sequences(_packed(clips(1, 4, 8, 12))).coords
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


def _packed(batch, lengths=None, times_s=None):
    from modalities.video.model import _Clips

    return _Clips(batch, lengths, times_s)


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


# ---- clocks


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_seconds_are_tubelets_at_the_training_rate(attention, pool):
    shape = {"attention": attention, "pool": pool}
    counted, timed = video_model(**shape), video_model(**shape, time_unit_s=0.125)
    expected = logits(counted, clips())
    assert torch.equal(logits(timed, clips()), expected)
    times = 1.7e9 + torch.arange(10, dtype=torch.float64).expand(3, -1) / 16  # Seconds since 1970.
    torch.testing.assert_close(logits(timed, clips(), None, times), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_half_the_rate_is_twice_as_far(attention, pool):
    model = video_model(attention=attention, pool=pool, time_unit_s=0.125)
    expected = logits(model, clips())
    times = torch.arange(10, dtype=torch.float64).expand(3, -1) / 8
    halved = logits(model, clips(), None, times)
    assert (halved - expected).abs().max() > 1e-4
    model.data_config = model.data_config.replace(frame_rate=8.0)
    torch.testing.assert_close(logits(model, clips()), halved, rtol=0, atol=1e-6)
    sequences = model._sequences(_packed(clips()))
    every_second = model._sequences(_packed(clips(1, 20)))  # Twice as many tubelets, a unit apart in the counted model.
    counted = video_model(attention=attention, pool=pool)._sequences(_packed(clips(1, 20)))
    prefix, places = sequences.coords.prefix, 6
    kept = counted.coords.values[:, prefix:].unflatten(1, (10, places))[:, ::2].flatten(1, 2)
    assert torch.equal(sequences.coords.values[:, prefix:], kept) and sequences.coords.integral
    assert every_second.coords.bounds[0] == (0.0, 18.0)


def test_uneven_times_and_times_of_padding():
    model = video_model(time_unit_s=0.5)
    times = torch.tensor([[3.0, 3.5, 4.0, 4.5, 8.0, 8.5]]).double()
    values = model._sequences(_packed(clips(1, 6), None, times)).coords.values[0, 1:, 0]
    assert values.view(3, 6)[:, 0].tolist() == [0.0, 2.0, 10.0]
    padded = times.clone()
    padded[:, 4:] = float("nan")
    short = logits(model, clips(1, 6), torch.tensor([2]), padded)
    expected = logits(model, clips(1, 6)[:, :, :4], None, times[:, :4])
    torch.testing.assert_close(short, expected, rtol=0, atol=1e-5)
    with pytest.raises(zoo.DataError, match="times_s of real frames must be finite"):
        model(clips(1, 6), None, padded)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_every_sample_has_its_own_times(attention, pool):
    model = video_model(attention=attention, pool=pool, time_unit_s=0.125)
    times = torch.arange(10, dtype=torch.float64) * torch.tensor([[1 / 16], [1 / 8], [1 / 30]])
    together = logits(model, clips(), torch.tensor([5, 4, 2]), times)
    for row, length in enumerate((5, 4, 2)):
        one = clips()[row : row + 1, :, : 2 * length]
        alone = logits(model, one, None, times[row : row + 1, : 2 * length])
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-5)


def test_coordinates_of_given_times_equal_those_of_a_rate():
    device, dtype = torch.device("cpu"), torch.float32
    rate = clip_coordinates((3, 1, 2), origin=1, times=1.5, device=device, dtype=dtype)
    given = clip_coordinates((3, 1, 2), origin=1, times=torch.tensor([[0, 1.5, 3]]), device=device, dtype=dtype)
    assert torch.equal(rate.values, given.values) and rate.bounds[0] == (1.0, 4.0) and given.bounds is None
    assert not rate.integral and not given.integral
    far = clip_coordinates((3, 1, 2), origin=0, times=200.0, device=device, dtype=dtype)
    assert not far.integral and clip_coordinates((3, 1, 2), origin=0, times=100.0, device=device, dtype=dtype).integral


# ---- other sizes


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize(("frames", "height", "width"), [(2, 4, 4), (22, 8, 12), (10, 28, 4)])
def test_any_length_and_size(attention, pool, frames, height, width):
    model = video_model(attention=attention, pool=pool)
    found = logits(model, clips(2, frames, height, width))
    assert found.shape == (2, 3) and torch.isfinite(found).all()


# ---- attention over space and time apart, against loops


def _where(values, positioned=None):
    return Coordinates(torch.tensor(values, dtype=torch.float32).unsqueeze(0), positioned=positioned)


def _place_grid(rows, columns, prefix):
    values = [[0.0, 0.0]] * prefix + [[float(row), float(column)] for row in range(rows) for column in range(columns)]
    known = torch.tensor([[False] * prefix + [True] * (rows * columns)]) if prefix else None
    return _where(values, known)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("encoding", ["pape", "rope", "none"])
def test_a_divided_block_is_attention_over_time_then_over_space(pool, encoding):
    model = video_model(attention="divided", pool=pool, encoding=encoding, depth=1)
    batch, prefix = clips(2, 6), model.PREFIX
    block = model.encoder.blocks[0]
    with torch.no_grad():
        x = model.encoder.norm_pre(model._sequences(_packed(batch)).tokens)
        first, patches = x[:, :prefix], x[:, prefix:].unflatten(1, (3, 6)).clone()
        time = _where([[0.0], [1.0], [2.0]])
        for place in range(6):
            patches[:, :, place] += block.attn_time(block.norm_time(patches[:, :, place]), time)
        seen = []
        for t in range(3):
            picture = torch.cat([first, patches[:, t]], dim=1)
            update = block.space.attn(block.space.norm1(picture), _place_grid(2, 3, prefix))
            seen.append(update[:, :prefix])
            patches[:, t] += update[:, prefix:]
        first = first + torch.stack(seen).mean(dim=0)
        x = torch.cat([first, patches.flatten(1, 2)], dim=1)
        x = model.encoder.norm(x + block.space.mlp(block.space.norm2(x)))
        torch.testing.assert_close(model.forward_features(batch), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("encoding", ["pape", "rope", "none"])
def test_a_factorised_encoder_is_space_then_time(pool, encoding):
    model = video_model(attention="factorised", pool=pool, encoding=encoding, depth=1, temporal_depth=1)
    batch, encoder, prefix = clips(2, 6), model.encoder, model.PREFIX
    with torch.no_grad():
        tokens = model.embed(batch).unflatten(1, (3, 6))
        pooled = []
        for t in range(3):
            picture = tokens[:, t]
            if prefix:
                picture = torch.cat([encoder.space_token.expand(2, -1, -1), picture], dim=1)
            picture = encoder.norm_space(encoder.blocks[0](encoder.norm_pre(picture), _place_grid(2, 3, prefix)))
            pooled.append(picture[:, 0] if prefix else picture.mean(dim=1))
        series = torch.stack(pooled, dim=1)
        known = torch.tensor([[False, True, True, True]]) if prefix else None
        if prefix:
            series = torch.cat([model.cls_token.expand(2, -1, -1), series], dim=1)
        time = _where([[0.0]] * prefix + [[0.0], [1.0], [2.0]], known)
        series = encoder.norm(encoder.blocks[1](encoder.norm_time(series), time))
        torch.testing.assert_close(model.forward_features(batch), series, rtol=0, atol=1e-5)


def test_options_by_axis_follow_the_axes():
    options = {"extent": [2, 3, 4]}
    assert for_axes("table", options, (0,)) == ("table", {"extent": [2]})
    assert for_axes("sincos+table", {"table": options}, (1, 2)) == ("table", {"extent": [3, 4]})
    assert for_axes("table", {"extent": 5}, (1, 2)) == ("table", {"extent": 5}) and options == {"extent": [2, 3, 4]}
    for attention in ("joint", "divided", "factorised"):
        model = video_model(attention=attention, encoding="table", encoding_options=options)
        count = registry.architecture(model.config).count_parameters(model.config["model"])
        assert count == sum(parameter.numel() for parameter in model.parameters())
        assert torch.isfinite(logits(model, clips(2, 4))).all()


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_parameter_count_is_exact(attention, pool, encoding):
    model = video_model(attention=attention, pool=pool, encoding=encoding, temporal_depth=3)
    count = registry.architecture(model.config).count_parameters(model.config["model"])
    assert count == sum(parameter.numel() for parameter in model.parameters())


# ---- context extension


def test_extension_counts_from_the_trained_extent():
    released = registry.entry("pape-video-vit-b-ucf101").config
    assert registry.architecture(released).trained_extent(released) == (6.0, 16.0, 21.0)
    motion = registry.entry("rope-video-vit-n-imagenette-motion").new_config()
    assert registry.architecture(motion).trained_extent(motion) == (8.0, 8.0, 8.0)
    motion["data"]["frame_rate"] = None
    with pytest.raises(zoo.ConfigError, match="no fixed duration"):
        registry.architecture(motion).trained_extent(motion)
    options = {"extend": "yarn", "factor": [1.0, 2.0, 3.0]}
    name = "rope-video-vit-n-imagenette-motion"
    model = zoo.load(name, pretrained=False, attention="divided", depth=1, encoding_options=options)
    factors = {encoding.coord_dim: encoding.extension.factor for encoding in _encodings(model)}
    assert {axes: tuple(value) for axes, value in factors.items()} == {1: (1.0,), 2: (2.0, 3.0)}


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


# ---- timm's manners


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_forward_intermediates(attention, pool):
    model = video_model(attention=attention, pool=pool)
    prefix, blocks = model.PREFIX, len(model.encoder.blocks)
    with torch.no_grad():
        final, kept = model.forward_intermediates(clips(), norm=True, lengths=LENGTHS)
        assert torch.equal(final, model.forward_features(clips(), LENGTHS)) and len(kept) == blocks
        _, grids = model.forward_intermediates(clips(), output="grid", lengths=LENGTHS)
        none, first = model.forward_intermediates(clips(), [0], stop_early=True, lengths=LENGTHS)
    assert none is None and len(first) == 1
    real = torch.arange(5) < LENGTHS.unsqueeze(1)
    for index, (tokens, grid) in enumerate(zip(kept, grids, strict=True)):
        over_time = attention == "factorised" and index >= 2
        assert tokens.shape == (3, prefix + (5 if over_time else 30), 32)
        assert grid.shape == (3, 32, 5, *((1, 1) if over_time else (2, 3)))
        assert torch.equal(grid.abs().amax(dim=(1, 3, 4)) > 0, real)
    last = kept[-1] if pool == "token" else model._features(kept[-1], _layout(real))
    assert torch.equal(last, final)


def _layout(real):
    from modalities.video.model import _Layout

    return _Layout((5, 2, 3), real)


def test_features_of_a_grid_are_in_the_order_of_the_clip():
    model = video_model(depth=1)
    with torch.no_grad():
        _, (tokens,) = model.forward_intermediates(clips(1), norm=True)
        _, (grid,) = model.forward_intermediates(clips(1), norm=True, output="grid")
    assert torch.equal(grid[0, :, 3, 1, 2], tokens[0, 1 + 3 * 6 + 1 * 3 + 2])


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_reset_classifier(attention, pool):
    model = video_model(attention=attention, pool=pool)
    model.reset_classifier(5)
    assert model.num_classes == 5 and model.config["labels"] is None
    assert torch.allclose(logits(model, clips()), -torch.log(torch.tensor(5.0)))
    model.reset_classifier(0)
    features = model.forward_features(clips())
    assert torch.equal(model(clips()), model.forward_head(features, pre_logits=True))


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
@pytest.mark.parametrize("coarse", [False, True])
def test_parameter_groups_cover_the_model(attention, pool, coarse):
    model = video_model(attention=attention, pool=pool)
    matcher = model.group_matcher(coarse)
    patterns = [p for p in (matcher["stem"], matcher["blocks"]) if isinstance(p, str)]
    patterns += [] if coarse else [pattern for pattern, _ in matcher["blocks"]]
    names = {name for name, _ in model.named_parameters()}
    others = {name for name in names if not any(re.match(pattern, name) for pattern in patterns)}
    after = {name for name in names if name.startswith(("head.", "encoder.norm_space.", "encoder.norm_time."))}
    assert others - {"encoder.norm.weight", "encoder.norm.bias"} == after
    exempt = model.no_weight_decay()
    assert exempt <= names and ("cls_token" in exempt) == (pool == "token")
    assert ("encoder.space_token" in exempt) == (pool == "token" and attention == "factorised")
    assert any(name.endswith("attn_time.encoding.position") for name in exempt) == (attention == "divided")
    groups = parameter_groups(model, 0.1, 0.7)
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize("attention", ["joint", "divided", "factorised"])
def test_gradient_checkpointing_changes_no_gradient(attention):
    gradients = []
    for enable in (False, True):
        model = video_model(attention=attention).train()
        model.set_grad_checkpointing(enable)
        model(clips(), LENGTHS).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


# ---- files


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_saving_and_loading(attention, pool, tmp_path):
    model = video_model(attention=attention, pool=pool, time_unit_s=0.25, num_classes=3)
    zoo.save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert torch.equal(logits(again, clips(), LENGTHS), logits(model, clips(), LENGTHS))
    assert again.config == model.config and again.data_config == model.data_config
    assert type(again) is type(model) and again.load_report.adapted == ()
    card = (tmp_path / "model" / "README.md").read_text()
    assert "tubelets of 2 frames x 4 x 4 px" in card and "10 frames of 8 x 12 px" in card and "clip.mp4" in card


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_other_channels_keep_the_response_to_grey(channels, tmp_path):
    model = video_model()
    zoo.save(model, tmp_path / "model")
    adapted = load(tmp_path / "model", in_chans=channels)
    assert adapted.embed.proj.weight.shape == (32, channels, 2, 4, 4) and adapted.in_chans == channels
    assert adapted.data_config.input_size == (channels, 8, 12) and len(adapted.data_config.mean) == channels
    assert adapted.data_config.frames == 10
    grey = clips()[:, :1]
    expected = logits(model, grey.expand(-1, 3, -1, -1, -1))
    torch.testing.assert_close(logits(adapted, grey.expand(-1, channels, -1, -1, -1)), expected, rtol=0, atol=1e-4)


def test_options_of_loading():
    name = "pape-video-vit-n-ucf101"
    model = zoo.load(name, pretrained=False, depth=1, tubelet=5, patch_size=8, input_size=(64, 48), time_unit_s=0.1)
    assert model.data_config.tubelet == model.config["data"]["tubelet"] == 5
    assert model.data_config.input_size == (3, 64, 48) and model.time_unit_s == 0.1
    times = torch.arange(10.0).unsqueeze(0)
    assert logits(model, torch.rand(1, 3, 10, 16, 24), None, times).shape == (1, 101)
    card = str(zoo.card(name))
    assert "video-classification" in card and "10 frames of 240 x 320 px" in card


# ---- precision and compiling


@pytest.mark.parametrize("attention", ["joint", "divided", "factorised"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_16_bit_is_close(attention, dtype, autocast):
    model = video_model(attention=attention)
    expected = logits(model, clips(), LENGTHS)
    if autocast:
        with torch.autocast("cpu", dtype):
            found = logits(model, clips(), LENGTHS)
    else:
        found = logits(model.to(dtype), clips().to(dtype), LENGTHS)
    scale = expected.abs().max()
    assert (found.float() - expected).abs().max() < (0.05 if dtype == torch.bfloat16 else 0.01) * scale


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["joint", "divided", "factorised"])
def test_one_graph_compiles(attention):
    model = video_model(attention=attention, depth=1, temporal_depth=1, time_unit_s=0.125)
    step = torch.compile(model, backend="eager", fullgraph=True)
    times = torch.arange(10, dtype=torch.float64).expand(3, -1) / 8
    for inputs in ((clips(),), (clips(), LENGTHS), (clips(), LENGTHS, times)):
        torch.testing.assert_close(logits(step, *inputs), logits(model, *inputs), rtol=0, atol=1e-5)


def test_configurations_compare_by_value():
    data = video_model().data_config
    assert data == VideoDataConfig.from_dict(data.to_dict()) and data != dataclasses.replace(data, frames=12)
