"""Groups of points and the plain point ViT: sampling, padding, invariance, and what every model offers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from point_clouds import SMALL, batch, cloud, point_vit

import zoo
from modalities.points.augment import random_rotations
from modalities.points.grouping import (
    FEATURES,
    InvariantFeatures,
    RelativeFeatures,
    farthest_points,
    group_points,
    random_points,
)
from modalities.points.vit import GroupEmbed
from modalities.points.vit_presets import _CHANNELS
from zoo.errors import ConfigError, DataError

NAMES = zoo.list_models("*-point-vit-*")


def all_real(xyz: torch.Tensor) -> torch.Tensor:
    return torch.ones(xyz.shape[:2], dtype=torch.bool)


def turned(xyz: torch.Tensor, seed: int = 0) -> torch.Tensor:
    rotation = random_rotations(1, torch.Generator().manual_seed(seed))[0]
    return (xyz.double() @ rotation.double().T).to(xyz.dtype)


def test_farthest_points_by_the_definition() -> None:
    xyz = torch.stack([cloud(30, 1), cloud(30, 2)])
    chosen = farthest_points(xyz, all_real(xyz), 9)
    for points, found in zip(xyz, chosen.tolist(), strict=True):
        taken = [int((points - points.mean(0)).norm(dim=1).argmax())]
        while len(taken) < 9:
            taken.append(int(torch.cdist(points, points[taken]).amin(1).argmax()))
        assert found == taken


def test_equally_far_points_are_taken_in_their_order() -> None:
    corners = torch.tensor([[x, y, 0.0] for x in (-1, 1) for y in (-1, 1)]).unsqueeze(0)
    assert farthest_points(corners, all_real(corners), 4).tolist() == [[0, 3, 1, 2]]
    same = torch.zeros(1, 5, 3)
    assert farthest_points(same, all_real(same), 3).shape == (1, 3)


def test_padding_is_never_chosen() -> None:
    xyz = torch.stack([cloud(20, 1), cloud(20, 2)])
    mask = torch.arange(20) < torch.tensor([[20], [6]])
    xyz[1, 6:] = 1e6
    for chosen in (farthest_points(xyz, mask, 6), random_points(mask, 6)):
        assert sorted(chosen[1].tolist()) == list(range(6)) and len(set(chosen[0].tolist())) == 6
    assert random_points(mask, 50).shape == (2, 50)
    groups = group_points(xyz, mask, farthest_points(xyz, mask, 8), 7)
    assert groups.valid.tolist() == [[True] * 8, [True] * 6 + [False] * 2]
    assert groups.mask[1].sum(-1).tolist() == [6] * 8 and groups.mask[0].all()
    assert groups.points.abs().max() <= 1
    with pytest.raises(DataError, match="at least 1"):
        farthest_points(xyz[:, :0], mask[:, :0], 3)


def test_groups_hold_the_nearest_points() -> None:
    xyz = cloud(40).unsqueeze(0)
    groups = group_points(xyz, all_real(xyz), torch.tensor([[3, 17]]), 5)
    for number, centre in enumerate((3, 17)):
        nearest = torch.cdist(xyz[0, centre : centre + 1], xyz[0])[0].argsort()[:5]
        assert torch.equal(groups.points[0, number], xyz[0, nearest])
    assert torch.equal(groups.points[:, :, 0], groups.centres)


def test_invariant_features_are_invariant_and_tell_mirror_images() -> None:
    xyz = torch.stack([cloud(25, dtype=torch.float64)])
    centres = torch.tensor([[0, 5, 9]])

    def read(points: torch.Tensor, kind: Any) -> torch.Tensor:
        return kind(group_points(points, all_real(points), centres, 6), 0.25)

    assert {name: kind.channels for name, kind in FEATURES.items()} == _CHANNELS
    for name, kind in FEATURES.items():
        same = torch.allclose(read(turned(xyz) + 3, kind()), read(xyz, kind()), atol=1e-9)
        assert same == (name == "invariant")
    features, mirrored = read(xyz, InvariantFeatures()), read(xyz * torch.tensor([-1.0, 1, 1]), InvariantFeatures())
    torch.testing.assert_close(mirrored[..., :6], features[..., :6])
    torch.testing.assert_close(mirrored[..., 6], -features[..., 6])
    # They determine the vectors up to a rotation: the Gram matrix, and the sign of the volume.
    assert features[..., 6].abs().max() > 0.01
    torch.testing.assert_close(read(xyz + 7, RelativeFeatures()), read(xyz, RelativeFeatures()))


@pytest.mark.parametrize("encoding", ["pape-ri", "none", "alibi"])
def test_turning_a_cloud_changes_the_result_by_rounding_alone(encoding: str) -> None:
    model = point_vit(encoding, "invariant")
    clouds = [cloud(200, seed) for seed in range(4)]
    after = [turned(xyz, seed) + 0.1 for seed, xyz in enumerate(clouds)]
    mirrored = [xyz * torch.tensor([-1.0, 1.0, 1.0]) for xyz in clouds]
    with torch.no_grad():
        for run in (model, model.forward_features):
            before = run(batch(*clouds))
            assert (run(batch(*after)) - before).abs().max() < 1e-4
        assert (run(batch(*mirrored)) - before).abs().max() > 1e-2 and before.std(0).max() > 1e-2


@pytest.mark.parametrize(("encoding", "features"), [("pape", "invariant"), ("pape-ri", "relative")])
def test_other_networks_see_the_turn(encoding: str, features: str) -> None:
    model, xyz = point_vit(encoding, features, spacing=1.0), cloud(200)  # PaPE starts with a reach of one spacing.
    with torch.no_grad():
        before, after = (model.forward_features(batch(points)) for points in (xyz, turned(xyz)))
    assert (after - before).abs().max() > 1e-2


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_clouds_of_any_size_give_what_they_give_alone(pooling: str) -> None:
    model = point_vit(pooling=pooling)
    clouds = [cloud(points, points) for points in (100, 1, 0, 5, 30)]
    with torch.no_grad():
        together = model(batch(*clouds))
        for row, xyz in enumerate(clouds):
            torch.testing.assert_close(model(batch(xyz))[0], together[row], atol=2e-6, rtol=1e-5)
    assert together.isfinite().all() and together.shape == (5, 3)


def test_points_that_are_not_finite_are_left_out_and_gradients_are_finite() -> None:
    model = point_vit("pape-ri", "invariant").train()
    xyz = cloud(40)
    bad = torch.cat([torch.full((3, 3), torch.nan), xyz[:20], torch.tensor([[0.0, torch.inf, 0.0]]), xyz[20:]])
    logits = model(batch(bad, xyz, xyz[:2], torch.zeros(9, 3), xyz[:0]))
    torch.testing.assert_close(logits[0], logits[1])
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_order_of_points_does_not_matter() -> None:
    model, xyz = point_vit(), cloud(150)
    shuffled = xyz[torch.randperm(150, generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        torch.testing.assert_close(model(batch(shuffled)), model(batch(xyz)), atol=1e-5, rtol=1e-5)


def test_in_training_longer_clouds_than_stated_are_loud() -> None:
    model = point_vit(num_points=30, sampling="random").train()
    logits = model(batch(cloud(30), cloud(31), cloud(4)))
    assert logits.isnan().all(1).tolist() == [False, True, False]
    assert model.eval()(batch(cloud(31))).isfinite().all()


def test_random_groups_are_for_training_alone() -> None:
    model, one = point_vit(sampling="random"), batch(cloud(60))
    with torch.no_grad():
        assert torch.equal(model(one), model(one))
        assert not torch.equal(model.train()(one), model(one))


def test_compiles_as_one_graph() -> None:
    torch.compiler.reset()
    model = point_vit(num_points=40, depth=1)
    inputs = batch(cloud(40, 1), cloud(40, 2))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs), model(inputs))


def test_a_compiled_model_needs_a_bound_on_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ConfigError, match="needs data_config.num_points"):
        point_vit()(batch(cloud(4)))


def test_what_every_model_offers() -> None:
    model, inputs = point_vit(), batch(cloud(50), cloud(3))
    features = model.forward_features(inputs)
    assert features.shape == (2, 1 + SMALL["groups"], 32)
    assert torch.equal(model.forward_head(features), model(inputs))
    assert model.forward_head(features, pre_logits=True).shape == (2, 32)
    final, parts = model.forward_intermediates(inputs, norm=True)
    assert len(parts) == 2 and torch.equal(final, features) and torch.equal(parts[-1], features)
    with pytest.raises(ConfigError, match="no grid"):
        model.forward_intermediates(inputs, output="grid")
    model.set_grad_checkpointing()
    model.train()(inputs).sum().backward()
    model.eval().reset_classifier(7)
    assert model(inputs).shape == (2, 7) and model.config["model"]["num_classes"] == 7
    assert {"cls_token"} < model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, inputs = point_vit(), batch(cloud(50))
    with torch.no_grad():
        expected = model(inputs)
        logits = model.to(dtype)(inputs)
        torch.testing.assert_close(logits.float(), expected, atol=0.1 if dtype == torch.bfloat16 else 1e-4, rtol=0)
        with torch.autocast("cpu", torch.bfloat16):
            assert model.float()(inputs).isfinite().all()


def test_saved_and_loaded(tmp_path) -> None:
    model, inputs = point_vit("pape-ri", "invariant", pooling="mean"), batch(cloud(50))
    zoo.save(model, tmp_path / "m")
    again = zoo.load(f"local-dir:{tmp_path / 'm'}")
    assert again.config == model.config
    with torch.no_grad():
        assert torch.equal(again(inputs), model(inputs))


@pytest.mark.parametrize("name", [name for name in NAMES if "-vit-n-" in name])
def test_registered_names(name: str) -> None:
    model = zoo.load(name, pretrained=False)
    with torch.no_grad():
        assert model(batch(cloud(64), cloud(200))).shape == (2, 10)
    assert model.config == zoo.registry.entry(name).config
    invariant = name.startswith("pape-ri") or name.endswith("invariant")
    assert (model.config["model"]["group_features"] == "invariant") == invariant


def test_names() -> None:
    sized = [f"{e}-point-vit-{s}-modelnet10" for e in ("pape", "pape-ri", "rope", "none") for s in "nt"]
    assert sorted([*sized, *(f"pape-point-vit-{s}-modelnet10-invariant" for s in "nt")]) == NAMES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 0}, "groups must be"),
        ({"spacing": 0.0}, "spacing must be"),
        ({"spacing": True}, "spacing must be"),
        ({"group_features": "all"}, "group_features must be one of relative, relative"),
        ({"sampling": "first"}, "sampling must be farthest or random"),
        ({"pooling": "max"}, "pooling must be token or mean"),
        ({"in_chans": 4}, "reads 3 coordinates"),
        ({"class_token_position": "origin"}, "no position"),
    ],
)
def test_bad_settings_are_explained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        point_vit(**change)


def test_bad_inputs_are_explained() -> None:
    model = point_vit()
    with pytest.raises(DataError, match="take PointBatch"):
        model(cloud(9))
    with pytest.raises(DataError, match="at least one cloud"):
        model(type(batch(cloud(1)))(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(1, dtype=torch.int64)))
    with pytest.raises(DataError, match="on meta"):
        model(batch(cloud(5)).to("meta"))
    assert GroupEmbed(3, 8)(torch.randn(1, 2, 4, 3), torch.zeros(1, 2, 4, dtype=torch.bool)).tolist() == [
        [[0.0] * 8] * 2
    ]
