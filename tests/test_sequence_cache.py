"""Decoding step by step gives what a forward of all tokens gives, with every encoding."""

from __future__ import annotations

import pytest
import torch
from sequence_models import AXES, NAMES, decoder, ids_of

from modalities.sequence.cache import DecoderCache
from zoo import ConfigError, DataError
from zoo.attention import CoordinateAttention, KeyValues
from zoo.coordinates import Coordinates, text
from zoo.encodings.extendable import extend
from zoo.encodings.extension import DynamicNTK, YaRN

CASES = [(name, axes) for name in NAMES for axes in AXES[name]]
N = 11
# Their exponents of far positions are beyond what float32 holds, with a cache and without.
GENERATORS = ("comrope-ld", "liere")


def stepped(model, ids, positions, sizes):
    """Logits of each chunk, from a cache."""
    cache, parts, start = DecoderCache(), [], 0
    for size in sizes:
        where = None if positions is None else positions[:, start : start + size]
        parts.append(model(ids[:, start : start + size], where, cache))
        start += size
    assert cache.length == start
    return torch.cat(parts, dim=1)


def expected(model, ids, positions, sizes):
    """The same from forwards of all tokens so far; where the past stays as it was, one forward has all of them."""
    if model.stack.keeps():
        return model(ids, positions)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    parts = [model(ids[:, :end], None if positions is None else positions[:, :end]) for end in ends]
    return torch.cat([part[:, -size:] for part, size in zip(parts, sizes, strict=True)], dim=1)


def same(model, ids, positions, sizes, tolerance):
    found = stepped(model, ids, positions, sizes)
    torch.testing.assert_close(found, expected(model, ids, positions, sizes), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "axes"), CASES)
@torch.no_grad()
def test_decoding_equals_the_forward_of_all_tokens(name, axes):
    model, ids = decoder(name, axes), ids_of(N)
    assert model(ids).std() > 0.1  # There is something to be wrong about.
    for sizes in ([1] * N, [4, 1, 3, 1, 2], [N]):
        same(model, ids, None, sizes, 1e-4)
    same(model.double(), ids, None, [5, 1, 1, 4], 1e-10)


@pytest.mark.parametrize(("name", "axes"), [case for case in CASES if "learned" not in case[0]])
@pytest.mark.parametrize("origin", [0.0, 1e6])
@torch.no_grad()
def test_positions_of_their_own(name, axes, origin):
    model, ids = decoder(name, axes), ids_of(N)
    if origin and name in GENERATORS:
        model = model.double()
    generator = torch.Generator().manual_seed(3)
    steps = torch.rand(2, N, axes, generator=generator) * 2 - 0.25  # Ids may go back, as columns of a text do.
    positions = origin + (steps.cumsum(1) * 4).round() / 4
    for sizes in ([1] * N, [6, 1, 4]):
        same(model, ids, positions, sizes, 1e-4)


@torch.no_grad()
def test_far_positions_cost_parabolas_nothing():
    """Tokens a million from the origin get, to rounding, what those at it get: columns are made about them."""
    near = torch.arange(N).view(1, N)
    for name in ("pape", "pape-ri", "alibi"):
        model, ids = decoder(name), ids_of(N)
        found = stepped(model, ids, near + 1_000_000, [3, *[1] * (N - 3)])
        torch.testing.assert_close(found, model(ids, near), rtol=0, atol=1e-4)


@torch.no_grad()
def test_long_caches_of_parabolas():
    """Within and beyond the extent that the forward of all tokens folds in float32; steps never do."""
    for length in (250, 300):
        same(decoder("pape"), ids_of(length, 1), None, [length - 3, 1, 1, 1], 1e-4)


@torch.no_grad()
def test_extensions():
    model, ids = decoder("rope"), ids_of(N)
    plain = model(ids)
    for extension, keeps in ((YaRN(2.0, 6.0), True), (DynamicNTK(1.0, 6.0), False)):
        extend(model, extension)
        assert model.stack.keeps() is keeps
        assert (model(ids) - plain).abs().max() > 1e-3
        same(model, ids, None, [6, 1, 2, 1, 1], 1e-4)


def test_what_cannot_be_kept_is_run_again():
    unstable = {name for name in NAMES if not decoder(name, AXES[name][0]).stack.keeps()}
    assert unstable == {"rope-normalised"}  # Tables of text do not stretch.


@torch.no_grad()
def test_tokens_without_a_position():
    known = torch.ones(1, N, dtype=torch.bool)
    known[:, 2] = known[:, 7] = False
    values = torch.arange(N, dtype=torch.float32).view(1, N, 1)
    for name in ("pape", "rope", "alibi", "rope-1d", "pope"):
        model, ids, cache, parts = decoder(name), ids_of(N), DecoderCache(), []
        for start in range(N):
            at = slice(start, start + 1)
            parts.append(model(ids[:, at], Coordinates(values[:, at], positioned=known[:, at]), cache))
        full = model(ids, Coordinates(values, positioned=known))
        torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=1e-4)


def test_caches_of_something_else():
    model, ids = decoder("pape"), ids_of(N)
    cache = DecoderCache()
    model(ids, None, cache)
    with pytest.raises(DataError, match="batch of 2 is not for 2 blocks and a batch of 1"):
        model(ids[:1], None, cache)
    assert cache.length == N
    whole = decoder("rope-normalised")
    cache = DecoderCache()
    whole(ids, None, cache)
    with pytest.raises(DataError, match="for a batch of 2, the new tokens of 1"):
        whole(ids[:1], None, cache)
    layer = CoordinateAttention(8, 2, 1, causal=True)
    with pytest.raises(DataError, match="0 tokens before and 3 new ones"):
        layer.step(torch.zeros(1, 3, 8), text(4), KeyValues())
    with pytest.raises(ConfigError, match="not causal"):
        CoordinateAttention(8, 2, 1).step(torch.zeros(1, 3, 8), text(3), KeyValues())
