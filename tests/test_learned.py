"""Learned tables: exact on their own grid, stretched over others, refused off a grid."""

import pytest
import torch
from timm.layers import resample_abs_pos_embed

from zoo import ConfigError, DataError, coordinates
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.transformer import Encoder


def table(axes, grid, dim=6):
    torch.manual_seed(0)
    return create("learned", dim=dim, num_heads=1, head_dim=dim, coord_dim=axes, options={"grid": grid})[0]


def test_cells_are_columns_then_rows_and_prefixes_get_nothing():
    encoding = table(2, [4, 3])
    coords = coordinates.grid(3, 4, origin=1).with_prefix(2)
    made = encoding.encode(coords)
    assert not made[0, :2].any()
    assert torch.equal(made[0, 2:], encoding.table.permute(2, 1, 0).reshape(12, 6))


@pytest.mark.parametrize("rows_columns", [(6, 8), (2, 3), (5, 9)])
def test_other_grids_get_timms_resizing(rows_columns):
    encoding = table(2, [4, 3])
    flat = encoding.table.permute(2, 1, 0).reshape(1, 12, 6)
    expected = resample_abs_pos_embed(flat, list(rows_columns), [3, 4], num_prefix_tokens=0)
    made = encoding.encode(coordinates.grid(*rows_columns))
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=0)


def test_one_and_three_axes_and_any_order_of_tokens():
    line = table(1, 5).encode(coordinates.text(5))
    assert torch.equal(line[0], table(1, 5).table.t())
    assert table(3, [2, 3, 4]).encode(coordinates.clip(3, 2, 5)).shape == (1, 30, 6)
    coords = coordinates.grid(3, 4)
    order = torch.randperm(12)
    shuffled = Coordinates(coords.values[:, order], integral=True)  # Bounds unknown: they are measured.
    encoding = table(2, [4, 3])
    assert torch.equal(encoding.encode(shuffled), encoding.encode(coords)[:, order])


def test_off_grid_tokens_are_refused():
    with pytest.raises(DataError, match="on a grid"):
        table(2, 4).encode(Coordinates(torch.rand(1, 5, 2)))


@pytest.mark.parametrize("grid", [0, [3], [3, 2.0], "14", [True, 3], [4096, 4097]])
def test_bad_grids_are_explained(grid):
    with pytest.raises(ConfigError, match="grid"):
        table(2, grid)


def test_encoder_learns_the_table_without_decay():
    encoder = Encoder(16, 1, 2, 2, encoding="learned+pape", encoding_options={"learned": {"grid": 3}})
    assert "token_encoding.table" in encoder.no_weight_decay()
    out = encoder(torch.randn(2, 10, 16), coordinates.grid(3, 3).with_prefix(1))
    (out * torch.randn_like(out)).sum().backward()
    assert (encoder.token_encoding.table.grad != 0).all()
