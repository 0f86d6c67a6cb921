"""Shapes for property tests, drawn by hypothesis: blocks of any encoding, and tokens with and without a position.

Hypothesis draws numbers and torch the tensors from a drawn seed, so that shapes shrink and failures repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from group_reference import POSES
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo import coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.facts import FACTS

NAMES = sorted(FACTS)  # The whole registry, says tests/test_encoding_facts.py.
# A few examples, the same every time: every property is tried on the whole registry.
quick = settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate, Phase.shrink])


def axes_of(name: str) -> list[int]:
    """The numbers of axes, of 1 to 4, that an encoding takes according to `FACTS`."""
    numbers = [int(number) for number in re.findall(r"\d+", FACTS[name].axes)]
    return [axes for axes in range(1, 5) if not numbers or numbers[0] <= axes <= numbers[-1]]


def on_grid(name: str) -> bool:
    """Whether an encoding takes tokens of one grid alone, according to `FACTS`."""
    return "grid" in FACTS[name].axes


ANYWHERE = [name for name in NAMES if not on_grid(name)]


def pairs_of(names: Sequence[str]) -> list[tuple[str, int]]:
    """Every encoding with every number of axes it takes, for `parametrize`."""
    return [(name, axes) for name in names for axes in axes_of(name)]


def options_for(name: str, head_dim: int) -> dict[str, object]:
    """Options that fit narrow heads, and sizes of learned parts that small layouts exceed."""
    block = next((size for size in range(3, head_dim + 1) if head_dim % size == 0), 2)  # Blocks of two commute.
    options: dict[str, dict[str, object]] = {
        "comrope-ld": {"block_size": block},
        "cpb": {"extent": 4.0, "hidden": 16},
        "liere": {"block_size": block},
        "spiral-rope": {"directions": min(3, head_dim // 2)},
        "table": {"extent": 2},
        **dict.fromkeys(("pape", "pape-linear", "pape-quadratic", "pape-signed", "pape-static"), {"parabolas": 6}),
    }
    return options.get(name, {})


@dataclass(frozen=True)
class Layer:
    """A block of attention to be built; `dim` is the feature width, independent of the heads."""

    name: str
    axes: int
    heads: int
    head_dim: int
    dim: int
    causal: bool
    seed: int

    def build(
        self, coords: Coordinates | None = None, *, dtype: torch.dtype = torch.float64, start: bool = False
    ) -> CoordinateAttention:
        """The block in eval mode, the parameters of its encoding off their start unless `start`.

        Args:
            coords: The grid of a learned table.
            dtype: Of the parameters.
            start: Keep the initial values.
        """
        options = options_for(self.name, self.head_dim)
        if self.name == "learned" and coords is not None:
            options = {"grid": [round(high - low) + 1 for low, high in coords.bounds or coords.measured_bounds()]}
        torch.default_generator.manual_seed(self.seed)  # torch.manual_seed formats the stack for CUDA: 8 ms.
        attention = CoordinateAttention(
            self.dim, self.heads, self.axes, self.name, head_dim=self.head_dim, causal=self.causal, **options
        )
        attention = attention.to(dtype).eval()
        if not start:
            with torch.no_grad():
                for parameter in own_parameters(attention).values():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            attention.encoding.project_parameters()
        return attention

    def features(self, coords: Coordinates, batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """(batch, N, C) random features, for as many tokens as have coordinates."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = (batch, coords.values.shape[-2], self.dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def mapped(coords: Coordinates, change: Callable[[Tensor], Tensor], **more: Any) -> Coordinates:
    """Changes all that coordinates hold of every token (values, positioned, poses) in the same way."""
    held = {key: getattr(coords, key) for key in ("values", "positioned", "poses")}
    return replace(coords, **{key: change(tensor) for key, tensor in held.items() if tensor is not None}, **more)


def own_parameters(attention: CoordinateAttention) -> dict[str, torch.nn.Parameter]:
    """Parameters of the encoding, whichever kind it is."""
    parts = [part for part in (attention.encoding, attention.token_encoding) if part is not None]
    return {name: parameter for part in parts for name, parameter in part.named_parameters()}


def sizes(low: int, high: int, around: int) -> st.SearchStrategy[int]:
    """Whole numbers that shrink to one that still shows something, since every test tries the simplest case first."""
    return st.sampled_from(sorted(range(low, high + 1), key=lambda size: abs(size - around)))


