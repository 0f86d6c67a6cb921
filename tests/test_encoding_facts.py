"""`zoo encodings` tells the truth: every stated property is tried on the module itself."""

import json

import pytest
import torch

import zoo
from zoo import coordinates
from zoo.attention import CoordinateAttention
from zoo.cli.main import main
from zoo.coordinates import Coordinates
from zoo.encodings.facts import FACTS

NAMES = zoo.encodings()
DIM, HEADS = 96, 12  # Twelve heads, so that every group of heads of LookHere is there.


def attention(name):
    torch.manual_seed(0)
    made = CoordinateAttention(DIM, HEADS, 2, name).double()
    with torch.no_grad():  # Some start at zero, where everything is invariant.
        for parameter in [*made.encoding.parameters()]:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def rows(name, coords, x=None):
    torch.manual_seed(1)
    x = torch.randn(1, coords.values.shape[1], DIM, dtype=torch.float64) if x is None else x
    return attention(name)(x, coords, return_attention=True)[1]


def grid():
    return coordinates.grid(4, 4, dtype=torch.float64)


def same(a, b):
    return torch.allclose(a, b, atol=1e-9, rtol=0)


def test_facts_cover_the_registry():
    assert sorted(FACTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_kind(name):
    made = attention(name)
    if made.token_encoding is not None:
        assert FACTS[name].kind == "token"
    else:
        assert made.frame(torch.zeros(1, 16, DIM, dtype=torch.float64), grid()).kind == FACTS[name].kind


@pytest.mark.parametrize("name", NAMES)
def test_translation(name):
    moved = Coordinates(grid().values + 3.0, integral=True)  # Undeclared bounds: a table cannot know the old origin.
    if name == "learned":  # A table is absolute: tokens on other cells get other rows.
        assert not same(rows(name, grid()), rows(name, Coordinates(grid().values.flip(1), integral=True)))
        assert not FACTS[name].translation
    else:
        assert same(rows(name, grid()), rows(name, moved)) == FACTS[name].translation


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("learned", "rope-1d")])
def test_rotation(name):
    """By a quarter turn, which keeps the tokens on a grid."""
    values = grid().values
    turned = Coordinates(torch.stack([-values[..., 1], values[..., 0]], dim=-1), integral=True)
    assert same(rows(name, grid()), rows(name, turned)) == FACTS[name].rotation


@pytest.mark.parametrize("name", [n for n in NAMES if n != "learned"])
def test_directional(name):
    """Equal tokens on a line: whether the middle one may weigh its left and right neighbours differently."""
    values = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
    x = torch.randn(1, 1, DIM, dtype=torch.float64).expand(1, 3, DIM)
    weights = rows(name, Coordinates(values, integral=True), x)[0, :, 1]
    assert same(weights[:, 0], weights[:, 2]) != FACTS[name].directional


@pytest.mark.parametrize("name", [n for n in NAMES if FACTS[n].decay])
def test_decay(name):
    values = torch.cat([torch.zeros(1, 1, 2), torch.tensor([[[60.0, 0.0], [60.0, 1.0]]])], dim=1).double()
    x = torch.randn(1, 1, DIM, dtype=torch.float64).expand(1, 3, DIM)
    bias = attention(name).position_bias(x, Coordinates(values, integral=True))[0, :, 0]
    assert (bias[:, 1] < bias[:, 0]).all()


@pytest.mark.parametrize("name", [n for n in NAMES if FACTS[n].kind in ("score", "fold")])
def test_content(name):
    made, coords = attention(name), grid()
    biases = [made.position_bias(torch.randn(1, 16, DIM, dtype=torch.float64), coords) for _ in range(2)]
    if biases[0] is None:  # Rotary: the phase multiplies the content itself.
        assert FACTS[name].content and FACTS[name].kind == "fold"
    else:
        assert same(*biases) != FACTS[name].content


def test_command_prints_every_encoding(capsys):
    for arguments in (["encodings"], ["encodings", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code
    out = capsys.readouterr().out
    table, listed = out[: out.index("[\n")], json.loads(out[out.index("[\n") :])
    assert [row["name"] for row in listed] == NAMES == [line.split("\t")[0] for line in table.splitlines()]
