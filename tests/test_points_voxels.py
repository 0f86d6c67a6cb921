"""Batches, space-filling curves, voxels and kernel maps against plain Python."""

import itertools
from collections import defaultdict

import pytest
import torch
from ptv3_toys import cells_of, cloud, clouds, interleave, neighbours_of, skilling

from modalities.points import PointBatch
from modalities.points.kernel_map import kernel_map
from modalities.points.serialise import ORDERS, encode, hilbert, z_order
from modalities.points.voxels import voxelise
from zoo import ConfigError, DataError

CUBE = torch.tensor(list(itertools.product(range(8), repeat=3)))


def test_batches_hold_clouds_end_to_end():
    batch = clouds(3, 0, 2)
    assert (len(batch), batch.lengths.tolist(), batch.offsets.tolist()) == (3, [3, 0, 2], [0, 3, 3, 5])
    assert torch.equal(batch.cloud(-1).xyz, batch.xyz[3:]) and len(batch.cloud(1).features) == 0
    assert batch.to(dtype=torch.float64).features.dtype == torch.float64
    assert torch.utils._pytree.tree_map(lambda x: x, batch).offsets is batch.offsets
    mixed = PointBatch.from_clouds([(batch.xyz.double().numpy(), batch.features.numpy()), cloud(2)])
    assert mixed.xyz.dtype == torch.float64 and mixed.features.dtype == torch.float32


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: PointBatch.from_clouds([]), "no clouds"),
        (lambda: PointBatch.from_clouds([(torch.zeros(2, 2), torch.zeros(2, 1))]), "cloud 0 needs xyz"),
        (lambda: PointBatch.from_clouds([(torch.zeros(2, 3), torch.zeros(3, 1))]), "cloud 0 needs xyz"),
        (
            lambda: PointBatch.from_clouds([cloud(2), (torch.zeros(2, 3), torch.zeros(2, 1))]),
            r"different numbers of features: \[1, 3\]",
        ),
        (lambda: PointBatch(torch.zeros(2, 3).half(), torch.zeros(2, 1), torch.tensor([0, 2])), "float32 or float64"),
        (lambda: PointBatch(torch.zeros(2, 3), torch.zeros(2, 1).long(), torch.tensor([0, 2])), "of floats"),
        (lambda: PointBatch(torch.zeros(2, 3), torch.zeros(2, 1), torch.tensor([0, 3])), "rise from 0 to the number"),
        (lambda: PointBatch(torch.zeros(2, 3), torch.zeros(2, 1), torch.tensor([0, 2, 1, 2])), "rise from 0"),
        (lambda: PointBatch(torch.zeros(2, 3), torch.zeros(2, 1), torch.tensor([0.0, 2.0])), "int64"),
        (lambda: PointBatch(torch.zeros(2, 3), None, torch.tensor([0, 2])), "must be tensors"),
        (lambda: clouds(2, 3).cloud(2), "no cloud 2 among 2"),
    ],
)
def test_batches_refuse_what_does_not_fit(made, message):
    with pytest.raises(DataError, match=message):
        made()


@pytest.mark.parametrize("levels", [3, 6, 21])
def test_codes_are_those_of_the_bits(levels):
    cells = torch.randint(0, 1 << levels, (60, 3), generator=torch.Generator().manual_seed(levels))
    assert z_order(cells).tolist() == [interleave(cell, levels) for cell in cells.tolist()]
    assert hilbert(cells, levels).tolist() == [skilling(cell, levels) for cell in cells.tolist()]


def test_hilbert_neighbours_share_a_face_at_every_level():
    codes = hilbert(CUBE, 3)
    line = CUBE[codes.argsort()]
    assert codes.sort().values.tolist() == list(range(512))
    assert (line.diff(dim=0).abs().sum(1) == 1).all()
    larger = line[::8] >> 1  # A larger cell is a run of the curve, and the runs follow such a curve.
    assert torch.equal(line >> 1, larger.repeat_interleave(8, 0)) and (larger.diff(dim=0).abs().sum(1) == 1).all()


def test_codes_do_not_depend_on_how_many_levels_there_are():
    for levels in (4, 6, 16, 21):
        assert torch.equal(hilbert(CUBE, levels), hilbert(CUBE, 3))


def test_transposed_curves_exchange_x_and_y():
    codes = encode(CUBE, 3)
    turned = encode(CUBE[:, [1, 0, 2]], 3)
    assert len(codes) == len(ORDERS) == len({tuple(row.tolist()) for row in codes})
    assert torch.equal(codes[[1, 0, 3, 2]], turned)
    assert torch.equal(encode(CUBE, 3, ["hilbert-trans", "z"]), codes[[3, 0]])
    with pytest.raises(DataError, match="at most 21"):
        encode(CUBE, 22)