@st.composite
def layers(
    draw: st.DrawFn, name: str, axes: int | None = None, *, causal: bool = False, heads: tuple[int, int] = (1, 12)
) -> Layer:
    """Blocks of an encoding: 1 to 12 heads, and widths that need not divide by 2p, nor by the number of heads.

    Args:
        draw: Given by hypothesis.
        name: Encoding.
        axes: Number of axes; `None` draws one that the encoding takes.
        causal: Whether some are causal.
        heads: Fewest and most heads.
    """
    axes = draw(st.sampled_from(axes_of(name))) if axes is None else axes
    narrowest = max(2 * axes, 3)
    if FACTS[name].kind == "group":  # Poses take a share of the channels, in blocks of four.
        narrowest = max(2 * axes + 4, 8)
    return Layer(
        name,
        axes,
        heads=draw(sizes(*heads, around=3)),
        head_dim=narrowest + draw(st.sampled_from([1, 3, 0, 5, 2])),
        dim=draw(st.sampled_from([10, 8, 14, 24])),  # At least 2p and even, for sincos.
        causal=causal and draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def lattice(shape: Sequence[int], origin: float = 0.0) -> Coordinates:
    """A grid, by the builder for its number of axes, in float64."""
    if len(shape) == 1:
        return coordinates.text(shape[0], start=origin, dtype=torch.float64)
    if len(shape) == 2:
        return coordinates.grid(*shape, origin=origin, dtype=torch.float64)
    if len(shape) == 3:
        return coordinates.clip(*shape, origin=origin, dtype=torch.float64)
    ticks = [torch.arange(side, dtype=torch.float64) + origin for side in shape]
    return Coordinates(torch.cartesian_prod(*ticks).unsqueeze(0), integral=True)


@st.composite
def lattices(draw: st.DrawFn, axes: int, *, least: int = 1) -> Coordinates:
    """Grids of any proportions, from `least` tokens along each axis."""
    most = {1: 11, 2: 5, 3: 3, 4: 2}[axes]
    shape = [draw(sizes(min(least, most), most, around=2)) for _ in range(axes)]
    return lattice(shape, draw(st.sampled_from([0.0, 1.0, -7.0])))


@st.composite
def clouds(draw: st.DrawFn, axes: int, *, tokens: tuple[int, int] = (1, 11), spread: float = 3.0) -> Coordinates:
    """Tokens at whole steps (some may coincide) or anywhere, in no order, normally distributed."""
    count = draw(sizes(*tokens, around=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    values = spread * torch.randn(1, count, axes, generator=generator, dtype=torch.float64)
    whole = draw(st.booleans())
    return Coordinates(values.round() if whole else values, integral=whole)


@st.composite
def somewhere_unknown(draw: st.DrawFn, coords: Coordinates) -> Coordinates:
    """Takes the position of some tokens, of all, or of class tokens put in front; or puts one of those on a token."""
    how = draw(st.sampled_from(["class", "some", "placed class", "all", "none"]))
    if how == "class":
        return coords.with_prefix(draw(st.integers(1, 3)))
    if how == "placed class":
        return coords.with_prefix(1, at=coords.values[0, 0].tolist())
    if how == "some":
        return draw(without_some(coords))
    return replace(coords, positioned=None if how == "none" else torch.zeros(coords.values.shape[:2], dtype=torch.bool))


@st.composite
def places(draw: st.DrawFn, name: str, axes: int, *, positioned: bool = False, least: int = 1) -> Coordinates:
    """Coordinates of one sample that an encoding takes: grids, whole steps, anywhere; with or without position.

    Args:
        draw: Given by hypothesis.
        name: Encoding.
        axes: Number of axes.
        positioned: Whether all tokens have a position.
        least: Fewest tokens, and tokens along each axis of a grid.
    """
    if on_grid(name) or draw(st.booleans()):
        coords = draw(lattices(axes, least=least))
    else:
        coords = draw(clouds(axes, tokens=(least, 11)))
    if FACTS[name].kind == "group":
        coords = draw(posed(coords))
    return coords if positioned else draw(somewhere_unknown(coords))


@st.composite
def tokens_of(draw: st.DrawFn, name: str, axes: int, *, count: int) -> Coordinates:
    """So many tokens anywhere, some without a position, for any encoding but those of grids."""
    coords = draw(clouds(axes, tokens=(count, count)))
    if FACTS[name].kind == "group":
        coords = draw(posed(coords))
    return draw(without_some(coords))


@st.composite
def without_some(draw: st.DrawFn, coords: Coordinates) -> Coordinates:
    """Takes the position of some tokens."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return replace(coords, positioned=torch.rand(coords.values.shape[:2], generator=generator) < 0.6)


@st.composite
def posed(draw: st.DrawFn, coords: Coordinates) -> Coordinates:
    """Gives some token sets camera poses, a pose to each token."""
    kind = draw(st.sampled_from([*POSES, None]))
    if kind is None:
        return coords
    poses = POSES[kind](coords.values.shape[1], seed=draw(st.integers(0, 1000)))
    return replace(coords, poses=poses.unsqueeze(0))


def padding_masks(batch: int, tokens: int) -> st.SearchStrategy[Tensor]:
    """Bool (batch, tokens), True for real tokens, which may be anywhere and few; sample 0 has at least one."""

    def make(seed: int) -> Tensor:
        mask = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(seed)) < 0.6
        mask[0, seed % tokens] = True
        return mask

    return st.integers(0, 1000).map(make)


# Lengths of packed samples: always an empty one and a single token, in any order with two others.
packed_lengths = st.tuples(st.integers(0, 5), st.integers(1, 5)).flatmap(lambda more: st.permutations([0, 1, *more]))
