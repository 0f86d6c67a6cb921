"""Pictures decoded once into a packed uint8 file, with arrays of facts about them beside it.

A packed set is a folder: `pixels.u8` (the pictures one after the other, each (3, H, W)), `shapes.npy` (N, 2) int32
heights and widths, further arrays (labels, boxes, ...) and `meta.json`. It is written under a temporary name and
renamed, and checked whenever it is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from zoo.errors import DataError
from zoo.files import cache_folder
from zoo.progress import progress_bar

__all__ = ["PackedPixels", "decode", "default_cache", "open_arrays", "open_or_pack", "pack_pictures"]

_FORMAT = 2
_CHUNK = 256  # pictures decoded at a time: bounds the memory in flight


class PictureItem(Protocol):
    """One encoded picture: `name` says which (file, or file and row), `read()` gives its bytes."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def read(self) -> Callable[[], bytes]:
        """Gives the encoded picture."""


class PictureSource(Protocol):
    """Encoded pictures, in a fixed order."""

    path: Path
    name: str
    sha256: str
    class_names: list[str] | None

    def __len__(self) -> int:
        """Number of pictures."""

    def __iter__(self) -> Iterator[Any]:
        """The pictures in order, each a `PictureItem`."""


# Changes the size of one picture, uint8 (3, H, W).
Fit = Callable[[np.ndarray], np.ndarray]
Check = Callable[[Any, tuple[int, int]], None]


@dataclass(frozen=True)
class PackedPixels:
    """Decoded pictures; indexing gives one as uint8 (3, H, W), a view of the file.

    Attributes:
        pixels: uint8, 1-D, memory-mapped.
        shapes: int32 (N, 2), height and width.
        meta: Facts about the set: `labels` (class names or `None`), `source`, `source_sha256`, `skipped`, ...
    """

    pixels: np.ndarray
    shapes: np.ndarray
    meta: dict[str, Any]
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = 3 * self.shapes.astype(np.int64).prod(axis=1)
        object.__setattr__(self, "_starts", np.concatenate(([0], np.cumsum(sizes))))

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start, end = self._starts[index : index + 2]
        return self.pixels[start:end].reshape(3, *self.shapes[index])

    @property
    def name(self) -> str:
        """Of the data set."""
        return self.meta["name"]

    @property
    def sha256(self) -> str:
        """Identifies the files that the pictures were decoded from."""
        return self.meta["source_sha256"]

    @property
    def skipped(self) -> int:
        """How many damaged pictures were left out."""
        return len(self.meta["skipped"])

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes in the order of the labels, if the source has them."""
        return self.meta["labels"]

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


Packed = TypeVar("Packed", bound=PackedPixels)


def default_cache() -> Path:
    """Folder for packed sets: `$ZOO_CACHE/packed` or `~/.cache/pape-zoo/packed`."""
    return cache_folder("packed")


def open_or_pack(
    source: PictureSource,
    split: str,
    settings: Sequence[object],
    cache: Path | None,
    open_packed: Callable[[Path], Packed],
    pack: Callable[[Path], Packed],
) -> Packed:
    """Opens the packed set of these very files, packing it first where that has not been done or is damaged.

    Args:
        source: What is packed.
        split: Of the data set.
        settings: What else the packed set depends on.
        cache: Where packed sets are kept; `None` = `default_cache()`.
        open_packed: Opens a folder.
        pack: Packs into a folder.

    Raises:
        DataError: If a picture cannot be used.
    """
    key = hashlib.sha256(repr((_FORMAT, source.sha256, *settings)).encode()).hexdigest()[:16]
    folder = (cache or default_cache()) / f"{source.name}-{split}-{key}"
    packed = None
    if folder.is_dir():
        try:
            packed = open_packed(folder)
        except DataError:  # ours to repair: the source is at hand
            shutil.rmtree(folder)
    packed = packed or pack(folder)
    if skipped := packed.meta["skipped"]:
        warnings.warn(f"{source.path}: {len(skipped)} damaged pictures left out, first {skipped[0]}", stacklevel=3)
    return packed


def open_arrays(
    folder: Path, make: Callable[[np.ndarray, np.ndarray, dict[str, np.ndarray], dict[str, Any]], Packed]
) -> Packed:
    """Opens a packed set and checks it: sizes, types and the checksums of pixels and arrays.

    Args:
        folder: Of the set.
        make: Given pixels, shapes, the other arrays by name and `meta`; raises ValueError or KeyError for what is
            wrong in them.

    Raises:
        DataError: If it is not whole.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != _FORMAT:
            raise ValueError(f"format {meta['format']}, expected {_FORMAT}")
        shapes = np.load(folder / "shapes.npy", allow_pickle=False)
        if shapes.shape != (meta["count"], 2) or shapes.dtype != np.int32 or (shapes <= 0).any():
            raise ValueError("shapes.npy does not fit")
        arrays = {}
        for name in meta["arrays"]:
            arrays[name] = np.load(folder / f"{Path(name).name}.npy", allow_pickle=False)
            if _checksum(arrays[name]) != meta[f"{name}_crc32"]:
                raise ValueError(f"the checksum of {name}.npy does not fit")
        size, expected = (folder / "pixels.u8").stat().st_size, 3 * int(shapes.astype(np.int64).prod(axis=1).sum())
        if size != expected:
            raise ValueError(f"pixels.u8 has {size} bytes, expected {expected}")
        pixels = np.memmap(folder / "pixels.u8", dtype=np.uint8, mode="r")
        if _checksum(pixels) != meta["crc32"]:
            raise ValueError("the checksum does not fit")
        return make(pixels, shapes, arrays, meta)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{folder}: damaged packed pictures ({error}); delete the folder to pack them anew") from error


