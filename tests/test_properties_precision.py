"""Attention of every encoding in 16 bit, within a stated bound of float64, near the origin and far from it."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from reference import attention_rows, total_variation
from strategies import ANYWHERE, NAMES, axes_of, lattice, own_parameters

from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.facts import FACTS

DIM, HEADS = 96, 2
SHAPES = {1: (112,), 2: (8, 14), 3: (4, 4, 7), 4: (2, 3, 4, 5)}

# Largest mean total-variation distance of attention rows from float64 on a grid with a class token, q and k peaked as
# in trained networks: (bfloat16, float16), the first under autocast too. Both sides take features, q, k and parameters
# as rounded to 16 bit, so that what is left is what the encoding does to them. An additive term is float32. Turned q
# and k are rounded once more, which is an error of the content. Measured values are about half of this.
ADDED = (5e-7, 5e-7)
TURNED = (5e-3, 6e-4)
FOLDED = (3e-5, 3e-6)
BOUNDS = {
    **dict.fromkeys(("alibi", "cpb", "kerple", "lookhere", "table", "learned", "sincos", "none"), ADDED),
    **dict.fromkeys(("comrope-ld", "golden-rope", "gta", "liere", "mrope", "prope", "rope", "rope-1d"), TURNED),
    **dict.fromkeys(("rope-mixed", "rope-normalised", "spiral-rope", "string"), TURNED),
    "pope": (3e-3, 4e-4),  # Phases turn magnitudes, all of one sign: rows are flatter.
    **dict.fromkeys(("pape", "pape-linear", "pape-quadratic", "pape-ri", "pape-signed", "pape-static"), FOLDED),
    "pape-unprojected": FOLDED,
}
# With 10^4 added to all coordinates, where that is worse: float32 leaves 6e-4 rad of the largest angles, and a matrix
# exponential of a matrix of norm 10^4 less. Features with sines of such angles are rounded to other 16-bit numbers.
FAR = {"comrope-ld": (5e-3, 1e-3), "liere": (7e-3, 5e-3), "sincos": (3e-3, 7e-4)}


def test_every_encoding_has_a_bound():
    assert sorted(BOUNDS) == NAMES and set(FAR) <= set(NAMES)


def block(name, axes, dtype):
    """At its start, but for what starts at zero."""
    torch.manual_seed(0)
    options = {"grid": list(reversed(SHAPES[axes]))} if name == "learned" else {}
    attention = CoordinateAttention(DIM, HEADS, axes, name, **options)
    with torch.no_grad():
        attention.qkv.weight.mul_(3)
        for parameter in own_parameters(attention).values():
            if not parameter.any():
                parameter.normal_(std=0.3)
        attention.encoding.project_parameters()
    return attention.to(dtype)


@pytest.mark.parametrize("mode", ["bfloat16", "float16", "autocast"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_stay_within_the_bound(name, mode):
    dtype = torch.float16 if mode == "float16" else torch.bfloat16
    axes = 2 if 2 in axes_of(name) else axes_of(name)[0]
    attention = block(name, axes, torch.float32 if mode == "autocast" else dtype)
    context = torch.autocast("cpu", dtype) if mode == "autocast" else contextlib.nullcontext()
    for offset in (0.0, 1e4) if mode != "autocast" else (1e4,):
        coords = lattice(SHAPES[axes]).to(dtype=torch.float32).shifted(offset).with_prefix(1)
        x = F.layer_norm(torch.randn(1, coords.values.shape[1], DIM), (DIM,))
        x = x if mode == "autocast" else x.to(dtype)
        with torch.no_grad(), context:
            out, rows = attention(x, coords, return_attention=True)
            exact = attention_rows(attention, name, x, coords)
        assert out.dtype == dtype and out.isfinite().all() and rows.dtype == torch.float32
        bounds = FAR.get(name, BOUNDS[name]) if offset else BOUNDS[name]
        assert total_variation(rows, exact).mean() < bounds[dtype == torch.float16], offset


@pytest.mark.parametrize("name", ANYWHERE)
def test_packed_samples_far_apart_are_as_accurate_as_alone(name):
    """Each sample has an origin of its own, 10^4 away from the other."""
    axes = 2 if 2 in axes_of(name) else axes_of(name)[0]
    attention = block(name, axes, torch.bfloat16)
    near = lattice(SHAPES[axes]).to(dtype=torch.float32)
    samples = [near, near.shifted(1e4)]
    x = F.layer_norm(torch.randn(2, near.values.shape[1], DIM), (DIM,)).bfloat16()
    offsets = torch.tensor([0, 1, 2]) * x.shape[1]
    values = torch.cat([coords.values[0] for coords in samples])
    with torch.no_grad():
        packed = attention(x.flatten(0, 1), Coordinates(values, cu_seqlens=offsets, integral=True))
        alone = torch.cat([attention(one[None], coords)[0] for one, coords in zip(x, samples, strict=True)])
    torch.testing.assert_close(packed, alone, atol=2**-8, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if FACTS[name].kind != "token"])
def test_frames_do_not_depend_on_autocast_nor_on_16_bit(name):
    """Positions are algebra in float32: what a frame derives from them is the same whatever the kernel runs in."""
    axes = 2 if 2 in axes_of(name) else axes_of(name)[0]
    coords = lattice(SHAPES[axes]).to(dtype=torch.float32).shifted(1e4).with_prefix(1)
    encoding = block(name, axes, torch.float32).encoding
    frames = [encoding.frame(coords, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    with torch.autocast("cpu", torch.bfloat16):
        frames.append(encoding.frame(coords, torch.float32))
    for frame in frames:
        for key in ("values", "cos", "sin", "products", "slopes"):
            held = getattr(frame, key, None)
            if isinstance(held, torch.Tensor):
                assert held.dtype == torch.float32 and torch.equal(held, getattr(frames[0], key)), key
