"""Decoding step by step gives what a forward of all tokens gives, with every encoding."""

from __future__ import annotations

import pytest
import torch
from sequence_models import AXES, NAMES, decoder, ids_of

from modalities.sequence.cache import DecoderCache

CASES = [(name, axes) for name in NAMES for axes in AXES[name]]
N = 11


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


@pytest.mark.parametrize(("name", "axes"), CASES)
@torch.no_grad()
def test_decoding_equals_the_forward_of_all_tokens(name, axes):
    model, ids = decoder(name, axes), ids_of(N)
    full = model(ids)
    assert full.std() > 0.1  # There is something to be wrong about.
    for sizes in ([1] * N, [4, 1, 3, 1, 2], [N]):
        torch.testing.assert_close(
            stepped(model, ids, None, sizes), expected(model, ids, None, sizes), rtol=0, atol=1e-4
        )
    wide = model.double()
    torch.testing.assert_close(
        stepped(wide, ids, None, [5, 1, 1, 4]), expected(wide, ids, None, [5, 1, 1, 4]), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(("name", "axes"), [case for case in CASES if "learned" not in case[0]])
@pytest.mark.parametrize("origin", [0.0, 1e6])
@torch.no_grad()
def test_positions_of_their_own(name, axes, origin):
    model, ids = decoder(name, axes), ids_of(N)
    generator = torch.Generator().manual_seed(3)
    steps = torch.rand(2, N, axes, generator=generator) * 2 - 0.25  # Ids may go back, as columns of a text do.
    positions = origin + (steps.cumsum(1) * 4).round() / 4
    for sizes in ([1] * N, [6, 1, 4]):
        torch.testing.assert_close(
            stepped(model, ids, positions, sizes), expected(model, ids, positions, sizes), rtol=0, atol=1e-4
        )
