"""The labelled boxes of nuScenes: categories, sizes and velocities from the tables of annotations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import boxes_from_devkit
from modalities.driving.nuscenes.classes import detection_class
from modalities.driving.nuscenes.tables import Record, Tables, whole_number
from modalities.driving.rigid import MAX_COORDINATE
from modalities.driving.scene import Annotations

__all__ = ["AnnotationTables"]

_MAX_GAP_S = 1.5  # longest time between annotations that give a velocity, as the devkit has it


class AnnotationTables:
    """Annotations by key frame.

    Args:
        tables: All tables.
        classes: Detection classes that get labels 0, 1, ...; boxes of others get -1.

    Raises:
        DataError: If an annotation belongs to no sample.
    """

    def __init__(self, tables: Tables, classes: Sequence[str]) -> None:
        self.tables = tables
        self._label = {name: number for number, name in enumerate(classes)}
        self._by_sample: dict[str, list[Record]] = defaultdict(list)
        for record in tables.table("sample_annotation").values():
            self._by_sample[tables.field("sample_annotation", record, "sample_token")].append(record)

    def of(self, token: str, frame_from_global: np.ndarray | None = None) -> Annotations | None:
        """The labelled boxes of a key frame, all of them, in the order of the table.

        Args:
            token: Of the key frame.
            frame_from_global: (4, 4) transform to the frame they are wanted in; the global frame without it, and then
                in float64, since coordinates there reach kilometres.

        Returns:
            None where this copy has no annotations at all (test sets).

        Raises:
            DataError: If a record is broken.
        """
        self.tables.sample(token)
        if "sample_annotation" not in self.tables:
            return None
        records = self._by_sample.get(token, [])
        categories = [self._category(record) for record in records]
        boxes = self._boxes(records, categories)
        if frame_from_global is not None:
            boxes = boxes.transform(frame_from_global).to(dtype=torch.float32)
        return Annotations(
            boxes,
            np.array([self._count(record, "num_lidar_pts") for record in records], dtype=np.int64),
            np.array([self._count(record, "num_radar_pts") for record in records], dtype=np.int64),
            tuple(record["token"] for record in records),
            tuple(categories),
            tuple(self._attribute(record) for record in records),
            np.array([self._visibility(record) for record in records], dtype=np.int64),
        )

    def labels(self, token: str) -> np.ndarray:
        """(M,) int64 labels of the boxes of a key frame, as `of` gives them, without reading anything else.

        Raises:
            DataError: If a record is broken.
        """
        self.tables.sample(token)
        names = [detection_class(self._category(record)) for record in self._by_sample.get(token, [])]
        return np.array([-1 if name is None else self._label.get(name, -1) for name in names], dtype=np.int64)

    def velocity(self, annotation_token: str) -> np.ndarray:
        """(2,) velocity in m/s in the global frame: the difference of the annotations before and after.

        Where there is only one of them, it is the difference from it; NaN where there is none, or they are more than
        3 s (1.5 s with only one) apart.

        Raises:
            DataError: If the chain of annotations is broken.
        """
        record = self.tables.get("sample_annotation", annotation_token, "a request")
        ends = [self._neighbour(record, key) for key in ("prev", "next")]
        if ends[0] is None and ends[1] is None:
            return np.full(2, math.nan)
        limit = _MAX_GAP_S * (2 if ends[0] is not None and ends[1] is not None else 1)
        first, last = ends[0] or record, ends[1] or record
        times = [self._time(end) for end in (first, last)]
        seconds = (times[1] - times[0]) * 1e-6
        if seconds <= 0:
            raise self.tables.bad("sample_annotation", record, "its prev and next are not before and after it")
        if seconds > limit:
            return np.full(2, math.nan)
        return (self._numbers(last, "translation", 3) - self._numbers(first, "translation", 3))[:2] / seconds

    def _time(self, record: Record) -> int:
        asked = f"sample_annotation {record['token']}"
        return self.tables.time("sample", self.tables.get("sample", record.get("sample_token"), asked))

    def _neighbour(self, record: Record, key: str) -> Record | None:
        token = record.get(key, "")
        if token in ("", None):
            return None
        other = self.tables.get("sample_annotation", token, f"sample_annotation {record['token']} ({key})")
        if other.get("instance_token") != record.get("instance_token"):
            raise self.tables.bad("sample_annotation", record, f"its {key} {token!r:.60} is of another instance")
        return other

    def _boxes(self, records: list[Record], categories: list[str]) -> Boxes3D:
        if not records:
            return Boxes3D.empty(dtype=torch.float64)
        names = [detection_class(category) for category in categories]
        sizes = [self._numbers(record, "size", 3) for record in records]
        for record, size in zip(records, sizes, strict=True):
            if not (size > 0).all():
                raise self.tables.bad("sample_annotation", record, f"its size {size.tolist()} is not positive")
        for record in records:  # one by one, so that an error names the record
            self.tables.rigid("sample_annotation", record)
        boxes = boxes_from_devkit(
            [self._numbers(record, "translation", 3) for record in records],
            sizes,
            [self._numbers(record, "rotation", 4) for record in records],
        )
        velocities = np.stack([self.velocity(record["token"]) for record in records])
        labels = [-1 if name is None else self._label.get(name, -1) for name in names]
        return boxes.with_(velocity=torch.from_numpy(velocities), label=torch.tensor(labels, dtype=torch.int64))

    def _numbers(self, record: Record, key: str, count: int) -> np.ndarray:
        try:
            values = np.asarray(record.get(key), dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.empty(0)
        if values.shape != (count,) or not (np.abs(values) < MAX_COORDINATE).all():  # False for NaN.
            raise self.tables.bad("sample_annotation", record, f"{key} must be {count} finite numbers of metres")
        return values

    def _count(self, record: Record, key: str) -> int:
        count = whole_number(record.get(key))
        return -1 if count is None else count

    def _category(self, record: Record) -> str:
        if isinstance(record.get("category_name"), str):  # written by tools that flatten the tables
            return str(record["category_name"])
        asked = f"sample_annotation {record['token']}"
        instance = self.tables.get("instance", record.get("instance_token"), asked)
        category = self.tables.get("category", instance.get("category_token"), f"instance {instance['token']}")
        return str(self.tables.field("category", category, "name"))

    def _attribute(self, record: Record) -> str:
        tokens = record.get("attribute_tokens") or []
        if not isinstance(tokens, list) or len(tokens) > 1:
            raise self.tables.bad("sample_annotation", record, "attribute_tokens must be a list of at most one token")
        if not tokens or "attribute" not in self.tables:
            return ""
        attribute = self.tables.get("attribute", tokens[0], f"sample_annotation {record['token']}")
        return str(self.tables.field("attribute", attribute, "name"))

    def _visibility(self, record: Record) -> int:
        token: Any = record.get("visibility_token")
        return int(token) if token in ("1", "2", "3", "4") else 0  # the tokens of this table are its levels
