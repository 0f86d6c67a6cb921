"""Tokens of cameras and lidar, and blocks of attention in sets of them (UniTR, arXiv 2308.07732, section 3).

One forward: images -> patches, points -> pillars -> where every token is in its own plane, on the images and in the
bird's-eye view -> sets of every layer -> blocks.

Legend: B scenes, V cameras, P lidar tokens, I image tokens, N = P + I, C features, G sets of S slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modalities.driving.batch import DrivingBatch
from modalities.driving.config import AXES, FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.mapping import Rig, constants, lift_to_ground, most_central, nearest_lidar, view_of
from modalities.driving.pillars import PillarEncoder, Pillars, make_pillars
from modalities.driving.windows import Places, Sets, make_sets
from zoo.errors import DataError
from zoo.transformer import NORM_EPS, Block

__all__ = ["ImageTokens", "PatchEmbed", "Scene", "SetBlock", "SetEncoder", "make_block"]


@dataclass(frozen=True)
class ImageTokens:
    """The patches of the cameras that are there, camera by camera and row by row.

    Attributes:
        image: (I,) int64 number of the image, scene * V + camera.
        cell: (I, 2) int64 column and row.
        first: (B, V) int64 number of the first token of each camera, where it is there.
    """

    image: Tensor
    cell: Tensor
    first: Tensor

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Scene:
    """Tokens of a batch and where they are.

    Attributes:
        tokens: (N, C), those of the lidar first.
        pillars: Where those of the lidar come from; `None` for networks without one.
        images: Where those of the images come from; `None` for networks without cameras.
        rig: The cameras; `None` where there are no images.
    """

    tokens: Tensor
    pillars: Pillars | None
    images: ImageTokens | None
    rig: Rig | None

    @property
    def lidar_count(self) -> int:
        """Number of lidar tokens, P."""
        return 0 if self.pillars is None else len(self.pillars)


class PatchEmbed(nn.Module):
    """Patches of images as tokens.

    Args:
        patch_size: Side of a patch in pixels.
        dim: C.
    """

    def __init__(self, patch_size: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(3, dim, patch_size, patch_size)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS)

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M * rows * columns, C); M may be 0."""
        x = self.proj(images.to(self.proj.weight.dtype))
        return self.norm(x.flatten(2).transpose(1, 2).flatten(0, 1))


def make_block(config: FusionConfig) -> Block:
    """One layer of the shared attention block, on coordinates of a plane."""
    return Block(
        config.dim,
        config.num_heads,
        AXES,
        mlp_dim=config.mlp_dim,
        encoding=config.encoding,
        encoding_options=dict(config.encoding_options),
        head_dim=config.head_dim,
        drop_path=config.drop_path,
    )


