"""`explain`: which attention kernel would run a call, and why not another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zoo.kernels.select import FORCIBLE, Call, Choice, call_of, problem, select

__all__ = ["Explanation", "explain"]

_SLOWER = {
    "eager": "it makes the whole matrix of logits; it is the reference",
    "sdpa": "it would take wider q and k, or an additive score by blocks of query rows in float32",
    "dense": "it makes the logits of a block of query rows",
    "flex": "its generated kernels were slower where measured",
    "triton": "without a position term PyTorch's own kernels are faster",
}


@dataclass(frozen=True)
class Explanation:
    """What would run, and about every other kernel why it would not.

    Attributes:
        choice: What runs.
        call: What the choice goes by.
        others: Backend -> why it is not chosen; starts with "cannot: " where it could not be forced either.
    """

    choice: Choice
    call: Call
    others: dict[str, str]

    def __str__(self) -> str:
        chosen = f"{self.choice.backend} ({self.choice.method}): {self.choice.reason}"
        return "\n".join([chosen, *(f"not {name}: {why}" for name, why in self.others.items())])


def explain(
    encoding: str = "pape",
    *,
    tokens: tuple[int, ...] = (14, 14),
    prefix: int = 1,
    heads: int = 12,
    head_dim: int = 64,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.bfloat16,
    mask: bool = False,
    causal: bool = False,
    packed: bool = False,
    training: bool = False,
    **encoding_options: Any,
) -> Explanation:
    """Says which kernel attention would run on, without running it.

    Args:
        encoding: Name of the attention encoding, see `zoo.encodings()`.
        tokens: Tokens along each axis of a grid; its length is the number of coordinate axes.
        prefix: Tokens without a position before them, such as a class token.
        heads: Heads H.
        head_dim: Head width D.
        device: Where it would run; by default CUDA where there is one.
        dtype: Dtype in which the kernel would run (that of autocast, if on).
        mask: Whether padding is masked.
        causal: Query i sees keys 0..i.
        packed: Whether several samples are packed along the tokens.
        training: Whether gradients are asked for.
        **encoding_options: Options of the encoding.

    Returns:
        The choice, and why not the others; printed it is a few lines of text.

    Raises:
        ConfigError: On an unknown encoding, a bad option, or a forced kernel that cannot run the call.
    """
    from zoo.attention import CoordinateAttention
    from zoo.coordinates import Coordinates

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # The choice follows from one head and the coordinates: small tensors stand for those of the call.
    attention = CoordinateAttention(head_dim, 1, len(tokens), encoding, **encoding_options)
    places = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float32) for n in tokens))
    coords = Coordinates(places.reshape(1, -1, len(tokens))).with_prefix(prefix)
    count = coords.values.shape[-2]
    with torch.no_grad():
        frame = attention.encoding.frame(coords, dtype)
        x = torch.zeros(1, count, head_dim, dtype=torch.float32)
        q = k = v = torch.zeros(1, 1, count, head_dim, dtype=dtype)
        q, k, v, score = attention.encoding.encode_attention(x, q, k, v, frame, attention.scale)
    shape = torch.ones(1, count, dtype=torch.bool) if mask else None
    found = call_of(q, k, v, score, shape, causal, packed)
    call = Call(**{**found.__dict__, "device": torch.device(device), "gradients": training})
    choice = select(call)
    others = {}
    for name in FORCIBLE:
        if name != choice.backend:
            reason = problem(name, call)
            others[name] = f"cannot: {reason}" if reason else _SLOWER[name]
    return Explanation(choice, call, others)
