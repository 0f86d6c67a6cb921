"""LookHere: fields of view by hand, heads and slopes by layer, options."""

import pytest
import torch
from score_reference import fields, lookhere

from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.transformer import Encoder

DIM = 24


def block(**options):
    return CoordinateAttention(DIM, 12, 2, "lookhere", **options)


def features(tokens, dtype=torch.float64):
    return torch.zeros(1, tokens, DIM, dtype=dtype)  # The bias does not look at them.


def scattered(tokens):
    torch.manual_seed(2)
    return Coordinates(3 * torch.randn(1, tokens, 2, dtype=torch.float64))


# Fields of view by hand: a 3 x 3 grid seen from its centre (row, column order, 1 = visible), for the directed heads.
CENTRE = {
    180: [
        "111 111 000", "000 111 111", "110 110 110", "011 011 011",  # up, down, left, right
        "111 011 001", "111 110 100", "001 011 111", "100 110 111",  # up right, up left, down right, down left
    ],
    90: [
        "110 110 000", "011 011 000", "000 110 110", "000 011 011",  # up left, up right, down left, down right
        "111 010 000", "000 010 111", "100 110 100", "001 011 001",  # up, down, left, right between the diagonals
    ],
    45: [
        "110 010 000", "000 010 110", "100 110 000", "001 011 000",  # up, down: left half; left, right: upper half
        "011 010 000", "000 010 011", "000 110 100", "000 011 001",  # up, down: right half; left, right: lower half
    ],
}  # fmt: skip
# From the left end of the middle row of 3 x 4, where diagonals leave the grid; wedges and eighths differ from above.
EDGE = {
    180: [
        "1111 1111 0000", "0000 1111 1111", "1000 1000 1000", "1111 1111 1111",
        "1111 1111 0111", "1100 1000 0000", "0111 1111 1111", "0000 1000 1100",
    ],
    90: [
        "1000 1000 0000", "1111 1111 0000", "0000 1000 1000", "0000 1111 1111",
        "1100 1000 0000", "0000 1000 1100", "0000 1000 0000", "0111 1111 0111",
    ],
    45: [
        "1000 1000 0000", "0000 1000 1000", "0000 1000 0000", "0111 1111 0000",
        "1100 1000 0000", "0000 1000 1100", "0000 1000 0000", "0000 1111 0111",
    ],
}  # fmt: skip


def parse(picture):
    return torch.tensor([[int(cell) for cell in row] for row in picture.split()]).bool()


@pytest.mark.parametrize("view", [180, 90, 45])
def test_fields_of_view_by_hand(view):
    for coords, query, pictures in (
        (coordinates.grid(3, 3, origin=1), 4, CENTRE[view]),
        (coordinates.grid(3, 4), 4, EDGE[view]),
    ):
        tokens = coords.values.shape[1]
        attention = block(view=view)
        bias = attention.position_bias(features(tokens, torch.float32), coords)[0, :, query]
        for head, picture in enumerate(pictures):
            assert torch.equal(bias[head].isfinite(), parse(picture).flatten()), (view, head)
        assert bias[8:].isfinite().all()
        x, y = (coords.values[0] - coords.values[0, query]).unbind(-1)
        for head, seen in enumerate(fields(view, x, y)):
            assert torch.equal(bias[head].isfinite(), seen)


@pytest.mark.parametrize("view", [180, 90, 45])
def test_every_token_sees_itself_and_some_head_sees_each_pair(view):
    coords = scattered(30)
    bias = block(view=view).double().position_bias(features(30), coords)[0]
    assert not bias.diagonal(dim1=1, dim2=2).any()
    seen = bias[:8].isfinite()
    others = ~torch.eye(30, dtype=torch.bool)
    assert (seen.sum(0)[others] == {180: 4, 90: 2, 45: 1}[view]).all()  # Off the borders the fields tile the plane.


@pytest.mark.parametrize(("heads", "depth"), [(4, 7), (12, 3), (6, 5), (5, 2), (8, 10), (16, 4)])
def test_heads_go_round_the_list_and_slopes_fall_over_depth(heads, depth):
    torch.manual_seed(0)
    encoder = Encoder(240, depth, heads, 2, mlp_dim=8, encoding="lookhere", head_dim=4)
    coords = coordinates.grid(3, 4, dtype=torch.float64)
    difference = coords.values.unsqueeze(2) - coords.values.unsqueeze(1)
    x = torch.zeros(1, 12, 240)
    frame = encoder.blocks[0].attn.frame(x, coords)  # One frame serves all layers.
    for layer, part in enumerate(encoder.blocks):
        bias = part.attn.encoding.score(x, frame, 1.0).bias(slice(0, 12))
        torch.testing.assert_close(bias, lookhere(part.attn.encoding, difference, heads, layer, depth))


def test_options_of_lookhere_scale_and_round_the_bias():
    coords, x = coordinates.grid(5, 7), features(35, torch.float32)
    plain = block().position_bias(x, coords)
    options = {"global_slope": 1.0, "layer_slopes": [0.5, 1.0]}
    torch.testing.assert_close(block(**options).position_bias(x, coords), plain / 6)
    rounded = block(round_bias="bfloat16").position_bias(x, coords)
    assert torch.equal(rounded, plain.bfloat16().float()) and not torch.equal(rounded, plain)


@pytest.mark.parametrize("view", [180, 90, 45])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_coordinates_does_not_move_borders(view, dtype):
    """Grids that are scaled or moved by numbers with no exact form keep who is seen along axes and diagonals."""
    coords = coordinates.grid(9, 7, dtype=dtype)
    attention, x = block(view=view).to(dtype), features(63, dtype)
    seen = attention.position_bias(x, coords).isfinite()
    for other in (coords.scaled(14 / 30), coords.shifted((31.7, -0.3)), coords.scaled(0.1).shifted(0.7)):
        assert torch.equal(attention.position_bias(x, other).isfinite(), seen)


def test_lookhere_is_for_the_plane():
    for axes in (1, 3):
        with pytest.raises(ConfigError, match="2 coordinate axes"):
            create("lookhere", dim=DIM, num_heads=4, head_dim=6, coord_dim=axes)


def test_rotating_by_a_quarter_turns_the_fields_of_lookhere():
    coords = scattered(9)
    attention, x = block().double(), features(9)
    bias = attention.position_bias(x, coords)
    turned = attention.position_bias(x, Coordinates(coords.values @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()))
    assert not torch.equal(turned[:, :8], bias[:, :8])
    torch.testing.assert_close(turned[:, 8:], bias[:, 8:], atol=1e-12, rtol=0)
    # (column, row) -> (-row, column): up goes right, right goes down.
    for before, after in ((4, 7), (7, 5), (5, 6), (6, 4), (0, 1), (1, 3), (3, 2), (2, 0)):
        torch.testing.assert_close(turned[:, after], bias[:, before], atol=1e-12, rtol=0)