class SetBlock(nn.Module):
    """Two layers of attention, on sets cut along the first axis and along the second.

    Args:
        config: Sizes.
        kind: Plane in which the sets lie, see `FusionConfig.blocks`.
    """

    def __init__(self, config: FusionConfig, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(make_block(config) for _ in range(2))

    def forward(self, x: Tensor, sets: list[Sets]) -> Tensor:
        """(N, C) -> (N, C)."""
        for layer, one in zip(self.layers, sets, strict=True):
            x = one.restore(layer(one.arrange(x), one.coords, one.mask))
        return x


class SetEncoder(nn.Module):
    """Embeddings of both sensors and the blocks.

    Args:
        config: Sizes, encoding and blocks.
        data: Range and grid of the bird's-eye view.
    """

    def __init__(self, config: FusionConfig, data: DrivingDataConfig) -> None:
        super().__init__()
        self.config, self.data = config, data
        self.blocks = nn.ModuleList(SetBlock(config, kind) for kind in config.blocks)
        self.norm = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.grad_checkpointing = False
        layers = [cast(Block, layer) for block in self.blocks for layer in cast(SetBlock, block).layers]
        for place, layer in enumerate(layers):
            layer.attn.encoding.place(place, len(layers))
            layer.attn.encoding.reset_parameters()

    def forward(self, batch: DrivingBatch, embed: PatchEmbed | None, pillar_embed: PillarEncoder | None) -> Scene:
        """Tokens after the last block and norm.

        Args:
            batch: The scenes.
            embed: Of images; `None` for networks without cameras.
            pillar_embed: Of points; `None` for networks without a lidar.
        """
        *_, last = self.layers(batch, embed, pillar_embed)
        return self.finish(last)

    def layers(
        self, batch: DrivingBatch, embed: PatchEmbed | None, pillar_embed: PillarEncoder | None
    ) -> Iterator[Scene]:
        """Yields the tokens after every block, before the norm; arguments as in `forward`."""
        scene, sets = self.start(batch, embed, pillar_embed)
        for block, own in zip(self.blocks, sets, strict=True):
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, scene.tokens, own, use_reentrant=False)
            else:
                x = block(scene.tokens, own)
            scene = replace(scene, tokens=x)
            yield scene

    def finish(self, scene: Scene) -> Scene:
        """Applies the norm after the last block."""
        return replace(scene, tokens=self.norm(scene.tokens))

    def start(
        self, batch: DrivingBatch, embed: PatchEmbed | None, pillar_embed: PillarEncoder | None
    ) -> tuple[Scene, list[list[Sets]]]:
        """Tokens before the first block, and the sets of both layers of every block; arguments as in `forward`."""
        parts: list[Tensor] = []
        pillars = images = rig = None
        weight = self.norm.weight
        like = torch.empty(0, dtype=torch.float64 if weight.dtype == torch.float64 else torch.float32)
        if pillar_embed is not None:
            features = pillar_embed.features
            points = batch.points if batch.points is not None else like.new_zeros(0, features, device=batch.device)
            pillars = make_pillars(points.to(like.dtype), batch.offsets, self.data)
            parts.append(pillar_embed(pillars))
        if embed is not None:
            shown, rig, images = self._images(batch, embed.patch_size, like)
            parts.append(embed(shown))
        with torch.no_grad():
            sets = self._sets(len(batch), batch.cameras, pillars, images, rig, like)
        dtype = torch.promote_types(parts[0].dtype, parts[-1].dtype)
        return Scene(torch.cat([part.to(dtype) for part in parts]), pillars, images, rig), sets

    def _images(self, batch: DrivingBatch, patch: int, like: Tensor) -> tuple[Tensor, Rig | None, ImageTokens]:
        """The images of the cameras that are there, (M, 3, H, W), the rig, and their patches."""
        device, cameras = batch.device, batch.cameras
        if batch.images is None or not cameras:
            none = torch.zeros(0, dtype=torch.int64, device=device)
            shown = torch.zeros(0, 3, patch, patch, device=device)
            return shown, None, ImageTokens(none, none.view(0, 1).expand(0, 2), batch.image_mask.long() * 0)
        if not batch.images.is_floating_point():
            raise DataError("a model takes normalised float images, got uint8: see modalities.driving.frames.to_model")
        height, width = batch.images.shape[-2:]
        if height % patch or width % patch or not height or not width:
            raise DataError(
                f"images must have a height and width that are multiples of the patch, {patch} pixels; got "
                f"{height} x {width}"
            )
        rig = Rig.make(batch.intrinsics, batch.camera_from_ego, batch.image_mask, (height, width), patch, like)
        chosen = batch.image_mask.flatten().nonzero()[:, 0]
        patches = rig.rows * rig.columns
        shown = batch.images.flatten(0, 1).index_select(0, chosen)
        places = torch.arange(patches, device=device)
        cell = torch.stack([places % rig.columns, places // rig.columns], dim=1)
        before = batch.image_mask.flatten().long().cumsum(0) - 1
        first = (before * patches).view(len(batch), cameras)
        tokens = ImageTokens(chosen.repeat_interleave(patches), cell.repeat(len(chosen), 1), first)
        return shown, rig, tokens

    def _sets(
        self,
        scenes: int,
        cameras: int,
        pillars: Pillars | None,
        images: ImageTokens | None,
        rig: Rig | None,
        like: Tensor,
    ) -> list[list[Sets]]:
        """The sets of both layers of every block."""
        places = self._places(scenes, cameras, pillars, images, rig, like)
        config = self.config
        seen = dict.fromkeys(config.blocks, 0)
        layouts: dict[tuple[str, int, bool], tuple[Places, int, bool]] = {}
        keys = []
        for kind in config.blocks:
            shift = config.window // 2 if config.shift_windows and seen[kind] % 2 else 0
            seen[kind] += 1
            for second in (False, True):
                keys.append((kind, shift, second))
                layouts[keys[-1]] = places[kind], shift, second
        cells = max(*self.data.grid, *((rig.rows, rig.columns) if rig is not None else (1,)))
        planes = scenes * (cameras + 1)
        made = make_sets(list(layouts.values()), planes, cells, config.window, config.set_size)
        found = dict(zip(layouts, made, strict=True))
        return [[found[key] for key in keys[i : i + 2]] for i in range(0, len(keys), 2)]

    def _places(
        self,
        scenes: int,
        cameras: int,
        pillars: Pillars | None,
        images: ImageTokens | None,
        rig: Rig | None,
        like: Tensor,
    ) -> dict[str, Places]:
        """Places of all tokens for each kind of block.

        The planes of a batch are its images, then its bird's-eye views. A token that the other plane does not show
        stays in its own, among the others that do.
        """
        views = scenes * cameras
        own: list[Places] = []
        on_image: list[Places] = []
        in_bev: list[Places] = []
        sight = None
        if pillars is not None:
            low = constants(self.data.point_range[:2], pillars.mean)
            position = (pillars.mean[:, :2] - low) / self.data.pillar_size
            # Rounding of the mean must not lead out of the pillar.
            cell = pillars.cell.to(like.dtype)
            position = torch.minimum(torch.maximum(position, cell), cell + 1)
            bev = Places(views + pillars.scene, position, pillars.cell)
            own, in_bev, on_image = [bev], [bev], [bev]
            if rig is not None:
                sight = view_of(pillars.mean.to(like.dtype), pillars.scene, rig)
                on_image = [self._shown(bev, pillars.scene, sight, rig)]
        if images is not None:
            place = Places(images.image, images.cell.to(like.dtype) + 0.5, images.cell)
            own, on_image = [*own, place], [*on_image, place]
            in_bev = [*in_bev, place if rig is None else self._lifted(place, views, pillars, sight, rig, like)]
        return {"own": Places.cat(own), "image": Places.cat(on_image), "bev": Places.cat(in_bev)}

    def _shown(self, bev: Places, scene: Tensor, sight: tuple[Tensor, Tensor], rig: Rig) -> Places:
        """Lidar tokens on the camera that sees them best; those that none sees stay where they are."""
        position, seen = sight
        camera, found = most_central(position, seen, rig.columns)
        chosen = position.gather(1, camera[:, None, None].expand(-1, 1, 2)).squeeze(1)
        chosen = torch.where(found.unsqueeze(1), chosen, 0.0)
        on_image = Places(scene * rig.present.shape[1] + camera, chosen, chosen.floor().long())
        return on_image.where(found, bev)

    def _lifted(
        self,
        place: Places,
        views: int,
        pillars: Pillars | None,
        sight: tuple[Tensor, Tensor] | None,
        rig: Rig,
        like: Tensor,
    ) -> Places:
        """Image tokens in the bird's-eye view: at the nearest lidar token, else where their ray meets the ground."""
        data, cameras = self.data, rig.present.shape[1]
        low = constants(data.point_range[:2], rig.matrix)
        spot, found = lift_to_ground(rig, self.config.ground)
        position = (spot - low) / data.pillar_size
        if pillars is not None and len(pillars) and sight is not None:
            near = nearest_lidar(*sight, pillars.scene, rig, self.config.lift_radius)
            measured = (pillars.mean[:, :2].to(like.dtype) - low) / data.pillar_size
            measured = measured.index_select(0, near.clamp_min(0).flatten()).view_as(position)
            position = torch.where((near >= 0).unsqueeze(-1), measured, position)
            found = found | (near >= 0)
        top = constants(data.grid, position)
        found = found & (position >= 0).all(-1) & (position < top).all(-1)
        position = torch.where(found.unsqueeze(-1), position, 0.0)

        image, column, row = place.plane, place.cell[:, 0], place.cell[:, 1]
        at = (image * rig.rows + row) * rig.columns + column
        position, found = position.reshape(-1, 2).index_select(0, at), found.flatten().index_select(0, at)
        cell = position.floor().long()
        lifted = Places(views + torch.div(image, cameras, rounding_mode="floor"), position, cell)
        return lifted.where(found, place)
