"""Simulates one scene: its pictures and sweeps become files, the rest records of tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from modalities.driving.sim.camera import render
from modalities.driving.sim.lidar import Sweep, scan
from modalities.driving.sim.options import KEY_FRAME_US, MAX_RANGE, DriveOptions
from modalities.driving.sim.records import VISIBILITY, Record, numbers, pose_fields, token
from modalities.driving.sim.rig import CAMERAS, LIDAR, SWEEP_US
from modalities.driving.sim.shapes import CATEGORIES
from modalities.driving.sim.world import World, make_world

__all__ = ["SPLITS", "points_in_box", "scene_name", "write_scene"]

SPLITS = ("train", "val")
MIN_PIXELS = 12
"""Pixels in all pictures together from which an object without lidar points is annotated."""

JPEG_QUALITY = 90
_START_US = 1_704_067_200_000_000
_SCENE_US = 60_000_000


def scene_name(split: str, index: int) -> str:
    """Its name in the tables."""
    return f"simdrive-{split}-{index:05d}"


def points_in_box(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Which points (n, 3) are in a box (x, y, z, length, width, height, yaw), faces included: bool (n,)."""
    offset = points - box[:3]
    c, s = np.cos(box[6]), np.sin(box[6])
    local = np.stack([c * offset[:, 0] + s * offset[:, 1], c * offset[:, 1] - s * offset[:, 0], offset[:, 2]], 1)
    inside: np.ndarray = (np.abs(local) <= box[3:6] / 2).all(1)
    return inside


