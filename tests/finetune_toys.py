"""Tiny models to start from, and tiny data of one's own in every layout, for the tests of fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import point_files
from detection_toys import NAMES, toy
from saved_models import randomise
from training_toys import toy_picture
from video_files import write_video

import zoo

SIZES = {"dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}
# What makes a run short; an evaluation after every second epoch.
SHORT: dict[str, Any] = {"epochs": 4, "eval_every": 2, "precision": "float32", "device": "cpu", "checkpoint_seconds": 0}


def base(folder: Path, name: str, **options: Any) -> str:
    """Saves a small network of a registered architecture with random weights; gives its name for `zoo.load`."""
    model = zoo.load(name, pretrained=False, **(options if "ptv3" in name else {**SIZES, **options}))
    randomise(model)
    zoo.save(model, folder)
    return f"local-dir:{folder}"


def write_pictures(root: Path, per_class: int, offset: int = 0, names: tuple[str, ...] = ("dark", "bright")) -> Path:
    """Class folders of small PNG files."""
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            (root / name / f"{number}.png").write_bytes(toy_picture(label, offset + number))
    return root


def write_coco(root: Path, counts: dict[str, int] | None = None, size: tuple[int, int] = (64, 64)) -> Path:
    """Pictures with boxes in the layout of COCO; `counts` are pictures by split."""
    (root / "annotations").mkdir(parents=True)
    for place, (split, count) in enumerate((counts or {"train": 10}).items()):
        (root / split).mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(count):
            data, boxes, labels = toy(100 * place + number, size)
            (root / split / f"{number}.png").write_bytes(data)
            images.append({"id": number, "file_name": f"{number}.png", "height": size[0], "width": size[1]})
            for box, label in zip(boxes, labels, strict=True):
                sides = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
                one = {"id": len(annotations), "image_id": number, "category_id": 10 * label + 1, "bbox": sides}
                annotations.append(one)
        categories = [{"id": 10 * label + 1, "name": name} for label, name in enumerate(NAMES)]
        values = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(values))
    return root


def write_yolo(root: Path, counts: dict[str, int] | None = None) -> Path:
    """The same in the layout of YOLO."""
    counts = counts or {"train": 10}
    for place, (split, count) in enumerate(counts.items()):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            data, boxes, labels = toy(100 * place + number)
            (root / "images" / split / f"{number}.png").write_bytes(data)
            lines = []
            for (x0, y0, x1, y1), label in zip(boxes, labels, strict=True):
                shares = np.array([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0]) / 64
                lines.append(f"{label} {' '.join(f'{value:.6f}' for value in shares)}\n")
            (root / "labels" / split / f"{number}.txt").write_text("".join(lines))
    text = "".join(f"{split}: images/{split}\n" for split in counts)
    (root / "data.yaml").write_text(f"path: .\n{text}nc: 2\nnames: {json.dumps(NAMES)}\n")
    return root


def write_videos(root: Path, per_class: int = 4, offset: int = 0) -> Path:
    """Class folders of small videos: one gets darker, one brighter."""
    for label, name in enumerate(("dim", "glow")):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            level = np.linspace(200, 40, 8) if label == 0 else np.linspace(40, 200, 8)
            noise = np.random.default_rng(100 * label + offset + number).integers(0, 20, (8, 16, 16, 3))
            pixels = (level[:, None, None, None] + noise).astype(np.uint8)
            write_video(root / name / f"{number}.avi", pixels=pixels)
    return root


def write_recordings(root: Path, per_class: int = 4, offset: int = 0) -> Path:
    """Class folders of N-MNIST files: events in the left or the right half of the sensor."""
    for label, name in enumerate(("left", "right")):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            events = event_files.draw(200, seed=100 * label + offset + number, width=17, height=34) + [
                0,
                17 * label,
                0,
                0,
            ]
            (root / name / f"{number}.bin").write_bytes(event_files.nmnist(events))
    return root


def write_clouds(root: Path, per_class: int = 4, offset: int = 0) -> Path:
    """Class folders of flat clouds (PLY) and of meshes (OFF)."""
    for label, name in enumerate(("flat", "mesh")):
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            data = point_files.cloud(60, 100 * label + offset + number)
            content = point_files.off(data) if label else point_files.ply(data)
            (root / name / f"{number}.{'off' if label else 'ply'}").write_bytes(content)
    return root
