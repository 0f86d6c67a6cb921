"""Pictures with boxes, decoded once; see `modalities.image.packing` for the files.

What is done with boxes when they are packed: they are cut at the edges of their picture; those without area (also after
that) are left out and counted in `meta["dropped_boxes"]`. Boxes around groups ("crowds") stay, marked.
"""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.detection_sources import BoxedItem, open_boxed_source
from modalities.image.hub_boxes import HubBoxes
from modalities.image.packing import PackedPixels, PictureSource, open_arrays, open_or_pack, pack_pictures
from zoo.errors import DataError

__all__ = ["PackedDetections", "boxed_pictures", "open_packed_boxes", "pack_boxes"]

_ARRAYS = {"counts": np.int64, "boxes": np.float32, "labels": np.int64, "crowd": np.bool_, "area": np.float32}


@dataclass(frozen=True)
class PackedDetections(PackedPixels):
    """Decoded pictures with objects.

    Attributes:
        sizes: int32 (N, 2), height and width of the pictures before they were resized for packing.
        counts: int64 (N,) objects of each picture; the arrays of objects hold them one picture after the other.
        boxes: float32 (M, 4), x1, y1, x2, y2 in pixels of the pictures before resizing.
        labels: int64 (M,).
        crowd: bool (M,), True for boxes around a group.
        area: float32 (M,) in square pixels before resizing.
    """

    sizes: np.ndarray
    counts: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray

    @property
    def num_classes(self) -> int:
        """Number of classes: of the names, or one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max(initial=0)) + 1

    def objects(self, index: int) -> slice:
        """Where the objects of a picture are in the arrays of objects."""
        return slice(int(self._first[index]), int(self._first[index + 1]))

    @functools.cached_property
    def _first(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(self.counts)))

    def rarest_classes(self) -> np.ndarray:
        """int64 (N,): of the classes in each picture the one with the fewest boxes in all; -1 without boxes."""
        totals = np.bincount(self.labels, minlength=self.num_classes)
        own = (self.labels[self.objects(row)] for row in range(len(self)))
        return np.array([labels[totals[labels].argmin()] if len(labels) else -1 for labels in own], np.int64)

    def targets(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The objects of some pictures that a detector is trained on (no crowds), padded to the same number.

        Args:
            rows: Indices of P pictures.

        Returns:
            Boxes float32 (P, M, 4) in pixels of the packed pictures, labels int64 (P, M) and mask bool (P, M), where M
            is at least 1.
        """
        own = []
        for row in rows.tolist():
            where = self.objects(row)
            kept = np.flatnonzero(~self.crowd[where]) + where.start
            own.append(kept)
        most = max(1, *map(len, own)) if own else 1
        boxes = np.zeros((len(rows), most, 4), dtype=np.float32)
        labels, mask = np.zeros((len(rows), most), dtype=np.int64), np.zeros((len(rows), most), dtype=bool)
        for place, (row, kept) in enumerate(zip(rows.tolist(), own, strict=True)):
            height, width = self.shapes[row] / self.sizes[row]
            boxes[place, : len(kept)] = self.boxes[kept] * np.array([width, height, width, height], dtype=np.float32)
            labels[place, : len(kept)], mask[place, : len(kept)] = self.labels[kept], True
        return boxes, labels, mask


def boxed_pictures(
    data: str | os.PathLike[str],
    split: str = "train",
    *,
    size: tuple[int, int] | None = None,
    category_ids: bool = False,
    skip_bad: bool = False,
    cache: Path | None = None,
    quiet: bool = True,
) -> PackedDetections:
    """Opens one split of a detection data set, packing it first if that has not been done for these very files.

    Args:
        data: See `open_boxed_source`; or a packed set.
        split: `"train"`, `"validation"`, `"test"`, ...
        size: (height, width): larger pictures are shrunk to fit in when packing, with their aspect ratio; `None` keeps
            them as they are.
        category_ids: See `open_boxed_source`.
        skip_bad: Leave out pictures that cannot be decoded, are missing, or have another size than the annotations say,
            instead of raising.
        cache: Where packed sets are kept; `None` = `default_cache()`.
        quiet: Show no progress bar.

    Raises:
        DataError: If there is no such data, or a picture or an annotation cannot be used.
    """
    if (Path(data) / "meta.json").is_file():
        return open_packed_boxes(Path(data))
    source = open_boxed_source(Path(data), split, category_ids=category_ids)
    packed = open_or_pack(
        source,
        split,
        ("boxes", size, category_ids, skip_bad),
        cache,
        open_packed_boxes,
        lambda folder: pack_boxes(source, folder, size=size, skip_bad=skip_bad, quiet=quiet),
    )
    if dropped := packed.meta["dropped_boxes"]:
        warnings.warn(f"{source.path}: {dropped} boxes without area in their picture left out", stacklevel=2)
    return packed