@pytest.mark.parametrize("size", [0.5, 0.13])
def test_voxels_are_those_of_the_points(size):
    batch = clouds(40, 0, 300, 1)
    level = voxelise(batch, size)[0]
    points = cells_of(batch, size)
    members = defaultdict(list)
    for point, cell in enumerate(points):
        members[cell].append(point)
    cells = [(number, *cell) for number, cell in zip(level.cloud.tolist(), level.cells.tolist(), strict=True)]
    assert len(cells) == len(members) == len(level) and set(cells) == set(members)
    assert [cells[voxel] for voxel in level.groups.index.tolist()] == points
    means = torch.stack([batch.xyz[members[cell]].mean(0) for cell in cells])
    torch.testing.assert_close(level.xyz, means, atol=1e-6, rtol=0)
    maxima = torch.stack([batch.features[members[cell]].amax(0) for cell in cells])
    assert torch.equal(level.groups.reduce(batch.features, "max"), maxima)
    assert level.counts == tuple(level.offsets.tolist()) and level.counts[1] == level.counts[2]


def test_levels_nest():
    levels = voxelise(clouds(60, 200), 0.25, 4, ORDERS)
    index = torch.arange(len(levels[0]))
    for step, (finer, coarser) in enumerate(itertools.pairwise(levels), 1):
        parents, cells = coarser.groups.index, coarser.cells
        assert torch.equal(finer.cells >> 1, cells[parents]) and torch.equal(finer.cloud, coarser.cloud[parents])
        assert len(
            {(number, *cell) for number, cell in zip(coarser.cloud.tolist(), cells.tolist(), strict=True)}
        ) == len(coarser)
        children = torch.zeros_like(coarser.xyz).index_add(0, parents, finer.xyz) / parents.bincount().unsqueeze(1)
        torch.testing.assert_close(coarser.xyz, children, atol=1e-6, rtol=0)
        index = parents[index]
        assert torch.equal(coarser.codes[:, index], levels[0].codes >> 3 * step)
        assert coarser.size == 0.25 * 2**step and max(coarser.top) == cells.max()


def test_orders_follow_the_codes_cloud_by_cloud():
    level = voxelise(clouds(50, 3, 200), 0.3, 1, ORDERS)[0]
    for curve, order in enumerate(level.permutations(range(4))):
        keys = list(zip(level.cloud[order].tolist(), level.codes[curve][order].tolist(), strict=True))
        assert keys == sorted(keys) and sorted(order.tolist()) == list(range(len(level)))
    assert torch.equal(level.permutations([0])[0], torch.arange(len(level)))


def test_a_cloud_does_not_depend_on_the_others():
    alone = voxelise(clouds(50), 0.3, 3, ORDERS)
    far, features = cloud(20, 7)
    among = voxelise(PointBatch.from_clouds([(far * 500, features), cloud(50), (far, features)]), 0.3, 3, ORDERS)
    for one, many in zip(alone, among, strict=True):
        own = many.cloud == 1
        assert torch.equal(one.cells, many.cells[own]) and torch.equal(one.codes, many.codes[:, own])
        assert torch.equal(one.xyz, many.xyz[own])


@pytest.mark.parametrize(
    ("value", "message"),
    [(float("nan"), "NaN or infinite"), (float("inf"), "NaN or infinite"), (3e6, "larger grid size"), (1e30, "crop")],
)
def test_impossible_coordinates(value, message):
    xyz, features = cloud(10)
    xyz[3, 1] = value
    with pytest.raises(DataError, match=message):
        voxelise(PointBatch.from_clouds([(xyz, features)]), 1.0)


def test_one_huge_cloud_fits_and_two_do_not():
    xyz = torch.tensor([[0.0, 0.0, 0.0], [2.0**21 - 1, 5.0, 7.0]])
    one = (xyz, torch.zeros(2, 1))
    level = voxelise(PointBatch.from_clouds([one]), 1.0, 3, ORDERS)[0]
    assert level.bits == 21 and level.cells[1].tolist() == [2**21 - 1, 5, 7]
    with pytest.raises(DataError, match="there are 2 clouds: their codes need 63 bits"):
        voxelise(PointBatch.from_clouds([one, one]), 1.0)


def test_no_points_at_all():
    levels = voxelise(clouds(0, 0), 0.5, 3, ORDERS)
    assert [len(level) for level in levels] == [0, 0, 0] and levels[2].counts == (0, 0, 0)
    assert kernel_map(levels[0], 5).neighbours.shape == (0, 125)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_neighbours(kernel_size):
    level = voxelise(clouds(60, 0, 200, 1), 0.4)[0]
    cells = [(number, *cell) for number, cell in zip(level.cloud.tolist(), level.cells.tolist(), strict=True)]
    found = kernel_map(level, kernel_size)
    assert found.neighbours.tolist() == neighbours_of(cells, kernel_size)
    if kernel_size == 5:
        assert torch.equal(found.inner(3).neighbours, kernel_map(level, 3).neighbours)
    with pytest.raises(ConfigError, match="odd edge"):
        kernel_map(level, 4)


def test_gradients_of_groups():
    batch = clouds(30, 0, 9)
    groups = voxelise(batch, 0.5)[0].groups
    rows = batch.features.double().requires_grad_()
    voxels = torch.randn(len(groups.starts) - 1, 3, dtype=torch.float64, requires_grad=True)
    for how in ("max", "mean", "sum"):
        assert torch.autograd.gradcheck(lambda x, how=how: groups.reduce(x, how), rows)
    assert torch.autograd.gradcheck(groups.spread, voxels)
    half = groups.reduce(batch.features.bfloat16(), "mean")
    torch.testing.assert_close(half.float(), groups.reduce(batch.features, "mean"), atol=0.02, rtol=0.02)
