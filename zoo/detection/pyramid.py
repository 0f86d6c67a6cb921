"""Feature pyramids over the single map of a plain vision transformer.

Shapes: B batch, C width of the encoder, F width of the pyramid; a map is (B, channels, rows, columns).
"""

from __future__ import annotations

from torch import Tensor, nn

from zoo.errors import ConfigError, DataError

__all__ = ["ChannelNorm", "SimplePyramid", "ViTDetPyramid", "build_pyramid"]

# LayerNorm epsilon of the released pyramids (their encoder uses 1e-5).
NORM_EPS = 1e-6


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a map.

    Args:
        channels: Number of channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(channels, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, rows, columns) -> the same shape."""
        return self.ln(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SimplePyramid(nn.Module):
    """The pyramid of the released PaPE detectors: each level is one resampling, one projection and one LayerNorm.

    Strides are P/2, P and 2P for patches of P pixels. An odd last row or column is not part of the coarsest level.

    Args:
        dim: Width C of the encoder.
        width: Width F of every level.
        patch_size: P.
    """

    scales = (0.5, 1.0, 2.0)

    def __init__(self, dim: int, width: int, patch_size: int) -> None:
        super().__init__()
        self.strides = tuple(scale * patch_size for scale in self.scales)
        self.fpn1 = nn.Sequential(nn.ConvTranspose2d(dim, width, 2, stride=2), ChannelNorm(width))
        self.fpn2 = nn.Sequential(nn.Conv2d(dim, width, 1), ChannelNorm(width))
        self.fpn3 = nn.Sequential(nn.MaxPool2d(2, 2), nn.Conv2d(dim, width, 1), ChannelNorm(width))

    def forward(self, grid: Tensor) -> list[Tensor]:
        """Makes the levels, finest first.

        Args:
            grid: (B, C, rows, columns), at least 2 x 2.

        Returns:
            Maps (B, F, 2 rows, 2 columns), (B, F, rows, columns), (B, F, rows // 2, columns // 2).

        Raises:
            DataError: If the grid has no coarsest level.
        """
        _check_grid(grid)
        return [self.fpn1(grid), self.fpn2(grid), self.fpn3(grid)]


class ViTDetPyramid(nn.Module):
    """The simple feature pyramid of ViTDet (Li et al., 2022, arXiv 2203.16527), without its extra coarsest level.

    Strides are P/4, P/2, P and 2P for patches of P pixels. Each level resamples the one map (by transposed convolutions
    of stride 2 that halve the width, or by pooling) and goes through a 1x1 and a 3x3 convolution, each with a LayerNorm
    and without bias.

    Args:
        dim: Width C of the encoder; a multiple of 4.
        width: Width F of every level.
        patch_size: P.

    Raises:
        ConfigError: If `dim` cannot be halved twice.
    """

    scales = (0.25, 0.5, 1.0, 2.0)

    def __init__(self, dim: int, width: int, patch_size: int) -> None:
        super().__init__()
        if dim % 4:
            raise ConfigError(f"the ViTDet pyramid halves the width twice: dim must be a multiple of 4, got {dim}")
        self.strides = tuple(scale * patch_size for scale in self.scales)
        half, quarter = dim // 2, dim // 4
        self.fpn1 = nn.Sequential(
            nn.ConvTranspose2d(dim, half, 2, stride=2),
            ChannelNorm(half),
            nn.GELU(),
            nn.ConvTranspose2d(half, quarter, 2, stride=2),
            *_output(quarter, width),
        )
        self.fpn2 = nn.Sequential(nn.ConvTranspose2d(dim, half, 2, stride=2), *_output(half, width))
        self.fpn3 = nn.Sequential(*_output(dim, width))
        self.fpn4 = nn.Sequential(nn.MaxPool2d(2, 2), *_output(dim, width))

    def forward(self, grid: Tensor) -> list[Tensor]:
        """Makes the levels, finest first.

        Args:
            grid: (B, C, rows, columns), at least 2 x 2.

        Returns:
            Four maps (B, F, r, c) with r, c of 4, 2, 1 and 1/2 times the rows and columns (rounded down).

        Raises:
            DataError: If the grid has no coarsest level.
        """
        _check_grid(grid)
        return [self.fpn1(grid), self.fpn2(grid), self.fpn3(grid), self.fpn4(grid)]


def _output(channels: int, width: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, width, 1, bias=False),
        ChannelNorm(width),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        ChannelNorm(width),
    ]


def _check_grid(grid: Tensor) -> None:
    rows, columns = grid.shape[-2:]
    if rows < 2 or columns < 2:
        raise DataError(f"a detector needs a grid of 2 x 2 patches or more, got {rows} x {columns}: use larger inputs")


PYRAMIDS: dict[str, type[SimplePyramid] | type[ViTDetPyramid]] = {"simple": SimplePyramid, "vitdet": ViTDetPyramid}


def build_pyramid(name: str, dim: int, width: int, patch_size: int) -> SimplePyramid | ViTDetPyramid:
    """The pyramid of this name: `"simple"` (as released) or `"vitdet"`.

    Raises:
        ConfigError: If there is none.
    """
    if name not in PYRAMIDS:
        raise ConfigError(f"pyramid must be one of {', '.join(PYRAMIDS)}, got {name!r:.80}")
    return PYRAMIDS[name](dim, width, patch_size)
