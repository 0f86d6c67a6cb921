"""Encodings that can be extended to larger inputs (see `zoo.encodings.extension`), one by one or all of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.extension import DynamicNTK, Extension
from zoo.errors import ConfigError

__all__ = ["Extendable", "any_by_sample", "extend", "extended"]


class Extendable:
    """What an encoding has to do with extensions.

    Attributes:
        extension_methods: Names of the methods that apply to the encoding; none for those without anything to extend.
        extension: The extension in force; set with `extend`.
        coord_dim: Coordinate axes p; set where an encoding is made by name.
    """

    extension_methods: tuple[str, ...] = ()
    extension: Extension | None = None
    coord_dim: int

    @property
    def by_sample(self) -> bool:
        """Whether what it does to a token depends on which other tokens the sample has, such as on their extent.

        A decoder of such an encoding cannot keep what it computed when tokens follow.
        """
        return isinstance(self.extension, DynamicNTK)

    def extend(self, extension: Extension | None) -> None:
        """Sets the extension, or takes it away with `None`.

        Raises:
            ConfigError: If it does not apply to this encoding; the methods that do are named.
        """
        self.check_extension(extension)
        self.extension = extension

    def check_extension(self, extension: Extension | None) -> None:
        """Raises what `extend` would."""
        if extension is None:
            return
        if not isinstance(extension, Extension):
            raise ConfigError(f"an extension or None was expected, got a {type(extension).__name__}")
        self.check_method(extension.method)
        axes = getattr(self, "coord_dim", None)
        if axes is not None:
            extension.check_axes(axes)

    def check_method(self, method: str) -> None:
        """Raises where a method does not apply to the encoding."""
        if method in self.extension_methods:
            return
        from zoo.encodings import registered_name

        possible = ", ".join(self.extension_methods) or "none, it has nothing that could be extended"
        name = registered_name(type(self))
        raise ConfigError(f"extension {method!r} does not apply to encoding {name!r}; possible: {possible}")

    def extended(self, coords: Coordinates, dtype: torch.dtype) -> Coordinates:
        """The coordinates under the extension, divided in float64 where `dtype`, that of the model, is."""
        if self.extension is None:
            return coords
        return self.extension.coordinates(coords.to(dtype=dtype) if dtype == torch.float64 else coords)

    def multiplied(self, theta: Tensor, bases: Sequence[float], coords: Coordinates) -> Tensor:
        """Frequencies under the extension; see `Extension.frequencies`."""
        return theta if self.extension is None else self.extension.frequencies(theta, bases, coords)

    def gain(self, axes: int) -> float:
        """What q and k are both multiplied with."""
        return 1.0 if self.extension is None else self.extension.gain(axes)


def _encodings(model: nn.Module) -> list[Extendable]:
    """The encodings in a module; those inside another one are its own affair."""
    if isinstance(model, Extendable):
        return [model]
    return [encoding for child in model.children() for encoding in _encodings(child)]


def any_by_sample(model: nn.Module) -> bool:
    """Whether an encoding in a module is one of those that `Extendable.by_sample` tells of."""
    return any(module.by_sample for module in _encodings(model))


def extend(model: nn.Module, extension: Extension | None) -> None:
    """Sets the extension of every encoding in a module (an `Encoder`, a whole model), or takes it away with `None`.

    Encodings without anything to extend (`none`, and `learned`, whose table stretches over any grid by itself) are
    passed over if there are others. Not while another thread runs the model: it would use the old one in some layers.

    Args:
        model: Any module that holds encodings.
        extension: What to set.

    Raises:
        ConfigError: If it applies to none of them, or not to all that can be extended; nothing is set then.
    """
    found = _encodings(model)
    able = [module for module in found if module.extension_methods]
    if extension is not None and not found:
        raise ConfigError(f"{type(model).__name__} holds no position encoding that could be extended")
    for module in able or found:
        module.check_extension(extension)
    for module in able:
        module.extend(extension)


@contextmanager
def extended(model: nn.Module, extension: Extension | None) -> Iterator[None]:
    """Runs a block of code with an extension, as `extend` sets it, and puts back what was there before."""
    before = [(module, module.extension) for module in _encodings(model)]
    extend(model, extension)
    try:
        yield
    finally:
        for module, old in before:
            module.extend(old)
