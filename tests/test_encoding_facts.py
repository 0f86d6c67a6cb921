"""`zoo encodings` tells the truth: every stated property is tried on the module itself."""

import json
import re

import pytest
import torch

import zoo
from zoo import coordinates
from zoo.attention import CoordinateAttention
from zoo.cli.main import main
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.facts import FACTS, PARAMETERS, facts_row

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
    values = torch.cat([torch.zeros(1, 1, 2), torch.tensor([[[6000.0, 0.0], [6000.0, 1.0]]])], dim=1).double()
    x = torch.randn(1, 1, DIM, dtype=torch.float64).expand(1, 3, DIM)
    bias = attention(name).position_bias(x, Coordinates(values, integral=True))[0, :, 0]
    assert (bias[:, 1] < bias[:, 0]).all()


@pytest.mark.parametrize("name", [n for n in NAMES if FACTS[n].kind in ("score", "fold", "group")])
def test_content(name):
    made, coords = attention(name), grid()
    biases = [made.position_bias(torch.randn(1, 16, DIM, dtype=torch.float64), coords) for _ in range(2)]
    if biases[0] is None:  # Rotary: the phase multiplies the content itself.
        assert FACTS[name].content and FACTS[name].kind in ("fold", "group")
    else:
        assert same(*biases) != FACTS[name].content


def evaluated(formula, **sizes):
    """The value of a formula such as `2HmC + Hmp (m=50)`, where symbols are single letters and signs are left out."""
    text, _, defaults = formula.partition(" (")
    for default in filter(None, defaults.rstrip(")").split(", ")):
        symbol, value = default.split("=")
        sizes[symbol] = int(value)
    text = re.sub(r"(?<=[\w)])(?=[A-Za-z(])", " * ", text.replace(" ", "")).replace("^", "**")
    return eval(text, {"__builtins__": {}}, sizes)


def added(name, *, dim, num_heads, head_dim, coord_dim):
    with torch.device("meta"):
        parts = create(name, dim=dim, num_heads=num_heads, head_dim=head_dim, coord_dim=coord_dim)
    return sum(parameter.numel() for part in parts if part is not None for parameter in part.parameters())


def test_formulas_are_evaluated_as_they_read():
    assert evaluated("0") == 0
    assert evaluated("2HmC + Hmp (m=50)", H=3, C=5, p=2) == 2 * 3 * 50 * 5 + 3 * 50 * 2
    assert evaluated("H(2e+1)^p + HD(D-1)/2 (e=1, m=2)", H=2, D=4, p=3) == 2 * 27 + 2 * 4 * 3 / 2


@pytest.mark.parametrize("name", NAMES)
def test_parameters_added(name):
    row = facts_row(name)
    numbers = [int(number) for number in re.findall(r"\d+", FACTS[name].axes)]
    for dim, num_heads, head_dim, axes in ((768, 12, 64, 2), (40, 3, 16, 2), (24, 5, 24, 3), (10, 2, 8, 1)):
        if numbers and not numbers[0] <= axes <= numbers[-1]:
            continue
        found = added(name, dim=dim, num_heads=num_heads, head_dim=head_dim, coord_dim=axes)
        assert evaluated(row["parameters_added"], C=dim, H=num_heads, D=head_dim, p=axes) == found
        if dim == 768:
            assert row["parameters_vit_b16"] == found
    assert (name in PARAMETERS) == (row["parameters_vit_b16"] > 0)


@pytest.mark.parametrize("name", [n for n in NAMES if FACTS[n].kind != "token"])
def test_fast_kernels(name):
    """Whether attention becomes a plain call, in 16 bit: what no grid stops, or what larger grids than stated do."""
    made, x = CoordinateAttention(DIM, HEADS, 2, name), torch.zeros(1, 1, DIM, dtype=torch.bfloat16)
    side = FACTS[name].fast_side or 128
    kinds = [made.bfloat16().frame(x, coordinates.grid(n, n)).kind for n in (side, side + 1)]
    words = {"yes": [False, False], "no": [True, True], f"to {side} x {side}": [False, True]}
    assert [kind == "score" for kind in kinds] == words[FACTS[name].fast_kernels]


def test_command_prints_every_encoding(capsys):
    for arguments in (["encodings"], ["encodings", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code
    out = capsys.readouterr().out
    table, listed = out[: out.index("[\n")], json.loads(out[out.index("[\n") :])
    assert [row["name"] for row in listed] == NAMES == [line.split("\t")[0] for line in table.splitlines()]
    pape, gta = (next(row for row in listed if row["name"] == name) for name in ("pape", "gta"))
    assert pape["parameters_added"] == "2HmC + Hmp (m=50)" and pape["parameters_vit_b16"] == 922_800
    assert pape["fast_kernels"] == "to 91 x 91" and pape["decay"] is True
    assert gta["kind"] == "group" and gta["fast_kernels"] == "yes" and gta["parameters_added"] == "0"


def test_command_prints_a_table_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(SystemExit):
        main(["encodings"])
    out = capsys.readouterr().out
    heading, *lines = out.splitlines()
    assert "parameters added" in heading and "fast kernels" in heading
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == NAMES
    assert "922,800" in out
