"""Tar shards made from class folders or Parquet files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from modalities.image.packing import decode
from modalities.image.shards import scan, write_index
from modalities.image.sources import Source, open_source
from zoo.errors import DataError, require
from zoo.files import new_folder
from zoo.progress import progress_bar
from zoo.training.seeds import derive_seed, permutation

__all__ = ["make_shards"]

_MOST_OPEN = 256  # shards written at a time; more take further passes over the source
_KINDS = {b"\xff\xd8": "jpg", b"\x89P": "png", b"RI": "webp", b"GI": "gif", b"BM": "bmp", b"II": "tif", b"MM": "tif"}


def make_shards(
    data: Path,
    out: Path,
    splits: Sequence[str] = ("train", "validation"),
    *,
    samples: int = 1000,
    seed: int = 0,
    skip_bad: bool = False,
    quiet: bool = True,
) -> dict[str, tuple[int, int]]:
    """Writes `SPLIT-000000.tar`, ... and `SPLIT-index.json` into a new folder; pictures keep their bytes.

    Which shard a picture is in is drawn at random, so that neighbours of the source are not in one shard. The same
    arguments give the same files.

    Args:
        data: A folder with `<split>.parquet`, `<split>-*.parquet` or `<split>/<class>/<pictures>`.
        out: New folder; appears whole or not at all.
        splits: Of the data.
        samples: In a shard.
        seed: Of the draw.
        skip_bad: Leave out pictures that cannot be decoded, with a warning that counts them, instead of raising.
        quiet: Show no progress bar.

    Returns:
        For each split the number of shards and of pictures.

    Raises:
        DataError: If there is no such split, or a picture is damaged.
        MissingDependencyError: If webdataset is not installed.
    """
    require("webdataset", extra="scale")
    sources = {split: open_source(data, split) for split in splits}
    with new_folder(out) as folder:
        return {
            split: _write(source, folder, split, samples, derive_seed(seed, "shards", split), skip_bad, quiet)
            for split, source in sources.items()
        }


def _write(
    source: Source, folder: Path, split: str, samples: int, seed: int, skip_bad: bool, quiet: bool
) -> tuple[int, int]:
    shards = -(-len(source) // samples)
    names = [f"{split}-{number:06d}.tar" for number in range(shards)]
    place = (permutation(len(source), seed) // samples).tolist()
    bad = written = 0
    with progress_bar(f"shards of {split}", len(source), quiet) as update:
        for first in range(0, shards, _MOST_OPEN):
            more_bad, more = _pass(source, folder, names, first, place, skip_bad)
            bad, written = bad + more_bad, written + more
            update(written, f"{min(shards, first + _MOST_OPEN)} shards")
    if not written:
        raise DataError(f"{source.path}: no usable picture")
    if bad:
        warnings.warn(f"{source.path}: left out {bad} damaged pictures", stacklevel=3)
    found = {}
    for name in names:
        found[name], lost, problem = scan(folder / name)
        if lost or problem:
            raise DataError(f"{name}: was not written as it should ({problem or f'{lost} samples are damaged'})")
    write_index(folder / f"{split}-index.json", found, source.class_names)
    return shards, written


def _pass(
    source: Source, folder: Path, names: list[str], first: int, place: list[int], skip_bad: bool
) -> tuple[int, int]:
    """Writes some of the shards; returns how many pictures were left out, and how many written."""
    from webdataset import TarWriter

    bad = written = 0
    with ExitStack() as stack:
        writers = []
        for name in names[first : first + _MOST_OPEN]:
            file = stack.enter_context((folder / name).open("wb"))
            writers.append(stack.enter_context(TarWriter(file, user="", group="", encoder=False, mtime=0)))
        for number, item in enumerate(source):
            if not 0 <= place[number] - first < len(writers):
                continue
            problem = decode(item, None)
            if isinstance(problem, DataError):
                if not skip_bad:
                    raise problem
                bad += 1
                continue
            data = item.read()
            sample = {"__key__": f"{number:09d}", _KINDS.get(data[:2], "jpg"): data, "cls": str(item.label).encode()}
            writers[place[number] - first].write(sample)
            written += 1
    return bad, written
