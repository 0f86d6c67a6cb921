"""Pictures with boxes in the layout of YOLO: a `data.yaml`, pictures in `images/`, a text file each in `labels/`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.detection_sources import BoxedItem, Objects
from modalities.image.sources import SUFFIXES, read_file, stamps_sha256
from zoo.class_folders import split_names
from zoo.errors import DataError

__all__ = ["YoloSource", "find_yaml", "label_file", "parse_lines", "stored_size"]

YAML = ("data.yaml", "data.yml", "dataset.yaml")
_MOST_BYTES = 1 << 24  # Of a text file.
_SWAPPED = (5, 6, 7, 8)  # Orientations of EXIF that turn a picture by 90 degrees.


def find_yaml(data: Path) -> Path | None:
    """The `data.yaml` of a data set: the file itself, or that of the folder."""
    if data.is_file():
        return data if data.suffix.lower() in (".yaml", ".yml") else None
    return next((data / name for name in YAML if (data / name).is_file()), None)


def label_file(picture: Path) -> Path:
    """The file with the boxes of a picture: the last `images` of its path becomes `labels`; without one, beside it."""
    parts = list(picture.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == "images"]
    if places:
        parts[places[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def parse_lines(path: Path, classes: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The boxes in a text file, and what is wrong with the lines that are none.

    A line is a class and `x y width height` of the box (centre and sides), as shares of the picture's sides; of a
    polygon (three points or more) the box around it is taken.

    Args:
        path: The file; without one the picture has no boxes.
        classes: Number of classes.

    Returns:
        float64 (n, 4) x1, y1, x2, y2 as shares, int64 (n,) classes, and a text for each bad line.
    """
    boxes, labels, wrong = [], [], []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        where = f"{path.name} line {number}"
        try:
            label, values = float(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            wrong.append(f"{where}: {line.strip()!r:.60} is not numbers")
            continue
        if not np.isfinite([label, *values]).all():
            wrong.append(f"{where}: a number is not finite")
        elif label != int(label) or not 0 <= label < classes:
            wrong.append(f"{where}: {words[0]:.20} is not a class of 0..{classes - 1}")
        elif len(values) == 4:
            x, y, width, height = values
            boxes.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
            labels.append(int(label))
        elif len(values) >= 6 and len(values) % 2 == 0:
            across, down = values[::2], values[1::2]
            boxes.append((min(across), min(down), max(across), max(down)))
            labels.append(int(label))
        else:
            wrong.append(f"{where}: expected a class and four numbers, got {len(words)} words")
    return np.array(boxes, np.float64).reshape(-1, 4), np.array(labels, np.int64), wrong


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: larger than 16 MiB: no list of boxes")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable text ({error})") from error


def stored_size(path: Path) -> tuple[int, int] | None:
    """(height, width) of an upright picture by its header; `None` if that cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x0112) in _SWAPPED
    except Exception:  # Pillow raises many kinds; whoever decodes the picture says what is wrong with it.
        return None
    return (width, height) if turned else (height, width)


class YoloSource:
    """One split of a data set in the layout of YOLO, in the order of the names.

    `data.yaml` has `names` (a list, or a mapping from numbers) and for each split a folder, a list of folders, or a
    text file that lists pictures; relative to `path` in it, which is relative to the file. Pictures without a text
    file have no boxes.

    Args:
        path: The `data.yaml`.
        name: Of the data set.
        split: `"train"`, `"validation"` (in the file: `val`) or `"test"`.

    Raises:
        DataError: If the file is no such description, or the split or its pictures are not there.
    """

    def __init__(self, path: Path, name: str, split: str) -> None:
        self.path, self.name = path, name
        settings = _settings(path)
        self.class_names: list[str] | None = _names(settings, path)
        stated = next((settings[key] for key in split_names(split) if settings.get(key)), None)
        if stated is None:
            raise DataError(f"{path}: no split {split!r}; it has {', '.join(_splits(settings)) or 'none'}")
        roots = [path.parent / str(settings.get("path") or ""), path.parent]
        entries = stated if isinstance(stated, list) else [stated]
        self.files = [file for entry in entries for file in _pictures(str(entry), roots, path)]
        if not self.files:
            raise DataError(f"{path}: no pictures in {', '.join(map(str, entries))} (split {split})")
        labels = [found for file in self.files if (found := label_file(file)).is_file()]
        facts = (self.class_names, stamps_sha256(path.parent, [*filter(Path.is_file, self.files), *labels]))
        self.sha256 = hashlib.sha256(repr(facts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[BoxedItem]:
        for file in self.files:
            shares, labels, wrong = parse_lines(label_file(file), len(self.class_names or []))
            if wrong:
                raise DataError(f"{label_file(file).parent}: {wrong[0]}")
            size = stored_size(file)
            height, width = size or (1, 1)  # Decoding will fail and say why.
            boxes = (shares * [width, height, width, height]).astype(np.float32)
            objects = Objects(boxes, labels, np.zeros(len(boxes), bool), np.full(len(boxes), np.nan, np.float32), size)
            yield BoxedItem(str(file), objects, partial(read_file, file))


def _settings(path: Path) -> dict[str, Any]:
    import yaml

    try:
        settings = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise DataError(f"{path}: not YAML ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(settings, dict):
        raise DataError(f"{path}: expected a mapping with train, val and names")
    return settings


def _splits(settings: dict[str, Any]) -> list[str]:
    return [key for key in ("train", "val", "valid", "validation", "test") if settings.get(key)]


def _names(settings: dict[str, Any], path: Path) -> list[str]:
    names = settings.get("names")
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise DataError(f"{path}: names must be a list, or a mapping from 0, 1, ...; got {names!r:.80}")
    if "nc" in settings and settings["nc"] != len(names):
        raise DataError(f"{path}: nc is {settings['nc']!r:.20}, but there are {len(names)} names")
    return [str(name) for name in names]


def _pictures(entry: str, roots: list[Path], yaml: Path) -> list[Path]:
    """The pictures of a folder or of a list; exports of some tools say `../train/images` for what lies beside."""
    tried = [root / entry for root in roots] + [yaml.parent / entry.removeprefix("../")]
    found = next((path for path in tried if path.exists()), None)
    if found is None:
        raise DataError(f"{yaml}: {entry} is not there (looked for {', '.join(dict.fromkeys(map(str, tried)))})")
    if found.is_dir():
        return [f for f in sorted(found.rglob("*")) if f.suffix.lower() in SUFFIXES and f.is_file()]
    lines = [line.strip() for line in _text(found).splitlines() if line.strip()]
    return [next((p for root in roots if (p := root / line).is_file()), roots[0] / line) for line in lines]
