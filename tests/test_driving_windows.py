"""Sets of tokens, pillars, and where one sensor's tokens are seen by the other, against plain references."""

import math

import pytest
import torch
from driving_toys import CAMERAS, DATA, HEIGHT, PATCH, WIDTH, rig, scenes

from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.mapping import NEAR, Rig, lift_to_ground, look_up, nearest_lidar, view_of
from modalities.driving.pillars import make_pillars
from modalities.driving.windows import Places, make_sets

CELLS, PLANES, WINDOW, SET = 30, 3, 7, 5
LAYOUTS = [(0, False), (0, True), (3, False), (3, True)]


def random_places(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    position = torch.rand(tokens, 2, generator=generator) * CELLS * torch.tensor([1.0, 0.4])
    return Places(torch.randint(0, PLANES, (tokens,), generator=generator), position, position.floor().long())


@pytest.mark.parametrize("tokens", [0, 1, 5, 6, 400])
def test_every_token_is_in_one_set_of_its_window(tokens):
    places = random_places(tokens)
    for (shift, second), sets in zip(
        LAYOUTS, make_sets([(places, *one) for one in LAYOUTS], PLANES, CELLS, WINDOW, SET), strict=True
    ):
        chosen = sets.slots.view(-1, SET)
        assert torch.equal(sets.slots[chosen.flatten() < tokens].sort().values, torch.arange(tokens))
        assert torch.equal(sets.slots[sets.place], torch.arange(tokens))
        assert sets.mask.any(1).all() and torch.equal(sets.mask, chosen < tokens)
        window = torch.cat([places.plane.unsqueeze(1), (places.cell + shift) // WINDOW], 1).tolist()
        sizes = {}
        for row in chosen.tolist():
            members = [token for token in row if token < tokens]
            assert len({tuple(window[token]) for token in members}) == 1
            sizes.setdefault(tuple(window[members[0]]), []).append(len(members))
        for where, found in sizes.items():
            held = sum(window[token] == list(where) for token in range(tokens))
            assert sum(found) == held and len(found) == -(-held // SET) and max(found) - min(found) <= 1
        if tokens == 400:  # Along the sorted axis the sets of a window follow one another.
            along = 1 if second else 0
            for one, other in zip(chosen[:-1].tolist(), chosen[1:].tolist(), strict=True):
                one, other = ([token for token in row if token < tokens] for row in (one, other))
                if window[one[0]] == window[other[0]]:
                    assert places.cell[one, along].max() <= places.cell[other, along].min()


def test_positions_are_counted_from_the_corner_of_the_window_and_tokens_come_back():
    places = random_places(300, 1)
    (sets,) = make_sets([(places, 3, False)], PLANES, CELLS, WINDOW, SET)
    x = torch.randn(300, 4)
    assert torch.equal(sets.restore(sets.arrange(x)), x)
    assert sets.arrange(x)[~sets.mask].abs().sum() == 0
    values = sets.restore(sets.coords.values)
    torch.testing.assert_close(values, (places.position + 3) % WINDOW, atol=1e-5, rtol=0)
    (low, high), _ = sets.coords.bounds
    assert low <= values.min() and values.max() <= high


def test_sets_do_not_depend_on_other_planes():
    places = random_places(200, 2)
    (together,) = make_sets([(places, 0, True)], PLANES, CELLS, WINDOW, SET)
    kept = (places.plane == 1).nonzero()[:, 0]
    alone = Places(places.plane[kept], places.position[kept], places.cell[kept])
    (sets,) = make_sets([(alone, 0, True)], PLANES, CELLS, WINDOW, SET)

    def groups(found, names):
        return {frozenset(names[t] for t in row if t < len(names)) for row in found.slots.view(-1, SET).tolist()}

    assert groups(sets, kept.tolist()) <= groups(together, list(range(200)))


def test_pillars_are_those_of_a_dictionary():
    data = DrivingDataConfig(**DATA)
    batch = scenes(120, 0, 40)
    points = batch.points.clone()
    points[3, 0], points[5, 4] = math.nan, math.inf
    pillars = make_pillars(points, batch.offsets, data)
    expected = {}
    for number, point in enumerate(points.tolist()):
        low, high = data.point_range[:3], data.point_range[3:]
        if all(map(math.isfinite, point)) and all(a <= p < b for a, p, b in zip(low, point[:3], high, strict=True)):
            cell = [math.floor((point[axis] - low[axis]) / data.pillar_size) for axis in (0, 1)]
            expected.setdefault((0 if number < 120 else 2, *cell), []).append(point)
    found = list(zip(pillars.scene.tolist(), *pillars.cell.T.tolist(), strict=True))
    assert found == sorted(expected)
    for number, key in enumerate(found):
        torch.testing.assert_close(pillars.mean[number], torch.tensor(expected[key])[:, :3].mean(0))
        held = pillars.points[pillars.groups.index == number]
        assert sorted(held.tolist()) == sorted(torch.tensor(expected[key]).tolist())
    assert len(make_pillars(points[:0], torch.zeros(3, dtype=torch.int64), data)) == 0


def make_rig(present=None):
    intrinsics, extrinsics = rig()
    present = torch.ones(2, CAMERAS, dtype=torch.bool) if present is None else present
    both = intrinsics.expand(2, -1, -1, -1), extrinsics.expand(2, -1, -1, -1)
    return Rig.make(*both, present, (HEIGHT, WIDTH), PATCH, torch.empty(0)), both


def by_hand(point, intrinsics, extrinsics):
    """Column and row in patches and depth of one point, in plain matrix products."""
    x, y, z = (extrinsics @ torch.tensor([*point, 1.0]))[:3].tolist()
    if z <= NEAR:
        return None
    column = (intrinsics[0, 0].item() * x / z + intrinsics[0, 2].item()) / PATCH
    row = (intrinsics[1, 1].item() * y / z + intrinsics[1, 2].item()) / PATCH
    return (column, row, z) if 0 <= column < WIDTH // PATCH and 0 <= row < HEIGHT // PATCH else None


def cloud():
    batch = scenes(90, 60)
    return batch.points[:, :3], torch.repeat_interleave(torch.arange(2), batch.offsets.diff())


def test_projection_by_hand():
    present = torch.ones(2, CAMERAS, dtype=torch.bool)
    present[1, 2] = False
    cameras, (intrinsics, extrinsics) = make_rig(present)
    points, number = cloud()
    position, seen = view_of(points, number, cameras)
    count = 0
    for p, point in enumerate(points.tolist()):
        for v in range(CAMERAS):
            at = by_hand(point, intrinsics[0, v], extrinsics[0, v]) if present[number[p], v] else None
            assert (at is not None) == bool(seen[p, v])
            if at is not None:
                count += 1
                torch.testing.assert_close(position[p, v], torch.tensor(at[:2]), atol=1e-4, rtol=1e-4)
    assert count > 50


@pytest.mark.parametrize("radius", [1, 2])
def test_nearest_lidar_token_by_brute_force(radius):
    cameras, _ = make_rig()
    points, number = cloud()
    position, seen = view_of(points, number, cameras)
    found = nearest_lidar(position, seen, number, cameras, radius)
    column = torch.arange(WIDTH // PATCH) + 0.5
    row = torch.arange(HEIGHT // PATCH) + 0.5
    middles = torch.stack(torch.meshgrid(column, row, indexing="xy"), -1).view(-1, 2)
    both = 0
    for b in range(2):
        for v in range(CAMERAS):
            chosen = (seen[:, v] & (number == b)).nonzero()[:, 0]
            distance = torch.cdist(middles, position[chosen, v])
            least, best = distance.min(1)
            expected = torch.where(least <= radius, chosen[best], -1)
            assert torch.equal(found[b, v].flatten(), expected)
            both += int((expected >= 0).any()) + int((expected < 0).any())
    assert both > CAMERAS  # Both cases occur.
    assert (nearest_lidar(position[:0], seen[:0], number[:0], cameras, radius) == -1).all()


def test_lifted_patches_project_back_to_their_middle():
    present = torch.ones(2, CAMERAS, dtype=torch.bool)
    present[0, 1] = False
    cameras, _ = make_rig(present)
    place, meets = lift_to_ground(cameras, -0.3)
    assert not meets[0, 1].any() and meets[1].any() and not meets[1].all()
    for b, v, row, column in meets.nonzero().tolist():
        point = torch.tensor([[*place[b, v, row, column].tolist(), -0.3]])
        position, seen = view_of(point, torch.tensor([b]), cameras)
        assert seen[0, v]
        torch.testing.assert_close(position[0, v], torch.tensor([column + 0.5, row + 0.5]), atol=1e-3, rtol=0)


def test_cells_look_into_the_camera_that_shows_them_best():
    present = torch.ones(2, CAMERAS, dtype=torch.bool)
    present[1, 0] = False
    cameras, (intrinsics, extrinsics) = make_rig(present)
    cells = torch.cartesian_prod(torch.arange(-9.17, 10, 3), torch.arange(-7.31, 7, 3.5)).view(7, 5, 2)
    heights = [0.2, 1.7]
    camera, patch, found = look_up(cells, torch.tensor(heights), cameras)
    columns, shown = WIDTH // PATCH, 0
    for b in range(2):
        for x in range(7):
            for y in range(5):
                for z, height in enumerate(heights):
                    views = {}
                    for v in range(CAMERAS):
                        at = by_hand([*cells[x, y].tolist(), height], intrinsics[0, v], extrinsics[0, v])
                        if at is not None and present[b, v]:
                            views[v] = at
                    assert bool(found[b, x, y, z]) == bool(views)
                    if views:
                        shown += 1
                        best = max(views, key=lambda v: min(views[v][0], columns - views[v][0]))
                        at = views[best]
                        assert camera[b, x, y, z] == best
                        assert patch[b, x, y, z] == int(at[1]) * columns + int(at[0])
    assert shown > 40
