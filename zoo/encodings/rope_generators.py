"""Rotary encodings with learned generators: STRING (Cayley form), ComRoPE-LD and LieRE.

A generator is a skew-symmetric matrix A; exp(A) is a rotation. Generators are stored as the entries below their
diagonal, in the order of `torch.tril_indices`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype, number_option
from zoo.encodings.extension import Extension
from zoo.encodings.rope import RoPE
from zoo.encodings.rotary import Positions, Rotation, make_positions, rotate
from zoo.errors import ConfigError
from zoo.tracing import is_exporting

__all__ = ["STRING", "ComRoPELD", "LieRE", "skew", "turn"]

# Squarings at most, and the degree of the polynomial before them, for 32 and 64 bits.
_SQUARINGS = {torch.float32: 16, torch.float64: 40}
_DEGREES = {torch.float32: 8, torch.float64: 14}


def skew(entries: Tensor, size: int) -> Tensor:
    """Skew-symmetric matrices from their entries below the diagonal.

    Args:
        entries: (..., n (n - 1) / 2).
        size: Width n.

    Returns:
        (..., n, n) with A^T = -A.
    """
    rows, columns = torch.tril_indices(size, size, -1, device=entries.device)
    lower = entries.new_zeros(*entries.shape[:-1], size, size)
    lower[..., rows, columns] = entries
    return lower - lower.mT


def turn(generators: Tensor) -> Tensor:
    """Rotations exp(A): a Taylor polynomial of A / 2^k, squared k times, with k for each matrix from its norm.

    `torch.linalg.matrix_exp` waits for the device to choose its degree, which CUDA graphs do not allow. To compilers
    this is one operator: two dozen products of small matrices in every layer take them minutes.

    Args:
        generators: (..., n, n) float32 or float64, skew-symmetric or not, of norm up to 2^15 (2^39 in float64).

    Returns:
        (..., n, n) like the argument.
    """
    if is_exporting():  # Runtimes do not know the operator.
        return _rotations(generators)
    result: Tensor = _turn(generators)
    return result


def _rotations(generators: Tensor) -> Tensor:
    most, degree = _SQUARINGS[generators.dtype], _DEGREES[generators.dtype]
    norm = generators.abs().sum(dim=-1).amax(dim=-1)[..., None, None]
    squarings = torch.log2(2 * norm.clamp_min(0.25)).ceil().clamp(0, most)
    if generators.device.type == "cpu" and not is_exporting():  # Elsewhere this would wait for the device.
        most = int(squarings.nan_to_num(most).amax()) if squarings.numel() else 0
    scaled = generators * torch.exp2(-squarings)
    identity = torch.eye(generators.shape[-1], device=generators.device, dtype=generators.dtype)
    result = identity + scaled / degree
    for k in range(degree - 1, 0, -1):  # Horner's rule.
        result = identity + scaled @ result / k
    for done in range(most):
        result = torch.where(squarings > done, result @ result, result)
    return result.contiguous()


_turn = torch.library.custom_op("zoo::turn", _rotations, mutates_args=())


@_turn.register_fake
def _(generators: Tensor) -> Tensor:
    return generators.new_empty(generators.shape)


def _turn_gradient(ctx: Any, grad: Tensor) -> Tensor:
    """The upper right block of exp([[A^T, G], [0, A^T]]), which is linear in the gradient G."""
    (generators,) = ctx.saved_tensors
    transposed = generators.mT
    size = grad.abs().amax(dim=(-2, -1), keepdim=True)
    size = torch.where(size == 0, 1.0, size)  # Of size 1, G leaves the norm to A.
    upper = torch.cat([transposed, grad / size], dim=-1)
    lower = torch.cat([torch.zeros_like(transposed), transposed], dim=-1)
    width = generators.shape[-1]
    return turn(torch.cat([upper, lower], dim=-2))[..., :width, width:] * size


def _keep_generators(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_turn.register_autograd(_turn_gradient, setup_context=_keep_generators)


class STRING(AttentionEncoding):
    """STRING, Cayley form (arXiv 2502.02562): RoPE(r) P^T x with P = (I - S)(I + S)^-1 and S learned, skew-symmetric.

    P is orthogonal, one per head, so the encoding is RoPE in a learned basis: scores of positioned tokens depend on
    r_i - r_j alone, exactly, in any number of axes. (The source also multiplies by P from the left; that cancels
    between q and k.) RoPE is axial with half layout. P^T could be merged into the q and k projections for inference;
    here it is applied, at D^2 operations a token and head. S starts at zero, as plain RoPE. Tokens without a position
    get P^T alone, as a token at the origin does. Coordinates are in the training patch pitch.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H; `skew` holds H D (D - 1) / 2 entries of S.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder, one number or one per axis, see `zoo.encodings.rope.RoPE`.

    Raises:
        ConfigError: If the head is too narrow or the base is bad.
    """

    extension_methods = RoPE.extension_methods

    def __init__(
        self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float | Sequence[float] = 100.0
    ) -> None:
        super().__init__()
        self.rope = RoPE(dim=dim, num_heads=num_heads, head_dim=head_dim, coord_dim=coord_dim, base=base)
        self.head_dim = head_dim
        self.skew = nn.Parameter(torch.empty(num_heads, head_dim * (head_dim - 1) // 2))
        self._frozen: Tensor | None = None
        self.reset_parameters()

    def extend(self, extension: Extension | None) -> None:
        """See `Extendable.extend`; the axial RoPE inside is what is extended."""
        super().extend(extension)
        self.rope.extend(extension)

    def reset_parameters(self) -> None:
        """Starts as plain RoPE."""
        nn.init.zeros_(self.skew)

    def freeze(self) -> None:
        """See `AttentionEncoding.freeze`: the basis, since graphs cannot solve equations."""
        self._frozen = self.basis(algebra_dtype(self.skew.dtype)).detach()

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        return self.rope.frame(coords, dtype)

    def basis(self, dtype: torch.dtype) -> Tensor:
        """The orthogonal matrices P, (H, D, D)."""
        if self._frozen is not None:
            return self._frozen.to(dtype)
        s = skew(self.skew.to(dtype), self.head_dim)
        identity = torch.eye(self.head_dim, device=s.device, dtype=dtype)
        # The two factors commute; I + S is never singular, and to check that would be to wait for the device.
        return torch.linalg.solve_ex(identity + s, identity - s).result

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Changes the basis of q and k and rotates them; float32 arithmetic, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        with torch.autocast(q.device.type, enabled=False):
            basis = self.basis(frame.cos.dtype)
            q, k = (rotate(t.to(basis.dtype) @ basis, frame).to(t.dtype) for t in (q, k))
        return q, k

    def no_weight_decay(self) -> set[str]:
        """Decay would pull the basis back to the axes of plain RoPE."""
        return {"skew"}


class _BlockGenerators(AttentionEncoding):
    """R(r) x with R(r) = exp of a block-diagonal generator that is linear in r, applied to q and k alike.

    The matrix exponential costs far more than cosines: N H D b numbers per layer, and b times as many operations.
    """

    extension_methods = ("pi",)  # Learned generators are no ladder.

    def __init__(self, name: str, *, head_dim: int, block_size: int, extent: float) -> None:
        super().__init__()
        self.block_size = int(number_option("block_size", block_size, low=2, high=256, integer=True))
        self.extent = number_option("extent", extent, low=1e-6, high=1e9)
        self.blocks, left = divmod(head_dim, self.block_size)
        if left:
            raise ConfigError(
                f"{name} splits a head into blocks of 'block_size' channels: {head_dim} is not a multiple of "
                f"{self.block_size}"
            )
        self.entries = self.block_size * (self.block_size - 1) // 2

    @abstractmethod
    def generator(self, values: Tensor) -> Tensor:
        """Entries below the diagonal of the exponents, (B or 1, H, N, blocks, b (b - 1) / 2), of `values` (B, N, p)."""

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Positions:
        """Coordinates, zero for tokens without a position."""
        return make_positions(self.extended(coords, dtype), dtype)

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Turns q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Positions)
        with torch.autocast(q.device.type, enabled=False):
            matrices = turn(skew(self.generator(frame.values), self.block_size))
            q, k = (self._multiply(matrices, t.to(matrices.dtype)).to(t.dtype) for t in (q, k))
        return q, k

    def _multiply(self, matrices: Tensor, x: Tensor) -> Tensor:
        """Blocks of x (B, H, N, D), each times its matrix (B or 1, H, N, blocks, b, b)."""
        parts = x.unflatten(-1, (self.blocks, self.block_size))
        if matrices.shape[0] == 1:  # All samples as columns of one product; broadcasting would copy a matrix to each.
            return torch.einsum("hnkij,bhnkj->bhnki", matrices.squeeze(0), parts).flatten(-2)
        return (matrices @ parts.unsqueeze(-1)).squeeze(-1).flatten(-2)


class ComRoPELD(_BlockGenerators):
    """ComRoPE-LD (arXiv 2506.03737): R(r) = exp(sum_a r_a theta_a A), generators of all axes multiples of one.

    Every block of a head has a learned skew-symmetric A and a number theta_a for each axis. Multiples of one matrix
    commute, so R(r_i)^T R(r_j) = R(r_j - r_i): scores of positioned tokens depend on r_i - r_j alone. With blocks of 2
    it is RoPE-Mixed with u_a = theta_a A_10, interleaved. (The authors' code shares theta among heads; here it is one
    per head.) Tokens without a position are not rotated.

    Coordinates are in the training patch pitch. The authors' are the fraction of the picture, so their initial values,
    A = Z - Z^T and theta with all entries of Z and theta standard normal, are divided here by the training extent.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Head width D, a multiple of the block size.
        coord_dim: Coordinate axes p.
        block_size: Channels b of a block.
        extent: Coordinate extent of a training input, in coordinate units (patches); it scales the start alone.

    Raises:
        ConfigError: If the head does not divide into blocks or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        block_size: int = 8,
        extent: float = 14.0,
    ) -> None:
        super().__init__("comrope-ld", head_dim=head_dim, block_size=block_size, extent=extent)
        self.generators = nn.Parameter(torch.empty(num_heads, self.blocks, self.entries))
        self.theta = nn.Parameter(torch.empty(num_heads, coord_dim, self.blocks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws generators (a difference of two normal numbers over the extent) and multiples."""
        nn.init.normal_(self.generators, std=math.sqrt(2) / self.extent)
        nn.init.normal_(self.theta)

    def generator(self, values: Tensor) -> Tensor:
        """See `_BlockGenerators.generator`."""
        multiples = values.unsqueeze(1) @ self.theta.to(values.dtype)  # (B, H, N, blocks)
        return multiples.unsqueeze(-1) * self.generators.to(values.dtype).unsqueeze(1)

    def no_weight_decay(self) -> set[str]:
        """Decay would slow all rotations down."""
        return {"generators", "theta"}


class LieRE(_BlockGenerators):
    """LieRE (arXiv 2406.10322): R(r) = exp(sum_a r_a A_a) with a learned skew-symmetric A_a for each axis, in blocks.

    Not relative: generators of different axes do not commute in general, so with p > 1 and blocks above 2 scores
    depend on where two tokens are and not on their difference alone. Tokens without a position are not rotated.

    Coordinates are in the training patch pitch. The authors' generators start uniform in [0, 2 pi] above the diagonal
    (README of their code); that they mean coordinates scaled to [0, 1] is unverified and assumed here, so the start is
    divided by the training extent. (We fill the other triangle: the sense of rotation is a convention.)

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Head width D, a multiple of the block size.
        coord_dim: Coordinate axes p.
        block_size: Channels b of a block, up to D.
        extent: Coordinate extent of a training input, in coordinate units (patches); it scales the start alone.

    Raises:
        ConfigError: If the head does not divide into blocks or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        block_size: int = 8,
        extent: float = 14.0,
    ) -> None:
        super().__init__("liere", head_dim=head_dim, block_size=block_size, extent=extent)
        self.generators = nn.Parameter(torch.empty(num_heads, coord_dim, self.blocks, self.entries))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the generators."""
        nn.init.uniform_(self.generators, 0, 2 * math.pi / self.extent)

    def generator(self, values: Tensor) -> Tensor:
        """See `_BlockGenerators.generator`."""
        flat = values.unsqueeze(1) @ self.generators.to(values.dtype).flatten(2)
        return flat.unflatten(-1, (self.blocks, self.entries))

    def no_weight_decay(self) -> set[str]:
        """Decay would slow all rotations down."""
        return {"generators"}
