"""Where tokens are: the `Coordinates` every block receives, and builders for grids, clips, events, points and text.

Legend: B batch, N tokens, p coordinate axes. Coordinates are float32 (float64 in float64 models) whatever the dtype of
the features, because position algebra in 16 bit is wrong beyond small grids. The unit of a coordinate is the training
patch pitch: that is what lets an encoding extrapolate to larger inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zoo.errors import DataError
from zoo.poses import check_poses, identity_poses, identity_where
from zoo.tracing import is_open

__all__ = ["Coordinates", "clip", "concatenate", "events", "grid", "points", "text"]

# Integers up to this many steps apart, once centred, are exact in bfloat16 (8 significant bits: 127.5 = 255 / 2).
_EXACT_STEPS = 255


@dataclass(frozen=True)
class Coordinates:
    """Token coordinates.

    Attributes:
        values: (B or 1, N, p) float32 or float64; (N_total, p) when packed. A batch of one is shared by all samples.
        positioned: Bool (B or 1, N), or (N_total,) when packed: which tokens have a position. Class, register and text
            tokens may have none. `None` means that every token has one.
        cu_seqlens: Packed batches only: int (S + 1,) offsets of the samples, starting at 0.
        integral: The coordinates of a sample differ by whole units and by at most 255 of them, so that centred values
            are exact in 16 bit. Set by the builders; wrong use costs accuracy in 16 bit.
        bounds: Smallest and largest coordinate along each axis, where they are known without looking at the values
            (looking synchronises a GPU, and a compiler cannot do it). `None` means: look.
        unit: Name of the unit, for error messages and figures.
        poses: (B or 1, N, 4, 4) float32 or float64, or (N_total, 4, 4) when packed: what maps the frame of each token
            (its camera) to the world, see `zoo.poses`. Invertible; read by encodings of kind group, and untouched by
            `shifted` and `scaled`, which move coordinates. `None` means that tokens have none.
        sample: Packed batches only: int64 (N_total,), the sample of each token, from who made `cu_seqlens` and need not
            look at them again (which synchronises a GPU). `None` means: they are checked where they are used.
    """

    values: Tensor
    positioned: Tensor | None = None
    cu_seqlens: Tensor | None = None
    integral: bool = False
    bounds: tuple[tuple[float, float], ...] | None = None
    unit: str = "patch"
    poses: Tensor | None = None
    sample: Tensor | None = None

    def __post_init__(self) -> None:
        expected = 2 if self.packed else 3
        if self.values.dim() != expected:
            shape = "(N_total, p)" if self.packed else "(B, N, p)"
            raise DataError(f"coordinates must have shape {shape}, got {tuple(self.values.shape)}")
        if self.values.dtype not in (torch.float32, torch.float64):
            raise DataError(
                f"coordinates must be float32 or float64, got {self.values.dtype}: 16-bit and integer coordinates lose "
                "positions; subtract a large origin in float64 or int64, then convert"
            )
        if self.cu_seqlens is not None and (
            not isinstance(self.cu_seqlens, Tensor)
            or self.cu_seqlens.dim() != 1
            or not len(self.cu_seqlens)
            or self.cu_seqlens.dtype not in (torch.int32, torch.int64)
        ):
            raise DataError("cu_seqlens must be a vector of int32 or int64 offsets, from 0 to the number of tokens")
        if self.positioned is not None and (
            self.positioned.dtype != torch.bool or self.positioned.shape[-1] != self.values.shape[-2]
        ):
            raise DataError("positioned must be a bool tensor with one entry per token")
        if self.poses is not None:
            check_poses(self.poses, self.values)

    @property
    def axes(self) -> int:
        """Number of coordinate axes p."""
        return self.values.shape[-1]

    @property
    def packed(self) -> bool:
        """Whether samples lie end to end, delimited by `cu_seqlens`."""
        return self.cu_seqlens is not None

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Coordinates:
        """Moves to a device and/or to float32 or float64."""
        return replace(
            self,
            values=self.values.to(device=device, dtype=dtype),
            positioned=None if self.positioned is None else self.positioned.to(device=device),
            cu_seqlens=None if self.cu_seqlens is None else self.cu_seqlens.to(device=device),
            poses=None if self.poses is None else self.poses.to(device=device, dtype=dtype),
            sample=None if self.sample is None else self.sample.to(device=device),
        )

    def shifted(self, offset: float | Sequence[float] | Tensor) -> Coordinates:
        """Adds an offset (one number, or one per axis) to every coordinate."""
        shift = torch.as_tensor(offset, dtype=self.values.dtype, device=self.values.device)
        bounds = None
        if self.bounds is not None and not isinstance(offset, Tensor):
            steps = [offset] * self.axes if isinstance(offset, (int, float)) else offset
            bounds = tuple((low + step, high + step) for (low, high), step in zip(self.bounds, steps, strict=True))
        return replace(self, values=self.values + shift, bounds=bounds)

    def scaled(self, factor: float | Sequence[float]) -> Coordinates:
        """Multiplies coordinates (by one number, or one per axis), as position interpolation does with 1 / f."""
        factors = [factor] * self.axes if isinstance(factor, (int, float)) else factor
        bounds = None
        if self.bounds is not None:
            ends = [sorted((a * f, b * f)) for (a, b), f in zip(self.bounds, factors, strict=True)]
            bounds = tuple((low, high) for low, high in ends)
        values = torch.stack([self.values[..., axis] * f for axis, f in enumerate(factors)], dim=-1)
        integral = self.integral and all(f in (1, -1) for f in factors)
        return replace(self, values=values, integral=integral, bounds=bounds)

    def hide(self, hidden: Tensor) -> Coordinates:
        """Takes position and pose of hidden tokens away, so that padding (even NaN) cannot move a sample's centre.

        Args:
            hidden: Bool (B, N) or (N_total,), True where the token is padding.
        """
        positioned = ~hidden if self.positioned is None else self.positioned & ~hidden
        values = self.values.expand(*hidden.shape, self.axes).masked_fill(hidden.unsqueeze(-1), 0.0)
        poses = None if self.poses is None else identity_where(self.poses, hidden)
        return replace(self, values=values, positioned=positioned, poses=poses)

    def with_prefix(self, count: int, at: Sequence[float] | None = None) -> Coordinates:
        """Puts `count` tokens in front of every sample, for class and register tokens; their pose is the identity.

        Args:
            count: Number of tokens to add.
            at: Their common coordinate (p numbers); `None` gives them no position.

        Raises:
            DataError: For packed coordinates, or when `at` has the wrong length.
        """
        if self.packed:
            raise DataError("a packed batch has no common front: put prefix tokens in before packing")
        if count < 0 or (at is not None and len(at) != self.axes):
            raise DataError(f"a prefix has 0 or more tokens and {self.axes} coordinates, got {count} tokens at {at}")
        if count == 0:
            return self
        batch, tokens = self.values.shape[0], self.values.shape[1]
        if at is None:
            prefix = self.values.new_zeros(batch, count, self.axes)
        else:
            prefix = self.values.new_tensor(list(at)).expand(batch, count, self.axes)
        positioned = self.positioned
        if at is None or positioned is not None:
            known = positioned if positioned is not None else self._ones(batch, tokens)
            positioned = torch.cat([self._ones(known.shape[0], count) * (at is not None), known], dim=1)
        bounds, integral = self.bounds, self.integral
        if at is not None:  # A positioned prefix may widen the sample.
            integral = integral and bounds is not None and _whole_steps(bounds, at)
            if bounds is not None:
                bounds = tuple((min(low, a), max(high, a)) for (low, high), a in zip(bounds, at, strict=True))
        values, poses = torch.cat([prefix, self.values], dim=1), self.poses
        if poses is not None:
            poses = torch.cat([identity_poses(poses, poses.shape[0], count), poses], dim=1)
        return replace(self, values=values, positioned=positioned, bounds=bounds, integral=integral, poses=poses)

    def _ones(self, batch: int, tokens: int) -> Tensor:
        return torch.ones(batch, tokens, dtype=torch.bool, device=self.values.device)

    def centred(self, dtype: torch.dtype) -> Tensor:
        """Coordinates relative to the middle of each sample, zero for tokens without a position.

        Attention biases that depend on differences alone do not change, and the numbers become as small as they can be.

        Returns:
            Tensor shaped like `values`, in `dtype` (the subtraction is done in the wider of the two).
        """
        low, high = self._bounds()
        middle = (low + high) / 2
        if self.packed:
            middle = middle[self.segments()]
        centred = self.values - middle
        if self.positioned is not None:
            centred = centred.masked_fill(~self.positioned.unsqueeze(-1), 0.0)
        return centred.to(dtype)

    def segments(self) -> Tensor:
        """Sample index of each packed token, int64 (N_total,)."""
        if self.cu_seqlens is None:
            raise DataError("segments() is for packed coordinates")
        if self.sample is not None:
            return self.sample
        lengths = self.cu_seqlens.diff()
        ends = int(self.cu_seqlens[0]), int(self.cu_seqlens[-1])
        if bool((lengths < 0).any()) or ends != (0, self.values.shape[0]):
            raise DataError(f"cu_seqlens must rise from 0 to the number of tokens, {self.values.shape[0]}")
        samples = torch.arange(len(lengths), device=lengths.device)
        return torch.repeat_interleave(samples, lengths, output_size=self.values.shape[0])

    def extents(self) -> tuple[float, ...]:
        """Half of the largest extent of a sample along each axis, as numbers (synchronises when not declared)."""
        if self.bounds is not None:
            return tuple((high - low) / 2 for low, high in self.bounds)
        low, high = self._bounds()
        return tuple(((high - low) / 2).reshape(-1, self.axes).amax(dim=0).tolist())

    def measured_bounds(self) -> tuple[tuple[float, float], ...]:
        """Smallest and largest coordinate of all samples along each axis, read from the values (synchronises)."""
        low, high = (bound.reshape(-1, self.axes) for bound in self._bounds())
        return tuple(zip(low.amin(dim=0).tolist(), high.amax(dim=0).tolist(), strict=True))

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest coordinate of each sample; both 0 where no token has a position."""
        values = self.values
        if values.numel() == 0:  # No tokens, or no samples.
            empty = values.new_zeros(1, self.axes)
            return empty, empty
        low = high = values
        if self.positioned is not None:
            absent = ~self.positioned.unsqueeze(-1)
            low, high = values.masked_fill(absent, math.inf), values.masked_fill(absent, -math.inf)
        if self.packed:
            assert self.cu_seqlens is not None
            segments = self.segments().unsqueeze(-1).expand(-1, self.axes)
            shape = (len(self.cu_seqlens) - 1, self.axes)
            low = values.new_full(shape, math.inf).scatter_reduce(0, segments, low, "amin")
            high = values.new_full(shape, -math.inf).scatter_reduce(0, segments, high, "amax")
        else:
            low, high = low.amin(dim=-2, keepdim=True), high.amax(dim=-2, keepdim=True)
        return low.masked_fill(low > high, 0.0), high.masked_fill(low > high, 0.0)


