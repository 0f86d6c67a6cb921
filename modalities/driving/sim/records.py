"""The tables of nuScenes for simulated scenes: what is the same for all of them, and how records are named."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from modalities.driving.rigid import matrix_to_quaternion
from modalities.driving.sim.options import DriveOptions
from modalities.driving.sim.rig import CAMERAS, LIDAR, Camera
from modalities.driving.sim.shapes import CATEGORIES

__all__ = [
    "ATTRIBUTES",
    "MAP_FILE",
    "TABLES",
    "VISIBILITY",
    "Record",
    "fixed_tables",
    "numbers",
    "pose_fields",
    "table_text",
    "token",
]

Record = dict[str, Any]

TABLES = (
    "attribute",
    "calibrated_sensor",
    "category",
    "ego_pose",
    "instance",
    "log",
    "map",
    "sample",
    "sample_annotation",
    "sample_data",
    "scene",
    "sensor",
    "visibility",
)

ATTRIBUTES = (
    "vehicle.moving",
    "vehicle.stopped",
    "vehicle.parked",
    "cycle.with_rider",
    "cycle.without_rider",
    "pedestrian.moving",
    "pedestrian.standing",
)

VISIBILITY = (("1", 0, 40), ("2", 40, 60), ("3", 60, 80), ("4", 80, 100))
"""Token, and the percentages between which the visible share is."""

MAP_FILE = "maps/simdrive.png"


def token(*names: object) -> str:
    """A token of 32 hexadecimal digits, the same for the same names."""
    return hashlib.md5("/".join(str(name) for name in names).encode(), usedforsecurity=False).hexdigest()


def numbers(values: np.ndarray, digits: int = 6) -> list[Any]:
    """Rounded, so that files are small; a micrometre or a microradian is below what lidar or camera resolve."""
    rounded: list[Any] = np.round(np.asarray(values, np.float64), digits).tolist()
    return rounded


def pose_fields(matrix: np.ndarray) -> Record:
    """Translation and rotation of a (4, 4) pose."""
    return {"translation": numbers(matrix[:3, 3]), "rotation": numbers(matrix_to_quaternion(matrix[:3, :3]), 9)}


def fixed_tables(options: DriveOptions) -> dict[str, list[Record]]:
    """Records that all scenes share; the other tables are empty."""
    tables: dict[str, list[Record]] = {name: [] for name in TABLES}
    for mount in (LIDAR, *CAMERAS):
        camera = isinstance(mount, Camera)
        sensor = {"token": token("sensor", mount.channel), "channel": mount.channel}
        tables["sensor"].append({**sensor, "modality": "camera" if camera else "lidar"})
        intrinsics = numbers(mount.intrinsics(options.image_size)) if isinstance(mount, Camera) else []
        calibrated = {"token": token("calibrated", mount.channel), "sensor_token": sensor["token"]}
        tables["calibrated_sensor"].append(
            {
                **calibrated,
                "translation": list(mount.translation),
                "rotation": list(mount.rotation),
                "camera_intrinsic": intrinsics,
            }
        )
    for name in CATEGORIES.values():
        tables["category"].append({"token": token("category", name), "name": name, "description": "simulated"})
    for name in ATTRIBUTES:
        tables["attribute"].append({"token": token("attribute", name), "name": name, "description": "simulated"})
    for name, low, high in VISIBILITY:
        level = f"v{low}-{high}"
        words = f"{low} to {high} % of the pixels in all pictures are visible"
        tables["visibility"].append({"token": name, "level": level, "description": words})
    log = {"token": token("log"), "logfile": "simdrive", "vehicle": "simulated", "date_captured": "2024-01-01"}
    tables["log"].append({**log, "location": "simulated"})
    tables["map"].append(
        {
            "token": token("map"),
            "log_tokens": [log["token"]],
            "category": "semantic_prior",
            "filename": MAP_FILE,
        }
    )
    return tables


def table_text(records: list[Record]) -> str:
    """JSON with a record on each line."""
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    return f"[\n{lines}\n]\n"
