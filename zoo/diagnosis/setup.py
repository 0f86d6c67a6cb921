"""Where the tokens of a configuration lie: what every modality says of its own, and checks are made on. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.encodings import split_name, split_options

__all__ = ["Axis", "Layout", "Setup", "least_factor"]


def least_factor(options: Mapping[str, Any]) -> float:
    """The smallest factor of the extension in options of an encoding, 1 without."""
    factor = options.get("factor", 1.0) if options.get("extend") else 1.0
    return float(min(factor) if isinstance(factor, (list, tuple)) else factor)


@dataclass(frozen=True)
class Axis:
    """A coordinate axis.

    Attributes:
        name: Such as `"column"` or `"time"`.
        extent: How far an input reaches, in units of the coordinates, counted in tokens (14 columns: 14); `None` where
            the configuration does not say.
        step: Units from a token to the next; `None` where tokens lie anywhere.
        unit: What a unit is, in words that are equal for equal units, such as `"0.125 s"`.
    """

    name: str
    extent: float | None
    step: float | None
    unit: str


@dataclass(frozen=True)
class Layout:
    """The tokens of an input.

    Attributes:
        axes: In the order of the coordinates.
        shapes: (width, heads, width of a head) of the attention layers that differ.
        class_token: `"origin"`, `"nowhere"` (it has no position), or `None` without a class token.
        origin: Coordinate of the first token, in words that are equal for equal origins.
        on_grid: Whether tokens lie on whole steps.
        causal: Whether tokens attend to earlier ones alone.
        groups: Which axes are encoded together, as numbers; empty for all at once (divided attention has its own).
    """

    axes: tuple[Axis, ...]
    shapes: tuple[tuple[int, int, int], ...]
    class_token: str | None = None
    origin: str = "0"
    on_grid: bool = True
    causal: bool = False
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def extents(self) -> tuple[float, ...] | None:
        """The extents, where all are known."""
        known = [axis.extent for axis in self.axes if axis.extent is not None]
        return tuple(known) if len(known) == len(self.axes) else None


@dataclass(frozen=True)
class Setup:
    """A model as it was trained and as it is to be used.

    Attributes:
        name: What it is called.
        trained: Configuration of the training.
        target: Configuration of the use.
        before: Where the tokens of training lie.
        now: Where those of the use lie.
        chosen: Keys of the model that a recipe sets by itself.
    """

    name: str
    trained: Mapping[str, Any]
    target: Mapping[str, Any]
    before: Layout
    now: Layout
    chosen: tuple[str, ...] = ()

    @property
    def encoding(self) -> str:
        """Name of the encoding in use."""
        return str(self.target["model"]["encoding"])

    @property
    def options(self) -> dict[str, Any]:
        """Options of the encoding of attention in use."""
        return split_options(self.encoding, self.target["model"].get("encoding_options"))[1]

    @property
    def token_options(self) -> dict[str, Any]:
        """Options of the encoding that is added to the features."""
        return split_options(self.encoding, self.target["model"].get("encoding_options"))[0]

    @property
    def attention(self) -> str:
        """Name of the encoding of attention in use."""
        return split_name(self.encoding)[1]

    @property
    def token(self) -> str | None:
        """Name of the encoding that is added to the features, if there is one."""
        return split_name(self.encoding)[0]

    @property
    def factor(self) -> float:
        """The smallest factor of the extension in force in attention, 1 without."""
        return least_factor(self.options)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Extent of the use over that of training along each axis; 1 where either is unknown."""
        pairs = zip(self.before.axes, self.now.axes, strict=True)
        return tuple(1.0 if a.extent is None or b.extent is None else b.extent / a.extent for a, b in pairs)

    @property
    def ratio(self) -> float:
        """The largest of the ratios."""
        return max(self.ratios)
