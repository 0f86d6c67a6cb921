"""Attention over space and time apart, options by axis, precision and compiling."""

from __future__ import annotations

import pytest
import torch
from video_models import LENGTHS, VARIANTS, clips, logits, sequences, video_model

import zoo
from modalities.video.axes import for_axes
from zoo import registry
from zoo.coordinates import Coordinates
from zoo.encodings.extendable import _encodings

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
        x = model.encoder.norm_pre(sequences(model, batch).tokens)
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
@pytest.mark.parametrize("encoding", ["pape", "sincos+pape-ri"])
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