def open_packed_boxes(folder: Path) -> PackedDetections:
    """Opens a packed set and checks it.

    Raises:
        DataError: If it is not whole.
    """
    return open_arrays(folder, _checked)


def _checked(
    pixels: np.ndarray, shapes: np.ndarray, arrays: dict[str, np.ndarray], meta: dict[str, Any]
) -> PackedDetections:
    sizes, objects = arrays["sizes"], len(arrays["labels"])
    for name, dtype in _ARRAYS.items():
        shape = {"counts": (len(shapes),), "boxes": (objects, 4)}.get(name, (objects,))
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            raise ValueError(f"{name}.npy does not fit")
    if sizes.shape != shapes.shape or (sizes <= 0).any():
        raise ValueError("sizes.npy does not fit")
    counts, labels = arrays["counts"], arrays["labels"]
    if (counts < 0).any() or counts.sum() != objects:
        raise ValueError("counts.npy does not fit")
    if (labels < 0).any() or (meta["labels"] is not None and labels.max(initial=0) >= len(meta["labels"])):
        raise ValueError("labels.npy has more classes than there are names")
    if not np.isfinite(arrays["boxes"]).all():
        raise ValueError("boxes.npy does not fit")
    return PackedDetections(pixels, shapes, meta, sizes, **{name: arrays[name] for name in _ARRAYS})


def pack_boxes(
    source: PictureSource,
    folder: Path,
    *,
    size: tuple[int, int] | None = None,
    skip_bad: bool = False,
    quiet: bool = True,
) -> PackedDetections:
    """Decodes all pictures of `source` into `folder`; it appears whole or not at all.

    Raises:
        DataError: If a picture is damaged (unless `skip_bad`), none is left, or the folder cannot be written.
    """

    def describe(items: list[BoxedItem], sizes: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if isinstance(source, HubBoxes):
            source.check_form(items, sizes)
        own = [_usable(item, picture) for item, picture in zip(items, sizes, strict=True)]
        arrays = {name: np.concatenate([one[name] for one in own]) for name in _ARRAYS if name != "counts"}
        counts = np.array([len(one["labels"]) for one in own], dtype=np.int64)
        dropped = sum(len(item.objects.labels) for item in items) - int(counts.sum())
        return {"sizes": sizes, "counts": counts, **arrays}, {"size": size, "dropped_boxes": dropped}

    fit = None if size is None else functools.partial(_shrink, size=size)
    pack_pictures(source, folder, fit=fit, check=_check_size, describe=describe, skip_bad=skip_bad, quiet=quiet)
    return open_packed_boxes(folder)


def _check_size(item: BoxedItem, size: tuple[int, int]) -> None:
    stated = item.objects.size
    if stated is not None and stated != size:
        raise DataError(
            f"the picture is {size[1]} x {size[0]} pixels, its annotations are for {stated[1]} x {stated[0]}"
        )


def _usable(item: BoxedItem, size: np.ndarray) -> dict[str, np.ndarray]:
    objects = item.objects
    height, width = (float(side) for side in size)
    boxes = objects.boxes.clip(0, np.array([width, height, width, height], dtype=np.float32))
    kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    boxes = boxes[kept]
    of_box = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    area = np.where(np.isfinite(objects.area[kept]), objects.area[kept], of_box).astype(np.float32)
    return {"boxes": boxes, "labels": objects.labels[kept], "crowd": objects.crowd[kept], "area": area}


def _shrink(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import torch
    from torchvision.transforms import v2

    rows, columns = picture.shape[1:]
    scale = min(size[0] / rows, size[1] / columns)
    if scale >= 1:
        return picture
    fitted = [max(1, round(rows * scale)), max(1, round(columns * scale))]
    return v2.functional.resize(torch.from_numpy(picture), fitted, v2.InterpolationMode.BICUBIC, antialias=True).numpy()
