"""Put a position encoding of your own into the attention block, and compare how far each encoding looks.

    python examples/custom_encoding.py

An encoding of the score kind adds a function of two coordinates to the logits. This one penalises the distance a chess
king walks, so that a patch attends in squares instead of circles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates, grid
from zoo.encodings import ATTENTION
from zoo.encodings.base import AttentionEncoding, Frame

DIM, HEADS = 64, 4


@dataclass(frozen=True)
class KingFrame(Frame):
    """What follows from the coordinates alone; an encoder makes it once for all its layers."""

    values: Tensor  # (B or 1, N, p)


@dataclass(frozen=True)
class KingScore:
    values: Tensor  # (B or 1, N, p)
    slopes: Tensor  # (H,)

    def bias(self, rows: slice) -> Tensor:
        """Bias of the queries in `rows` on all keys, (B or 1, H, rows, N): a block at a time, never N x N at once."""
        distance = (self.values[:, rows, None] - self.values[:, None]).abs().amax(dim=-1)
        return -self.slopes[:, None, None] * distance.unsqueeze(1)


class King(AttentionEncoding):
    """Learned slope per head times the Chebyshev distance."""

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, start: float = 0.5) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.full((num_heads,), start))

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> KingFrame:
        return KingFrame("score", coords.values)

    def score(self, x: Tensor, frame: KingFrame, scale: float) -> KingScore:
        return KingScore(frame.values, self.slopes)


ATTENTION["king"] = f"{__name__}:King"


def reach(encoding: str, side: int) -> float:
    """Mean distance, in patches, from the middle patch to what it attends to in an untrained block."""
    torch.manual_seed(0)
    attention = CoordinateAttention(DIM, HEADS, coord_dim=2, encoding=encoding)
    coords = grid(side, side)
    x = torch.randn(1, side * side, DIM)
    with torch.no_grad():
        _, weights = attention(x, coords, return_attention=True)  # (1, H, N, N)
    middle = side // 2 * side + side // 2
    distance = (coords.values[0] - coords.values[0, middle]).norm(dim=-1)
    return float((weights[0, :, middle] * distance).sum(dim=-1).mean())


def main() -> None:
    print(f"{'encoding':<10}{'14 x 14':>10}{'32 x 32':>10}   mean reach of the middle patch, in patches")
    for encoding in ("none", "rope", "alibi", "pape", "pape-ri", "king"):
        print(f"{encoding:<10}{reach(encoding, 14):>10.2f}{reach(encoding, 32):>10.2f}")


if __name__ == "__main__":
    main()
