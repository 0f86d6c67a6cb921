"""Position encodings by name. `zoo.encodings()` lists them; `create` builds one for a block.

This module imports no torch: the classes are named as strings and looked up when used.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from zoo._callable_module import make_callable
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from zoo.encodings.base import AttentionEncoding, TokenEncoding

__all__ = ["create", "encodings"]

# Name -> "module:class", token encodings (added to the features once) apart from those of attention.
TOKEN = {"learned": "zoo.encodings.learned:Learned", "sincos": "zoo.encodings.sincos:SinCos"}
ATTENTION = {
    "alibi": "zoo.encodings.alibi:ALiBi",
    "comrope-ld": "zoo.encodings.rope_generators:ComRoPELD",
    "cpb": "zoo.encodings.cpb:ContinuousBias",
    "golden-rope": "zoo.encodings.rope_directions:GoldenRoPE",
    "gta": "zoo.encodings.gta:GTA",
    "kerple": "zoo.encodings.kerple:Kerple",
    "liere": "zoo.encodings.rope_generators:LieRE",
    "lookhere": "zoo.encodings.lookhere:LookHere",
    "mrope": "zoo.encodings.mrope:MRoPE",
    "none": "zoo.encodings.base:NoEncoding",
    "pape": "zoo.encodings.pape:PaPE",
    "pape-linear": "zoo.encodings.pape_ablations:PaPELinear",
    "pape-quadratic": "zoo.encodings.pape_ablations:PaPEQuadratic",
    "pape-ri": "zoo.encodings.pape_ri:PaPERI",
    "pape-signed": "zoo.encodings.pape_ablations:PaPESigned",
    "pape-static": "zoo.encodings.pape_ablations:PaPEStatic",
    "pape-unprojected": "zoo.encodings.pape_ablations:PaPEUnprojected",
    "pope": "zoo.encodings.pope:PoPE",
    "prope": "zoo.encodings.gta:PRoPE",
    "rope": "zoo.encodings.rope:RoPE",
    "rope-1d": "zoo.encodings.rope:RoPE1D",
    "rope-mixed": "zoo.encodings.rope_mixed:RoPEMixed",
    "rope-normalised": "zoo.encodings.rope_normalised:NormalisedRoPE",
    "spiral-rope": "zoo.encodings.rope_directions:SpiralRoPE",
    "string": "zoo.encodings.rope_generators:STRING",
    "table": "zoo.encodings.relative_table:RelativeTable",
}

# Sizes that every encoding is made with.
SHAPE = ("dim", "num_heads", "head_dim", "coord_dim")
# Options of every encoding that `zoo.encodings.extension` reads.
EXTENSION_OPTIONS = ("extend", "factor", "extent", "beta_fast", "beta_slow")


def encodings() -> list[str]:
    """Names of the encodings. A token encoding and another one combine as `"sincos+pape"`."""
    return sorted([*TOKEN, *ATTENTION])


def split_name(name: str) -> tuple[str | None, str]:
    """Splits a specification into its token encoding (or `None`) and its attention encoding (or `"none"`).

    Args:
        name: `"pape"`, `"sincos"` or `"sincos+pape"`.

    Raises:
        ConfigError: If a part is unknown or two parts are of the same kind.
    """
    parts = name.split("+") if isinstance(name, str) else []
    for part in parts:
        if part not in TOKEN and part not in ATTENTION:
            close = get_close_matches(part, encodings(), n=1, cutoff=0.5)
            hint = f", did you mean {close[0]!r}?" if close else "."
            raise ConfigError(f"unknown encoding {part!r}{hint} Known: {', '.join(encodings())}")
    tokens = [part for part in parts if part in TOKEN]
    others = [part for part in parts if part in ATTENTION]
    if not parts or len(tokens) > 1 or len(others) > 1:
        raise ConfigError(f"encoding {name!r}: at most one token encoding ({', '.join(TOKEN)}) and one of attention")
    return (tokens[0] if tokens else None), (others[0] if others else "none")


def split_options(name: str, options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the options of a specification into those of its token encoding and those of its attention encoding.

    Args:
        name: See `split_name`.
        options: Options of the encoding; for `a+b`, a mapping with the options of each under its name.

    Raises:
        ConfigError: If options are no mapping from names, or those of `a+b` do not stand under the name of a part.
    """
    token, attention = split_name(name)
    given = _checked("encoding_options", options)
    if "+" not in name:
        return (given, {}) if token else ({}, given)
    unknown = [key for key in given if key not in (token, attention)]
    if unknown:
        raise ConfigError(f"options of {name!r} go under the name of each part, not {unknown[0]!r:.60}")
    parts = [_checked(f"encoding_options of {part!r}", given.get(str(part))) for part in (token, attention)]
    return parts[0], parts[1]


