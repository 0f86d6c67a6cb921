"""Context extension: how an encoding is run, without new weights, on inputs larger than it was trained on.

An extension is given to an encoding as options (`parse_extension`) or with its method `extend`, and to all encodings of
a model with `zoo.encodings.extendable.extend`. It holds no parameters and is not in the state dict.

f is the new extent over the trained one, per coordinate axis; L is the trained extent in coordinate units, counted in
tokens (a grid of 14 columns has L = 14). There are two ways to extend: to divide coordinates by f, or to change the
frequency ladder theta_k, k = 0 .. n - 1, of a rotary encoding axis by axis. Tokens without a position have angle 0
under each of them, and so has the origin. f = 1 changes nothing, to the last bit (`DynamicNTK`: within the trained
extent).

Legend: B batch, N tokens, p coordinate axes, n pairs of an axis.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.errors import ConfigError

__all__ = [
    "METHODS",
    "NTK",
    "DynamicNTK",
    "Extension",
    "PositionInterpolation",
    "Rescale",
    "YaRN",
    "needs_extent",
    "parse_extension",
    "sample_extents",
]

Numbers = float | Sequence[float]


@dataclass(frozen=True)
class Extension(ABC):
    """A way to extend an encoding.

    Attributes:
        factor: f, from 1 to 1e9: one number for all coordinate axes or one per axis.

    Raises:
        ConfigError: If a factor is not such a number; when it is given to an encoding of another number of axes.
    """

    factor: Numbers
    method: ClassVar[str]

    def __post_init__(self) -> None:
        self._settle("factor", 1.0)

    def _settle(self, name: str, low: float) -> None:
        """Checks numbers and keeps them as a number or a tuple, so that an extension can be hashed."""
        value = getattr(self, name)
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        for number in numbers:
            ok = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not ok or not low <= number <= 1e9:  # NaN is in no range.
                raise ConfigError(
                    f"extension {self.method!r}: {name!r} must be a number from {low:g} to 1e9, or one per axis, "
                    f"got {value!r:.80}"
                )
        object.__setattr__(self, name, tuple(map(float, value)) if isinstance(value, (list, tuple)) else float(value))

    def factors(self, axes: int) -> tuple[float, ...]:
        """One factor for every axis."""
        return self._per_axis("factor", axes)

    def _per_axis(self, name: str, axes: int) -> tuple[float, ...]:
        value = getattr(self, name)
        if not isinstance(value, tuple):
            return (value,) * axes
        if len(value) != axes:
            raise ConfigError(
                f"extension {self.method!r}: {name!r} must be one number or {axes}, one per axis, got {list(value)}"
            )
        return value

    def check_axes(self, axes: int) -> None:
        """Raises where a list has not one number per axis."""
        for field in fields(self):
            if isinstance(getattr(self, field.name), tuple):
                self._per_axis(field.name, axes)

    def flattened(self, axes: int) -> Extension:
        """The same extension of the one axis of an encoding that counts tokens: factors (and extents) multiply."""
        names = [field.name for field in fields(self) if field.name in ("factor", "extent")]
        return replace(self, **{name: math.prod(self._per_axis(name, axes)) for name in names})

    def coordinates(self, coords: Coordinates) -> Coordinates:
        """The coordinates that the encoding gets; by default as they are."""
        return coords

    def frequencies(self, theta: Tensor, bases: Sequence[float], coords: Coordinates) -> Tensor:
        """The frequencies that the encoding gets; by default as they are.

        Args:
            theta: (p, n) frequencies base^(-k / n) of every axis, or other numbers that are changed by as much; float32
                or float64.
            bases: Base of the ladder of each axis.
            coords: Coordinates as given, for the extent of each sample.

        Returns:
            (p, n), or (B or 1, 1 or N, p, n) where samples differ, in the dtype of theta.
        """
        return theta

    def gain(self, axes: int) -> float:
        """What q and k are both multiplied with, so that logits get its square; by default 1."""
        return 1.0


@dataclass(frozen=True)
class PositionInterpolation(Extension):
    """Position interpolation (Chen et al. 2306.15595): coordinates r -> r / f.

    All that an encoding sees lies within its trained extent, closer together. For any encoding of coordinates; in
    sincos it is the rule coordinates * (trained extent / new extent).
    """

    method: ClassVar[str] = "pi"

    def coordinates(self, coords: Coordinates) -> Coordinates:
        """Divided by f, axis by axis."""
        return coords.scaled([1 / factor for factor in self.factors(coords.axes)])


@dataclass(frozen=True)
class Rescale(PositionInterpolation):
    """Position interpolation in the terms of a bias: its coefficients are rescaled, which is the same as r -> r / f.

    With one f for all axes the slopes of ALiBi and LookHere and r2 of KERPLE become m / f; with one per axis the
    offsets are divided before the norm is taken (fields of view stay). PaPE gets M_ab / (f_a f_b) and t_a / f_a.
    """

    method: ClassVar[str] = "rescale"


@dataclass(frozen=True)
class NTK(Extension):
    """NTK-aware scaling: base -> base f^(d / (d - 2)) with d = 2n rotary channels on the axis.

    So theta_k -> theta_k f^(-k / (n - 1)): the highest frequency stays and the lowest is interpolated by exactly f. By
    "bloc97" (2023), as in YaRN (2309.00071, section 3.1).
    """

    method: ClassVar[str] = "ntk"

    def frequencies(self, theta: Tensor, bases: Sequence[float], coords: Coordinates) -> Tensor:
        """See `Extension.frequencies`."""
        return theta * _ntk(theta.new_tensor(self.factors(len(bases))), theta.shape[-1], self.method)


@dataclass(frozen=True)
class DynamicNTK(Extension):
    """NTK-aware scaling by the extent L' of the sample at hand: base -> base (f L' / L - (f - 1))^(d / (d - 2)).

    Within the trained extent, L' <= L, nothing changes. With f = 1 a larger sample gets `NTK` with L' / L; a larger f
    scales more steeply, up to `NTK` by f^2 - f + 1 where L' = f L. L' is measured on each axis from the coordinates
    of the positioned tokens of a sample, largest minus smallest plus one. As in Hugging Face transformers ("dynamic").

    Attributes:
        extent: L, one number or one per axis.
    """

    extent: Numbers
    method: ClassVar[str] = "dynamic-ntk"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settle("extent", 1.0)

    def frequencies(self, theta: Tensor, bases: Sequence[float], coords: Coordinates) -> Tensor:
        """See `Extension.frequencies`."""
        axes = len(bases)
        # 1 + f (L'/L - 1) is the formula; this form is exactly 1 up to L.
        relative = sample_extents(coords, theta.dtype) / theta.new_tensor(self._per_axis("extent", axes))
        scale = 1 + theta.new_tensor(self.factors(axes)) * (relative - 1).clamp(min=0)
        return theta * _ntk(scale, theta.shape[-1], self.method)


@dataclass(frozen=True)
class YaRN(Extension):
    """YaRN (Peng et al. 2309.00071, sections 3.2 to 3.4): high frequencies stay, low ones are interpolated by f.

    Pair k turns b(k) = L theta_k / 2 pi times over the trained extent. Up to the pair with beta_fast turns a frequency
    stays, from that with beta_slow turns on it becomes theta / f, with a linear ramp over k between, the ends rounded
    outwards to whole pairs and at least 0: theta_k -> theta_k ((1 - ramp_k) + ramp_k / f). Logits are multiplied with
    (0.1 ln f + 1)^2, where f is the geometric mean of the axes: a temperature belongs to a whole row of attention.
    Therefore it applies to tokens without a position and to channels that do not turn as well.

    The betas of language models, 32 and 1, suit contexts of thousands of tokens. Over L = 14 patches even theta_0 = 1
    turns 2.2 times only. The default keeps beta_slow = 1 and lets beta_fast be L / 4: what repeats within four tokens
    is local and stays. (With base 100 and n = 16 that puts the ramp over pairs 0 to 3.)

    Attributes:
        extent: L, one number or one per axis.
        beta_fast: Turns over L from which a frequency stays; `None` means L / 4 on each axis.
        beta_slow: Turns over L up to which a frequency is interpolated in full.
    """

    extent: Numbers
    beta_fast: float | None = None
    beta_slow: float = 1.0
    method: ClassVar[str] = "yarn"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settle("extent", 1.0)
        for name in ("beta_fast", "beta_slow"):
            value = getattr(self, name)
            if name == "beta_fast" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e9:
                raise ConfigError(f"extension 'yarn': {name!r} must be a positive number of turns, got {value!r:.80}")
        if self.beta_fast is not None and self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"extension 'yarn': 'beta_fast' must exceed 'beta_slow', got {self.beta_fast:g} and {self.beta_slow:g}"
            )

    def frequencies(self, theta: Tensor, bases: Sequence[float], coords: Coordinates) -> Tensor:
        """See `Extension.frequencies`."""
        rows, axes, pairs = [], len(bases), theta.shape[-1]
        for base, factor, extent in zip(bases, self.factors(axes), self._per_axis("extent", axes), strict=True):
            fast, slow = (
                pairs * (math.log(extent) - math.log(2 * math.pi * beta)) / math.log(base)  # Turns beta times.
                for beta in (self.beta_fast or extent / 4, self.beta_slow)
            )
            low = max(math.floor(fast), 0)
            high = max(min(math.ceil(slow), 2 * pairs - 1), low + 0.001)  # A step where there is no room for a ramp.
            ramps = [min(max((k - low) / (high - low), 0.0), 1.0) for k in range(pairs)]
            rows.append([1 - ramp * (1 - 1 / factor) for ramp in ramps])
        return theta * theta.new_tensor(rows)

    def gain(self, axes: int) -> float:
        """0.1 ln f + 1."""
        return 0.1 * sum(map(math.log, self.factors(axes))) / axes + 1


METHODS: dict[str, type[Extension]] = {
    cls.method: cls for cls in (PositionInterpolation, NTK, DynamicNTK, YaRN, Rescale)
}


def _ntk(factors: Tensor, pairs: int, method: str) -> Tensor:
    """f^(-k / (n - 1)): (..., p) -> (..., p, n)."""
    if pairs < 2:
        raise ConfigError(f"extension {method!r} spreads over the frequencies of an axis: it needs two pairs or more")
    k = torch.arange(pairs, device=factors.device, dtype=factors.dtype)
    return torch.pow(factors.unsqueeze(-1), -k / (pairs - 1))


def sample_extents(coords: Coordinates, dtype: torch.dtype) -> Tensor:
    """Largest minus smallest coordinate plus one, over the positioned tokens of a sample; 1 where there are none.

    Returns:
        (B or 1, 1, p), or (1, N, p) for packed samples, where every token has the extent of its sample.
    """
    if not coords.packed and not coords.values.shape[-2]:
        return coords.values.new_ones(1, 1, coords.axes, dtype=dtype)
    centred = coords.centred(dtype)
    if coords.cu_seqlens is None:
        return 2 * centred.amax(dim=-2, keepdim=True) + 1
    segments = coords.segments()
    half = centred.new_zeros(len(coords.cu_seqlens) - 1, coords.axes)
    half = half.scatter_reduce(0, segments.unsqueeze(-1).expand_as(centred), centred, "amax")
    return (2 * half + 1)[segments].unsqueeze(0)


def needs_extent(options: Mapping[str, Any]) -> bool:
    """Whether options name a method that needs the trained extent, and do not give it."""
    method = METHODS.get(str(options.get("extend")))
    return method is not None and "extent" not in options and any(field.name == "extent" for field in fields(method))


def parse_extension(options: Mapping[str, Any]) -> Extension | None:
    """The extension that options describe.

    Args:
        options: `{"extend": method, "factor": f, "extent": L}`, and `beta_fast`, `beta_slow` for yarn. Factor and
            extent are numbers or lists with one number per coordinate axis. The factor of dynamic-ntk is 1 unless
            given. An extent is accepted by every method; those that have no use for it leave it aside.

    Returns:
        The extension, or `None` where the method is absent or is `None`, whatever else is given then.

    Raises:
        ConfigError: If the method is unknown, or an option is missing, unknown or unusable.
    """
    given = {key: value for key, value in options.items() if key != "extend"}
    method = options.get("extend")
    if method is None:
        if given and "extend" not in options:
            raise ConfigError(f"{', '.join(map(repr, given))} without 'extend': name the method of extension")
        return None
    cls = METHODS.get(method) if isinstance(method, str) else None
    if cls is None:
        close = get_close_matches(str(method), METHODS, n=1, cutoff=0.5)
        hint = f", did you mean {close[0]!r}?" if close else "."
        raise ConfigError(f"unknown extension {method!r:.60}{hint} Known: {', '.join(METHODS)}")
    names = [field.name for field in fields(cls)]
    if "extent" not in names and "extent" in given:
        DynamicNTK(1.0, given.pop("extent"))  # Not used, but checked.
    if cls is DynamicNTK:
        given.setdefault("factor", 1.0)
    unknown = [key for key in given if key not in names]
    if unknown:
        raise ConfigError(f"extension {method!r} has no option {unknown[0]!r}; its options: {', '.join(names)}")
    missing = [name for name in ("factor", "extent") if name in names and name not in given]
    if missing:
        what = {"factor": "new extent over trained extent", "extent": "the trained extent, as 14 for 14 x 14 patches"}
        raise ConfigError(f"extension {method!r} needs {missing[0]!r} ({what[missing[0]]})")
    return cls(**given)
