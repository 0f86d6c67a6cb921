"""Encodings of kind group: q, k, v and the output are mapped by a representation of where each token is.

Every token i has an element g_i of a group, and rho(g_i) is a block-diagonal D x D matrix. With

    q'_i = rho(g_i)^-T q_i,   k'_j = rho(g_j) k_j,   v'_j = rho(g_j) v_j,   out_i = rho(g_i)^-1 out'_i

plain attention over q', k' and v' has the logits q_i^T rho(g_i^-1 g_j) k_j and gathers rho(g_i^-1 g_j) v_j: keys and
values reach a query in the query's own frame. Rotations keep norms, but camera blocks amplify what they act on by about
the distance of a camera from the origin. So poses are taken relative to the mean position of the cameras of a sample,
which changes no relative pose, and in the unit of length of an option. The algebra is float32 (float64 in float64
models), also under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype, number_option
from zoo.encodings.extension import Extension
from zoo.encodings.rope import RoPE
from zoo.encodings.rotary import Rotation, pairs_per_axis, rotate
from zoo.errors import ConfigError
from zoo.poses import identity_where, invert

__all__ = ["GTA", "GroupFrame", "PRoPE"]


@dataclass(frozen=True)
class GroupFrame(Frame):
    """rho(g) of every token: 4x4 camera blocks on the first channels of a head, turned pairs on the others.

    Attributes:
        channels: Channels of the camera blocks, a multiple of 4.
        matrices: (B or 1, 1, N, 4, 4) block of each token, or `None` for the identity.
        inverses: Like `matrices`.
        rotation: Cosines and sines of the pairs, without gain.
        gain: What q and k are both multiplied with (the temperature of YaRN), but not v.
    """

    channels: int
    matrices: Tensor | None
    inverses: Tensor | None
    rotation: Rotation
    gain: float

    def act(self, x: Tensor) -> Tensor:
        """rho(g) x, (B, H, N, D)."""
        return self._apply(x, self.matrices, self.rotation)

    def undo(self, x: Tensor) -> Tensor:
        """rho(g)^-1 x."""
        rotation = self.rotation
        return self._apply(x, self.inverses, Rotation(rotation.kind, rotation.cos, -rotation.sin))

    def act_dual(self, x: Tensor) -> Tensor:
        """rho(g)^-T x, which keeps the product with rho(g) y; rotations are their own."""
        return self._apply(x, None if self.inverses is None else self.inverses.mT, self.rotation)

    def _apply(self, x: Tensor, matrices: Tensor | None, rotation: Rotation) -> Tensor:
        cameras, rest = x[..., : self.channels], x[..., self.channels :]
        if matrices is not None:
            cameras = _multiply(matrices, cameras)
        return torch.cat([cameras, rotate(rest, rotation)], dim=-1)


def _frame(channels: int, matrices: Tensor | None, inverses: Tensor | None, rotation: Rotation) -> GroupFrame:
    gain = rotation.gain
    if gain != 1.0:
        rotation = Rotation(rotation.kind, rotation.cos / gain, rotation.sin / gain)
    return GroupFrame("group", channels, matrices, inverses, rotation, gain)


def _multiply(matrices: Tensor, x: Tensor) -> Tensor:
    """4x4 matrices times each four channels of x; by products and sums, as matrix units may round float32."""
    blocks = x.to(matrices.dtype).unflatten(-1, (-1, 4))
    columns = matrices.unsqueeze(-3).unbind(-1)
    terms = [blocks[..., i : i + 1] * column for i, column in enumerate(columns)]
    return sum(terms[1:], terms[0]).flatten(-2).to(x.dtype)


def _relative_poses(coords: Coordinates, poses: Tensor, length: float) -> Tensor:
    """Poses about the mean position of a sample's cameras, in units of `length`; (B or 1, N, 4, 4).

    Tokens without a position have the identity, in the world given: they are moved with the rest.
    """
    known = coords.positioned
    if known is None:
        known = torch.ones(poses.shape[:-2], dtype=torch.bool, device=poses.device)
    else:
        poses = identity_where(poses, ~known)
        known = known.expand(poses.shape[:-2])
    centre = _centre(poses[..., :3, 3].detach() * known.unsqueeze(-1), known.to(poses.dtype), coords)
    top = poses[..., :3, :] - centre.unsqueeze(-1) * poses[..., 3:, :]
    # With another unit of length, S g S^-1 with S = diag(1 / length, 1 / length, 1 / length, 1).
    top = torch.cat([top[..., :3], top[..., 3:] / length], dim=-1)
    bottom = torch.cat([poses[..., 3:, :3] * length, poses[..., 3:, 3:]], dim=-1)
    relative = torch.cat([top, bottom], dim=-2)
    return relative.unsqueeze(0) if coords.packed else relative


def _centre(positions: Tensor, known: Tensor, coords: Coordinates) -> Tensor:
    """Mean of the known positions of a sample, broadcast or shaped like the positions (..., N, 3)."""
    if not coords.packed:
        return positions.sum(-2, keepdim=True) / known.sum(-1).clamp(min=1)[..., None, None]
    assert coords.cu_seqlens is not None
    segments, samples = coords.segments(), len(coords.cu_seqlens) - 1
    total = positions.new_zeros(samples, 3).index_add(0, segments, positions)
    count = known.new_zeros(samples).index_add(0, segments, known).clamp(min=1)
    return (total / count.unsqueeze(-1))[segments]


class _CameraBlocks(AttentionEncoding):
    """Camera blocks on the first channels of a head and axial rotary ones, as in `RoPE`, on the others.

    An extension to larger inputs is one of the rotary blocks, of coordinates: poses have no extent.
    """

    extension_methods = RoPE.extension_methods

    def __init__(
        self,
        name: str,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        share: float,
        base: float | Sequence[float],
        length: float,
    ) -> None:
        super().__init__()
        pairs_per_axis(name, head_dim, coord_dim)  # One pair an axis at least, whatever the share.
        self.name = name
        self.channels = 4 * min(int(share * head_dim) // 4, (head_dim - 2 * coord_dim) // 4)
        self.length = number_option("length", length, low=1e-9, high=1e9)
        rest = head_dim - self.channels
        self.rope = RoPE(dim=dim, num_heads=num_heads, head_dim=rest, coord_dim=coord_dim, base=base)

    def extend(self, extension: Extension | None) -> None:
        """See `Extendable.extend`."""
        super().extend(extension)
        for rope in self.children():
            assert isinstance(rope, RoPE)
            rope.extend(extension)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> GroupFrame:
        """Camera blocks, their inverses, and the rotation beside them, in float32 or wider.

        Raises:
            ConfigError: If there are poses and the head has no room for a camera block.
        """
        rotation = self.rope.frame(coords, dtype)
        if coords.poses is None:
            return _frame(self.channels, None, None, rotation)
        if not self.channels:
            raise ConfigError(
                f"{self.name} takes poses in blocks of 4 channels beside a rotary pair per axis: use wider heads"
            )
        algebra = algebra_dtype(coords.values.dtype, dtype)
        poses = _relative_poses(coords, coords.poses, self.length)  # In the dtype of the poses: the origin may be far.
        matrices, inverses = (matrix.to(algebra).unsqueeze(1) for matrix in (poses, invert(poses)))
        return _frame(self.channels, matrices, inverses, rotation)

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Maps q by rho(g)^-T and k by rho(g); the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, GroupFrame)
        q, k = frame.act_dual(q), frame.act(k)
        if frame.gain != 1.0:
            q, k = ((t.to(frame.rotation.cos.dtype) * frame.gain).to(t.dtype) for t in (q, k))
        return q, k

    def transform_values(self, v: Tensor, frame: Frame) -> Tensor:
        """Maps v by rho(g)."""
        assert isinstance(frame, GroupFrame)
        return frame.act(v)

    def transform_output(self, out: Tensor, frame: Frame) -> Tensor:
        """Maps the output by rho(g)^-1."""
        assert isinstance(frame, GroupFrame)
        return frame.undo(out)


class GTA(_CameraBlocks):
    """Geometric Transform Attention (arXiv 2310.10375): logit q_i^T rho(g_i^-1 g_j) k_j, values rho(g_i^-1 g_j) v_j.

    For coordinates alone rho is block-diagonal with 2x2 rotations: those of axial RoPE (`zoo.encodings.rope.RoPE`), on
    q and k and, unlike RoPE, on v and the output. Logits and outputs of positioned tokens depend on r_i - r_j alone.
    Where tokens have camera poses (`Coordinates.poses`, world_from_camera), a share of the channels comes first and
    carries the 4x4 pose itself, in blocks; the rotary blocks have the rest. Channels that fit no block pass through. A
    change of the world frame of all poses changes nothing. (The paper, section 3, writes the same with rho(g_i g_j^-1)
    and camera_from_world as g; it also has SO(3) blocks, which are not here.)

    Tokens without a position have rho = identity: to them cameras stand where the given world frame puts them. Poses
    need not be rigid: any invertible matrix is inverted exactly. One that is singular makes outputs NaN.

    Camera blocks amplify: cameras should be within one or two of `length` of their mean, and so should the origin of
    the world where tokens have no position. There the output of an untrained layer in bfloat16 is within 0.01 of
    float64 (relative norm); the error grows with the distance, and in float16 numbers overflow at about 10^5 `length`.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder, one number or one per axis.
        pose_share: Share of the channels for poses, from 0 to 1, rounded down to blocks of 4 and to what leaves one
            rotary pair per axis. Without poses all channels are rotary.
        length: The unit of length of camera blocks, in that of the poses, such as the distance between cameras.

    Raises:
        ConfigError: If the head is too narrow or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        base: float | Sequence[float] = 100.0,
        pose_share: float = 0.5,
        length: float = 1.0,
    ) -> None:
        shape = {"dim": dim, "num_heads": num_heads, "head_dim": head_dim, "coord_dim": coord_dim}
        share = number_option("pose_share", pose_share, low=0, high=1)
        super().__init__("gta", **shape, share=share, base=base, length=length)
        self.whole = RoPE(dim=dim, num_heads=num_heads, head_dim=head_dim, coord_dim=coord_dim, base=base)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> GroupFrame:
        """As in the base class with poses; without, rotary blocks on all channels."""
        if coords.poses is None:
            return _frame(0, None, None, self.whole.frame(coords, dtype))
        return super().frame(coords, dtype)


