"""Tubelet embedding: clips become features with coordinates in time and space."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo import coordinates
from zoo.coordinates import Coordinates
from zoo.errors import DataError
from zoo.pixels import check_pixels

__all__ = ["ClipCoordinates", "TubeletEmbed", "clip_coordinates", "tubelet_mask"]


@dataclass(frozen=True)
class ClipCoordinates(Coordinates):
    """Coordinates (t, row, column) of tubelets on a grid, t slowest, then row by row; prefix tokens may stand in front.

    Attributes:
        grid: Tubelets in time, rows and columns.
    """

    grid: tuple[int, int, int] = (0, 0, 0)

    @property
    def prefix(self) -> int:
        """Tokens in front of those of the grid."""
        times, rows, columns = self.grid
        return self.values.shape[1] - times * rows * columns

    def space(self) -> Coordinates:
        """(row, column) of the prefix and of the tubelets of one time, which are those of every time and sample."""
        tokens = self.prefix + self.grid[1] * self.grid[2]
        positioned = None if self.positioned is None else self.positioned[:1, :tokens]
        return self._axes(self.values[:1, :tokens, 1:], positioned, slice(1, 3))

    def time(self, prefix: bool) -> Coordinates:
        """(t,) of the times of the grid, with those of the prefix in front if asked for."""
        start, step = self.prefix, self.grid[1] * self.grid[2]
        first = 0 if prefix else start
        values = torch.cat([self.values[:, first:start, :1], self.values[:, start::step, :1]], dim=1)
        known = self.positioned
        if known is not None:
            known = torch.cat([known[:, first:start], known[:, start::step]], dim=1)
        return self._axes(values, known, slice(0, 1))

    def _axes(self, values: Tensor, positioned: Tensor | None, axes: slice) -> Coordinates:
        bounds = None if self.bounds is None else self.bounds[axes]
        return Coordinates(values, positioned=positioned, integral=self.integral, bounds=bounds, unit=self.unit)


class TubeletEmbed(nn.Module):
    """Non-overlapping tubelets of `tubelet` frames x P x P pixels, projected by a convolution.

    Args:
        tubelet: Frames of a tubelet.
        patch_size: P in pixels.
        in_chans: Channels of the frames.
        dim: Feature width C.
    """

    def __init__(self, tubelet: int, patch_size: int, in_chans: int, dim: int) -> None:
        super().__init__()
        self.tubelet, self.patch_size = tubelet, patch_size
        size = (tubelet, patch_size, patch_size)
        self.proj = nn.Conv3d(in_chans, dim, kernel_size=size, stride=size)

    @property
    def in_chans(self) -> int:
        """Channels of the frames."""
        return self.proj.in_channels

    def grid_size(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Tubelets in time, rows and columns of a clip.

        Raises:
            DataError: If the clip does not divide into tubelets.
        """
        patch = self.patch_size
        frames, height, width = (
            int(n) if isinstance(n, Tensor) else n for n in (frames, height, width)
        )  # So torch.jit.trace has them.
        if frames < 1 or frames % self.tubelet:
            raise DataError(
                f"clips of {frames} frames do not divide into tubelets of {self.tubelet} frames: pad them to a "
                "multiple, and state in lengths how many tubelets are real (0 for a clip without frames)"
            )
        if min(height, width) < 1 or height % patch or width % patch:
            near = " x ".join(str(max(patch, round(n / patch) * patch)) for n in (height, width))
            raise DataError(
                f"frames of {height} x {width} pixels do not divide into {patch} x {patch} patches: resize (for "
                f"example to {near})"
            )
        return frames // self.tubelet, height // patch, width // patch

    def check(self, clips: Tensor) -> tuple[int, int, int]:
        """Checks clips and gives their `grid_size`.

        Args:
            clips: (B, in_chans, T, H, W) floating point.

        Raises:
            DataError: If they cannot be embedded.
        """
        check_pixels(clips, self.proj.weight, "clips", "T, H, W")
        if clips.shape[0] == 0:
            raise DataError("a batch needs at least one clip; a clip without frames has length 0")
        return self.grid_size(*clips.shape[2:])

    def forward(self, clips: Tensor) -> Tensor:
        """(B, in_chans, T, H, W) -> (B, tubelets, C), t slowest, then row by row."""
        times, rows, columns = self.grid_size(*clips.shape[2:])
        patch = self.patch_size
        pieces = clips.reshape(*clips.shape[:2], times, self.tubelet, rows, patch, columns, patch)
        pieces = pieces.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        return F.linear(pieces, self.proj.weight.flatten(1), self.proj.bias)  # Faster than a convolution in 16 bit.


def tubelet_mask(lengths: Tensor | None, batch: int, tubelets: int, device: torch.device) -> Tensor | None:
    """Which tubelets of each clip are real, (B, tubelets) bool; `None` where all are.

    Args:
        lengths: (B,) whole numbers from 0 to `tubelets`, looked at on the CPU alone.
        batch: B.
        tubelets: Tubelets of a clip, padding included.
        device: Where the clips are.

    Raises:
        DataError: If they do not fit the clips.
    """
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor) or lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        given = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
        raise DataError(f"lengths must be an int64 tensor of shape ({batch},), tubelets of each clip; got {given}")
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > tubelets:
            raise DataError(f"lengths count tubelets: they must be from 0 to {tubelets}, got {low} to {high}")
    return torch.arange(tubelets, device=device) < lengths.to(device).unsqueeze(1)


def clip_coordinates(
    grid: tuple[int, int, int],
    *,
    origin: float,
    times: Tensor | float = 1.0,
    device: torch.device,
    dtype: torch.dtype,
) -> ClipCoordinates:
    """Coordinates (t, row, column) of the tubelets of a grid.

    Args:
        grid: Tubelets in time, rows and columns.
        origin: Of the first tubelet along every axis.
        times: Units of time from a tubelet to the next, or (B, tubelets) units of time from the first tubelet to each.
        device: Where to make them.
        dtype: That of the features.
    """
    coords = coordinates.clip(*grid, device=device, dtype=dtype)
    if isinstance(times, Tensor):
        space = coords.values[..., 1:].expand(times.shape[0], -1, -1)
        time = times.to(coords.values.dtype).unsqueeze(2).expand(-1, -1, grid[1] * grid[2]).flatten(1)
        values = torch.cat([time.unsqueeze(2), space], dim=2)
        bounds = None
        if torch.compiler.is_compiling():  # Then nothing can be looked at.
            assert coords.bounds is not None
            bounds = ((-torch.inf, torch.inf), *coords.bounds[1:])
        coords = dataclasses.replace(coords, values=values, bounds=bounds, integral=False)
    elif times != 1:
        coords = coords.scaled((times, 1.0, 1.0))
        coords = dataclasses.replace(coords, integral=_whole(times, grid))
    coords = coords.shifted(origin)
    fields = {field.name: getattr(coords, field.name) for field in dataclasses.fields(coords)}
    return ClipCoordinates(**fields, grid=grid)


def _whole(step: float, grid: tuple[int, int, int]) -> bool:
    """Whether tubelets so far apart lie on whole units, few enough for 16 bit to tell exactly."""
    return float(step).is_integer() and max((grid[0] - 1) * step, *(n - 1 for n in grid[1:])) <= 255
