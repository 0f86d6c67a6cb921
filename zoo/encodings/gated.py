"""Encodings behind a learned gate that starts at 0, so that a network they are put into computes at first what it did.

A gate multiplies what an encoding adds to the logits, one number per head, or the angles by which it turns q and k, one
number per layer. At 0 the gate alone has a gradient; the parameters behind it follow once it has moved. Gates are not
bounded: a negative one draws attention to where the encoding would lead it away from.

Legend: B batch, N tokens, H heads, p coordinate axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings import registered_name
from zoo.encodings.alibi import ALiBi
from zoo.encodings.base import AttentionEncoding, Frame, NoEncoding, Score
from zoo.encodings.cpb import ContinuousBias
from zoo.encodings.distance import Modification
from zoo.encodings.extension import DynamicNTK, Extension, YaRN
from zoo.encodings.kerple import Kerple
from zoo.encodings.pape import PaPE
from zoo.encodings.pape_ri import PaPERI
from zoo.encodings.quadratic import QuadraticEncoding, QuadraticScore
from zoo.encodings.relative_table import RelativeTable
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_directions import GoldenRoPE, SpiralRoPE
from zoo.encodings.rope_generators import STRING, ComRoPELD, LieRE
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.errors import ConfigError
from zoo.kernels.flex import modification

__all__ = ["GatedQuadratic", "GatedRotation", "GatedScore", "gated"]


class _Gated(AttentionEncoding):
    """An encoding `inner` and a `gate` in front of it."""

    def __init__(self, inner: AttentionEncoding, gates: int) -> None:
        super().__init__()
        self.inner = inner
        self.gate = nn.Parameter(torch.zeros(gates))
        self.extension_methods, self.extension = inner.extension_methods, inner.extension

    @property
    def by_sample(self) -> bool:
        """See `Extendable.by_sample`."""
        return self.inner.by_sample

    def check_extension(self, extension: Extension | None) -> None:
        """Raises what `extend` would."""
        self.inner.check_extension(extension)

    def extend(self, extension: Extension | None) -> None:
        """See `Extendable.extend`; the encoding behind the gate is what is extended."""
        super().extend(extension)
        self.inner.extend(extension)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Frame:
        """That of the encoding."""
        return self.inner.frame(coords, dtype)

    def reset_parameters(self) -> None:
        """Closes the gate and draws the parameters behind it."""
        nn.init.zeros_(self.gate)
        self.inner.reset_parameters()

    def place(self, layer: int, depth: int) -> None:
        """See `AttentionEncoding.place`."""
        self.inner.place(layer, depth)

    def project_parameters(self) -> None:
        """See `AttentionEncoding.project_parameters`."""
        self.inner.project_parameters()

    def no_weight_decay(self) -> set[str]:
        """Decay would hold the gate shut."""
        return {"gate"} | {f"inner.{name}" for name in self.inner.no_weight_decay()}


class GatedQuadratic(_Gated, QuadraticEncoding):
    """Bias g_h s (t_i . D - D^T M_i D): the encoding (PaPE, PaPE-RI) with M and t multiplied by the gate of the head.

    Coefficients are multiplied in float32, before they are folded into q and split into 16-bit columns, so the gate
    costs no precision.

    Args:
        inner: The encoding.
        gates: Heads H, which have a gate each.
    """

    def score(self, x: Tensor, frame: Frame, scale: float) -> QuadraticScore:
        """See `AttentionEncoding.score`."""
        score = self.inner.score(x, frame, scale)
        assert isinstance(score, QuadraticScore)
        gate = self.gate.to(score.m.dtype).view(-1, 1, 1)
        return replace(score, m=gate * score.m, t=None if score.t is None else gate * score.t)


@dataclass(frozen=True)
class _WeightedScore:
    score: Score
    gate: Tensor  # (H,)

    def bias(self, rows: slice) -> Tensor:
        bias = self.score.bias(rows)
        return self.gate.to(bias.dtype).view(-1, 1, 1) * bias

    def modification(self) -> Modification | None:
        """See `zoo.kernels.flex`."""
        whole, gate = modification(self.score), self.gate
        if whole is None:
            return None

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + gate[h] * whole(torch.zeros_like(score), b, h, i, j)

        return add


class GatedScore(_Gated):
    """Bias g_h b_ij with b the bias of the encoding (ALiBi, KERPLE, CPB), which must be finite everywhere.

    Args:
        inner: The encoding.
        gates: Heads H, which have a gate each.
    """

    def score(self, x: Tensor, frame: Frame, scale: float) -> _WeightedScore:
        """See `AttentionEncoding.score`."""
        score = self.inner.score(x, frame, scale)
        assert score is not None
        return _WeightedScore(score, self.gate)


@dataclass(frozen=True)
class _Deferred(Frame):
    """Coordinates as they came: what follows from them depends on the gate of each layer."""

    coords: Coordinates
    dtype: torch.dtype


class GatedRotation(_Gated):
    """The rotary encoding at coordinates g r: all its angles are multiplied by the gate of the layer.

    For encodings whose angles (or exponents) are linear in the coordinates. At g = 0 nothing turns, at g = 1 it is the
    encoding itself. Cosines and sines are made in every layer. `dynamic-ntk` does not apply: it would measure the
    extent of the coordinates behind the gate.

    Args:
        inner: The encoding.
    """

    def __init__(self, inner: AttentionEncoding) -> None:
        super().__init__(inner, 1)
        self.extension_methods = tuple(method for method in inner.extension_methods if method != "dynamic-ntk")

    def check_extension(self, extension: Extension | None) -> None:
        """Raises what `extend` would."""
        if isinstance(extension, DynamicNTK):
            raise ConfigError("extension 'dynamic-ntk' does not apply to rotary encodings behind a gate; use 'ntk'")
        self.inner.check_extension(extension)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _Deferred:
        """Keeps the coordinates for the layers."""
        return _Deferred("fold", coords, dtype)

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """See `AttentionEncoding.fold`."""
        assert isinstance(frame, _Deferred)
        values = frame.coords.values * self.gate.to(frame.coords.values.dtype)
        turned = replace(frame.coords, values=values, integral=False, bounds=None)
        return self.inner.fold(x, q, k, self.inner.frame(turned, frame.dtype))


# Their angles are linear in the coordinates; subclasses may be otherwise.
_ROTARY = (RoPE, RoPEMixed, SpiralRoPE, GoldenRoPE, STRING, ComRoPELD, LieRE)
_SCORES = (ALiBi, ContinuousBias, Kerple)
_QUADRATIC = (PaPE, PaPERI)
# They do nothing at the start by themselves. (A gate at 0 on a table of zeros would leave both without gradient.)
_SILENT = (NoEncoding, RelativeTable)


def gated(encoding: AttentionEncoding, num_heads: int) -> AttentionEncoding:
    """The encoding in a form that does nothing at the start and can learn to do something.

    Args:
        encoding: As `zoo.encodings.create` makes it.
        num_heads: Heads H of the layer.

    Returns:
        The encoding behind a gate, or itself where it does nothing at the start (`none`, and `table`, which is all 0).

    Raises:
        ConfigError: If the encoding cannot start without effect.
    """
    if type(encoding) in _SILENT:
        return encoding
    if isinstance(encoding, _QUADRATIC):
        return GatedQuadratic(encoding, num_heads)
    if type(encoding) in _SCORES:
        return GatedScore(encoding, num_heads)
    name = registered_name(type(encoding))
    if type(encoding) not in _ROTARY:
        possible = sorted(registered_name(cls) for cls in (*_SILENT, *_QUADRATIC, *_SCORES, *_ROTARY))
        raise ConfigError(f"encoding {name!r} cannot start without an effect; these can: {', '.join(possible)}")
    rotation = GatedRotation(encoding)
    rotation.check_extension(encoding.extension)
    if isinstance(encoding.extension, YaRN):
        raise ConfigError(
            f"extension 'yarn' of {name!r} has an effect at the start, its temperature; use 'pi' or 'ntk'"
        )
    return rotation
