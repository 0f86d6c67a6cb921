"""Parts of Point Transformer V3 (arXiv 2312.10035): normalisation, position by convolution, blocks, pooling.

Legend: V voxels of a level, C features.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.points.kernel_map import KernelMap
from modalities.points.ptv3_geometry import Serial
from modalities.points.sparse_conv import SubmanifoldConv
from modalities.points.voxels import Groups
from zoo.encodings.base import Frame
from zoo.transformer import Block

__all__ = ["PointBatchNorm", "PointBlock", "Pooling", "Stem", "Unpooling"]

# BatchNorm of the published networks, in stem, pooling and unpooling; their head has torch's own values.
EPS, MOMENTUM = 1e-3, 0.01


class PointBatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows that takes any number of them, none included.

    In training a batch with fewer than two rows has no variance: it is normalised with the running statistics, which
    it leaves alone. Momentum is fixed, so there is no counter and files of weights hold floating point alone.

    Args:
        channels: C.
        eps: Added to the variance.
        momentum: Of the running statistics.
    """

    def __init__(self, channels: int, eps: float = EPS, momentum: float = MOMENTUM) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        nn.Module._load_from_state_dict(self, *arguments)  # That of the base class adds a counter.

    def forward(self, x: Tensor) -> Tensor:
        """(V, C) -> (V, C)."""
        if not self.training or len(x) > 1:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Stem(nn.Module):
    """Submanifold convolution without bias, BatchNorm and GELU.

    Args:
        in_chans: Input channels.
        channels: C.
        kernel_size: Edge of the kernel.
    """

    def __init__(self, in_chans: int, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = SubmanifoldConv(in_chans, channels, kernel_size, bias=False)
        self.norm = PointBatchNorm(channels)
        self.act = nn.GELU()

    def forward(self, x: Tensor, neighbours: KernelMap) -> Tensor:
        """(V, in_chans) -> (V, C)."""
        return self.act(self.norm(self.conv(x, neighbours)))


class PointBlock(nn.Module):
    """Position by convolution, then attention in patches and an MLP, each around a residual.

    Args:
        dim: Feature width C.
        num_heads: Heads.
        mlp_dim: Hidden width of the MLP.
        encoding: Position encoding of attention.
        encoding_options: Its options.
        head_dim: Width of a head.
        drop_path: Probability of dropping a branch of a voxel in training.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_dim: int,
        encoding: str,
        encoding_options: dict[str, Any],
        head_dim: int,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.conv = SubmanifoldConv(dim, dim, 3)
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.block = Block(
            dim,
            num_heads,
            3,
            mlp_dim=mlp_dim,
            encoding=encoding,
            encoding_options=encoding_options,
            head_dim=head_dim,
            drop_path=drop_path,
        )

    def forward(self, x: Tensor, neighbours: KernelMap, serial: Serial, frame: Frame) -> Tensor:
        """Runs the block.

        Args:
            x: (V, C).
            neighbours: Map of a 3 x 3 x 3 kernel.
            serial: The voxels along the curve of this block.
            frame: What the encoding derives from `serial.coords`.
        """
        x = x + self.norm(self.linear(self.conv(x, neighbours)))
        return serial.restore(self.block(serial.arrange(x), serial.coords, frame=frame))


class Pooling(nn.Module):
    """Linear layer, maximum over the children of each larger voxel, BatchNorm and GELU.

    Args:
        in_channels: Width at the finer level.
        channels: Width C at the coarser one.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(in_channels, channels)
        self.norm = PointBatchNorm(channels)
        self.act = nn.GELU()

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        """(V of the finer level, in_channels) -> (V, C)."""
        return self.act(self.norm(groups.reduce(self.proj(x), "max")))


class Unpooling(nn.Module):
    """The features of the larger voxel for each child, plus those the encoder had there; each a linear layer first.

    Args:
        in_channels: Width at the coarser level.
        skip_channels: Width of the encoder at the finer one.
        channels: Width C given.
    """

    def __init__(self, in_channels: int, skip_channels: int, channels: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(in_channels, channels), PointBatchNorm(channels), nn.GELU())
        self.skip = nn.Sequential(nn.Linear(skip_channels, channels), PointBatchNorm(channels), nn.GELU())

    def forward(self, x: Tensor, skip: Tensor, groups: Groups) -> Tensor:
        """Features of the coarser level, and of the encoder (V, skip_channels) at the finer one -> (V, C)."""
        return self.skip(skip) + groups.spread(self.proj(x))


def cloud_pool(x: Tensor, starts: Tensor, how: str) -> Tensor:
    """Pools the voxels of each cloud: (V, C) -> (B, C); zeros for clouds without any.

    Args:
        x: (V, C).
        starts: (B + 1,) int64 offsets of the clouds.
        how: `"mean"` or `"max"`.
    """
    counts = starts.diff().unsqueeze(1)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if not len(x):  # Part of the graph still, so that gradients are zero and not absent.
        pooled = wide.new_zeros(len(counts), x.shape[1]) + wide.sum()
    elif how == "mean":
        pooled = torch.segment_reduce(wide, "sum", offsets=starts, axis=0, unsafe=True) / counts.clamp_min(1)
    else:
        pooled = torch.segment_reduce(wide, "max", offsets=starts, axis=0, unsafe=True)
    return pooled.masked_fill(counts == 0, 0.0).to(x.dtype)
