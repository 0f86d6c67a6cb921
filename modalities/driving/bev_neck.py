"""From tokens to a map of the bird's-eye view, and a small residual network on it.

Maps are (B, C, X, Y): the first axis of space is x (forward), the second y (left).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.encoder import Scene
from modalities.driving.mapping import constants, look_up

__all__ = ["BevNeck", "ConvNorm", "Residual", "cell_centres", "map_size"]

_GROUP_WIDTH = 16


def map_size(config: FusionConfig, data: DrivingDataConfig) -> tuple[int, int]:
    """Cells along x and y of the map that the head works on."""
    along_x, along_y = (-(-pillars // config.bev_stride) for pillars in data.grid)
    return along_x, along_y


def cell_centres(config: FusionConfig, data: DrivingDataConfig, like: Tensor) -> Tensor:
    """(X, Y, 2) x and y of the middle of every cell in metres."""
    size = config.bev_stride * data.pillar_size
    axes = [
        data.point_range[axis] + size * (torch.arange(cells, device=like.device, dtype=like.dtype) + 0.5)
        for axis, cells in enumerate(map_size(config, data))
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def group_norm(channels: int) -> nn.GroupNorm:
    """Normalisation that does not look at the other scenes of a batch, so that it is the same in training and after."""
    groups = max(channels // _GROUP_WIDTH, 1)
    return nn.GroupNorm(groups if channels % groups == 0 else 1, channels)


class ConvNorm(nn.Sequential):
    """3 x 3 convolution without bias, and GroupNorm.

    Args:
        channels: Input channels.
        width: Output channels.
        stride: Of the convolution.
    """

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), group_norm(width))


class Residual(nn.Module):
    """Two 3 x 3 convolutions around a residual.

    Args:
        width: Channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(width, width), ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, X, Y) -> (B, C, X, Y)."""
        return F.relu(x + self.second(F.relu(self.first(x))))


class BevNeck(nn.Module):
    """Lidar tokens at their pillars and image tokens where cells look into the cameras, then a network of two scales.

    A cell looks into the camera that shows it best at every height of the configuration, and takes the token of the
    patch it meets there; a sensor that is absent leaves zeros.

    Args:
        config: Sizes and sensors.
        data: Range and grid.
    """

    def __init__(self, config: FusionConfig, data: DrivingDataConfig) -> None:
        super().__init__()
        self.config, self.data = config, data
        dim = config.dim
        if config.has_lidar:
            self.lidar = nn.Conv2d(dim, dim, 3, config.bev_stride, padding=1, bias=False)
        if config.has_cameras:
            self.camera = nn.Linear(len(config.lift_heights) * dim, dim)
        self.norm = group_norm(dim)
        self.fine = nn.Sequential(*(Residual(dim) for _ in range(config.neck_depth)))
        self.down = ConvNorm(dim, 2 * dim, 2)
        self.coarse = nn.Sequential(*(Residual(2 * dim) for _ in range(config.neck_depth)))
        self.up = nn.Conv2d(2 * dim, dim, 1)
        self.out = ConvNorm(2 * dim, dim)

    def forward(self, scene: Scene, scenes: int) -> Tensor:
        """The map (B, C, X, Y).

        Args:
            scene: Tokens of the encoder.
            scenes: Number of scenes B.
        """
        parts = []
        if self.config.has_lidar:
            parts.append(self.lidar(self._scattered(scene, scenes)))
        if self.config.has_cameras:
            parts.append(self._seen(scene, scenes))
        x = F.relu(self.norm(sum(parts[1:], parts[0])))
        fine = self.fine(x)
        coarse = self.up(self.coarse(F.relu(self.down(fine))))
        coarse = F.interpolate(coarse, scale_factor=2.0, mode="nearest")[..., : fine.shape[2], : fine.shape[3]]
        return F.relu(self.out(torch.cat([fine, coarse], dim=1)))

    def _scattered(self, scene: Scene, scenes: int) -> Tensor:
        """(B, C, pillars along x, along y): lidar tokens at their pillars, zero elsewhere."""
        pillars = scene.pillars
        assert pillars is not None
        along_x, along_y = self.data.grid
        tokens = scene.tokens[: len(pillars)]
        at = (pillars.scene * along_x + pillars.cell[:, 0]) * along_y + pillars.cell[:, 1]
        flat = tokens.new_zeros(scenes * along_x * along_y, tokens.shape[1]).index_copy(0, at, tokens)
        return flat.view(scenes, along_x, along_y, -1).permute(0, 3, 1, 2)

    def _seen(self, scene: Scene, scenes: int) -> Tensor:
        """(B, C, X, Y): what the cameras show of every cell."""
        tokens, config = scene.tokens[scene.lidar_count :], self.config
        along_x, along_y = map_size(config, self.data)
        heights = len(config.lift_heights)
        none = tokens.new_zeros(1, tokens.shape[1])
        if scene.rig is None or scene.images is None:
            # Part of the graph still, so that gradients are zero and not absent.
            found = none.expand(scenes * along_x * along_y * heights, -1)
        else:
            number = self._patches(scene)
            found = F.embedding(number.flatten(), torch.cat([tokens, none]))
        mapped = self.camera(found.reshape(scenes, along_x, along_y, -1))
        return mapped.permute(0, 3, 1, 2)

    @torch.no_grad()
    def _patches(self, scene: Scene) -> Tensor:
        """(B, X, Y, heights) int64 number of the image token that shows each place, that after the last for none."""
        rig, images = scene.rig, scene.images
        assert rig is not None and images is not None
        heights = constants(self.config.lift_heights, rig.matrix)
        camera, patch, found = look_up(cell_centres(self.config, self.data, rig.matrix), heights, rig)
        first = images.first.gather(1, camera.flatten(1)).view_as(camera)
        return torch.where(found, first + patch, len(images))