class PRoPE(_CameraBlocks):
    """PRoPE, cameras as relative positional encoding (arXiv 2507.10496): projective blocks, and RoPE beside them.

    The first half of the channels is in 4x4 blocks with rho(g_i)^-1 = P_i, the projection K_i [R_i, t_i] of the token's
    camera lifted to 4x4, so that keys and values reach a query through P_i P_j^-1: from pixel and depth in one image to
    those in the other. The other half is axial RoPE of the coordinates, columns and rows of the image (any number of
    axes here). All act on q, k, v and the output. Poses are P_i^-1, world_from_image, as `zoo.poses.from_cameras` makes
    them from extrinsics and intrinsics, normalised by the size of the image.

    A change of the world frame of all poses changes nothing, nor does a translation of all coordinates. Without poses
    camera blocks are the identity, so that half of the channels stay as they are. Tokens without a position have
    rho = identity; see `GTA` for those, and for what camera blocks amplify.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p. Camera blocks take D / 2, rounded down to blocks of 4 and to what leaves a
            rotary pair per axis.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder, one number or one per axis.
        length: The unit of length of camera blocks, in that of the poses, such as the distance between cameras.

    Raises:
        ConfigError: If the head is too narrow or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        base: float | Sequence[float] = 100.0,
        length: float = 1.0,
    ) -> None:
        shape = {"dim": dim, "num_heads": num_heads, "head_dim": head_dim, "coord_dim": coord_dim}
        super().__init__("prope", **shape, share=0.5, base=base, length=length)
