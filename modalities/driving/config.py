"""Sizes of a fusion network for driving scenes, and its number of parameters by arithmetic. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from zoo.encodings.parameter_count import count_attention, count_token
from zoo.errors import ConfigError
from zoo.network_config import EncodedConfig, check_class_count

__all__ = ["BLOCK_KINDS", "BOX_OUTPUTS", "POINT_OFFSETS", "SENSORS", "FusionConfig", "count_fusion"]

AXES = 2  # Every set has a plane: that of an image, or the bird's-eye view.
SENSORS = ("camera+lidar", "camera", "lidar")
BLOCK_KINDS = ("own", "image", "bev")
# Numbers that the pillar encoder adds to those of a point: offsets from the mean of its pillar and from its centre.
POINT_OFFSETS = 6
# Outputs of the query head besides the classes, and how many numbers each has.
BOX_OUTPUTS = {"centre": 2, "height": 1, "size": 3, "yaw": 2, "velocity": 2}
_LARGEST_WINDOW = 512


@dataclass(frozen=True, kw_only=True)
class FusionConfig(EncodedConfig):
    """Everything but the data that builds a `FusionDetector`; the `"model"` part of config.json.

    Attributes:
        sensors: What the network is built for, a name of `SENSORS`.
        point_features: Numbers of a point: x, y, z, intensity and age are 5.
        dim: Feature width C of tokens and of the bird's-eye view.
        num_heads: Attention heads.
        head_dim: Width of a head.
        mlp_dim: Hidden width of the MLPs.
        blocks: Plane in which the sets of each block lie, names of `BLOCK_KINDS`: `"own"` (each sensor in its own),
            `"image"` (lidar tokens are projected into the cameras) or `"bev"` (image tokens are lifted). A block is two
            layers, one with sets along columns and one along rows.
        set_size: Most tokens of a set.
        window: Patches of a window on the image plane along each axis, and pillars of one in the bird's-eye view.
        shift_windows: Every second block of a kind has its windows moved by half a window.
        patch_size: Side of an image patch in pixels.
        lift_radius: Patches within which an image token takes the place of the nearest projected lidar token.
        ground: Height of the ground in the ego frame in metres: where rays of other image tokens end.
        lift_heights: Heights in the ego frame, in metres, at which every cell of the bird's-eye view looks into the
            cameras.
        bev_stride: Pillars of a cell of the bird's-eye view that the head works on, along each axis.
        neck_depth: Residual blocks at each of the two scales of the neck.
        num_queries: Objects looked for in a scene.
        query_window: Cells around a query, along each axis, that it attends to; odd.
        max_boxes: Most boxes of a result.
        min_score: Boxes with a smaller score are left out.
    """

    LIMITS: ClassVar[dict[str, int]] = {
        "point_features": 64,
        "dim": 4096,
        "num_heads": 256,
        "head_dim": 256,
        "mlp_dim": 65536,
        "set_size": 4096,
        "window": _LARGEST_WINDOW,
        "patch_size": 256,
        "lift_radius": 8,
        "bev_stride": 3,
        "neck_depth": 32,
        "num_queries": 10_000,
        "query_window": 31,
        "max_boxes": 10_000,
        **EncodedConfig.LIMITS,
    }

    sensors: str = "camera+lidar"
    point_features: int = 5
    dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    blocks: list[str] = field(default_factory=lambda: ["own", "image", "image", "bev"])
    set_size: int = 90
    window: int = 30
    shift_windows: bool = True
    patch_size: int = 8
    lift_radius: int = 2
    ground: float = 0.0
    lift_heights: list[float] = field(default_factory=lambda: [0.2, 0.7, 1.3, 2.2])
    bev_stride: int = 2
    neck_depth: int = 2
    num_queries: int = 200
    query_window: int = 5
    max_boxes: int = 200
    min_score: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class_count(self.num_classes, "a detector", 1)
        if self.sensors not in SENSORS:
            raise ConfigError(f"model config: sensors must be one of {', '.join(SENSORS)}, got {self.sensors!r:.80}")
        if self.in_chans != 3 and self.has_cameras:
            raise ConfigError(f"model config: cameras have in_chans 3 (red, green, blue), got {self.in_chans}")
        if self.point_features < 3:
            raise ConfigError(f"model config: point_features must be 3 (x, y, z) or more, got {self.point_features}")
        blocks = self.blocks
        if not isinstance(blocks, (list, tuple)) or not 1 <= len(blocks) <= 64 or set(blocks) - set(BLOCK_KINDS):
            raise ConfigError(
                f"model config: blocks must be a list of 1 to 64 of {', '.join(BLOCK_KINDS)}, got {blocks!r:.120}"
            )
        heights = self.lift_heights
        if not isinstance(heights, (list, tuple)) or not 1 <= len(heights) <= 64 or not all(map(_is_height, heights)):
            raise ConfigError(f"model config: lift_heights must be a list of 1 to 64 metres, got {heights!r:.80}")
        if not _is_height(self.ground):
            raise ConfigError(f"model config: ground must be a height in metres, got {self.ground!r:.80}")
        if self.query_window % 2 == 0:
            raise ConfigError(f"model config: query_window must be odd, got {self.query_window}")
        if not isinstance(self.shift_windows, bool):
            raise ConfigError(f"model config: shift_windows must be true or false, got {self.shift_windows!r:.80}")
        score = self.min_score
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score < 1:
            raise ConfigError(f"model config: min_score must be in [0, 1), got {score!r:.80}")
        object.__setattr__(self, "blocks", list(blocks))
        object.__setattr__(self, "lift_heights", list(map(float, heights)))

    @property
    def has_cameras(self) -> bool:
        """Whether the network takes images."""
        return "camera" in self.sensors

    @property
    def has_lidar(self) -> bool:
        """Whether the network takes points."""
        return "lidar" in self.sensors

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` restores an equal object."""
        return asdict(self)


