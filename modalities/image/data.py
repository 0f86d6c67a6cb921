"""Labelled pictures on disk (Parquet files or class folders), decoded once into a packed uint8 file.

A packed set is a folder: `pixels.u8` (the pictures one after the other, each (3, H, W)), `shapes.npy` (N, 2) int32
heights and widths, `labels.npy` (N,) int64 and `meta.json`. It is written under a temporary name and renamed, and
checked whenever it is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.sources import Item, Source, open_source
from zoo.errors import DataError
from zoo.files import cache_folder
from zoo.progress import progress_bar

__all__ = ["PackedPictures", "default_cache", "open_packed", "pack", "pictures"]

_FORMAT = 1
_CHUNK = 256  # pictures decoded at a time: bounds the memory in flight


@dataclass(frozen=True)
class PackedPictures:
    """Decoded pictures with labels; indexing gives one picture as uint8 (3, H, W), a view of the file.

    Attributes:
        pixels: uint8, 1-D, memory-mapped.
        shapes: int32 (N, 2), height and width.
        labels: int64 (N,).
        meta: Facts about the set: `labels` (class names or `None`), `source`, `source_sha256`, `skipped`, ...
    """

    pixels: np.ndarray
    shapes: np.ndarray
    labels: np.ndarray
    meta: dict[str, Any]
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = 3 * self.shapes.astype(np.int64).prod(axis=1)
        object.__setattr__(self, "_starts", np.concatenate(([0], np.cumsum(sizes))))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start, end = self._starts[index : index + 2]
        return self.pixels[start:end].reshape(3, *self.shapes[index])

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the labels, if the source has them."""
        return self.meta["labels"]

    @property
    def num_classes(self) -> int:
        """Number of classes: of the names, or one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max()) + 1

    @property
    def uniform(self) -> bool:
        """Whether all pictures have the same size."""
        return bool((self.shapes == self.shapes[0]).all())

    def stacked(self) -> np.ndarray:
        """All pictures as uint8 (N, 3, H, W), a view of the file.

        Raises:
            DataError: If they differ in size.
        """
        if not self.uniform:
            row = int((self.shapes != self.shapes[0]).any(axis=1).argmax())
            (h0, w0), (h, w) = self.shapes[0], self.shapes[row]
            raise DataError(
                f"{self.meta['source']}: pictures differ in size (the first {w0} x {h0}, number {row} {w} x {h}); "
                "set store_size to resize and crop them to one size when packing, for example store_size: 160"
            )
        return self.pixels.reshape(len(self), 3, *self.shapes[0])


def default_cache() -> Path:
    """Folder for packed sets: `$ZOO_CACHE/packed` or `~/.cache/pape-zoo/packed`."""
    return cache_folder("packed")


def pictures(
    data: str | os.PathLike[str],
    split: str = "train",
    *,
    size: int | None = None,
    skip_bad: bool = False,
    cache: Path | None = None,
    quiet: bool = True,
) -> PackedPictures:
    """Opens one split of a data set, packing it first if that has not been done for these very files.

    Args:
        data: A folder with `<split>.parquet` (or `<split>-*.parquet`) or `<split>/<class>/*.jpg`, such a file itself,
            or a packed set.
        split: `"train"`, `"validation"` (a folder may call it `val`), ...
        size: Resize the short side to this and crop the centre square when packing; `None` keeps pictures as they are.
        skip_bad: Leave out pictures that cannot be decoded instead of raising; how many is in `meta["skipped"]`.
        cache: Where packed sets are kept; `None` = `default_cache()`.
        quiet: Show no progress bar.

    Raises:
        DataError: If there is no such data, or a picture is damaged.
    """
    if (Path(data) / "meta.json").is_file():
        return open_packed(Path(data))
    source = open_source(Path(data), split)
    key = hashlib.sha256(repr((_FORMAT, source.sha256, size, skip_bad)).encode()).hexdigest()[:16]
    folder = (cache or default_cache()) / f"{source.name}-{split}-{key}"
    packed = None
    if folder.is_dir():
        try:
            packed = open_packed(folder)
        except DataError:  # ours to repair: the source is at hand
            shutil.rmtree(folder)
    packed = packed or pack(source, folder, size=size, skip_bad=skip_bad, quiet=quiet)
    if skipped := packed.meta["skipped"]:
        warnings.warn(f"{source.path}: {len(skipped)} damaged pictures left out, first {skipped[0]}", stacklevel=2)
    return packed


def open_packed(folder: Path) -> PackedPictures:
    """Opens a packed set and checks it: sizes, types and the checksum of the pixels.

    Raises:
        DataError: If it is not whole.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != _FORMAT:
            raise ValueError(f"format {meta['format']}, expected {_FORMAT}")
        shapes = np.load(folder / "shapes.npy", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        if shapes.shape != (meta["count"], 2) or shapes.dtype != np.int32 or (shapes <= 0).any():
            raise ValueError("shapes.npy does not fit")
        if labels.shape != (meta["count"],) or labels.dtype != np.int64 or (labels < 0).any():
            raise ValueError("labels.npy does not fit")
        if meta["labels"] is not None and labels.max() >= len(meta["labels"]):
            raise ValueError("labels.npy has more classes than there are names")
        size, expected = (folder / "pixels.u8").stat().st_size, 3 * int(shapes.astype(np.int64).prod(axis=1).sum())
        if size != expected:
            raise ValueError(f"pixels.u8 has {size} bytes, expected {expected}")
        pixels = np.memmap(folder / "pixels.u8", dtype=np.uint8, mode="r")
        if _checksum(pixels) != meta["crc32"] or _checksum(labels.view(np.uint8)) != meta["labels_crc32"]:
            raise ValueError("the checksum does not fit")
        return PackedPictures(pixels, shapes, labels, meta)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{folder}: damaged packed pictures ({error}); delete the folder to pack them anew") from error


def _checksum(values: np.ndarray, block: int = 1 << 24) -> int:
    crc = 0
    for start in range(0, len(values), block):
        crc = zlib.crc32(values[start : start + block].data, crc)
    return crc


def pack(
    source: Source, folder: Path, *, size: int | None = None, skip_bad: bool = False, quiet: bool = True
) -> PackedPictures:
    """Decodes all pictures of `source` into `folder`; it appears whole or not at all.

    Raises:
        DataError: If a picture is damaged (unless `skip_bad`), none is left, or the folder cannot be written.
    """
    shapes, labels, skipped, crc = [], [], [], 0
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DataError(f"cannot write packed pictures to {folder.parent} ({error}); set ZOO_CACHE") from error
    try:
        with (
            (temporary / "pixels.u8").open("wb") as file,
            progress_bar(f"decoding {source.name}", len(source), quiet) as update,
        ):
            for item, picture in _decode_all(source, size):
                if isinstance(picture, DataError):
                    if not skip_bad:
                        raise picture
                    skipped.append(item.name)
                    continue
                data = picture.tobytes()
                crc = zlib.crc32(data, crc)
                file.write(data)
                shapes.append(picture.shape[1:])
                labels.append(item.label)
                update(len(labels), "")
        if not labels:
            raise DataError(f"{source.path}: no usable picture")
        label_array = np.array(labels, dtype=np.int64)
        np.save(temporary / "shapes.npy", np.array(shapes, dtype=np.int32))
        np.save(temporary / "labels.npy", label_array)
        meta = {
            "format": _FORMAT,
            "count": len(labels),
            "crc32": crc,
            "labels_crc32": _checksum(label_array.view(np.uint8)),
            "labels": source.class_names,
            "name": source.name,
            "source": str(source.path),
            "source_sha256": source.sha256,
            "size": size,
            "skipped": skipped,
        }
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        try:
            os.replace(temporary, folder)
        except OSError:  # another process packed the same files meanwhile
            if not folder.is_dir():
                raise
        return open_packed(folder)
    except OSError as error:
        raise DataError(f"cannot write packed pictures to {folder.parent} ({error}); set ZOO_CACHE") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _decode_all(source: Source, size: int | None) -> Iterator[tuple[Item, np.ndarray | DataError]]:
    items = iter(source)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        while chunk := list(islice(items, _CHUNK)):
            yield from zip(chunk, pool.map(lambda item: _decode(item, size), chunk), strict=True)


def _decode(item: Item, size: int | None) -> np.ndarray | DataError:
    """One picture as uint8 (3, H, W); any mode becomes RGB."""
    from zoo.reading import read

    try:
        rgb = read(item.read(), kind="image").rgb
    except DataError as error:
        return DataError(f"{item.name}: {error}; use skip_bad to leave out such pictures")
    picture = np.ascontiguousarray(rgb.transpose(2, 0, 1))
    return picture if size is None else _fit(picture, size)


def _fit(picture: np.ndarray, size: int) -> np.ndarray:
    import torch
    from torchvision.transforms import v2

    resized = v2.functional.resize(torch.from_numpy(picture), [size], v2.InterpolationMode.BICUBIC, antialias=True)
    return v2.functional.center_crop(resized, [size, size]).contiguous().numpy()
