"""Video classifiers in timm's manners: intermediates, heads, parameter groups; and their files."""

from __future__ import annotations

import re

import pytest
import torch
from saved_models import load
from video_models import LENGTHS, VARIANTS, clips, logits, video_model

import zoo
from zoo.training.optim import parameter_groups

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
    assert ("2 blocks within each time, then 2 over time" in card) == (attention == "factorised")
    assert "at 16 frames a second" in card and "time is counted in units of 0.25 s" in card


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
