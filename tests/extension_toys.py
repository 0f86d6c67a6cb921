"""Blocks, tokens and options for the tests of context extension."""

import torch
from rotary_reference import OPTIONS

import zoo
from zoo import coordinates
from zoo.attention import CoordinateAttention
from zoo.encodings.extension import parse_extension
from zoo.encodings.facts import EXTENSIONS

NAMES = zoo.encodings()
DIM, HEADS, WIDTH = 48, 2, 24
APPLIES = [(name, method) for name in NAMES for method in EXTENSIONS.get(name, "").split(", ") if method]
LADDERS = [name for name in NAMES if "ntk" in EXTENSIONS.get(name, "")]


def block(name, axes=2, **options):
    torch.manual_seed(0)
    attention = CoordinateAttention(DIM, HEADS, axes, name, **OPTIONS.get(name, {}) | options)
    with torch.no_grad():  # Some start at zero.
        for encoding in (attention.encoding, attention.token_encoding):
            for parameter in [] if encoding is None else encoding.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return attention


def grid(rows=5, columns=7, prefix=None):
    coords = coordinates.grid(rows, columns, dtype=torch.float64)
    return coords if prefix is None else coords.with_prefix(1, at=None if prefix == "no position" else (0.0, 0.0))


def features(coords, dtype=torch.float64, batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, coords.values.shape[1], DIM, dtype=dtype)


def rows(attention, coords, x=None):
    return attention(features(coords) if x is None else x, coords, return_attention=True)[1]


def extension(method, factor, extent=(3.0, 2.0)):
    return parse_extension({"extend": method, "factor": factor, "extent": extent})


def same(a, b, atol=1e-11):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)
