"""nuScenes: key frames with cameras, motion-compensated lidar sweeps and boxes with velocities, from its own tables.

Reads any data set in this format, also partial copies: without sweeps there is only the key frame's own, without
annotations (test sets) no truth, without attributes or visibility these are unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from modalities.driving.nuscenes.annotations import AnnotationTables
from modalities.driving.nuscenes.classes import CAMERAS, DETECTION_CLASSES, LIDAR
from modalities.driving.nuscenes.splits import SPLITS, official_scenes
from modalities.driving.nuscenes.tables import Record, Tables, file_of, read_json_file, whole_number
from modalities.driving.rigid import invert_rigid
from modalities.driving.scene import Annotations, Camera, Sample
from modalities.driving.sweeps import drop_near, move, read_floats
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256

__all__ = ["NuScenes"]

_COLUMNS = 5  # of a point: x, y, z, intensity in 0..255, ring
_MAX_SPLIT_BYTES = 64 * 2**20
_MAX_FACTS_BYTES = 2**20
_MAX_SWEEPS = 100


class NuScenes:
    """A data set in the format of nuScenes.

    Args:
        dataroot: Folder with the folders of tables (such as `v1.0-mini`), `samples` and `sweeps`.
        version: Name of the folder of tables; if there is only one, it is found.
        classes: Detection classes that get labels 0, 1, ...; boxes of others get -1.
        min_distance: Lidar points nearer to the sensor than this along x and y, in metres, are left out: hits of the
            car itself.
        missing_images: What a picture without a file is: an error ("raise"), or a camera without an image ("mask").
        missing_lidar: What a key frame whose lidar sweep has no file is: an error ("raise"), or one without points
            ("mask"). A missing file of an earlier sweep is an error.

    Raises:
        DataError: If the tables cannot be used.
        ConfigError: If an option or a class is unknown.
    """

    def __init__(
        self,
        dataroot: str | Path,
        version: str | None = None,
        *,
        classes: Sequence[str] = DETECTION_CLASSES,
        min_distance: float = 1.0,
        missing_images: Literal["raise", "mask"] = "raise",
        missing_lidar: Literal["raise", "mask"] = "raise",
    ) -> None:
        unknown = [name for name in classes if name not in DETECTION_CLASSES]
        if unknown or len(set(classes)) < len(classes) or not classes:
            raise ConfigError(
                f"classes must be different ones of {', '.join(DETECTION_CLASSES)}; got {', '.join(classes) or 'none'}"
            )
        for name, value in (("missing_images", missing_images), ("missing_lidar", missing_lidar)):
            if value not in ("raise", "mask"):
                raise ConfigError(f'{name} must be "raise" or "mask", not {value!r}')
        self.dataroot = Path(dataroot)
        self.version = version or _only_version(self.dataroot)
        if "/" in self.version or self.version in ("", ".", ".."):
            raise ConfigError(f"version must be the name of a folder in {self.dataroot}, got {self.version!r}")
        self.tables = Tables(self.dataroot / self.version)
        self.classes = tuple(classes)
        self.min_distance = min_distance
        self._missing, self._missing_lidar = missing_images, missing_lidar
        self._annotations = AnnotationTables(self.tables, self.classes)
        self._data: dict[str, dict[str, Record]] = defaultdict(dict)
        for record in self.tables.table("sample_data").values():
            if record.get("is_key_frame") is True:
                channel, sample = (
                    self.tables.channel(record)[0],
                    self.tables.field("sample_data", record, "sample_token"),
                )
                if channel in self._data[sample]:
                    raise self.tables.bad("sample_data", record, f"a second key frame of {channel} of sample {sample}")
                self._data[sample][channel] = record

    def __len__(self) -> int:
        """Number of key frames of all splits."""
        return len(self.tables.table("sample"))

    @cached_property
    def name(self) -> str:
        """Name of the data set: `"nuscenes"`, unless a file beside the tables gives another one (simulated sets)."""
        from modalities.driving.sim.generate import FACTS_FILE

        path = self.tables.folder / FACTS_FILE
        facts = read_json_file(path, _MAX_FACTS_BYTES) if path.is_file() else None
        return str(facts.get("dataset", "nuscenes")) if isinstance(facts, dict) else "nuscenes"

    @cached_property
    def sha256(self) -> str:
        """Identifies the tables, which name all files."""
        return files_sha256(self.tables.folder, sorted(self.tables.folder.glob("*.json")))

    @cached_property
    def splits(self) -> Mapping[str, tuple[str, ...]]:
        """Names of scenes by split: those of `splits.json` beside the tables, and the official ones."""
        found = {name: official_scenes(name) for name in SPLITS}
        path = self.tables.folder / "splits.json"
        if path.exists():
            own = read_json_file(path, _MAX_SPLIT_BYTES)
            if not isinstance(own, dict) or not all(
                isinstance(names, list) and all(isinstance(name, str) for name in names) for names in own.values()
            ):
                raise DataError(f"{path}: must be an object of lists of scene names")
            found.update({name: tuple(names) for name, names in own.items()})
        return found

    def sample_tokens(self, split: str | None = None) -> list[str]:
        """Tokens of the key frames of a split in order of scene and time; of all of them without a split.

        Raises:
            ConfigError: If there is no such split, or this copy has no scene of it.
            DataError: If a sample's scene or time is broken.
        """
        if split is None:
            return sorted(self.tables.table("sample"), key=lambda token: (self.scene_name(token), self._time(token)))
        if split not in self.splits:
            raise ConfigError(f"{self.dataroot}: no split {split!r}; there are {', '.join(sorted(self.splits))}")
        wanted = set(self.splits[split])
        tokens = [token for token in self.sample_tokens() if self.scene_name(token) in wanted]
        if not tokens:
            raise ConfigError(f"{self.tables.folder}: none of its scenes is in the split {split!r}")
        return tokens

    def scene_name(self, token: str) -> str:
        """Name of the scene of a key frame; "" in copies without a table of scenes."""
        if "scene" not in self.tables:
            return ""
        record = self.tables.sample(token)
        scene = self.tables.get("scene", record.get("scene_token"), f"sample {token}")
        return str(self.tables.field("scene", scene, "name"))

    def sample(self, token: str, *, sweeps: int = 10) -> Sample:
        """Reads a key frame; pictures stay files until `Camera.read`.

        Args:
            token: Of the `sample` table.
            sweeps: Most lidar sweeps, the key frame's own and those before it. Where a copy has no folder `sweeps`, it
                is the key frame's own alone.

        Raises:
            ConfigError: If `sweeps` is not 1 to 100.
            DataError: If a table or file is broken or missing.
        """
        if not 1 <= sweeps <= _MAX_SWEEPS:
            raise ConfigError(f"sweeps must be 1 to {_MAX_SWEEPS}, got {sweeps}")
        time, data = self._time(token), self._data.get(token, {})
        lidar = data.get(LIDAR)
        global_from_ego = self.ego_pose(token)
        ego_from_global = invert_rigid(global_from_ego)
        return Sample(
            token=token,
            timestamp=time if lidar is None else self.tables.time("sample_data", lidar),
            cameras=tuple(self._camera(name, data[name], global_from_ego) for name in self._channels(data)),
            points=None if lidar is None else self._cloud(lidar, ego_from_global, sweeps),
            annotations=self._annotations.of(token, ego_from_global),
            global_from_ego=global_from_ego,
            ego_from_lidar=np.eye(4) if lidar is None else self._mounting(lidar),
            scene=self.scene_name(token),
        )

    def ego_pose(self, token: str) -> np.ndarray:
        """(4, 4) float64 global_from_ego of a key frame, at the time of its lidar (or of the first of its cameras).

        Raises:
            DataError: If there is no such key frame, or it has neither, or the pose is broken.
        """
        self.tables.sample(token)
        data = self._data.get(token, {})
        reference = data.get(LIDAR) or next((data[name] for name in self._channels(data)), None)
        if reference is None:
            raise DataError(f"{self.tables.folder}: sample {token} has neither a lidar sweep nor pictures")
        return self._pose(reference)

    def annotations(self, token: str, frame_from_global: np.ndarray | None = None) -> Annotations | None:
        """The labelled boxes of a key frame: see `AnnotationTables.of`."""
        return self._annotations.of(token, frame_from_global)

    def labels(self, token: str) -> np.ndarray:
        """(M,) int64 labels of the boxes of a key frame: see `AnnotationTables.labels`."""
        return self._annotations.labels(token)

    def velocity(self, annotation_token: str) -> np.ndarray:
        """(2,) velocity of a box in m/s in the global frame: see `AnnotationTables.velocity`."""
        return self._annotations.velocity(annotation_token)

    def _channels(self, data: Mapping[str, Record]) -> list[str]:
        """Cameras of a key frame, those of nuScenes first."""
        channels = [name for name in CAMERAS if name in data]
        return channels + sorted(n for n in data if n not in CAMERAS and self.tables.channel(data[n])[1] == "camera")

    def _time(self, token: str) -> int:
        return self.tables.time("sample", self.tables.sample(token))

    def _camera(self, name: str, record: Record, global_from_ego: np.ndarray) -> Camera:
        calibrated = self.tables.table("calibrated_sensor")[record["calibrated_sensor_token"]]
        what = f"sample_data {record['token']}"
        path = file_of(self.dataroot, record.get("filename"), what)
        here = path.is_file()
        if not here and self._missing == "raise":
            raise DataError(
                f'{path}: no such picture ({what}, {name}); missing_images="mask" makes it an absent camera'
            )
        try:
            intrinsics = np.asarray(calibrated.get("camera_intrinsic"), dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            intrinsics = np.empty(0)
        focal = intrinsics.shape == (3, 3) and intrinsics[0, 0] > 0 and intrinsics[1, 1] > 0
        if not focal or not np.isfinite(intrinsics).all():
            raise self.tables.bad("calibrated_sensor", calibrated, "camera_intrinsic must be a 3 x 3 camera matrix")
        ego_from_camera = self._mounting(record)
        # The camera's own pose of the car: it moved since (or will move until) the lidar's time.
        global_from_camera = self._pose(record) @ ego_from_camera
        size = tuple(whole_number(record.get(key)) or 0 for key in ("height", "width"))
        return Camera(
            name=name,
            image=path if here else None,
            intrinsics=intrinsics,
            camera_from_ego=invert_rigid(global_from_camera) @ global_from_ego,
            timestamp=self.tables.time("sample_data", record),
            size=(size[0], size[1]) if all(value > 0 for value in size) else None,
            token=record["token"],
        )

    def _cloud(self, lidar: Record, ego_from_global: np.ndarray, sweeps: int) -> np.ndarray | None:
        """The points of a key frame, or None where its own sweep has no file and that is no error."""
        path = file_of(self.dataroot, lidar.get("filename"), f"sample_data {lidar['token']}")
        if self._missing_lidar == "mask" and not path.exists():
            return None
        return self._points(lidar, ego_from_global, sweeps)

    def _points(self, lidar: Record, ego_from_global: np.ndarray, sweeps: int) -> np.ndarray:
        """(N, 5) float32: x, y, z in the ego frame of the key frame, intensity in 0..1, age in seconds."""
        parts: list[np.ndarray] = []
        reference, record, seen = self.tables.time("sample_data", lidar), lidar, set()
        count = sweeps if (self.dataroot / "sweeps").is_dir() else 1
        while True:
            if record["token"] in seen:
                raise self.tables.bad("sample_data", record, "its chain of prev comes back to it")
            seen.add(record["token"])
            path = file_of(self.dataroot, record.get("filename"), f"sample_data {record['token']}")
            points = drop_near(read_floats(path, _COLUMNS), self.min_distance)
            ego_from_sensor = ego_from_global @ self._pose(record) @ self._mounting(record)
            out = np.empty((len(points), 5), np.float32)
            out[:, :3] = move(points[:, :3], ego_from_sensor)
            out[:, 3] = points[:, 3] / 255
            out[:, 4] = (reference - self.tables.time("sample_data", record)) * 1e-6
            parts.append(out)
            before = record.get("prev", "")
            if len(parts) >= count or before in ("", None):
                return np.concatenate(parts)
            record = self.tables.get("sample_data", before, f"sample_data {record['token']} (prev)")
            if self.tables.channel(record)[0] != LIDAR:
                raise self.tables.bad(
                    "sample_data", record, f"a {LIDAR} sweep has it as prev, but it is of another sensor"
                )

    def _pose(self, record: Record) -> np.ndarray:
        return self.tables.rigid(
            "ego_pose", self.tables.get("ego_pose", record.get("ego_pose_token"), f"sample_data {record['token']}")
        )

    def _mounting(self, record: Record) -> np.ndarray:
        return self.tables.rigid(
            "calibrated_sensor", self.tables.table("calibrated_sensor")[record["calibrated_sensor_token"]]
        )


def _only_version(dataroot: Path) -> str:
    try:
        found = sorted(path.parent.name for path in dataroot.glob("*/sample_data.json"))
    except OSError as error:
        raise DataError(f"{dataroot}: cannot be listed ({error.strerror or error})") from error
    if len(found) > 1:
        raise DataError(f"{dataroot}: several folders of tables ({', '.join(found)}): pass version")
    if not found:
        wanted = "it has no folder of nuScenes tables, such as v1.0-mini with sample_data.json"
        if (dataroot / "sample_data.json").is_file():
            wanted = f"it holds the tables themselves: pass {dataroot.absolute().parent}"
        raise DataError(f"{dataroot}: not the root of a data set in the format of nuScenes: {wanted}")
    return found[0]
