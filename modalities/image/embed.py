"""Patch embedding: pictures become (features, Coordinates)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from zoo import coordinates
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError, DataError
from zoo.pixels import check_pixels
from zoo.tracing import is_exporting

__all__ = ["PatchEmbed"]


class PatchEmbed(nn.Module):
    """Non-overlapping P x P patches, projected by a convolution; coordinates are (column, row) of the actual grid.

    Args:
        patch_size: P in pixels.
        in_chans: Channels of the pictures.
        dim: Feature width C.
        origin: Coordinate of the first patch.
        size_policy: What to do with a height or width that is no multiple of P: `"refuse"`, or `"pad"` with zeros at
            the right and bottom.
    """

    def __init__(
        self, patch_size: int, in_chans: int, dim: int, *, origin: float = 0.0, size_policy: str = "refuse"
    ) -> None:
        super().__init__()
        if size_policy not in ("refuse", "pad"):
            raise ConfigError(f"size_policy must be 'refuse' or 'pad', got {size_policy!r}")
        self.patch_size, self.origin, self.size_policy = patch_size, origin, size_policy
        self.proj = nn.Conv2d(in_chans, dim, kernel_size=patch_size, stride=patch_size)

    @property
    def in_chans(self) -> int:
        """Channels of the pictures."""
        return self.proj.in_channels

    def grid_size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of a picture.

        Raises:
            DataError: If the size is no multiple of the patch and the policy is to refuse.
        """
        patch = self.patch_size
        height, width = (
            int(n) if isinstance(n, Tensor) else n for n in (height, width)
        )  # So torch.jit.trace has them.
        if min(height, width) < 1 or (self.size_policy == "refuse" and (height % patch or width % patch)):
            near = " x ".join(str(max(patch, round(n / patch) * patch)) for n in (height, width))
            raise DataError(
                f"pictures of {height} x {width} pixels do not divide into {patch} x {patch} patches: "
                f"resize (for example to {near}), or load the model with size_policy='pad'"
            )
        return (height + patch - 1) // patch, (width + patch - 1) // patch

    def forward(self, images: Tensor) -> tuple[Tensor, Coordinates]:
        """Embeds pictures.

        Args:
            images: (B, in_chans, height, width) floating point.

        Returns:
            Features (B, rows * columns, C), row by row, and their coordinates (1, rows * columns, 2).
        """
        check_pixels(images, self.proj.weight, "images", "H, W")
        height, width = images.shape[-2:]
        rows, columns = self.grid_size(height, width)
        pad = (0, columns * self.patch_size - width, 0, rows * self.patch_size - height)
        if (is_exporting() and self.size_policy == "pad") or any(pad):
            images = F.pad(images, pad)
        features = self._project(images, rows, columns)
        dtype = self.proj.weight.dtype
        return features, coordinates.grid(rows, columns, origin=self.origin, device=images.device, dtype=dtype)

    def _project(self, images: Tensor, rows: int, columns: int) -> Tensor:
        if not is_exporting():
            return self.proj(images).flatten(2).transpose(1, 2)
        # A convolution in a graph would cut off what is left beside the last patch; this cannot be reshaped.
        patch = self.patch_size
        pieces = images.reshape(*images.shape[:2], rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
        return F.linear(pieces.flatten(3).flatten(1, 2), self.proj.weight.flatten(1), self.proj.bias)
