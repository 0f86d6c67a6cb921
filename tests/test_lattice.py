"""Biases of tokens that fill a plane: where one is found, and attention with their table against float64 pairs."""

import copy

import pytest
import torch

from zoo import coordinates
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.distance import pair_frame
from zoo.kernels import attend, dispatch

ENCODINGS = [
    ("alibi", {}), ("alibi", {"metric": "manhattan"}), ("alibi", {"metric": "index"}),
    ("lookhere", {"view": 90}), ("lookhere", {"view": 45}), ("kerple", {}), ("table", {"extent": 5}), ("cpb", {}),
]  # fmt: skip
HEADS, WIDTH = 12, 8


def found(coords):
    return pair_frame(coords, torch.float32).lattice


def attention(name, options, coords, grad):
    """Output and gradients, and the same of the bias of all pairs in float64, largest error relative to the largest."""
    torch.manual_seed(0)
    tokens, scale = coords.values.shape[1], WIDTH**-0.5
    shape = {"dim": HEADS * WIDTH, "num_heads": HEADS, "head_dim": WIDTH, "coord_dim": 2}
    encoding = create(name, **shape, options=options)[1]
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    exact = copy.deepcopy(encoding).double()
    inputs = [torch.randn(2, HEADS, tokens, WIDTH, requires_grad=grad) for _ in range(3)]
    wide = [x.detach().double().requires_grad_(grad) for x in inputs]
    x = torch.zeros(2, tokens, HEADS * WIDTH)
    with torch.set_grad_enabled(grad):
        score = encoding.score(x, encoding.frame(coords.to(dtype=torch.float32), torch.float32), scale)
        out = attend(*inputs, scale=scale, score=score)
        pairs = exact.score(x, exact.frame(coords, torch.float64), scale).bias(slice(None))
        expected = (scale * wide[0] @ wide[1].mT + pairs).softmax(dim=-1) @ wide[2]
    results = [(out, expected)]
    if grad:
        along = torch.randn_like(out)
        ours = torch.autograd.grad(out, [*inputs, *encoding.parameters()], along)
        results += zip(ours, torch.autograd.grad(expected, [*wide, *exact.parameters()], along.double()), strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in results), score


@pytest.mark.parametrize("elements", [2**22, 40_000, 1_000], ids=["at once", "heads apart", "rows apart"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("name", "options"), ENCODINGS)
def test_attention_from_the_table_is_that_of_all_pairs(name, options, grad, elements, monkeypatch):
    monkeypatch.setattr(dispatch, "_BLOCK_ELEMENTS", elements)
    error, score = attention(name, options, coordinates.grid(9, 7, dtype=torch.float64).with_prefix(2), grad)
    assert score.frame.lattice is not None
    assert error < 3e-6


@pytest.mark.parametrize(("name", "options"), ENCODINGS)
def test_planes_between_whole_steps(name, options):
    coords = coordinates.grid(6, 8, dtype=torch.float64).scaled([1 / 3, 0.7]).with_prefix(1)
    error, score = attention(name, options, coords, grad=False)
    assert score.frame.lattice is not None
    assert error < 3e-6


def test_tiles_that_a_head_cannot_see():
    error, _ = attention("lookhere", {"view": 180}, coordinates.grid(32, 32, dtype=torch.float64).with_prefix(1), True)
    assert error < 3e-6


def test_lattice_of_a_grid():
    lattice = found(coordinates.grid(4, 6).with_prefix(3))
    assert (lattice.prefix, lattice.rows, lattice.columns) == (3, 4, 6)
    assert lattice.across.tolist() == [1, 0] and lattice.down.tolist() == [0, 1]
    one = found(coordinates.grid(1, 12))  # A line, cut into rows
    assert (one.rows, one.columns) == (4, 3) and one.down.tolist() == [3, 0]


def test_no_lattice():
    grid = coordinates.grid(4, 6)
    order = torch.arange(24)
    order[[3, 17]] = order[[17, 3]]
    hole = torch.ones(1, 24, dtype=torch.bool)
    hole[0, 9] = False
    moved = grid.values.clone()
    moved[0, 13, 0] += 1e-3
    for coords in (
        Coordinates(grid.values[:, order]),
        Coordinates(grid.values[:, :23]),
        Coordinates(grid.values, positioned=hole),
        Coordinates(moved),
        Coordinates(grid.values.expand(2, -1, -1).contiguous()),
        grid.with_prefix(1, at=(2.0, 2.0)),
        coordinates.grid(1, 1).with_prefix(2),
        coordinates.grid(1, 7),
    ):
        assert found(coords) is None
