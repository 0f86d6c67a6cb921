"""Event classifier and detector: shapes, padding, empty samples, the grid, heads, precision."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from event_models import MADE, classifier, detector, output, random_tokens, rows
from saved_models import randomise
from torch.utils._pytree import tree_leaves

import zoo
from modalities.events import EventTokens
from modalities.events.encoder import latest_tokens
from zoo import registry

EVENTS = zoo.list_models(modality="events")
SMALL = [name for name in EVENTS if "-n-" in name]


def padded(tokens, length, fill=0):
    """More padding, which may hold anything."""
    more = tokens.pad_to(length)
    patches = more.patches.clone()
    patches[~more.mask] = fill
    fields = {name: torch.where(more.mask, getattr(more, name), fill) for name in ("x", "y", "t_us")}
    return EventTokens(**fields, patches=patches, mask=more.mask)


# ---- the registry


@pytest.mark.parametrize("name", SMALL)
def test_every_small_entry_builds_and_runs(name):
    model = zoo.load(name, pretrained=False)
    randomise(model)
    tokens = random_tokens((9, 0, 4), data=model.data_config)
    with torch.no_grad():
        found = model(tokens)
    config = registry.entry(name).config
    if config["task"] == "detection":
        assert found.tensor.shape == (3, 100, 6) and model.num_classes == config["model"]["num_classes"]
        found = found.tensor
    else:
        assert found.shape == (3, config["model"]["num_classes"])
    assert torch.isfinite(found).all() and found.std() > 1e-3
    assert model.config == config and model.data_config.to_dict() == config["data"]
    assert not model.training and model.load_report.source == "random"


def test_released_settings():
    gesture = registry.entry("pape-event-vit-b-dvsgesture").config
    assert gesture["model"]["class_token_position"] == "origin" and gesture["model"]["in_chans"] == 20
    gen1 = registry.entry("pape-event-det-b-gen1").config
    assert gen1["data"]["time_reference"] == "end" and gen1["data"]["max_events"] == 500_000
    assert zoo.load("pape-event-det-n-gen1", pretrained=False).strides == (8.0, 16.0, 32.0)


@pytest.mark.parametrize("name", ["pape-event-vit-n-nmnist1100", "pape-event-det-n-nmnist-canvas"])
def test_models_to_embed_are_small_in_float16(name):
    assert 2 * registry.entry(name).parameters < 3 * 2**20 - 50_000


# ---- padding and batches


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("encoding", ["pape", "pape-ri", "rope", "alibi", "sincos", "none"])
def test_padding_changes_nothing(kind, encoding):
    model = MADE[kind](encoding=encoding, encoding_options={})
    tokens = random_tokens()
    expected = output(model, tokens)
    assert expected.std() > 1e-2
    for length, fill in ((8, 0), (40, 0), (11, 3), (11, 2_000)):
        torch.testing.assert_close(output(model, padded(tokens, length, fill)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("encoding", ["pape", "rope", "alibi"])
def test_samples_do_not_see_each_other(kind, encoding):
    model = MADE[kind](encoding=encoding, encoding_options={})
    tokens = random_tokens((6, 2, 0, 9))
    together = output(model, tokens)
    for row, length in enumerate((6, 2, 0, 9)):
        one = rows(tokens, slice(row, row + 1))
        short = EventTokens(*(getattr(one, f.name)[:, :length] for f in dataclasses.fields(one)))
        torch.testing.assert_close(output(model, short), together[row : row + 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", MADE)
def test_the_order_of_tokens_does_not_matter_without_duplicates(kind):
    model = MADE[kind]()
    tokens = random_tokens((8,))
    places = torch.randperm(24, generator=torch.Generator().manual_seed(3))[:8]
    tokens = dataclasses.replace(tokens, x=(places % 6)[None], y=(places // 6)[None])
    turned = rows(tokens, (slice(None), torch.randperm(8)))
    torch.testing.assert_close(output(model, turned), output(model, tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("training", [False, True])
def test_batches_without_any_token(kind, training):
    model = MADE[kind](encoding_options={"parabolas": 4}).train(training)
    empty = random_tokens((0, 0))
    result = model(empty)
    values = [result] if isinstance(result, torch.Tensor) else tree_leaves(result)
    values = [result.tensor] if not training and kind == "detector" else values
    assert all(torch.isfinite(value).all() and value.shape[0] == 2 for value in values)
    if training:  # The step of such a batch is a step: every parameter has a gradient.
        sum(value.sum() for value in values).backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_time_and_place_matter():
    model = classifier()
    tokens = random_tokens()
    expected = output(model, tokens)
    for change in ({"t_us": 2 * tokens.t_us}, {"x": 5 - tokens.x}, {"patches": tokens.patches + 1}):
        assert (output(model, dataclasses.replace(tokens, **change)) - expected)[:2].abs().max() > 1e-4


def test_nothing_is_subtracted_from_times():
    """Against a class token at the origin of time, later gestures look different; against none they do not."""
    tokens = random_tokens((7, 3))
    tokens = dataclasses.replace(tokens, t_us=tokens.t_us // 20)  # Near the class token, or it sees itself alone.
    later = dataclasses.replace(tokens, t_us=tokens.t_us + 5_000)
    for position, moves in (("origin", True), (None, False)):
        model = classifier(class_token_position=position, window_us=None)
        moved = (output(model, later) - output(model, tokens)).abs().max()
        assert (moved > 1e-4) == moves and (moves or moved < 1e-5)


# ---- the grid


def test_the_latest_token_of_a_cell_wins():
    tokens = EventTokens(
        x=torch.tensor([[1, 1, 1, 0, 1, 2]]),
        y=torch.tensor([[0, 0, 0, 1, 0, 1]]),
        t_us=torch.tensor([[5, 9, 9, 1, 99, 0]]),
        patches=torch.zeros(1, 6, 2, 1, 1, 1),
        mask=torch.tensor([[True, True, True, True, False, True]]),
    )
    cells = latest_tokens(tokens, (2, 3))
    assert cells.filled.tolist() == [[False, True, False, True, False, True]]
    assert cells.token[0, [1, 3, 5]].tolist() == [2, 3, 5]  # Of equal times the last one; padding is not written.
    assert latest_tokens(tokens, (2, 3), ages=True).token[0, [1, 3, 5]].tolist() == [0, 3, 5]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ages", [False, True])
def test_the_grid_is_that_of_a_loop(seed, ages):
    tokens = random_tokens((60, 11, 0), seed=seed)
    tokens = dataclasses.replace(tokens, t_us=tokens.t_us // 20_000)  # Ties.
    cells = latest_tokens(tokens, (4, 6), ages=ages)
    for sample in range(3):
        best = {}
        for token in range(60):
            if tokens.mask[sample, token]:
                cell = int(tokens.y[sample, token] * 6 + tokens.x[sample, token])
                time = int(tokens.t_us[sample, token]) * (-1 if ages else 1)
                if cell not in best or time >= best[cell][0]:
                    best[cell] = (time, token)
        assert cells.filled[sample].nonzero().flatten().tolist() == sorted(best)
        assert all(cells.token[sample, cell] == token for cell, (_, token) in best.items())


def test_features_stand_where_their_patch_is_and_elsewhere_are_zeros():
    model = detector()
    tokens = random_tokens((5,))
    tokens = dataclasses.replace(tokens, x=torch.tensor([[0, 5, 2, 2, 3]]), y=torch.tensor([[0, 3, 1, 1, 2]]))
    with torch.no_grad():
        grid = model.forward_features(tokens)
        flat = model.encoder(*model._sequences(tokens)[:3])
    assert grid.shape == (1, 32, 4, 6)
    latest = 2 if tokens.t_us[0, 2] > tokens.t_us[0, 3] else 3
    for token, (x, y) in {0: (0, 0), 1: (5, 3), latest: (2, 1), 4: (3, 2)}.items():
        assert torch.equal(grid[0, :, y, x], flat[0, token])
    assert (grid != 0).any(dim=1).sum() == 4


def test_ages_and_times_give_the_same_grid():
    """The time reference says which of two tokens is the latest."""
    tokens = random_tokens((30,))
    start, end = (
        detector(time_reference=reference, encoding="none", encoding_options={}) for reference in ("start", "end")
    )
    end.load_state_dict(start.state_dict())
    ages = dataclasses.replace(tokens, t_us=100_000 - tokens.t_us)
    assert torch.equal(start.forward_features(tokens), end.forward_features(ages))
    assert not torch.equal(start.forward_features(tokens), end.forward_features(tokens))


def test_gradients_of_duplicates_reach_the_winner_alone():
    model = detector(encoding="none", depth=1, encoding_options={})
    tokens = random_tokens((2,))
    tokens = dataclasses.replace(tokens, x=tokens.x * 0, y=tokens.y * 0, t_us=torch.tensor([[7, 5]]))
    features = torch.randn(1, 2, 32, requires_grad=True)
    model._grid(features, tokens).square().sum().backward()
    assert features.grad[0, 0].abs().min() > 0 and not features.grad[0, 1].any()


# ---- inputs that cannot be


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(("name", "value"), [("x", 6), ("x", -1), ("y", 4), ("y", 2**40)])
def test_tokens_outside_the_grid_are_refused(kind, name, value):
    tokens = random_tokens()
    getattr(tokens, name)[1, 2] = value
    with pytest.raises(
        zoo.DataError, match="token 2 of sample 1 is at column .* outside the grid of 6 columns and 4 rows"
    ):
        MADE[kind]()(tokens)


def test_tokens_outside_the_grid_are_written_nowhere():
    """What a GPU or a compiled model does with them, where looking would cost."""
    tokens = random_tokens((4,))
    tokens.x[:] = torch.tensor([6, -1, 2, 3])
    tokens.y[:] = torch.tensor([0, 1, 0, 4])
    assert latest_tokens(tokens, (4, 6)).filled.nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize("kind", MADE)
def test_bad_inputs_are_refused(kind):
    model = MADE[kind]()
    with pytest.raises(zoo.DataError, match="event models take EventTokens"):
        model(torch.rand(1, 3, 16, 16))
    with pytest.raises(zoo.DataError, match="at least one sample"):
        model(rows(random_tokens(), slice(0, 0)))
    with pytest.raises(zoo.DataError, match=r"patches must be \(B, S, 2, 3, 4, 4\)"):
        model(dataclasses.replace(random_tokens(), patches=torch.zeros(3, 7, 2, 4, 4, 4)))
    with pytest.raises(zoo.DataError, match="on meta, the model on cpu"):
        model(random_tokens().to("meta"))


# ---- timm's manners


@pytest.mark.parametrize("kind", MADE)
def test_reset_classifier(kind):
    model = MADE[kind]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.reset_classifier(5)
    assert model.num_classes == 5 and model.config["model"]["num_classes"] == 5 and model.config["labels"] is None
    after = model.state_dict()
    changed = {key for key in before if before[key].shape != after[key].shape}
    assert changed and all(key.startswith("head.") for key in changed)
    kept = before.keys() - changed
    assert all(torch.equal(before[key], after[key]) for key in kept if not key.startswith("head."))
    for bad in (-1, 2.5, True, 10**7, "3"):
        with pytest.raises(zoo.ConfigError, match="num_classes"):
            model.reset_classifier(bad)
    found = model(random_tokens())
    assert (found.shape if kind == "classifier" else found.tensor.shape) == (
        (3, 5) if kind == "classifier" else (3, 20, 6)
    )


def test_a_classifier_without_a_head_gives_features():
    model = classifier()
    model.reset_classifier(0)
    tokens = random_tokens()
    features = model.forward_features(tokens)
    assert features.shape == (3, 8, 32) and torch.equal(model(tokens), features[:, 0])
    assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
    with pytest.raises(zoo.ConfigError, match="from 1 to"):
        detector().reset_classifier(0)


@pytest.mark.parametrize("kind", MADE)
def test_forward_intermediates(kind):
    model = MADE[kind]()
    tokens = random_tokens()
    with torch.no_grad():
        final, kept = model.forward_intermediates(tokens, [0, -1], norm=True)
        assert torch.equal(final, model.forward_features(tokens)) and len(kept) == 2
        _, grids = model.forward_intermediates(tokens, 1, output="grid", norm=True)
    assert grids[0].shape == (3, 32, 4, 6) and not grids[0][2].any()
    if kind == "detector":
        assert torch.equal(grids[0], final)


@pytest.mark.parametrize("kind", MADE)
def test_parameter_groups_cover_the_model(kind):
    import re

    model = MADE[kind]()
    matcher = model.group_matcher(coarse=True)
    stem = [name for name, _ in model.named_parameters() if re.match(matcher["stem"], name)]
    blocks = {
        re.match(matcher["blocks"], name)[1]
        for name, _ in model.named_parameters()
        if re.match(matcher["blocks"], name)
    }
    assert "embed.proj.weight" in stem and blocks == {"0", "1"}
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() <= names and ("cls_token" in model.no_weight_decay()) == (kind == "classifier")


def test_gradient_checkpointing_changes_no_gradient():
    grads = []
    for enable in (False, True):
        model = classifier().train()
        model.set_grad_checkpointing(enable)
        model(random_tokens()).square().sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    assert all(torch.allclose(grads[0][name], grads[1][name], atol=1e-6) for name in grads[0])


def test_a_detector_takes_the_backbone_of_a_classifier():
    source, model = classifier(seed=1), detector(seed=2)
    model.load_backbone(source)
    for part in ("embed", "encoder"):
        for key, value in getattr(source, part).state_dict().items():
            assert torch.equal(getattr(model, part).state_dict()[key], value)
    with pytest.raises(zoo.WeightsError, match="the backbone"):
        model.load_backbone(classifier(dim=48))


# ---- precision


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_16_bit_is_close(kind, dtype, autocast):
    tokens = random_tokens()
    model = MADE[kind]()
    expected = output(model, tokens)
    if autocast:
        with torch.autocast("cpu", dtype):
            found = output(model, tokens)
    else:
        found = output(model.to(dtype), tokens)
    assert torch.isfinite(found).all()
    scale = expected.abs().max()
    assert (found.float() - expected).abs().max() < (0.05 if dtype == torch.bfloat16 else 0.01) * scale


def test_large_counts_and_late_times_stay_finite_in_float16():
    tokens = random_tokens()
    many = dataclasses.replace(tokens, patches=torch.full_like(tokens.patches, 32_767), t_us=tokens.t_us + 10**7)
    model = classifier(window_us=None).half()
    assert torch.isfinite(output(model, many)).all()
