"""Properties of every encoding on shapes drawn by hypothesis: its definition, and what moving its tokens does."""

import copy
import dataclasses

import group_reference
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import PAPE_WITHOUT, attention_rows, qkv
from rotary_reference import ROTARY, ROTATIONS
from score_reference import REFERENCES
from strategies import (
    ANYWHERE,
    NAMES,
    axes_of,
    clouds,
    lattice,
    lattices,
    layers,
    mapped,
    on_grid,
    own_parameters,
    padding_masks,
    pairs_of,
    places,
    quick,
)

from zoo import kernels
from zoo.coordinates import Coordinates
from zoo.encodings.facts import FACTS

# Where the dense definition of every encoding is. `attention_rows` of tests/reference.py evaluates it.
DEFINITIONS = {
    "none": "softmax(s q k)",
    "learned": "reference.table_rows",
    "sincos": "reference.sincos",
    "pape": "reference.position_term",
    "pape-ri": "reference.position_term",
    **dict.fromkeys(PAPE_WITHOUT, "reference.position_term"),
    "pope": "reference.pope_logits",
    **{name: "rotary_reference.ROTATIONS" for name in ROTATIONS},
    **{name: "score_reference.REFERENCES" for name in REFERENCES},
    **{name: "group_reference.attend" for name in NAMES if FACTS[name].kind == "group"},
}
# The order of the tokens is all that these look at.
BY_ORDER = {"rope-1d": "turns by the index of the token"}
# These stretch over whatever grid comes in: moving all of it is not a change of position.
BY_GRID = {name: "a cell is a share of the grid at hand" for name in NAMES if on_grid(name)}
# Where other tokens are matters towards tokens without a position, which these take for tokens at the origin.
ORIGIN_MATTERS = ("pope", "sincos", *ROTARY)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


def differ(a, b):
    assert (a - b).abs().max() > 1e-5


def dense(attention, name, x, coords, mask):
    """Attention rows and outputs in float64, from the definition."""
    if FACTS[name].kind == "group":
        out, rows = group_reference.attend(attention, name, x, coords)
        return rows, out
    known = coords.positioned
    rows, added = [], []
    for b in range(x.shape[0]):  # One by one, since each hides tokens of its own.
        real = None if mask is None else mask[b : b + 1]
        if real is not None:
            coords = dataclasses.replace(coords, positioned=real if known is None else real & known)
        rows.append(attention_rows(attention, name, x[b : b + 1], coords, real))
        token = attention.token_encoding
        added.append(x[b : b + 1] if token is None else x[b : b + 1] + token.encode(coords))
    rows = torch.cat(rows)
    if attention.causal:
        rows = rows.tril()
        rows = rows / rows.sum(-1, keepdim=True)
    out = rows @ qkv(attention, torch.cat(added))[2]
    return rows, attention.proj(out.transpose(1, 2).flatten(2))


def test_every_encoding_has_a_definition_to_be_held_against():
    assert set(DEFINITIONS) == set(NAMES)


@pytest.mark.parametrize(("name", "axes"), pairs_of(NAMES))
@quick
@given(data=st.data())
def test_layer_equals_its_definition(name, axes, data):
    """In float64 at 1e-9: any heads, widths, layout, tokens without position, padding, causality and kernel."""
    coords = data.draw(places(name, axes))
    layer = data.draw(layers(name, axes, causal=True))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    mask = None
    if not layer.causal and FACTS[name].kind != "group":  # Its reference takes no mask.
        mask = data.draw(st.none() | padding_masks(*x.shape[:2]))
    with torch.no_grad(), kernels.use(data.draw(st.sampled_from(kernels.BACKENDS))):
        out, rows = attention(x, coords, mask, return_attention=True)
        expected_rows, expected = dense(attention, name, x, coords, mask)
    real = slice(None) if mask is None else mask
    close(out[real], expected[real])
    close(rows.transpose(1, 2)[real], expected_rows.transpose(1, 2)[real])


