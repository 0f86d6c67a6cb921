"""Sizes and encodings that networks of every modality are registered in, and their numbers of parameters by arithmetic.

Imports no torch.
"""

from __future__ import annotations

from typing import Any

from zoo.encodings.parameter_count import count_attention, count_token

__all__ = ["ENCODING_OPTIONS", "SIZES", "count_attention_layer", "count_block", "count_class_token", "count_encoder"]

# Width, depth, heads, head width and MLP width of the released sizes nano, tiny, small and base.
SIZES: dict[str, dict[str, int]] = {
    "n": {"dim": 128, "depth": 4, "num_heads": 4, "head_dim": 32, "mlp_dim": 256},
    "t": {"dim": 256, "depth": 7, "num_heads": 4, "head_dim": 64, "mlp_dim": 512},
    "s": {"dim": 512, "depth": 10, "num_heads": 8, "head_dim": 64, "mlp_dim": 2048},
    "b": {"dim": 768, "depth": 12, "num_heads": 12, "head_dim": 64, "mlp_dim": 3072},
}

ENCODING_OPTIONS: dict[str, dict[str, Any]] = {
    "pape": {"parabolas": 50},
    "pape-ri": {},
    "rope": {"base": 100.0},
    "alibi": {},
    "sincos": {"base": 10000.0},
    "none": {},
}


def count_encoder(model: dict[str, Any], axes: int) -> int:
    """Number of parameters of the embedding of patches and the encoder alone.

    By arithmetic, so that a configuration from a stranger can be refused before anything is allocated.

    Args:
        model: The `"model"` part of a configuration.
        axes: Coordinate axes.

    Raises:
        ConfigError: If an option of the encoding that sets a size is not a positive integer.
    """
    dim = model["dim"]
    table = count_token(model["encoding"], model.get("encoding_options", {}), dim=dim, axes=axes)
    stem = table + dim * (model["in_chans"] * model["patch_size"] ** 2 + 1)
    return stem + 4 * dim + model["depth"] * count_block(model, axes)


def count_block(model: dict[str, Any], axes: int) -> int:
    """Number of parameters of one block; arguments and errors as for `count_encoder`."""
    dim, mlp = model["dim"], model["mlp_dim"]
    return 4 * dim + count_attention_layer(model, axes) + mlp * (dim + 1) + dim * (mlp + 1)


def count_attention_layer(model: dict[str, Any], axes: int) -> int:
    """Number of parameters of one attention layer; arguments and errors as for `count_encoder`."""
    dim, heads = model["dim"], model["num_heads"]
    width = heads * model["head_dim"]
    sizes = {"dim": dim, "num_heads": heads, "head_dim": model["head_dim"], "axes": axes}
    position = count_attention(model["encoding"], model.get("encoding_options", {}), **sizes)
    return 3 * width * (dim + 1) + dim * (width + 1) + position


def count_class_token(model: dict[str, Any]) -> int:
    """Number of parameters of a class token and the linear head on it."""
    return int(model["dim"] + model["num_classes"] * (model["dim"] + 1))
