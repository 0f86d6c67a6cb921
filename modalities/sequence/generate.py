"""Continuing sequences with a decoder, token by token.

Legend: B batch, N tokens of the prompts, M new tokens, V size of the vocabulary, p axes of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from modalities.sequence.cache import DecoderCache
from modalities.sequence.positions import Positions, cut, following, make_coordinates
from zoo.coordinates import Coordinates, concatenate
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from modalities.sequence.model import Decoder

__all__ = ["AllPositions", "generate", "sample"]

AllPositions = Positions | Callable[[Tensor], Positions] | None
"""Of the prompt; or a function from ids (B, L) to the positions of all L tokens, such as rows that end in newlines."""


@torch.no_grad()
def generate(
    model: Decoder,
    ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop_token: int | None = None,
    positions: AllPositions = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    adjust: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Continues sequences.

    Args:
        model: A decoder in eval mode.
        ids: (B, N) int64, prompts of equal length, at least one token.
        max_new_tokens: New tokens M at most.
        temperature: Logits are divided by it; 0 takes the likeliest token always.
        top_k: Draws from so many likeliest tokens only; `None` from all.
        stop_token: Ends a sequence. One that has ended is filled up with it while others go on.
        positions: Those of the prompt, which new tokens follow on every axis from the next whole number above them; or
            a function that gives those of all tokens so far. It must not move tokens that it has placed. `None` counts
            tokens.
        generator: Of random numbers, on any device: the same numbers for the same seed whatever device the model is on.
        use_cache: Keep keys and values; without, everything is computed again for each token.
        adjust: Changes logits (B, V) before each draw, such as to -inf those of tokens that must not come.

    Returns:
        (B, N + M) int64, or fewer where all sequences have ended.

    Raises:
        ConfigError: If a setting cannot be used.
        DataError: If the prompts or positions cannot be used.
    """
    _check(max_new_tokens, temperature, top_k)
    if stop_token is not None and not (type(stop_token) is int and 0 <= stop_token < model.num_classes):
        raise ConfigError(f"stop_token must be a token, 0..{model.num_classes - 1}, got {stop_token!r:.60}")
    where = _where(model, ids, positions, max_new_tokens)
    tokens, ended = ids, torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    cache = DecoderCache() if use_cache else None
    for count in range(max_new_tokens):
        seen = 0 if cache is None else cache.length
        placed = None if where is None else cut(where(tokens), seen, tokens.shape[1])
        features = model.forward_features(tokens[:, seen:], placed, cache)
        logits = model.forward_head(features[:, -1])
        logits = logits if adjust is None else adjust(logits)
        new = sample(logits, temperature=temperature, top_k=top_k, generator=generator)
        if stop_token is not None:
            new = new.masked_fill(ended, stop_token)
            ended = new == stop_token
        tokens = torch.cat([tokens, new.to(ids.dtype).unsqueeze(1)], dim=1)
        if stop_token is not None and count + 1 < max_new_tokens and bool(ended.all()):
            break
    return tokens


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws a token from each row of logits; arguments as for `generate`.

    Args:
        logits: (B, V) floating point.
        temperature: See `generate`.
        top_k: See `generate`.
        generator: See `generate`.

    Returns:
        (B,) int64.
    """
    if temperature == 0 or top_k == 1:
        return logits.argmax(dim=-1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if top_k is not None and top_k < wide.shape[-1]:
        least = wide.topk(top_k, dim=-1).values[:, -1:]
        wide = wide.masked_fill(wide < least, float("-inf"))
    wide = wide - wide.amax(dim=-1, keepdim=True)  # Else a small temperature makes infinity of large logits.
    totals = (wide / temperature).softmax(dim=-1).cumsum(dim=-1)
    device = logits.device if generator is None else generator.device
    drawn = torch.rand(len(logits), 1, generator=generator, device=device).to(totals)
    # Below the sum, so that the token found is never one of probability 0 behind the last that has some.
    last = totals[:, -1:]
    drawn = torch.minimum(drawn * last, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(totals, drawn, right=True).squeeze(1)


def _where(model: Decoder, ids: Tensor, positions: AllPositions, count: int) -> Callable[[Tensor], Coordinates] | None:
    """What gives the coordinates of all tokens so far."""
    if positions is None:
        return None

    def made(given: Positions, tokens: Tensor) -> Coordinates:
        shape, weight = (tokens.shape[0], tokens.shape[1]), model.embed.weight
        return make_coordinates(given, shape, model.coord_dim, start=0, device=tokens.device, dtype=weight.dtype)

    if not isinstance(positions, Tensor | Coordinates):
        return lambda tokens: made(positions(tokens), tokens)
    prompt = made(positions, ids)
    whole = concatenate([prompt, following(prompt, count)]) if count else prompt
    return lambda tokens: cut(whole, 0, tokens.shape[1])


def _check(max_new_tokens: int, temperature: float, top_k: int | None) -> None:
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens must be a whole number, 0 or more, got {max_new_tokens!r:.60}")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
        raise ConfigError(f"temperature must be a number, 0 (the likeliest token) or more, got {temperature!r:.60}")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ConfigError(f"top_k must be a whole number of tokens, 1 or more, or None, got {top_k!r:.60}")