@dataclass
class _Scene:
    """A scene while it is written."""

    folder: Path
    options: DriveOptions
    split: str
    index: int
    tables: dict[str, list[Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = scene_name(self.split, self.index)
        number = SPLITS.index(self.split)
        self.seed = (self.options.seed, number, self.index)
        self.start = _START_US + (number * 1_000_000 + self.index) * _SCENE_US
        rng = np.random.default_rng([*self.seed, 0])
        self.world: World = make_world(self.options, rng)
        # Somewhere on a map, as the poses of real cars are: large numbers, which only float64 holds.
        turn, x, y = rng.uniform(-np.pi, np.pi), *rng.uniform(300, 2000, 2)
        self.turn = float(turn)
        self.world_from_scene = np.eye(4)
        self.world_from_scene[:2] = [[np.cos(turn), -np.sin(turn), 0, x], [np.sin(turn), np.cos(turn), 0, y]]
        self.rows: dict[int, list[Record]] = {}  # annotations of each object
        self.last: dict[str, Record] = {}  # newest sample_data of each channel

    def token(self, *names: object) -> str:
        """A token that no other scene has."""
        return token(self.options.seed, self.name, *names)

    def add(self, table: str, record: Record) -> Record:
        """Adds a record to a table."""
        self.tables.setdefault(table, []).append(record)
        return record

    def data(self, channel: str, kind: str, frame: int, time: int, sample: str, size: tuple[int, int]) -> Path:
        """Records a file with the pose of its time, and says where it goes."""
        key = kind == "samples"
        suffix = "pcd.bin" if channel == LIDAR.channel else "jpg"
        filename = f"{kind}/{channel}/{self.name}__{channel}__{self.start + time}.{suffix}"
        name = self.token(channel, time)
        pose = self.world_from_scene @ self.world.ego_pose(time / 1e6)
        self.add("ego_pose", {"token": name, "timestamp": self.start + time, **pose_fields(pose)})
        before = self.last.get(channel)
        self.last[channel] = self.add(
            "sample_data",
            {
                "token": name,
                "sample_token": sample,
                "ego_pose_token": name,
                "calibrated_sensor_token": token("calibrated", channel),
                "timestamp": self.start + time,
                "fileformat": suffix[:3],
                "is_key_frame": key,
                "height": size[1],
                "width": size[0],
                "filename": filename,
                "prev": before["token"] if before else "",
                "next": "",
            },
        )
        if before:
            before["next"] = name
        return self.folder / filename

    def frame(self, number: int) -> None:
        """Writes a key frame with the sweeps before it."""
        options, world, time = self.options, self.world, number * KEY_FRAME_US
        sample = self.token("sample", number)
        rng = np.random.default_rng([*self.seed, 1, number])
        for back in range(options.sweeps, -1, -1):
            at = time - back * SWEEP_US
            sweep = scan(world, options.azimuths, at / 1e6, rng)
            kind = "sweeps" if back else "samples"
            self.data(LIDAR.channel, kind, number, at, sample, (0, 0)).write_bytes(sweep.points.tobytes())
        visible = alone = np.zeros(len(world.shapes), np.int64)
        for camera in CAMERAS:
            at = time + camera.offset_us
            view = render(world, camera, options.image_size, at / 1e6, rng)
            path = self.data(camera.channel, "samples", number, at, sample, options.image_size)
            Image.fromarray(view.image).save(path, quality=JPEG_QUALITY)
            visible, alone = visible + view.visible, alone + view.alone
        around = {"prev": self.token("sample", number - 1) if number else "", "next": ""}
        if number + 1 < options.frames:
            around["next"] = self.token("sample", number + 1)
        record = {"token": sample, "timestamp": self.start + time, **around, "scene_token": self.token("scene")}
        self.add("sample", record)
        self.annotate(sample, time, sweep, visible, alone)

    def annotate(self, sample: str, time: int, sweep: Sweep, visible: np.ndarray, alone: np.ndarray) -> None:
        """Records the boxes near the car that the lidar met or a camera shows."""
        ego = self.world.ego_pose(time / 1e6)[:2, 3]
        for number, box in enumerate(self.world.boxes(time / 1e6)):
            if np.hypot(*(box[:2] - ego)) > MAX_RANGE:
                continue
            count = int(points_in_box(sweep.scene, box).sum())
            if count == 0 and visible[number] < MIN_PIXELS:
                continue
            share = 100 * visible[number] / max(int(alone[number]), 1)
            level = next(name for name, _, high in VISIBILITY if share <= high)
            yaw = float(box[6]) + self.turn
            attribute = self.world.attributes[number]
            self.rows.setdefault(number, []).append(
                {
                    "token": self.token("annotation", number, time),
                    "sample_token": sample,
                    "instance_token": self.token("instance", number),
                    "visibility_token": level,
                    "attribute_tokens": [token("attribute", attribute)] if attribute else [],
                    "translation": numbers((self.world_from_scene @ (*box[:3], 1.0))[:3]),
                    "size": numbers(box[[4, 3, 5]]),  # width first
                    "rotation": numbers(np.array([np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]), 9),
                    "prev": "",
                    "next": "",
                    "num_lidar_pts": count,
                    "num_radar_pts": 0,
                }
            )

    def finish(self) -> dict[str, list[Record]]:
        """Links annotations and adds the scene."""
        for number, rows in sorted(self.rows.items()):
            for before, after in zip(rows, rows[1:], strict=False):
                before["next"], after["prev"] = after["token"], before["token"]
            ends = {"first_annotation_token": rows[0]["token"], "last_annotation_token": rows[-1]["token"]}
            category = token("category", CATEGORIES[self.world.shapes[number].name])
            counted = {"category_token": category, "nbr_annotations": len(rows)}
            self.add("instance", {"token": self.token("instance", number), **counted, **ends})
            self.tables.setdefault("sample_annotation", []).extend(rows)
        frames = self.options.frames
        look = self.world.look
        words = ", ".join(word for word, there in (("night", look.night), ("rain", look.rain)) if there)
        self.add(
            "scene",
            {
                "token": self.token("scene"),
                "log_token": token("log"),
                "nbr_samples": frames,
                "first_sample_token": self.token("sample", 0),
                "last_sample_token": self.token("sample", frames - 1),
                "name": self.name,
                "description": f"simulated: {words or 'day'}",
            },
        )
        return self.tables


def write_scene(folder: Path, options: DriveOptions, split: str, index: int) -> dict[str, list[Record]]:
    """Simulates a scene and writes its files.

    Args:
        folder: Of the data set; the folders of the channels exist.
        options: What is drawn.
        split: Of `SPLITS`.
        index: Number of the scene in its split.

    Returns:
        Records of the scene by table.

    Raises:
        OSError: If a file cannot be written.
    """
    scene = _Scene(folder, options, split, index)
    for number in range(options.frames):
        scene.frame(number)
    return scene.finish()
