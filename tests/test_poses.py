"""Poses: inverses in closed form, cameras from extrinsics and intrinsics, and poses that travel with coordinates."""

import dataclasses

import pytest
import torch
from group_reference import POSES, rigid_poses

from zoo import DataError, coordinates
from zoo.coordinates import Coordinates
from zoo.poses import from_cameras, invert

EYE = torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize("kind", POSES)
def test_inverses_are_those_of_linear_algebra(kind):
    poses = POSES[kind](200)
    exact = torch.linalg.inv(poses)
    torch.testing.assert_close(invert(poses), exact, atol=1e-12, rtol=1e-12)
    single = invert(poses.float())
    assert single.dtype == torch.float32
    assert ((single - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2))).median() < 1e-6
    assert torch.equal(invert(EYE), EYE)
    assert not invert(torch.zeros(4, 4)).isfinite().any()


def test_inverses_have_gradients():
    assert torch.autograd.gradcheck(invert, (POSES["projective"](2).requires_grad_(),))


def cameras(count=3, seed=0):
    """camera_from_world and pixel intrinsics for pictures of 640 x 480."""
    generator = torch.Generator().manual_seed(seed)
    intrinsics = torch.tensor([[500.0, 2.0, 300.0], [0.0, 520.0, 250.0], [0.0, 0.0, 1.0]]).double().repeat(count, 1, 1)
    intrinsics[:, 0, 0] += 50 * torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.linalg.inv(rigid_poses(count, seed=seed)), intrinsics


def test_poses_of_cameras_are_their_inverse_extrinsics_about_the_first():
    extrinsics, _ = cameras()
    poses = from_cameras(extrinsics, dtype=torch.float64)
    expected = torch.linalg.inv(extrinsics)
    torch.testing.assert_close(poses[:, :3, :3], expected[:, :3, :3], atol=1e-12, rtol=0)
    torch.testing.assert_close(poses[:, :3, 3], expected[:, :3, 3] - expected[0, :3, 3], atol=1e-12, rtol=0)
    assert from_cameras(extrinsics).dtype == torch.float32


def test_image_poses_project_points_to_normalised_pixels():
    extrinsics, intrinsics = cameras()
    origin = torch.linalg.inv(extrinsics)[0, :3, 3]
    poses = from_cameras(extrinsics, intrinsics, (640, 480), dtype=torch.float64)
    points = torch.randn(5, 3, dtype=torch.float64)
    for camera in range(3):
        seen = points @ extrinsics[camera, :3, :3].T + extrinsics[camera, :3, 3]
        column, row, depth = (seen @ intrinsics[camera].T).unbind(-1)
        expected = torch.stack([column / 640 - 0.5 * depth, row / 480 - 0.5 * depth, depth, torch.ones(5)], dim=-1)
        homogeneous = torch.cat([points - origin, torch.ones(5, 1)], dim=-1)
        found = homogeneous @ torch.linalg.inv(poses[camera]).T
        torch.testing.assert_close(found, expected.double(), atol=1e-11, rtol=0)
    shared = from_cameras(extrinsics, intrinsics[:1], (640, 480), dtype=torch.float64)
    torch.testing.assert_close(shared[0], poses[0], atol=1e-14, rtol=0)


def test_intrinsics_do_not_depend_on_resolution():
    extrinsics, intrinsics = cameras()
    half = intrinsics.clone()
    half[:, :2] /= 2
    small, large = from_cameras(extrinsics, half, (320, 240)), from_cameras(extrinsics, intrinsics, (640, 480))
    torch.testing.assert_close(small, large)


def test_far_origins_lose_nothing():
    near = rigid_poses(3)
    far = near.clone()
    far[:, :3, 3] += torch.tensor([4_500_000.0, 500_000.0, 100.0])
    made = from_cameras(torch.linalg.inv(far))
    torch.testing.assert_close(made, from_cameras(torch.linalg.inv(near)), atol=1e-6, rtol=0)


