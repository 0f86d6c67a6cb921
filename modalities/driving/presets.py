"""The registered fusion networks for driving scenes, as data. Imports no torch.

Names are `{encoding}-fusion-{size}-{data}`, with `-camera` or `-lidar` after it for networks of one sensor; size b is
the published one of UniTR (arXiv 2308.07732), n and t are ours. `simdrive` are simulated scenes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.driving.config import FusionConfig, count_fusion
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.nuscenes.classes import CAMERAS, DETECTION_CLASSES
from zoo.network_sizes import ENCODING_OPTIONS

__all__ = [
    "FUSION_ENCODINGS",
    "SIMDRIVE_LABELS",
    "card_words",
    "config",
    "count_parameters",
    "presets",
]

FUSION_ENCODINGS = ("pape", "rope", "none")
SIMDRIVE_LABELS = ("car", "truck", "bus", "pedestrian", "bicycle", "traffic_cone", "barrier")

# Fields of `FusionConfig`. Size n is small enough that its weights in float16 (below 3 MB) can come with the package.
SIZES: dict[str, dict[str, Any]] = {
    "n": {"dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 128, "neck_depth": 2},
    "t": {"dim": 96, "num_heads": 6, "head_dim": 16, "mlp_dim": 192, "neck_depth": 2, "drop_path": 0.1},
    "b": {
        "dim": 128,
        "num_heads": 8,
        "head_dim": 16,
        "mlp_dim": 256,
        "neck_depth": 3,
        "drop_path": 0.1,
        "lift_heights": [0.1, 0.4, 0.8, 1.2, 1.6, 2.0, 2.6, 3.4],
    },
}
# Fields of `DrivingDataConfig` that go with a size.
GRIDS: dict[str, dict[str, Any]] = {
    "n": {"image_size": [128, 352], "pillar_size": 0.45},
    "t": {"image_size": [256, 704], "pillar_size": 0.45},
    "b": {"image_size": [256, 704], "pillar_size": 0.3},
}
POINT_RANGE = (-54.0, -54.0, -3.0, 54.0, 54.0, 5.0)
# In the two axes of a plane a quadratic form has three numbers, so a dozen parabolas span it.
SMALL_PARABOLAS = 12
# Name, labels, sweeps and sizes of the data.
DATA: dict[str, tuple[tuple[str, ...], int, str]] = {
    "simdrive": (SIMDRIVE_LABELS, 1, "nt"),
    "nuscenes": (DETECTION_CLASSES, 10, "ntb"),
}

# Names whose weights come with the package.
EMBEDDED = ("pape-fusion-n-simdrive",)


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    labels: tuple[str, ...],
    sweeps: int,
    sensors: str = "camera+lidar",
) -> dict[str, Any]:
    """A complete configuration.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        labels: Class names in the order of the logits.
        sweeps: Lidar sweeps laid together.
        sensors: A name of `modalities.driving.config.SENSORS`.
    """
    options = dict(ENCODING_OPTIONS[encoding])
    if encoding == "pape" and size != "b":
        options["parabolas"] = SMALL_PARABOLAS
    model = FusionConfig(
        **SIZES[size], num_classes=len(labels), encoding=encoding, encoding_options=options, sensors=sensors
    )
    data = DrivingDataConfig(**GRIDS[size], cameras=CAMERAS, point_range=POINT_RANGE, sweeps=sweeps)
    return {
        "schema_version": 1,
        "name": name,
        "modality": "driving",
        "task": "detection",
        "architecture": "fusion",
        "model": model.to_dict(),
        "data": data.to_dict(),
        "labels": list(labels),
    }


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    for where, (labels, sweeps, sizes) in DATA.items():
        for size in sizes:
            single = ("camera", "lidar") if (where, size) == ("simdrive", "n") else ()
            for sensors in ("camera+lidar", *single):
                for encoding in FUSION_ENCODINGS:
                    name = f"{encoding}-fusion-{size}-{where}" + ("" if "+" in sensors else f"-{sensors}")
                    made = config(name, encoding=encoding, size=size, labels=labels, sweeps=sweeps, sensors=sensors)
                    command = f"zoo train {where} --model {name} --data DIR"
                    weights = "embedded" if name in EMBEDDED else "none"
                    yield {"name": name, "weights": weights, "command": command, "config": made}


def count_parameters(model: Mapping[str, Any]) -> int:
    """Number of parameters of the network that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a value cannot be used.
    """
    return count_fusion(FusionConfig.from_dict(model))


def card_words(config: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of a fusion network."""
    from zoo.card_tables import literal

    model, data = FusionConfig.from_dict(config["model"]), DrivingDataConfig.from_dict(config["data"])
    takes = {"camera+lidar": "cameras and lidar", "camera": "cameras alone", "lidar": "lidar alone"}[model.sensors]
    planes = ", ".join(model.blocks)
    along_x, along_y = data.grid
    height, width = data.image_size
    names = ", ".join(map(literal, config.get("labels") or ())) or "of no name"
    cameras = ", ".join(map(literal, data.cameras))
    inputs = []
    if model.has_cameras:
        many = "s" if len(data.cameras) > 1 else ""
        inputs.append(
            f"{len(data.cameras)} camera{many} ({cameras}; some may be absent), pictures of any size fitted to "
            f"{height} x {width} pixels (height x width; the top is cut off), with intrinsics and poses"
        )
    if model.has_lidar:
        low, high = data.point_range[:3], data.point_range[3:]
        spans = ", ".join(f"{axis} {a:g} to {b:g} m" for axis, a, b in zip("xyz", low, high, strict=True))
        absent = "; a key frame may have none" if model.has_cameras else ""
        inputs.append(
            f"points of {data.sweeps} lidar sweep{'s' if data.sweeps > 1 else ''} within {spans} of the car, with "
            f"intensity in 0..1 and age in s, in {along_x} x {along_y} pillars of {data.pillar_size:g} m{absent}"
        )
    return {
        "summary": f"A UniTR-style detector of objects around a vehicle from {takes}, with {{encoding}} in its set "
        f"attention: width {model.dim}, {len(model.blocks)} blocks of two layers (planes: {planes}), sets of at most "
        f"{model.set_size} tokens, {model.num_queries} queries, {model.num_classes} classes."
        + (" Its data set, simdrive, is simulated (`zoo make-drive`)." if "-simdrive" in config["name"] else ""),
        "input": "; ".join(inputs),
        "output": "boxes in the ego frame (x forward, y left, z up): centre and size (length, width, height) in m, yaw "
        f"in radians counter-clockwise from x, velocity in m/s, score, and class ({names})",
    }