@pytest.mark.parametrize("name", [name for name in NAMES if FACTS[name].kind != "none"])
@quick
@given(data=st.data())
def test_encodings_make_a_difference(name, data):
    """Else the definition above could be that of no encoding at all."""
    layer = data.draw(layers(name))
    here = lattices(layer.axes, least=3) if on_grid(name) else clouds(layer.axes, tokens=(7, 11), spread=1.0)
    coords = data.draw(here)
    x = layer.features(coords, batch=1)
    with torch.no_grad():
        attention = layer.build(coords)
        plain = dataclasses.replace(layer, name="none").build()
        plain.qkv.load_state_dict(attention.qkv.state_dict())
        differ(attention(x, coords, return_attention=True)[1], plain(x, coords, return_attention=True)[1])


def offsets(axes):
    return st.lists(st.sampled_from([31.7, -12.25, 100.5, 3.0]), min_size=axes, max_size=axes)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_GRID])
@quick
@given(data=st.data())
def test_translation(name, data):
    """Changes nothing where `FACTS` say so (among tokens with a position), and something elsewhere."""
    commuting = () if FACTS[name].translation or len(axes_of(name)) == 1 else (1,)  # LieRE commutes on a line.
    layer = data.draw(layers(name, data.draw(st.sampled_from([a for a in axes_of(name) if a not in commuting]))))
    coords = data.draw(places(name, layer.axes, positioned=True, least=5))
    moved = coords.shifted(data.draw(offsets(layer.axes)))
    attention, x = layer.build(), layer.features(coords, batch=2)
    with torch.no_grad():
        (close if FACTS[name].translation else differ)(attention(x, moved), attention(x, coords))


@pytest.mark.parametrize("name", BY_GRID)
@quick
@given(data=st.data())
def test_grids_move_as_a_whole_and_cells_are_places(name, data):
    layer = data.draw(layers(name))
    coords = data.draw(lattices(layer.axes, least=2))
    attention, x = layer.build(coords), layer.features(coords, batch=1)
    with torch.no_grad():
        close(attention(x, coords.shifted(data.draw(offsets(layer.axes)))), attention(x, coords))
        other = dataclasses.replace(coords, values=coords.values.roll(1, dims=1))
        differ(attention(x, other), attention(x, coords))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ORIGIN_MATTERS])
@quick
@given(data=st.data())
def test_translation_changes_nothing_towards_tokens_without_position(name, data):
    layer = data.draw(layers(name))
    coords = data.draw(places(name, layer.axes))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    moved = coords.shifted(data.draw(offsets(layer.axes)))
    with torch.no_grad():
        close(attention(x, moved), attention(x, coords))


def rotations(axes):
    def make(seed):
        turn, _ = torch.linalg.qr(torch.randn(axes, axes, generator=torch.Generator().manual_seed(seed)).double())
        turn[:, 0] *= torch.linalg.det(turn).sign()
        return turn

    return st.integers(0, 1000).map(make)


@pytest.mark.parametrize("name", [name for name in ANYWHERE if name not in BY_ORDER and axes_of(name) != [1]])
@quick
@given(data=st.data())
def test_rotation(name, data):
    """Turning all tokens about the origin changes nothing where `FACTS` say so, and something elsewhere."""
    axes = data.draw(st.sampled_from([axes for axes in axes_of(name) if axes > 1]))
    layer = data.draw(layers(name, axes, heads=(8, 12)))  # One head of LookHere may see the same after a small turn.
    coords = data.draw(clouds(axes, tokens=(7, 11), spread=1.0))
    turned = Coordinates(coords.values @ data.draw(rotations(axes)))
    attention, x = layer.build(), layer.features(coords, batch=2)
    with torch.no_grad():
        (close if FACTS[name].rotation else differ)(attention(x, turned), attention(x, coords))