def _checked(what: str, options: Any) -> dict[str, Any]:
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ConfigError(f"{what} must map names to values, got {options!r:.80}")
    return dict(given)


def create(
    name: str, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, options: dict[str, Any] | None = None
) -> tuple[TokenEncoding | None, AttentionEncoding]:
    """Builds the encoding modules of one block or encoder.

    Args:
        name: See `split_name`.
        dim: Feature width C.
        num_heads: Attention heads H.
        head_dim: Width D of a head.
        coord_dim: Coordinate axes p.
        options: Options of the encoding, see `split_options`. Among them may be those of an extension to larger inputs,
            see `zoo.encodings.extension.parse_extension`.

    Returns:
        The token encoding (or `None`) and the attention encoding (`NoEncoding` where there is none).

    Raises:
        ConfigError: On an unknown name, an unknown option or a bad value.
    """
    token, attention = split_name(name)
    token_options, attention_options = split_options(name, options)
    shape = {"dim": dim, "num_heads": num_heads, "head_dim": head_dim, "coord_dim": coord_dim}
    made = None if token is None else _build(token, shape, token_options)
    return made, _build(attention, shape, attention_options)


def encoding_class(name: str) -> Any:
    """The class of a single name that is registered."""
    module, attribute = (TOKEN | ATTENTION)[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def check_option_names(name: str, options: Mapping[str, Any] | None) -> None:
    """Checks the names of options; arguments as in `split_options`.

    Raises:
        ConfigError: If an encoding has no such option; what `split_options` raises.
    """
    for part, given in zip(split_name(name), split_options(name, options), strict=True):
        own = _own_options(part) if part else []
        for key in given:
            if key not in own and key not in EXTENSION_OPTIONS:
                known = ", ".join(own) or "none"
                extension = ", ".join(EXTENSION_OPTIONS)
                raise ConfigError(
                    f"encoding {part!r} has no option {key!r:.60}; its options: {known} (and {extension})"
                )


def _own_options(name: str) -> list[str]:
    parameters = inspect.signature(encoding_class(name).__init__).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in SHAPE]


def _build(name: str, shape: dict[str, int], options: dict[str, Any]) -> Any:
    check_option_names(name, options)
    own = _own_options(name)  # Some encodings have an extent of their own, and then it is theirs.
    extension = {key: value for key, value in options.items() if key not in own}
    encoding = encoding_class(name)(**shape, **{key: value for key, value in options.items() if key in own})
    encoding.coord_dim = shape["coord_dim"]
    if extension:
        from zoo.encodings.extension import METHODS, parse_extension

        method = extension.get("extend")
        if isinstance(method, str) and method in METHODS:  # Whether it applies comes before what it needs.
            encoding.check_method(method)
        encoding.extend(parse_extension(extension))
    return encoding


def registered_name(cls: type) -> str:
    """Name of an encoding's class, or its Python name where it is not registered."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    return next((name for name, one in (TOKEN | ATTENTION).items() if one == target), cls.__qualname__)


make_callable(__name__, "encodings")
