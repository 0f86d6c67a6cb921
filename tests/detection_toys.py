"""Toy pictures with boxes: bright squares and dark bars on grey noise, as Parquet or in COCO's layout."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NAMES = ["square", "bar"]
SIZE = 64
TINY = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64, "patch_size": 8}
TINY |= {"pyramid_dim": 32, "class_width": 32}


def toy(index: int, size: tuple[int, int] = (SIZE, SIZE)) -> tuple[bytes, list[list[float]], list[int]]:
    """PNG bytes, boxes and labels of a picture; every fifth has no objects."""
    rng = np.random.default_rng(index)
    rows, columns = size
    picture = rng.integers(110, 130, (rows, columns, 3))
    boxes, labels = [], []
    for label in range(2 if index % 5 != 4 else 0):
        height, width = (18, 18) if label == 0 else (10, 24)
        left = int(rng.integers(0, columns - width))
        top = int(rng.integers(0, rows // 2 - height)) + label * rows // 2
        picture[top : top + height, left : left + width] = (230, 200, 40) if label == 0 else (20, 30, 120)
        boxes.append([float(left), float(top), float(left + width), float(top + height)])
        labels.append(label)
    buffer = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue(), boxes, labels


def write_boxes(path: Path, records: list[dict[str, Any]], names: list[str] | None = NAMES) -> Path:
    """A Parquet file as the Hub has them; each record has `image` (bytes), `boxes`, `labels` and any other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {"boxes": pa.list_(pa.list_(pa.float32())), "labels": pa.list_(pa.int64())}
    columns = {key: pa.array([r[key] for r in records], types.get(key)) for key in records[0] if key != "image"}
    table = pa.table({"image": pa.array([{"bytes": r["image"], "path": None} for r in records], image), **columns})
    if names:
        features = {"info": {"features": {"labels": {"feature": {"names": names, "_type": "ClassLabel"}}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path.parent


def write_toys(folder: Path, train: int = 10, validation: int = 5, size: tuple[int, int] = (SIZE, SIZE)) -> Path:
    """Both splits as Parquet."""
    for split, count, offset in (("train", train, 0), ("validation", validation, 500)):
        records = [dict(zip(("image", "boxes", "labels"), toy(offset + i, size), strict=True)) for i in range(count)]
        write_boxes(folder / f"{split}.parquet", records)
    return folder


def coco_of(count: int, offset: int = 0) -> tuple[dict[str, Any], dict[str, bytes]]:
    """COCO annotations with category ids 3 and 7, and the pictures by name; the first picture has a crowd."""
    images, annotations, files = [], [], {}
    for index in range(count):
        data, boxes, labels = toy(offset + index)
        name = f"{offset + index:012d}.png"
        files[name] = data
        images.append({"id": 10 + index, "file_name": name, "width": SIZE, "height": SIZE})
        for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True):
            box = [x1, y1, x2 - x1, y2 - y1]
            one = {"image_id": 10 + index, "category_id": (3, 7)[label], "bbox": box, "area": 100.0, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, **one})
    annotations[0]["iscrowd"] = 1
    categories = [{"id": 7, "name": "bar"}, {"id": 3, "name": "square"}]
    return {"images": images, "annotations": annotations, "categories": categories}, files


def write_coco(folder: Path, train: int = 8, validation: int = 4) -> Path:
    """The layout of COCO 2017."""
    (folder / "annotations").mkdir(parents=True)
    for split, count, offset in (("train2017", train, 0), ("val2017", validation, 500)):
        values, files = coco_of(count, offset)
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(values))
        (folder / split).mkdir()
        for name, data in files.items():
            (folder / split / name).write_bytes(data)
    return folder


def tiny_settings(data: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Keys of a recipe that trains in seconds on the CPU."""
    return {
        "task": "image-detection",
        "model": "pape-vit-det-n-bccd",
        "model_options": dict(TINY),
        "image_size": [SIZE, SIZE],
        "data": str(data),
        "output": str(output),
        "epochs": 3,
        "batch_size": 4,
        "lr": 2e-3,
        "precision": "float32",
        "device": "cpu",
        "drop_path": 0.2,
        "ema": 0.9,
        "checkpoint_seconds": 0.0,
        **changes,
    }