@pytest.mark.parametrize("name", [name for name in NAMES if FACTS[name].decay])
@quick
@given(data=st.data())
def test_decay(name, data):
    """Away from a token, along any ray, its bias falls (or stays hidden), wherever its parabola may have its top."""
    layer = data.draw(layers(name))
    direction = torch.nn.functional.normalize(torch.tensor(data.draw(offsets(layer.axes)), dtype=torch.float64), dim=0)
    distances = torch.tensor([0.0, 64.0, 128.0, 256.0, 512.0], dtype=torch.float64)
    coords = Coordinates((distances.unsqueeze(1) * direction).unsqueeze(0))
    attention = layer.build()
    with torch.no_grad():
        bias = attention.position_bias(layer.features(coords, batch=2), coords)[:, :, 0]
    near, far = bias[..., :-1], bias[..., 1:]
    assert ((far < near) | ((far == near) & far.isinf())).all()
    # A directed head may see nothing along this ray, and must see itself.
    assert bias[..., 0].isfinite().all() and (name == "lookhere" or bias.isfinite().all())


# Parameters that all heads share.
SHARED = {"cpb": ("fc1.weight", "fc1.bias")}


def by_heads(parameter, heads):
    """(H, ...) view of a parameter that has the heads in front."""
    assert parameter.shape[0] % heads == 0, f"{tuple(parameter.shape)} has no {heads} heads in front: list it in SHARED"
    return parameter.view(heads, -1)


def with_heads(attention, name, order):
    """The same function with its heads, and all that each of them has learned, in another order."""
    other, heads = copy.deepcopy(attention), attention.num_heads
    with torch.no_grad():
        for parameter in (other.qkv.weight, other.qkv.bias):
            parts = parameter.view(3, heads, -1)
            parts.copy_(parts[:, order].clone())
        columns = other.proj.weight.unflatten(1, (heads, -1))
        other.proj.weight.copy_(columns[:, order].flatten(1).clone())
        for key, parameter in other.encoding.named_parameters():
            if key not in SHARED.get(name, ()):
                rows = by_heads(parameter, heads)
                rows.copy_(rows[order].clone())
    return other


def _reordered_lookhere(frame, order):
    entries = torch.arange(len(order)), order  # The first layer's head h takes entry h of the twelve.
    sides, slopes = frame.sides.clone(), frame.slopes.clone()
    sides[entries[0]], slopes[entries[0]] = frame.sides[order], frame.slopes[order]
    fields = list(frame.fields)
    for entry, source in zip(entries[0].tolist(), order.tolist(), strict=True):
        fields[entry] = frame.fields[source]
    return dataclasses.replace(frame, fields=tuple(fields), sides=sides, slopes=slopes)


# Heads that differ by construction: how to give head h of a frame what head order[h] has.
BY_CONSTRUCTION = {
    "alibi": lambda frame, order: dataclasses.replace(frame, slopes=frame.slopes[order]),
    "golden-rope": lambda frame, order: dataclasses.replace(frame, cos=frame.cos[:, order], sin=frame.sin[:, order]),
    "lookhere": _reordered_lookhere,
}


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_heads_are_independent_and_in_any_order(name, data):
    layer = data.draw(layers(name, heads=(2, 12)))
    order = torch.tensor(data.draw(st.permutations(range(layer.heads)).filter(lambda p: p != sorted(p))))
    coords = data.draw(places(name, layer.axes, least=5, positioned=name in BY_CONSTRUCTION))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    other = with_heads(attention, name, order)
    with torch.no_grad():
        frame = attention.frame(x, coords)
        expected, rows = attention(x, coords, return_attention=True)
        if name in BY_CONSTRUCTION:
            differ(other(x, coords, frame=frame, return_attention=True)[1], rows[:, order])
            frame = BY_CONSTRUCTION[name](frame, order)
        out, other_rows = other(x, coords, frame=frame, return_attention=True)
    close(other_rows, rows[:, order], 1e-12)
    close(out, expected, 1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_ORDER])
