"""A small drive in nuScenes table format: a car that turns, a lidar that sees fixed points, boxes on known paths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modalities.driving.rigid import invert_rigid, matrix_to_quaternion, rigid

SIZE = (48, 80)
STEP_US, SWEEPS = 500_000, 3  # a key frame every 0.5 s, and so many sweeps from one to the next
START_US = 1_532_402_927_000_000
INTRINSICS = [[60.0, 0, 39.5], [0, 60, 23.5], [0, 0, 1]]
# Category, attribute, position at time 0, velocity, (width, length, height), yaw, lidar points.
Object = tuple[str, str, list[float], list[float], list[float], float, int]
OBJECTS: list[Object] = [
    ("vehicle.car", "vehicle.moving", [620, 1010, 1], [4, -1], [1.9, 4.5, 1.6], -0.25, 40),
    ("human.pedestrian.adult", "pedestrian.standing", [608, 996, 1], [0, 0], [0.7, 0.6, 1.8], 2.0, 3),
    ("movable_object.barrier", "", [612, 1004, 0.5], [0, 0], [2.5, 0.5, 1.0], 1.2, 0),
    ("static_object.bicycle_rack", "", [600, 1012, 0.8], [0, 0], [3.0, 6.0, 1.5], 0.5, 9),
    ("vehicle.bicycle", "cycle.without_rider", [600.5, 1012.2, 0.8], [0, 0], [0.6, 1.7, 1.2], 0.5, 5),
    ("vehicle.bicycle", "cycle.with_rider", [590, 1001, 0.8], [3, 0], [0.6, 1.7, 1.2], 0.0, 5),
    ("animal", "", [598, 990, 0.3], [0, 0], [0.3, 0.8, 0.5], 0.0, 2),
]
Table = list[dict[str, Any]]


def quaternion(yaw: float, tilt: float = 0.0) -> list[float]:
    """Turned by yaw about z, then tilted about the new y."""
    a, b, c, d = math.cos(yaw / 2), math.sin(yaw / 2), math.cos(tilt / 2), math.sin(tilt / 2)
    return [a * c, -b * d, a * d, b * c]


def pose_at(seconds: float) -> np.ndarray:
    """global_from_ego of a car at 8 m/s that turns and nods a little."""
    place = [600 + 8 * seconds, 1000 + seconds**2, 0.0]
    return rigid(place, quaternion(0.3 * seconds, 0.01 * math.sin(seconds)))


def world_points() -> np.ndarray:
    """(300, 3) points of things that stand, in the global frame."""
    rng = np.random.default_rng(0)
    angle, far = rng.uniform(-math.pi, math.pi, 300), rng.uniform(6, 60, 300)
    return np.stack([602 + far * np.cos(angle), 1001 + far * np.sin(angle), rng.uniform(0, 4, 300)], 1)


MOUNTINGS = {
    "LIDAR_TOP": rigid([0.9, 0, 1.8], quaternion(-math.pi / 2)),
    "CAM_FRONT": rigid([1.7, 0, 1.5], [0.5, -0.5, 0.5, -0.5]),
    "CAM_BACK": rigid([0.0, 0, 1.5], [0.5, -0.5, -0.5, 0.5]),
}


def write_drive(
    root: Path,
    *,
    scenes: tuple[str, ...] = ("scene-0061", "scene-0103"),
    frames: int = 4,
    objects: Sequence[Object] = OBJECTS,
    change: Callable[[dict[str, Table]], object] | None = None,
) -> Path:
    """Writes `root/v1.0-mini`, `root/samples` and `root/sweeps`.

    Args:
        root: A new folder.
        scenes: Their names.
        frames: Key frames of each.
        objects: What is labelled in them.
        change: Given all tables by name before they are written, to break them; a table it removes is not written.
    """
    tables: dict[str, Table] = {
        "log": [{"token": "log", "location": "nowhere"}],
        "category": [{"token": f"c-{name}", "name": name} for name in sorted({row[0] for row in objects})],
        "attribute": [{"token": f"a-{name}", "name": name} for name in sorted({row[1] for row in objects} - {""})],
        "visibility": [{"token": str(level), "level": "v"} for level in range(1, 5)],
        "sensor": [],
        "calibrated_sensor": [],
        **{name: [] for name in ("scene", "sample", "sample_data", "ego_pose", "instance", "sample_annotation")},
        "map": [{"token": "map", "log_tokens": ["log"], "category": "semantic_prior", "filename": "maps/none.png"}],
    }
    for channel, mounting in MOUNTINGS.items():
        modality = "lidar" if channel.startswith("LIDAR") else "camera"
        tables["sensor"].append({"token": f"s-{channel}", "channel": channel, "modality": modality})
        tables["calibrated_sensor"].append(
            {
                "token": f"k-{channel}",
                "sensor_token": f"s-{channel}",
                **_placed(mounting),
                "camera_intrinsic": INTRINSICS if modality == "camera" else [],
            }
        )
    for number, scene in enumerate(scenes):
        _drive(root, tables, scene, START_US + number * 60_000_000, frames, objects)
    (root / "maps").mkdir(exist_ok=True)
    Image.new("L", (1, 1)).save(root / "maps" / "none.png")
    if change is not None:
        change(tables)
    folder = root / "v1.0-mini"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return root


def _placed(matrix: np.ndarray) -> dict[str, list[float]]:
    return {"translation": matrix[:3, 3].tolist(), "rotation": matrix_to_quaternion(matrix[:3, :3]).tolist()}


def _drive(
    root: Path, tables: dict[str, Table], scene: str, start: int, frames: int, objects: Sequence[Object]
) -> None:
    samples = [f"{scene}-{frame}" for frame in range(frames)]
    tables["scene"].append(
        {
            "token": f"t-{scene}",
            "name": scene,
            "log_token": "log",
            "nbr_samples": frames,
            "first_sample_token": samples[0],
            "last_sample_token": samples[-1],
        }
    )
    for frame, token in enumerate(samples):
        tables["sample"].append(
            {
                "token": token,
                "timestamp": start + frame * STEP_US,
                "scene_token": f"t-{scene}",
                **_linked(samples, frame),
            }
        )
    _lidar(root, tables, scene, start, samples)
    for channel, delay in (("CAM_FRONT", -36_000), ("CAM_BACK", 41_000)):
        for frame, token in enumerate(samples):
            name = f"samples/{channel}/{scene}-{frame}.jpg"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", SIZE[::-1], (40 * frame, 90, 160)).save(root / name)
            _data(tables, f"{channel}-{token}", token, channel, frame * STEP_US + delay, start, name, True, ("", ""))
    for number, (category, attribute, place, velocity, size, yaw, points) in enumerate(objects):
        instance = f"i-{scene}-{number}"
        names = [f"{instance}-{frame}" for frame in range(frames)]
        tables["instance"].append({"token": instance, "category_token": f"c-{category}", "nbr_annotations": frames})
        for frame, token in enumerate(samples):
            seconds = frame * STEP_US * 1e-6
            moved = [place[0] + velocity[0] * seconds, place[1] + velocity[1] * seconds, place[2]]
            tables["sample_annotation"].append(
                {
                    "token": names[frame],
                    "sample_token": token,
                    "instance_token": instance,
                    "visibility_token": "4",
                    "attribute_tokens": [f"a-{attribute}"] if attribute else [],
                    "translation": moved,
                    "size": size,
                    "rotation": quaternion(yaw),
                    "num_lidar_pts": points,
                    "num_radar_pts": 0,
                    **_linked(names, frame),
                }
            )


def _lidar(root: Path, tables: dict[str, Table], scene: str, start: int, samples: list[str]) -> None:
    points = world_points()
    count = (len(samples) - 1) * SWEEPS + 1
    tokens = [f"l-{scene}-{number}" for number in range(count)]
    for number, token in enumerate(tokens):
        key = number % SWEEPS == 0
        time = number * STEP_US // SWEEPS
        name = f"{'samples' if key else 'sweeps'}/LIDAR_TOP/{scene}-{number}.pcd.bin"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        sensor_from_global = invert_rigid(pose_at(time * 1e-6) @ MOUNTINGS["LIDAR_TOP"])
        seen = np.zeros((len(points) + 2, 5), "<f4")
        seen[:-2, :3] = points @ sensor_from_global[:3, :3].T + sensor_from_global[:3, 3]
        seen[:-2, 3] = np.arange(len(points)) % 256
        seen[-2] = [0.5, -0.5, 0.1, 10, 0]  # a hit of the car itself
        seen[-1] = np.nan  # no return
        (root / name).write_bytes(seen.tobytes())
        sample = samples[-(-number // SWEEPS)]  # a sweep belongs to the key frame after it
        _data(tables, token, sample, "LIDAR_TOP", time, start, name, key, tuple(_linked(tokens, number).values()))


def _data(
    tables: dict[str, Table],
    token: str,
    sample: str,
    channel: str,
    time: int,
    start: int,
    name: str,
    key: bool,
    links: tuple[str, ...],
) -> None:
    height, width = (0, 0) if channel.startswith("LIDAR") else SIZE
    tables["ego_pose"].append({"token": f"p-{token}", "timestamp": start + time, **_placed(pose_at(time * 1e-6))})
    tables["sample_data"].append(
        {
            "token": token,
            "sample_token": sample,
            "ego_pose_token": f"p-{token}",
            "calibrated_sensor_token": f"k-{channel}",
            "timestamp": start + time,
            "fileformat": "pcd" if channel.startswith("LIDAR") else "jpg",
            "is_key_frame": key,
            "height": height,
            "width": width,
            "filename": name,
            "prev": links[0],
            "next": links[1],
        }
    )


def _linked(tokens: list[str], index: int) -> dict[str, str]:
    """Tokens of those before and after; "" at the ends."""
    return {"prev": tokens[index - 1] if index else "", "next": (tokens[index + 1 :] or [""])[0]}