def _whole_steps(bounds: Sequence[tuple[float, float]], at: Sequence[float]) -> bool:
    """Whether a token at `at` keeps a sample with these bounds on its grid and within the exact steps."""
    return all(
        float(a - low).is_integer() and (is_open(high) or max(high, a) - min(low, a) <= _EXACT_STEPS)
        for (low, high), a in zip(bounds, at, strict=True)
    )


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _lattice(
    shape: Sequence[int], order: Sequence[int], origin: float, device: torch.device | str | None, dtype: torch.dtype
) -> Coordinates:
    """A regular grid with the last axis running fastest; `order` lists grid axes in the order of the coordinates."""
    if any(not isinstance(n, int | torch.SymInt) or n < 1 for n in shape):
        raise DataError(f"a grid needs a whole number of tokens, at least one, along each axis, got {tuple(shape)}")
    ticks = [torch.arange(n, device=device, dtype=dtype) + origin for n in shape]
    mesh = torch.meshgrid(*ticks, indexing="ij")
    values = torch.stack([mesh[axis].reshape(-1) for axis in order], dim=-1).unsqueeze(0)
    # Where sizes are open, what holds in 16 bit alone is bounded where it is used.
    exact = any(map(is_open, shape)) or max(shape) - 1 <= _EXACT_STEPS
    bounds = tuple((origin, origin + shape[axis] - 1) for axis in order)
    return Coordinates(values, integral=exact, bounds=bounds)


