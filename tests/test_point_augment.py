"""Augmentation of point clouds: what each change keeps and what it changes, as a function of a generator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from modalities.points.augment import (
    Drop,
    Flip,
    Jitter,
    Mix3D,
    Rotate,
    RotateAny,
    Scale,
    Shift,
    SphereCrop,
    axis_rotations,
    random_rotations,
    run,
)
from modalities.points.augment_fields import AutoContrast, ColorDrop, ColorJitter, ColorShift, Elastic
from modalities.points.clouds import Clouds
from modalities.points.data_config import PointDataConfig
from modalities.points.prepare import make_features
from zoo.errors import ConfigError, DataError

EVERY: list[Any] = [
    Rotate(),
    Rotate(20, "x", 0.5),
    RotateAny(),
    Scale(),
    Scale(0.9, 1.1, anisotropic=False),
    Shift(),
    Jitter(),
    Flip(),
    Drop(0.5),
    SphereCrop(20),
    Elastic(nodes=8),
    AutoContrast(1.0),
    ColorShift(),
    ColorJitter(),
    ColorDrop(0.5),
]
COLOUR = (AutoContrast, ColorShift, ColorJitter, ColorDrop)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clouds(count: int = 6, points: int = 50, seed: int = 0) -> Clouds:
    random = generator(seed)
    normal = torch.nn.functional.normalize(torch.randn(count, points, 3, generator=random), dim=-1)
    rgb = torch.rand(count, points, 3, generator=random) - 0.4
    xyz = torch.rand(count, points, 3, generator=random) * 2 - 1
    return Clouds(xyz, {"normal": normal, "rgb": rgb}, torch.arange(points).repeat(count, 1))


def same(one: Clouds, other: Clouds) -> bool:
    assert one.labels is not None and other.labels is not None
    fields = all(torch.equal(one.fields[name], other.fields[name]) for name in one.fields)
    return torch.equal(one.xyz, other.xyz) and fields and torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("step", EVERY, ids=lambda step: f"{type(step).__name__}-{EVERY.index(step)}")
def test_each_is_a_function_of_clouds_and_generator(step: Any) -> None:
    before, kept = clouds(), clouds()
    after = step(before, generator(1))
    assert same(before, kept)
    assert same(after, step(before, generator(1)))
    assert not same(after, before) and not same(after, step(before, generator(2)))
    assert after.xyz.isfinite().all() and after.xyz.dtype == torch.float32
    torch.testing.assert_close(after.fields["normal"].norm(dim=-1), torch.ones(after.xyz.shape[:2]))
    assert after.fields["rgb"].abs().max() <= 1
    moves = not isinstance(step, COLOUR)
    assert torch.equal(after.fields["rgb"], before.fields["rgb"]) == (
        moves and not isinstance(step, (Drop, SphereCrop))
    )
    assert torch.equal(after.xyz, before.xyz) == (not moves)
    plain = Clouds(before.xyz, {})  # Neither colours nor normals nor labels need to be there.
    assert torch.equal(step(plain, generator(1)).xyz, after.xyz)


def test_rotations_are_rotations_and_spread_evenly() -> None:
    matrices = random_rotations(4000, generator()).double()
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3).double().expand(4000, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.linalg.det(matrices), torch.ones(4000).double(), atol=1e-6, rtol=0)
    assert matrices.mean(0).abs().max() < 0.05
    # The trace is 1 + 2 cos(angle), whose mean over SO(3) is 0 and mean square 1.
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(trace.mean()) < 0.06 and abs(trace.square().mean() - 1) < 0.1


@pytest.mark.parametrize(("axis", "before", "after"), [("z", 0, 1), ("x", 1, 2), ("y", 2, 0)])
def test_a_quarter_turn(axis: str, before: int, after: int) -> None:
    (matrix,) = axis_rotations(torch.tensor([torch.pi / 2]), axis)
    torch.testing.assert_close(matrix @ torch.eye(3)[before], torch.eye(3)[after], atol=1e-6, rtol=0)
    with pytest.raises(ConfigError, match="x, y or z"):
        Rotate(axis="w")


def test_rotation_about_z_keeps_height_and_lengths_and_turns_normals_along() -> None:
    before = clouds()
    after = Rotate(180)(before, generator())
    torch.testing.assert_close(after.xyz[..., 2], before.xyz[..., 2])
    torch.testing.assert_close(after.xyz.norm(dim=-1), before.xyz.norm(dim=-1))
    dots = [(c.xyz * c.fields["normal"]).sum(-1) for c in (before, after)]
    torch.testing.assert_close(dots[1], dots[0], atol=1e-5, rtol=0)
    still = Rotate(180, probability=0.0)(before, generator())
    torch.testing.assert_close(still.xyz, before.xyz)


def test_normals_stay_normal_to_a_stretched_plane() -> None:
    random = generator()
    normal = torch.nn.functional.normalize(torch.randn(1, 1, 3, generator=random), dim=-1)
    points = torch.randn(1, 30, 3, generator=random)
    points = points - (points * normal).sum(-1, keepdim=True) * normal
    after = Scale(0.5, 2.0)(Clouds(points, {"normal": normal.expand(1, 30, 3)}), random)
    assert (after.xyz * after.fields["normal"]).sum(-1).abs().max() < 1e-5
    assert not torch.allclose(after.fields["normal"][0, 0], normal[0, 0], atol=1e-2)


def test_scales_shifts_and_noise_stay_within_their_bounds() -> None:
    before = clouds(200, 4)
    factors = Scale(0.7, 1.5)(before, generator()).xyz / before.xyz
    assert 0.7 <= factors.min() < 0.75 and 1.45 < factors.max() <= 1.5 + 1e-5
    assert factors[:, 0].std(1).min() > 0 and torch.allclose(factors[:, 0], factors[:, 1], rtol=1e-4)
    one = Scale(0.7, 1.5, anisotropic=False)(before, generator()).xyz / before.xyz
    assert one.std(dim=2).max() < 1e-4
    moves = Shift(0.2)(before, generator()).xyz - before.xyz
    assert 0.18 < moves.abs().max() <= 0.2 + 1e-6 and torch.allclose(moves[:, 0], moves[:, 1], atol=1e-6)
    noise = Jitter(0.01, 0.02)(before, generator()).xyz - before.xyz
    assert noise.abs().max() <= 0.02 + 1e-6 and 0.008 < noise.std() < 0.011
    mirrored = (Flip(0.5)(before, generator()).xyz / before.xyz)[:, 0]
    assert (mirrored[:, 2] == 1).all() and 0.3 < (mirrored[:, 0] < 0).float().mean() < 0.7


def test_dropped_points_become_copies() -> None:
    before = clouds(50, 100)
    after = Drop(0.5)(before, generator())
    assert after.xyz.shape == before.xyz.shape
    left = [len(labels.unique()) for labels in after.labels]
    assert 45 <= min(left) < 60 and max(left) > 90
    for row, labels in enumerate(after.labels):  # Fields and labels go with their points.
        assert torch.equal(after.xyz[row], before.xyz[row, labels])
        assert torch.equal(after.fields["rgb"][row], before.fields["rgb"][row, labels])
    assert same(Drop(0.5, probability=0.0)(before, generator()), before)
    assert len(Drop(1.0)(clouds(40, 5), generator()).labels[0].unique()) >= 1


def test_a_sphere_crop_holds_the_points_around_one() -> None:
    before = clouds(3, 60)
    after = SphereCrop(10)(before, generator())
    assert after.xyz.shape == (3, 10, 3)
    for row in range(3):
        distance = torch.cdist(before.xyz[row], after.xyz[row, :1])[:, 0]
        assert torch.equal(distance.argsort()[:10], after.labels[row])
    assert SphereCrop(60)(before, generator()) is before


def test_elastic_distortion_is_smooth() -> None:
    line = torch.linspace(0, 1, 400)
    before = Clouds(torch.stack([line, line, line], dim=-1).unsqueeze(0), {})
    moves = Elastic(0.25, 1.0, 1.0, nodes=8)(before, generator()).xyz - before.xyz
    assert 0.02 < moves.abs().max() < 1
    assert moves.diff(dim=1).abs().max() < 0.05 * moves.abs().max()
    same_noise = Elastic(0.25, 2.0, 1.0, nodes=8)(before, generator()).xyz - before.xyz
    torch.testing.assert_close(same_noise, 2 * moves, atol=1e-5, rtol=1e-4)


def test_colours() -> None:
    before = clouds()
    after = AutoContrast(1.0)(before, generator()).fields["rgb"]
    low, high = (f(1) for f in (before.fields["rgb"].amin, before.fields["rgb"].amax))
    assert (after.amin(1) <= low + 1e-6).all() and (after.amax(1) >= high - 1e-6).all()
    flat = Clouds(before.xyz, {"rgb": torch.full_like(before.xyz, 0.3)})
    torch.testing.assert_close(AutoContrast(1.0)(flat, generator()).fields["rgb"], flat.fields["rgb"])
    assert not ColorDrop(1.0)(before, generator()).fields["rgb"].any()


def test_mix3d_joins_clouds_two_by_two() -> None:
    config = PointDataConfig(feature_names=("xyz",))
    for count, ends in ((4, [0, 100, 200]), (5, [0, 100, 200, 250]), (1, [0, 50])):
        batch = clouds(count).to_batch(config)
        mixed = Mix3D(1.0)(batch, generator())
        assert mixed.offsets.tolist() == ends and torch.equal(mixed.xyz, batch.xyz)
        assert Mix3D(0.0)(batch, generator()) is batch


def test_batches_have_the_features_that_prediction_makes() -> None:
    one = clouds(2)
    for normalise in ("unit-box", "centre"):
        config = PointDataConfig(feature_names=("height", "xyz", "rgb", "normal"), normalise=normalise)
        batch = one.to_batch(config)
        for row in range(2):
            fields = {name: values[row].numpy() for name, values in one.fields.items()}
            expected = make_features(one.xyz[row].numpy(), fields | {"rgb": (fields["rgb"] + 1) / 2}, config)
            np.testing.assert_allclose(batch.cloud(row).features.numpy(), expected, atol=1e-6)
    assert batch.offsets.tolist() == [0, 50, 100]
    low = one.centred(config).xyz.amin(1)
    torch.testing.assert_close(low[:, :2], -one.centred(config).xyz.amax(1)[:, :2])
    assert not low[:, 2].any() and one.centred(PointDataConfig()) is one
    with pytest.raises(DataError, match="'intensity'"):
        one.to_batch(PointDataConfig(feature_names=("intensity",)))


def test_steps_run_in_order() -> None:
    steps = [Shift(1.0), Scale(2.0, 2.0)]
    there, back = (run(order, clouds(), generator()).xyz for order in (steps, steps[::-1]))
    assert not torch.allclose(there, back)