def _checksum(values: np.ndarray, block: int = 1 << 24) -> int:
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, len(flat), block):
        crc = zlib.crc32(flat[start : start + block].data, crc)
    return crc


def pack_pictures(
    source: PictureSource,
    folder: Path,
    *,
    fit: Fit | None,
    check: Check | None = None,
    describe: Callable[[list[Any], np.ndarray], tuple[dict[str, np.ndarray], dict[str, Any]]],
    skip_bad: bool,
    quiet: bool,
) -> None:
    """Decodes all pictures of `source` into `folder`; it appears whole or not at all.

    Args:
        source: The pictures.
        folder: Made here.
        fit: Resizes each picture.
        check: Given an item and the size of its picture before `fit`; raises DataError for one that cannot be used.
        describe: From the items that were kept and the sizes of their pictures before `fit`, int32 (N, 2): further
            arrays by name, and further facts for `meta`.
        skip_bad: Leave out damaged pictures instead of raising.
        quiet: Show no progress bar.

    Raises:
        DataError: If a picture is damaged (unless `skip_bad`), none is left, or the folder cannot be written.
    """
    kept: list[Any] = []
    shapes, sizes, skipped, crc = [], [], [], 0
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
            for item, result in _decode_all(source, fit, check):
                if isinstance(result, DataError):
                    if not skip_bad:
                        raise result
                    skipped.append(item.name)
                    continue
                size, picture = result
                data = picture.tobytes()
                crc = zlib.crc32(data, crc)
                file.write(data)
                shapes.append(picture.shape[1:])
                sizes.append(size)
                kept.append(item)
                update(len(kept), "")
        if not kept:
            raise DataError(f"{source.path}: no usable picture")
        arrays, facts = describe(kept, np.array(sizes, dtype=np.int32))
        for name, array in {"shapes": np.array(shapes, dtype=np.int32), **arrays}.items():
            np.save(temporary / f"{name}.npy", array)
        meta = {
            "format": _FORMAT,
            "count": len(kept),
            "crc32": crc,
            "arrays": list(arrays),
            **{f"{name}_crc32": _checksum(array) for name, array in arrays.items()},
            "labels": source.class_names,
            "name": source.name,
            "source": str(source.path),
            "source_sha256": source.sha256,
            "skipped": skipped,
            **facts,
        }
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        try:
            os.replace(temporary, folder)
        except OSError:  # another process packed the same files meanwhile
            if not folder.is_dir():
                raise
    except OSError as error:
        raise DataError(f"cannot write packed pictures to {folder.parent} ({error}); set ZOO_CACHE") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _decode_all(
    source: PictureSource, fit: Fit | None, check: Check | None
) -> Iterator[tuple[Any, tuple[tuple[int, int], np.ndarray] | DataError]]:
    items = iter(source)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        while chunk := list(islice(items, _CHUNK)):
            yield from zip(chunk, pool.map(lambda item: decode(item, fit, check), chunk), strict=True)


def decode(
    item: PictureItem, fit: Fit | None, check: Check | None = None
) -> tuple[tuple[int, int], np.ndarray] | DataError:
    """Size (height, width) of one picture, and the picture as uint8 (3, H, W) after `fit`; any mode becomes RGB."""
    from zoo.reading import read

    try:
        rgb = read(item.read(), kind="image").rgb
        size = (rgb.shape[0], rgb.shape[1])
        if check is not None:
            check(item, size)
    except DataError as error:
        return DataError(f"{item.name}: {error}; use skip_bad to leave out such pictures")
    picture = np.ascontiguousarray(rgb.transpose(2, 0, 1))
    return size, (picture if fit is None else fit(picture))