def _is_height(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1000 <= value <= 1000


def count_fusion(config: FusionConfig) -> int:
    """Number of parameters of the network that a configuration describes.

    Raises:
        ConfigError: If an option of the encoding that sets a size is unusable.
    """
    dim, kinds = config.dim, config.num_classes
    total = (2 * len(config.blocks) + 2) * _count_block(config)  # Two layers a block; two more in the query head.
    total += 2 * dim  # The norm after the blocks.
    if config.has_cameras:
        total += dim * (3 * config.patch_size**2 + 1) + 2 * dim
        total += dim * (len(config.lift_heights) * dim + 1)
    if config.has_lidar:
        half = max(dim // 2, 1)
        total += half * (config.point_features + POINT_OFFSETS + 1) + 2 * half + dim * (2 * half + 1) + 2 * dim
        total += 9 * dim * dim
    total += 2 * dim  # The norm after both have met.
    wide, residual = 2 * dim, lambda width: 2 * (9 * width * width + 2 * width)
    total += config.neck_depth * (residual(dim) + residual(wide))
    total += 9 * dim * wide + 2 * wide + dim * (wide + 1) + 9 * 2 * dim * dim + 2 * dim
    total += 9 * dim * dim + 2 * dim + kinds * (9 * dim + 1) + kinds * dim  # Heat map, and classes of queries.
    for width in (kinds, *BOX_OUTPUTS.values()):
        total += dim * (dim + 1) + width * (dim + 1)
    return total


def _count_block(config: FusionConfig) -> int:
    dim, width, hidden = config.dim, config.num_heads * config.head_dim, config.mlp_dim
    sizes = {"dim": dim, "num_heads": config.num_heads, "head_dim": config.head_dim, "axes": AXES}
    encoding = count_attention(config.encoding, config.encoding_options, **sizes)
    encoding += count_token(config.encoding, config.encoding_options, dim=dim, axes=AXES)
    attention = 3 * width * (dim + 1) + dim * (width + 1) + encoding
    return 4 * dim + attention + hidden * (dim + 1) + dim * (hidden + 1)
