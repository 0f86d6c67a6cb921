"""Files of detections in the format of nuScenes: JSON of boxes in the global frame, by token of the key frame."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import boxes_from_devkit, boxes_to_devkit
from modalities.driving.metrics import MAX_BOXES, Detections
from modalities.driving.nuscenes.classes import ATTRIBUTES, DETECTION_CLASSES, default_attribute
from modalities.driving.nuscenes.tables import read_json_file
from zoo.errors import DataError
from zoo.files import write_whole

__all__ = ["Modalities", "Submission", "read_submission", "submission_boxes", "write_submission"]

_MAX_BYTES = 4 * 2**30
_USES = ("use_camera", "use_lidar", "use_radar", "use_map", "use_external")


_KEYS = ("translation", "size", "rotation", "velocity", "detection_name", "detection_score", "attribute_name")


@dataclass(frozen=True)
class Modalities:
    """What a submission says it was made with: sensors, the map, and data beyond that of nuScenes."""

    use_camera: bool = False
    use_lidar: bool = False
    use_radar: bool = False
    use_map: bool = False
    use_external: bool = False


@dataclass(frozen=True, eq=False)
class Submission:
    """A file of detections: what it was made with, and boxes of float64 in the global frame by key frame."""

    modalities: Modalities
    results: Mapping[str, Detections]


def submission_boxes(token: str, found: Detections, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The boxes of one key frame as the format has them.

    A velocity that is not known is written as 0, since the format has no word for that; a box without an attribute
    gets the likeliest one of its class and speed.

    Args:
        token: Of the key frame.
        found: Scored boxes in the global frame, in float64 since coordinates there reach kilometres.
        classes: Names of labels 0, 1, ....

    Raises:
        DataError: If there are no scores, too many boxes, or a label or an attribute is none.
    """
    boxes, attributes = found
    if boxes.score is None or len(boxes) > MAX_BOXES:
        raise DataError(f"submission: {token} needs scores, and at most {MAX_BOXES} boxes; it has {len(boxes)}")
    if attributes and len(attributes) != len(boxes):
        raise DataError(f"submission: {token} has {len(boxes)} boxes, but {len(attributes)} attributes")
    centre, wlh, quaternion = boxes_to_devkit(boxes)
    velocity = np.nan_to_num(boxes.velocity.detach().cpu().double().numpy(), nan=0.0)
    score, label = boxes.score.detach().cpu().tolist(), boxes.label.cpu().tolist()
    rows = []
    for row in range(len(boxes)):
        if not 0 <= label[row] < len(classes):
            raise DataError(f"submission: box {row} of {token} has the label {label[row]}, none of the classes")
        name = classes[label[row]]
        attribute = attributes[row] if attributes else ""
        rows.append(
            {
                "sample_token": token,
                "translation": centre[row].tolist(),
                "size": wlh[row].tolist(),
                "rotation": quaternion[row].tolist(),
                "velocity": velocity[row].tolist(),
                "detection_name": name,
                "detection_score": score[row],
                "attribute_name": attribute or default_attribute(name, float(np.hypot(*velocity[row]))),
            }
        )
    return rows


def write_submission(
    path: str | Path,
    results: Mapping[str, Detections],
    modalities: Modalities,
    *,
    classes: Sequence[str] = DETECTION_CLASSES,
) -> None:
    """Writes a file of detections, whole or not at all.

    Args:
        path: Where to; its folder must exist.
        results: Scored boxes in the global frame (`boxes.to(dtype=torch.float64).transform(global_from_ego)`), by
            token; key frames without boxes have an entry too.
        modalities: What they were made with.
        classes: Names of labels 0, 1, ....

    Raises:
        DataError: As `submission_boxes` says, or if a number or a name is not what the format allows.
    """
    boxes = {token: submission_boxes(token, found, classes) for token, found in results.items()}
    content = {"meta": {use: getattr(modalities, use) for use in _USES}, "results": boxes}
    _parse(content, str(path), DETECTION_CLASSES)
    write_whole(Path(path), json.dumps(content, allow_nan=False))


def read_submission(path: str | Path, *, classes: Sequence[str] = DETECTION_CLASSES) -> Submission:
    """Reads and checks a file of detections.

    Args:
        path: The JSON file.
        classes: Names of labels 0, 1, ...; boxes of other detection classes are refused.

    Raises:
        DataError: If it is not in the format; names the key frame and the box.
    """
    return _parse(read_json_file(Path(path), _MAX_BYTES), str(path), classes)


def _parse(content: Any, name: str, classes: Sequence[str]) -> Submission:
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise DataError(f'{name}: not a nuScenes submission: an object with "meta" and an object "results" is expected')
    meta = content.get("meta")
    if not isinstance(meta, dict) or not all(isinstance(meta.get(use), bool) for use in _USES):
        raise DataError(f'{name}: "meta" must say true or false for {", ".join(_USES)}')
    label = {known: number for number, known in enumerate(classes)}
    results = {}
    for token, rows in content["results"].items():
        if not isinstance(rows, list) or len(rows) > MAX_BOXES:
            raise DataError(f"{name}: sample {token!r:.60} must have a list of at most {MAX_BOXES} boxes")
        for number, row in enumerate(rows):
            _check_box(row, token, label, f"{name}: box {number} of sample {token!r:.60}")
        results[token] = Detections(Boxes3D.empty(scored=True, dtype=torch.float64))
        if rows:
            columns = {key: [row[key] for row in rows] for key in _KEYS}
            boxes = boxes_from_devkit(columns["translation"], columns["size"], columns["rotation"]).with_(
                velocity=torch.tensor(columns["velocity"], dtype=torch.float64),
                label=torch.tensor([label[known] for known in columns["detection_name"]]),
                score=torch.tensor(columns["detection_score"], dtype=torch.float64),
            )
            results[token] = Detections(boxes, tuple(columns["attribute_name"]))
    return Submission(Modalities(**{use: meta[use] for use in _USES}), results)


def _check_box(row: Any, token: str, label: Mapping[str, int], where: str) -> None:
    if not isinstance(row, dict):
        raise DataError(f"{where}: must be an object")
    if row.get("sample_token") != token:
        raise DataError(f"{where}: its sample_token is {row.get('sample_token')!r:.60}")
    for key, count in (("translation", 3), ("size", 3), ("rotation", 4), ("velocity", 2)):
        values = row.get(key)
        if not isinstance(values, list) or len(values) != count or not all(map(_finite, values)):
            raise DataError(f"{where}: {key} must be {count} finite numbers, got {values!r:.80}")
    if min(row["size"]) <= 0:
        raise DataError(f"{where}: size must be positive, got {row['size']}")
    if abs(math.hypot(*row["rotation"]) - 1) > 0.01:
        raise DataError(f"{where}: rotation must be a quaternion of length 1 (w, x, y, z), got {row['rotation']}")
    if not _finite(row.get("detection_score")) or not 0 <= row["detection_score"] <= 1:
        raise DataError(f"{where}: detection_score must be 0 to 1, got {row.get('detection_score')!r:.60}")
    name = row.get("detection_name")
    if not isinstance(name, str) or name not in label:
        raise DataError(f"{where}: detection_name {name!r:.60} is none of {', '.join(label)}")
    if row.get("attribute_name") not in (*ATTRIBUTES, ""):
        raise DataError(f"{where}: attribute_name {row.get('attribute_name')!r:.60} is none of {', '.join(ATTRIBUTES)}")


def _finite(value: Any) -> bool:
    # Bounded, since whole numbers of JSON can be larger than any float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12
