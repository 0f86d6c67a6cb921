"""Decoders of point files: each takes a binary file and returns what is in it, with memory bounded by its size."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from zoo.errors import ConfigError, DataError

__all__ = ["FORMATS", "SUFFIXES", "decoder", "detect"]

# Format -> "module:function(file, name, options) -> Decoded".
FORMATS = {
    "kitti": "scans:decode_kitti",
    "las": "las:decode_las",
    "npy": "arrays:decode_npy",
    "npz": "arrays:decode_npz",
    "nuscenes": "scans:decode_nuscenes",
    "obj": "mesh:decode_obj",
    "off": "off:decode_off",
    "pcd": "pcd:decode_pcd",
    "ply": "ply:decode_ply",
    "stl": "mesh:decode_stl",
    "text": "text:decode_text",
}

_MAGIC = {
    b"ply\n": "ply",
    b"ply\r": "ply",
    b"LASF": "las",
    b"PK\x03\x04": "npz",
    b"\x93NUMPY": "npy",
    b"# .PCD": "pcd",
}
_SUFFIXES = {
    ".asc": "text",
    ".bin": "kitti",
    ".csv": "text",
    ".las": "las",
    ".laz": "las",
    ".npy": "npy",
    ".npz": "npz",
    ".obj": "obj",
    ".off": "off",
    ".pcd": "pcd",
    ".ply": "ply",
    ".pts": "text",
    ".stl": "stl",
    ".txt": "text",
    ".xyz": "text",
}
SUFFIXES = tuple(_SUFFIXES)
HEAD = 2**12


def decoder(name: str) -> Callable:
    """The function that decodes a format.

    Raises:
        ConfigError: If the format is not known.
    """
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {name!r:.60}")
    module, function = FORMATS[name].split(":")
    found: Callable = getattr(importlib.import_module(f"modalities.points.formats.{module}"), function)
    return found


def detect(head: bytes, file_name: str, name: str) -> str:
    """Decides the format by the first bytes, and by the name for the formats that have no mark of their own.

    Args:
        head: The first `HEAD` bytes.
        file_name: Lower case; may be empty.
        name: What errors call the source.

    Raises:
        DataError: If it is empty or no point file.
    """
    if not head:
        raise DataError(f"{name}: the file is empty")
    for magic, found in _MAGIC.items():
        if head.startswith(magic):
            return found
    if file_name.endswith(".pcd.bin"):
        return "nuscenes"
    suffix = "." + file_name.rpartition(".")[2]
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if head.lstrip().startswith((b"OFF", b"COFF", b"NOFF", b"STOFF")):
        return "off"
    if b"\nFIELDS " in head and b"\nWIDTH " in head:
        return "pcd"
    raise DataError(
        f"{name}: no point file: it starts with {head[:8]!r}; pass format= if it is one of {', '.join(FORMATS)}"
    )