@quick
@given(data=st.data())
def test_the_order_of_tokens_does_not_matter(name, data):
    layer = data.draw(layers(name))
    coords = data.draw(places(name, layer.axes))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    order = torch.tensor(data.draw(st.permutations(range(x.shape[1]))))
    shuffled = mapped(coords, lambda held: held[:, order])
    with torch.no_grad():
        close(attention(x[:, order], shuffled), attention(x, coords)[:, order], 1e-11)


@pytest.mark.parametrize("name", [name for name in NAMES if 2 in axes_of(name)])
@quick
@given(data=st.data())
def test_transposed_pictures_give_transposed_features(name, data):
    """With coordinates that stay with their patches, for grids that are not square: nobody guesses sides from N."""
    layer = data.draw(layers(name, 2))
    rows, columns = data.draw(st.sampled_from([(2, 8), (8, 2), (3, 5), (1, 6), (4, 4)]))
    coords, x = lattice((rows, columns)), torch.randn(2, rows * columns, layer.dim, dtype=torch.float64)
    other = lattice((columns, rows))
    other = dataclasses.replace(other, values=other.values.flip(-1), bounds=other.bounds[::-1])
    attention = layer.build(coords)

    def transposed(tokens):
        return tokens.unflatten(1, (rows, columns)).transpose(1, 2).flatten(1, 2)

    with torch.no_grad():
        out, turned = attention(x, coords), attention(transposed(x), other)
        if name not in BY_ORDER:
            close(turned, transposed(out), 1e-11)
        elif min(rows, columns) > 1:  # A single row has but one order.
            differ(turned, transposed(out))


# Dimension of a learned parameter that goes over the axes: "all" but the first, or "rows" of every head.
AXES_OF_PARAMETERS = {
    "alibi": {},
    "comrope-ld": {"theta": 1},
    "cpb": {"fc1.weight": 1},
    "kerple": {},
    "learned": {"table": "all"},
    "liere": {"generators": 1},
    "none": {},
    **dict.fromkeys(("pape", "pape-linear", "pape-quadratic", "pape-signed", "pape-static"), {"position": 2}),
    "pape-ri": {},
    "pape-unprojected": {"a.weight": "rows", "b.weight": "rows"},
    "rope-1d": {},
    "rope-mixed": {"frequencies": 1},
    "table": {"table": "all"},
}
# Here axes differ by construction, in which channels or directions are theirs.
AXES_BY_CONSTRUCTION = (
    *("golden-rope", "gta", "lookhere", "mrope", "pope", "prope"),
    *("rope", "rope-normalised", "sincos", "spiral-rope", "string"),
)


def test_every_encoding_says_where_its_axes_are():
    assert sorted([*AXES_OF_PARAMETERS, *AXES_BY_CONSTRUCTION]) == NAMES


@pytest.mark.parametrize("name", AXES_OF_PARAMETERS)
@quick
@given(data=st.data())
def test_axes_are_alike(name, data):
    """Coordinates in another order of axes, with all that was learned about each axis, are the same coordinates."""
    layer = data.draw(layers(name, data.draw(st.sampled_from([a for a in axes_of(name) if a > 1]))))
    coords = data.draw(places(name, layer.axes))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    order = data.draw(st.permutations(range(layer.axes)))
    bounds = None if coords.bounds is None else tuple(coords.bounds[axis] for axis in order)
    turned = dataclasses.replace(coords, values=coords.values[..., order], bounds=bounds)
    other = copy.deepcopy(attention)
    for key, parameter in own_parameters(other).items():
        where = AXES_OF_PARAMETERS[name].get(key)
        if where == "all":
            parameter.data = parameter.data.permute(0, *(axis + 1 for axis in order)).contiguous()
        elif where == "rows":
            parts = parameter.data.unflatten(0, (layer.heads, layer.axes))
            parameter.data = parts[:, order].flatten(0, 1)
        elif where is not None:
            parameter.data = parameter.data.index_select(where, torch.tensor(order))
    with torch.no_grad():
        close(other(x, turned), attention(x, coords), 1e-11)
