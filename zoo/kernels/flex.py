"""FlexAttention for additive scores: the bias is computed inside the kernel, so that no N x N tensor is ever made.

A score takes part by offering `modification()`: a function of FlexAttention's form, (score, b, h, i, j) -> score, that
adds to the scaled logit, in float32, the bias of query i on key j.

It runs only when asked for (`zoo.kernels.use("flex")`): in the comparison's evaluation on an H200 it was several times
slower than plain products with the bias between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.base import Score
from zoo.encodings.distance import Modification

__all__ = ["flex", "modification"]


def modification(score: Score) -> Modification | None:
    """The score as a function for FlexAttention, or `None` where it offers none."""
    make = getattr(score, "modification", None)
    return None if make is None else make()


def flex(q: Tensor, k: Tensor, v: Tensor, *, scale: float, score: Score) -> Tensor:
    """Attention softmax(scale q k^T + score) v by a generated kernel.

    Args:
        q: (B, H, Nq, D), D at least 16.
        k: (B, H, Nk, D).
        v: (B, H, Nk, Dv).
        scale: Softmax scale.
        score: One with a `modification`.

    Returns:
        (B, H, Nq, Dv) in the dtype of q.
    """
    score_mod = modification(score)
    assert score_mod is not None
    if torch.compiler.is_compiling():
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, score_mod=score_mod, scale=scale)
    return _compiled()(q, k, v, score_mod=score_mod, scale=scale)


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True, fullgraph=True)  # Uncompiled it would build N x N.