def grid(
    rows: int,
    columns: int,
    *,
    origin: float = 0.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Patches of an image, row by row; coordinates are (column, row).

    Args:
        rows: Number of patch rows.
        columns: Number of patch columns.
        origin: Coordinate of the first patch along both axes (1 in the released PaPE networks).
        device: Where to make them.
        dtype: The dtype of the features: float64 gives float64 coordinates, everything else float32.

    Returns:
        Coordinates with values (1, rows * columns, 2).
    """
    return _lattice((rows, columns), (1, 0), origin, device, _dtype(dtype))


def clip(
    frames: int,
    rows: int,
    columns: int,
    *,
    origin: float = 0.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Tubelets of a video, t slowest, then row by row; coordinates are (t, row, column) as in the released networks.

    Args:
        frames: Number of tubelets in time.
        rows: Number of patch rows.
        columns: Number of patch columns.
        origin: Coordinate of the first tubelet along every axis.
        device: Where to make them.
        dtype: See `grid`.

    Returns:
        Coordinates with values (1, frames * rows * columns, 3).
    """
    return _lattice((frames, rows, columns), (0, 1, 2), origin, device, _dtype(dtype))


def text(
    length: int, *, start: float = 0.0, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Coordinates:
    """Tokens of a sequence at start, start + 1, ...; values (1, length, 1)."""
    return _lattice((length,), (0,), start, device, _dtype(dtype))


def events(
    x: Tensor,
    y: Tensor,
    t_us: Tensor,
    *,
    time_scale: float,
    origin_us: int | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Event tokens; coordinates are (x, y, t) in patches, patches and units of `time_scale`.

    The origin of time is subtracted in int64, so that epoch microseconds lose nothing.

    Args:
        x: (B, N) patch column.
        y: (B, N) patch row.
        t_us: (B, N) int64 microseconds.
        time_scale: Microseconds per unit of time.
        origin_us: Microseconds at which time is 0; `None`: those of the sample's first token.
        dtype: See `grid`.

    Returns:
        Coordinates with values (B, N, 3).
    """
    if time_scale <= 0:
        raise DataError(f"time_scale must be a positive number of microseconds, got {time_scale}")
    if t_us.is_floating_point():
        raise DataError("t_us must be integer microseconds")
    t_us = t_us.long()
    first: Tensor | int = t_us.amin(dim=-1, keepdim=True) if origin_us is None and t_us.shape[-1] else origin_us or 0
    time = (t_us - first).to(torch.float64) / time_scale
    values = torch.stack([x.to(torch.float64), y.to(torch.float64), time], dim=-1)
    return Coordinates(values.to(_dtype(dtype)), unit="patch, patch, time step")


def points(
    xyz: Tensor,
    *,
    unit: float,
    cu_seqlens: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Points in space, in units of `unit` metres, from the first point of the tensor (subtracted in float64).

    Args:
        xyz: (N_total, p) with `cu_seqlens`, else (B, N, p), in metres; float64 where the origin is far.
        unit: Metres per unit of the coordinates (the training voxel size, say).
        cu_seqlens: Offsets of packed clouds.
        dtype: See `grid`.
    """
    if unit <= 0:
        raise DataError(f"unit must be a positive number of metres, got {unit}")
    wide = xyz.to(torch.float64)
    if wide.numel():
        wide = wide - wide[..., :1, :]
    return Coordinates((wide / unit).to(_dtype(dtype)), cu_seqlens=cu_seqlens, unit=f"{unit} m")


def concatenate(parts: Sequence[Coordinates]) -> Coordinates:
    """Joins token sets of one sample, such as text and image tokens of a mixture; all with the same axes.

    Where some parts have poses, tokens of the others get the identity.

    Raises:
        DataError: If the axes or the batches differ (one may be shared), or a part is packed.
    """
    if not parts or any(part.packed for part in parts) or len({part.axes for part in parts}) != 1:
        raise DataError("a mixture needs one or more unpacked parts with the same coordinate axes")
    batches = {len(rows) for part in parts for rows in (part.values, part.poses) if rows is not None} - {1}
    if len(batches) > 1:
        raise DataError(f"the parts of a mixture are for batches of {sorted(batches)}")
    batch = max(part.values.shape[0] for part in parts)
    values = torch.cat([part.values.expand(batch, -1, -1) for part in parts], dim=1)
    positioned = None
    if any(part.positioned is not None for part in parts):
        known = [p.positioned if p.positioned is not None else p._ones(1, p.values.shape[1]) for p in parts]
        positioned = torch.cat([one.expand(batch, -1) for one in known], dim=1)
    poses = None
    if any(part.poses is not None for part in parts):
        each = [p.poses if p.poses is not None else identity_poses(values, 1, p.values.shape[1]) for p in parts]
        poses = torch.cat([one.expand(max(map(len, each)), -1, -1, -1) for one in each], dim=1)
    ends = [part.bounds or () for part in parts] if all(part.bounds for part in parts) else []
    joint = tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in zip(*ends, strict=True))
    whole = [part.integral and _whole_steps(joint, [a for a, _ in end]) for part, end in zip(parts, ends, strict=False)]
    return Coordinates(values, positioned, None, bool(whole) and all(whole), joint or None, parts[0].unit, poses)
