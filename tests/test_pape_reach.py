"""The option `reach` of PaPE: how wide the parabolas of each head start."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.encodings.pape import PaPE


def made(**options: float) -> PaPE:
    torch.manual_seed(0)
    return PaPE(dim=32, num_heads=4, head_dim=16, coord_dim=2, **options)


def test_heads_start_in_equal_ratios() -> None:
    narrow, wide = made().position, made(reach=8.0).position
    for head, factor in enumerate((1, 2, 4, 8)):
        torch.testing.assert_close(wide[head] * factor, narrow[head])


def test_one_is_the_released_initialisation_to_the_bit() -> None:
    assert torch.equal(made().position, made(reach=1).position)


def test_a_wide_head_sees_further() -> None:
    """At eight tokens the bias of the last head is as strong as that of the first one at one token."""
    encoding, x = made(reach=8.0), torch.randn(1, 3, 32)
    m, _ = encoding.coefficients(x, torch.float32, torch.float32)
    ratio = m[:, 0, :, 0] / m[:, 3, :, 0]
    assert ratio.min() > 32 and ratio.max() < 128  # 64, but for the draws of the two heads


@pytest.mark.parametrize("reach", [0, 0.5, -1, float("nan"), float("inf"), "far", None, True])
def test_bad_reach(reach: object) -> None:
    with pytest.raises(zoo.ConfigError, match="'reach' must be a number from 1 to"):
        made(reach=reach)  # type: ignore[arg-type]


def test_decoders_start_wide() -> None:
    model = zoo.load("pape-decoder-n-index", pretrained=False)
    assert model.encoder.blocks[0].attn.encoding.reach == 64
