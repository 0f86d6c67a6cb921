"""The tables of nuScenes: JSON files of records that name each other by tokens.

Everything is checked as it is looked up, so that an error names the table and the record. Tables that many copies lack
(maps, logs, attributes, visibility, and the annotations of test sets) may be absent.
"""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from modalities.driving.rigid import rigid
from zoo.errors import DataError

__all__ = ["MAX_TABLE_BYTES", "Record", "Tables", "file_of", "whole_number"]

MAX_TABLE_BYTES = 4 * 2**30
"""Largest table read (the largest of nuScenes v1.0-trainval, sample_data, has about 1.2 GiB)."""

REQUIRED = ("sample", "sample_data", "ego_pose", "calibrated_sensor", "sensor")
OPTIONAL = ("scene", "sample_annotation", "instance", "category", "attribute", "visibility")

Record = Mapping[str, Any]

_LEFT_OUT = object()
_MAX_NAME = 1024  # longest name of a file
_FEW = 3  # tokens that a message names


class Tables:
    """Records of one version of the data set, by table and token.

    Of `sample_data` only what driving scenes are made of is kept: lidar sweeps and the pictures of key frames; of
    `ego_pose` only what these refer to. For full nuScenes this is about 2.5 GiB of memory, and 4 GiB while reading
    (ten times what tables of a tenth of its size take).

    Args:
        folder: Holds the tables, such as `DATAROOT/v1.0-mini`.

    Raises:
        DataError: If a table is missing, too large, not JSON, or not a list of records with tokens of their own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder of nuScenes tables")
        absent = [name for name in REQUIRED if not (folder / f"{name}.json").exists()]
        if absent:
            raise DataError(f"{folder}: lacks the tables {', '.join(f'{name}.json' for name in absent)}")
        self._tables: dict[str, dict[str, Record]] = {}
        for name in ("sensor", "calibrated_sensor", "sample", *OPTIONAL):
            self._tables[name] = self._read(name)
        self._channels = {token: self._channel_of(token) for token in self._tables["calibrated_sensor"]}
        self._tables["sample_data"] = self._read("sample_data", self._wanted)
        data = self._tables["sample_data"].values()
        poses = {self.field("sample_data", record, "ego_pose_token") for record in data}
        self._tables["ego_pose"] = self._read("ego_pose", lambda record: record["token"] in poses)

    def __contains__(self, name: str) -> bool:
        """Says whether there are records of a table."""
        return bool(self._tables.get(name))

    def table(self, name: str) -> Mapping[str, Record]:
        """All records of a table by token, in the order of the file; empty for an absent one."""
        return self._tables[name]

    def get(self, name: str, token: Any, asked_by: str) -> Record:
        """One record.

        Args:
            name: The table.
            token: Which.
            asked_by: Who refers to it, for the message.

        Raises:
            DataError: If there is no such record.
        """
        record = self._tables[name].get(token) if isinstance(token, str) else None
        if record is None:
            absent = "" if self._tables[name] else " (the table is empty or absent)"
            raise DataError(f"{self.folder}: {asked_by} refers to {name} {token!r:.60}, which does not exist{absent}")
        return record

    def field(self, name: str, record: Record, key: str, kind: type | tuple[type, ...] = str) -> Any:
        """A field of a record of a table.

        Raises:
            DataError: If it is absent or of another type.
        """
        value = record.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
            raise self.bad(name, record, f"{key} must be {wanted}, got {value!r:.60}")
        return value

    def bad(self, name: str, record: Record, what: str) -> DataError:
        """An error that names the table and the record."""
        return DataError(f"{self.folder / name}.json: record {record.get('token')!r:.60}: {what}")

    def time(self, name: str, record: Record) -> int:
        """The timestamp of a record of a table, in microseconds.

        Raises:
            DataError: If it has none.
        """
        time = whole_number(record.get("timestamp"))
        if time is None or not 0 <= time < 2**63:
            raise self.bad(name, record, f"timestamp must be microseconds, got {record.get('timestamp')!r:.60}")
        return time

    def rigid(self, name: str, record: Record) -> np.ndarray:
        """(4, 4) float64 transform of the translation and rotation of a record of a table.

        Raises:
            DataError: If they are not that.
        """
        try:
            return rigid(record.get("translation"), record.get("rotation"))
        except DataError as error:
            raise self.bad(name, record, str(error)) from error

    def sample(self, token: Any) -> Record:
        """The record of a key frame that a user asks for.

        Raises:
            DataError: If there is none; names a few that there are.
        """
        samples = self._tables["sample"]
        record = samples.get(token) if isinstance(token, str) else None
        if record is None:
            some = ", ".join(itertools.islice(samples, _FEW))
            hint = f"; of its {len(samples)} some are {some}" if len(samples) > _FEW else f"; there are {some}"
            raise DataError(f"{self.folder}: no sample {token!r:.60}{hint if samples else ''}")
        return record

    def channel(self, record: Record) -> tuple[str, str]:
        """Channel and modality of a sample_data record, such as ("CAM_FRONT", "camera")."""
        token = record.get("calibrated_sensor_token")
        if not isinstance(token, str) or token not in self._channels:
            raise self.bad("sample_data", record, f"no calibrated_sensor {token!r:.60}")
        return self._channels[token]

    def _channel_of(self, token: str) -> tuple[str, str]:
        calibrated = self._tables["calibrated_sensor"][token]
        sensor = self.get("sensor", calibrated.get("sensor_token"), f"calibrated_sensor {token}")
        return self.field("sensor", sensor, "channel"), self.field("sensor", sensor, "modality")

    def _wanted(self, record: Record) -> bool:
        modality = self.channel(record)[1]
        return modality == "lidar" or (modality == "camera" and record.get("is_key_frame") is True)

    def _read(self, name: str, wanted: Callable[[Record], bool] | None = None) -> dict[str, Record]:
        path = self.folder / f"{name}.json"
        if name in OPTIONAL and not path.exists():
            return {}

        def keep(record: dict[str, Any]) -> Any:
            # As soon as it is parsed: most records of the largest tables are not wanted.
            has_token = isinstance(record.get("token"), str)
            return record if wanted is None or not has_token or wanted(record) else _LEFT_OUT

        records = read_json_file(path, keep=keep)
        if not isinstance(records, list):
            raise DataError(f"{path}: must be a list of records, is a JSON {type(records).__name__}")
        found: dict[str, Record] = {}
        for number, record in enumerate(records):
            if record is _LEFT_OUT:
                continue
            token = record.get("token") if isinstance(record, dict) else None
            if not isinstance(token, str) or not token:
                raise DataError(f"{path}: record {number} has no token")
            if token in found:
                raise DataError(f"{path}: token {token!r:.60} appears twice")
            found[token] = record
        return found


def read_json_file(
    path: Path, max_bytes: int = MAX_TABLE_BYTES, keep: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parses a JSON file of bounded size.

    Args:
        path: The file.
        max_bytes: Refuses more than this.
        keep: Given each object once it is parsed; what it returns takes the place of the object.

    Raises:
        DataError: If it is no regular file, too large, or not JSON.
    """

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file")
        if status.st_size > max_bytes:
            raise DataError(f"{path}: {status.st_size} bytes; at most {max_bytes} are read")
        return json.loads(path.read_bytes(), parse_constant=refuse, object_hook=keep)
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise DataError(f"{path}: cannot be read as JSON ({reason})") from error


def file_of(root: Path, filename: Any, what: str) -> Path:
    """The path of a file that a table names, which must lie below the root.

    Raises:
        DataError: If the name is absolute, climbs out of the root or is no name.
    """
    if not isinstance(filename, str) or not filename:
        raise DataError(f"{what}: filename must be a path below {root}, got {filename!r:.80}")
    pure = PurePosixPath(filename)
    strange = any(sign in filename for sign in ("\\", "\0", ":"))
    strange = strange or len(filename) > _MAX_NAME or any(len(part) > 255 for part in pure.parts)
    if strange or pure.is_absolute() or ".." in pure.parts or not pure.name:
        raise DataError(f"{what}: the filename {filename!r:.80} leads out of {root}, or is no name")
    return root / pure


def whole_number(value: Any) -> int | None:
    """The value as an int of 64 bits, or None where it is none (JSON may write 5 as 5.0)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None
