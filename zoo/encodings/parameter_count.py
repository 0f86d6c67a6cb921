"""Number of parameters of an encoding by arithmetic alone: no torch, and nothing is allocated.

That is how a configuration from a stranger can be refused before a network of its size is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zoo.encodings import split_name, split_options
from zoo.errors import ConfigError

__all__ = ["count_attention", "count_token"]


def count_token(encoding: str, options: Mapping[str, Any], *, dim: int, axes: int) -> int:
    """Parameters that the token encoding of `encoding` adds to the whole network.

    Args:
        encoding: A name, or `"token+other"`.
        options: Options of the encoding, as in a configuration.
        dim: Feature width C.
        axes: Coordinate axes p.

    Raises:
        ConfigError: If the encoding is unknown, or an option that sets a size is no whole number in range.
    """
    name, _ = split_name(encoding)
    if name != "learned":
        return 0
    return dim * math.prod(_sizes("grid", split_options(encoding, options)[0].get("grid", 14), axes))


def count_attention(
    encoding: str, options: Mapping[str, Any], *, dim: int, num_heads: int, head_dim: int, axes: int
) -> int:
    """Parameters that the attention encoding of `encoding` adds to each layer; arguments as in `count_token`.

    Args:
        encoding: See `count_token`.
        options: See `count_token`.
        dim: Feature width C.
        num_heads: Heads H.
        head_dim: Head width D.
        axes: Coordinate axes p.

    Raises:
        ConfigError: See `count_token`.
    """
    _, name = split_name(encoding)
    own = split_options(encoding, options)[1]
    heads = num_heads
    if name in ("comrope-ld", "liere"):
        block = _size("block_size", own.get("block_size", 8))
        entries = head_dim * (block - 1) // 2
        return heads * (axes * entries if name == "liere" else entries + axes * (head_dim // block))
    if name == "cpb":
        return (axes + 1 + heads) * _size("hidden", own.get("hidden", 512))
    if name == "pape-ri":
        return heads * (dim + 1)
    if name == "pape-unprojected":
        return 2 * heads * axes * dim
    if name.startswith("pape"):
        parabolas = heads * _size("parabolas", own.get("parabolas", 50))
        layers = {"pape-static": 2, "pape-linear": dim, "pape-quadratic": dim}.get(name, 2 * dim)
        return parabolas * (layers + axes)
    if name == "pope":
        channels = own.get("channels")
        return heads * ((head_dim if channels is None else _size("channels", channels)) // axes * axes)
    if name == "table":
        return heads * math.prod(2 * extent + 1 for extent in _sizes("extent", own.get("extent", 13), axes))
    simple: dict[str, Callable[[], int]] = {
        "kerple": lambda: 2 * heads,
        "rope-mixed": lambda: heads * axes * (head_dim // 2),
        "string": lambda: heads * (head_dim * (head_dim - 1) // 2),
    }
    return simple[name]() if name in simple else 0


def _size(name: str, value: Any) -> int:
    if type(value) is not int or not 0 < value <= 1 << 20:
        raise ConfigError(f"encoding_options.{name} must be a positive integer, got {value!r:.60}")
    return value


def _sizes(name: str, value: Any, axes: int) -> list[int]:
    return [_size(name, one) for one in (value if isinstance(value, (list, tuple)) else [value] * axes)]
