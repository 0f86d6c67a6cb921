"""A plain vision transformer on point clouds: groups of neighbouring points are its patches.

Legend: B clouds, L places of the longest cloud, G groups (tokens), K points of a group, C width of the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.points.batch import PointBatch
from modalities.points.data_config import PointDataConfig
from modalities.points.grouping import farthest_points, group_features, group_points, random_points
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError, DataError
from zoo.network import ClassTokenNetwork, EncoderNetwork, Sequences, build_encoder, set_config
from zoo.network_config import NetworkConfig, parse_config

__all__ = ["GroupEmbed", "PointViT", "PointViTConfig", "build", "trained_extent"]

AXES = 3
# Normalised clouds lie within 1 of their centre; what augmentation in training may make of that.
_REACH = 2.0


@dataclass(frozen=True, kw_only=True)
class PointViTConfig(NetworkConfig):
    """Everything but the preprocessing that builds a `PointViT`; the `"model"` part of config.json.

    `patch_size` is the number of points of a group, `in_chans` that of coordinates (3), and the class token has no
    position.

    Attributes:
        groups: Groups of a cloud.
        spacing: Unit of coordinates, in those of the cloud: about the distance of neighbouring centres.
        group_features: What is read of the points of a group, a name of `modalities.points.grouping.FEATURES`. With
            `"invariant"` and an encoding that sees distances alone (`pape-ri`, `alibi`, `none`), turning a cloud
            changes the logits by rounding alone.
        sampling: How centres are chosen in training: `"farthest"`, or `"random"`, which is faster and augments.
            Prediction always takes the farthest points.
        pooling: What the head reads: `"token"` (the class token) or `"mean"` (of the groups).
    """

    LIMITS: ClassVar[dict[str, int]] = {**NetworkConfig.LIMITS, "groups": 4096}

    groups: int = 64
    spacing: float = 0.25
    group_features: str = "relative+centre"
    sampling: str = "farthest"
    pooling: str = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        group_features(self.group_features)
        for name, known in (("sampling", ("farthest", "random")), ("pooling", ("token", "mean"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"model config: {name} must be {' or '.join(known)}, got {getattr(self, name)!r:.80}")
        spacing = self.spacing
        if isinstance(spacing, bool) or not isinstance(spacing, (int, float)) or not 1e-6 <= spacing <= 1e6:
            raise ConfigError(f"model config: spacing must be a length from 1e-6 to 1e6, got {spacing!r:.80}")
        if self.in_chans != 3 or self.class_token_position is not None:
            raise ConfigError("model config: a point ViT reads 3 coordinates, and its class token has no position")


class GroupEmbed(nn.Module):
    """A small PointNet on each group (Qi et al., arXiv 1612.00593; in two steps as in Point-BERT, arXiv 2111.14819).

    Layer instead of batch normalisation, so that a cloud's result does not depend on the others, in training too.

    Args:
        channels: Of what is read of a point.
        dim: C.
    """

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.fc2 = nn.Linear(dim, dim)
        self.fc3 = nn.Linear(2 * dim, 2 * dim)
        self.norm3 = nn.LayerNorm(2 * dim)
        self.fc4 = nn.Linear(2 * dim, dim)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """(B, G, K, channels) and (B, G, K) bool, True for real points -> (B, G, C)."""
        x = self.fc2(F.gelu(self.norm1(self.fc1(points))))
        whole = _largest(x, mask).unsqueeze(2).expand_as(x)
        x = self.fc4(F.gelu(self.norm3(self.fc3(torch.cat([whole, x], dim=-1)))))
        return _largest(x, mask)


def _largest(x: Tensor, mask: Tensor) -> Tensor:
    """Largest value over the real points of each group; 0 for groups without any."""
    hidden = x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(2)
    return hidden.masked_fill(~mask.any(2, keepdim=True), 0.0)


class PointViT(ClassTokenNetwork, EncoderNetwork):
    """Groups of points and a class token -> LayerNorm -> blocks -> LayerNorm -> linear head.

    It takes `PointBatch` made as `data_config` says and reads the coordinates alone. Centres are farthest points, each
    with its nearest points embedded by a small PointNet, at the centre's coordinates. Clouds may have any number of
    points from 0 (the class token alone remains); points with a coordinate that is not finite are left out.
    `forward_features` gives (B, 1 + G, C), first what the head reads; what stands at groups that a small cloud does not
    have means nothing.

    With invariant features and an encoding that sees distances alone, the network is a function of the cloud up to
    rotations and shifts. What is not exact: arithmetic rounds (logits move by about 1e-6); where rounding decides which
    of two points is farther or nearer, as in symmetric objects, groups become others; and the unit box that a cloud is
    scaled to before (`data_config`) depends on how it lies, so that turning a file turns and scales the input.

    In training, and compiled, nothing is read back from the device if `data_config.num_points` is set: clouds have up
    to so many points then, and the logits of a longer one are NaN.

    Args:
        config: Sizes, encoding and groups.
        data_config: Preprocessing.
    """

    data_config: PointDataConfig

    def __init__(self, config: PointViTConfig, data_config: PointDataConfig) -> None:
        super().__init__()
        self.data_config = data_config
        self.groups, self.spacing = config.groups, float(config.spacing)
        self.sampling, self.pooling = config.sampling, config.pooling
        self.features = group_features(config.group_features)
        self.embed = GroupEmbed(self.features.channels, config.dim)
        self._add_class_token(config, axes=AXES)
        self.encoder = build_encoder(config, axes=AXES)
        self.reset_classifier(config.num_classes)

    @property
    def in_chans(self) -> int:
        """Coordinates of a point."""
        return AXES

    def _embedded(self, inputs: PointBatch) -> Sequences:
        if not isinstance(inputs, PointBatch):
            raise DataError(f"point models take PointBatch (PointBatch.from_clouds), got {type(inputs).__name__}")
        if len(inputs) == 0:
            raise DataError("a batch needs at least one cloud; a cloud without points is legal")
        weight = self.embed.fc1.weight
        if inputs.device != weight.device:
            raise DataError(f"the point batch is on {inputs.device}, the model on {weight.device}: use .to()")
        with torch.autocast(inputs.device.type, enabled=False):  # Positions in 16 bit would be wrong.
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            xyz, mask, fits = self._dense(inputs, wide)
            centres = (
                random_points(mask, self.groups)
                if self.training and self.sampling == "random"
                else farthest_points(xyz, mask, self.groups)
            )
            groups = group_points(xyz, mask, centres, self.patch_size)
            points = self.features(groups, self.spacing).to(weight.dtype)
        tokens = self.embed(points, groups.mask)
        if fits is not None:
            tokens = tokens.masked_fill(~fits.view(-1, 1, 1), torch.nan)
        coords = Coordinates(groups.centres / self.spacing, bounds=self._bounds(), unit=f"{self.spacing} of the cloud")
        return Sequences(tokens, coords, groups.valid, groups.valid)

    def _dense(self, inputs: PointBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """Clouds side by side (B, L, 3), which places are real points (B, L), and which clouds fit, if that is open."""
        lengths, limit = inputs.lengths, self.data_config.num_points
        compiling = torch.compiler.is_compiling()
        if limit is not None and (compiling or self.training):
            longest, fits = limit, lengths <= limit
        elif compiling:
            raise ConfigError("a compiled point ViT needs data_config.num_points: the most points of a cloud")
        else:
            longest, fits = max(1, int(lengths.max())), None
        place = torch.arange(longest, device=inputs.device)
        mask = place < lengths.unsqueeze(1)
        if len(inputs.xyz):
            index = (inputs.offsets[:-1, None] + place).clamp_max(len(inputs.xyz) - 1)
            xyz = inputs.xyz.to(dtype)[index]
        else:
            xyz = inputs.xyz.new_zeros((*mask.shape, 3), dtype=dtype)
        mask = mask & xyz.isfinite().all(-1)
        xyz = xyz.masked_fill(~mask.unsqueeze(-1), 0.0)
        # Real points first, in their order, so that as many groups are real as there are points.
        order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
        return xyz.gather(1, order.unsqueeze(-1).expand_as(xyz)), mask.gather(1, order), fits

    def _bounds(self) -> tuple[tuple[float, float], ...] | None:
        """Between which coordinates lie, if that is known without looking at them."""
        if self.data_config.normalise == "unit-box":
            return ((-_REACH / self.spacing, _REACH / self.spacing),) * AXES
        return ((-torch.inf, torch.inf),) * AXES if torch.compiler.is_compiling() else None

    def _features(self, tokens: Tensor, layout: Any) -> Tensor:
        if self.pooling == "token":
            return tokens
        weight = layout.unsqueeze(-1).to(tokens.dtype)
        total = weight.sum(1, keepdim=True)
        mean = (tokens[:, 1:] * weight).sum(1, keepdim=True) / total.clamp_min(1)
        first = torch.where(total > 0, mean, tokens[:, :1])  # Without any group the class token has to do.
        return torch.cat([first, tokens[:, 1:]], dim=1)

    def _grid(self, tokens: Tensor, layout: Any) -> Tensor:
        raise ConfigError("points have no grid: use output='tokens'")


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Extent of a cloud along x, y and z in units of the coordinates, for context extension.

    Raises:
        ConfigError: If clouds are not scaled to a known extent.
    """
    parsed, data = PointViTConfig.from_dict(config["model"]), PointDataConfig.from_dict(config["data"])
    if data.normalise != "unit-box":
        raise ConfigError(
            "clouds of this model have no known extent (normalise is not unit-box): state that along x, y and z, as "
            "encoding_options={..., 'extent': [x, y, z]}"
        )
    return (2 / parsed.spacing,) * 3


def build(config: Mapping[str, Any]) -> PointViT:
    """Builds a point ViT from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, PointViTConfig)
    data_config = PointDataConfig.from_dict(config.get("data", {}))
    model = PointViT(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