def test_bad_cameras_are_explained():
    extrinsics, intrinsics = cameras()
    with pytest.raises(DataError, match=r"\(\.\.\., cameras, 4, 4\)"):
        from_cameras(extrinsics[:, :3])
    for bad in (2 * extrinsics, extrinsics @ torch.diag(torch.tensor([1, 1, -1, 1.0]).double()), extrinsics.mT):
        with pytest.raises(DataError, match="must be rigid"):
            from_cameras(bad)
    with pytest.raises(DataError, match="finite"):
        from_cameras(extrinsics * float("nan"))
    with pytest.raises(DataError, match="image_size"):
        from_cameras(extrinsics, intrinsics)
    with pytest.raises(DataError, match=r"cameras, 3, 3\)"):
        from_cameras(extrinsics, extrinsics, (640, 480))
    for size in (640, (640,), (640, 0), (640, float("inf")), "ab"):
        with pytest.raises(DataError, match="image_size"):
            from_cameras(extrinsics, intrinsics, size)
    assert from_cameras(extrinsics, intrinsics, torch.tensor([640, 480])).shape == (3, 4, 4)
    with pytest.raises(DataError, match="intrinsics must be finite"):
        from_cameras(extrinsics, intrinsics / 0, (640, 480))
    with pytest.raises(DataError, match=r"not of as many cameras: \(3, 4, 4\) and \(2, 3, 3\)"):
        from_cameras(extrinsics, intrinsics[:2], (640, 480))
    with pytest.raises(DataError, match="got ndarray"):
        from_cameras(extrinsics.numpy())
    for bad in (-intrinsics, intrinsics.mT, 0 * intrinsics):
        with pytest.raises(DataError, match="focal lengths"):
            from_cameras(extrinsics, bad, (640, 480))


def tokens(batch=2):
    return dataclasses.replace(coordinates.grid(2, 2), poses=rigid_poses(4 * batch).view(batch, 4, 4, 4))


def test_poses_travel_with_coordinates():
    coords = tokens()
    assert coords.to(dtype=torch.float32).poses.dtype == torch.float32
    assert coords.to(device="cpu").poses.dtype == torch.float64  # As they were, unless asked.
    assert coords.to(device="meta").poses.device.type == "meta"
    for same in (coords.shifted(3.0), coords.scaled(0.5)):
        assert torch.equal(same.poses, coords.poses)
    first = coords.with_prefix(2).poses
    assert torch.equal(first[:, 2:], coords.poses) and torch.equal(first[:, :2], EYE.expand(2, 2, 4, 4))
    hidden = torch.tensor([[False, True, False, False], [False] * 4])
    kept = dataclasses.replace(coords, poses=coords.poses.masked_fill(hidden[..., None, None], float("nan")))
    kept = kept.hide(hidden).poses
    assert torch.equal(kept[0, 1], EYE) and torch.equal(kept[~hidden], coords.poses[~hidden])
    one = dataclasses.replace(coords, poses=coords.poses[:1]).hide(hidden).poses
    assert one.shape == (2, 4, 4, 4) and torch.equal(one[1], coords.poses[0])


def test_mixtures_join_poses():
    coords, words = tokens(), coordinates.grid(1, 3)
    joined = coordinates.concatenate([words, coords]).poses
    assert torch.equal(joined[:, :3], EYE.expand(2, 3, 4, 4)) and torch.equal(joined[:, 3:], coords.poses)
    assert coordinates.concatenate([words, words]).poses is None
    for other in (tokens(3), dataclasses.replace(words, values=words.values.repeat(3, 1, 1))):
        with pytest.raises(DataError, match=r"for batches of \[2, 3\]"):
            coordinates.concatenate([coords, other])


def test_poses_are_checked():
    grid = coordinates.grid(2, 2)
    for shape in ((4, 4, 4), (1, 3, 4, 4), (1, 4, 3, 4), (1, 4, 4)):
        with pytest.raises(DataError, match=r"poses must have shape \(B or 1, N, 4, 4\)"):
            dataclasses.replace(grid, poses=torch.zeros(shape))
    with pytest.raises(DataError, match="must be a tensor of 4x4 matrices, got ndarray"):
        dataclasses.replace(grid, poses=torch.eye(4).repeat(1, 4, 1, 1).numpy())
    with pytest.raises(DataError, match="float32 or float64"):
        dataclasses.replace(grid, poses=torch.zeros(1, 4, 4, 4, dtype=torch.bfloat16))
    with pytest.raises(DataError, match="poses must have shape"):
        Coordinates(torch.zeros(2, 4, 2), poses=torch.zeros(3, 4, 4, 4))
    with pytest.raises(DataError, match=r"\(N_total, 4, 4\)"):
        Coordinates(torch.zeros(4, 2), cu_seqlens=torch.tensor([0, 4]), poses=torch.zeros(1, 4, 4, 4))
