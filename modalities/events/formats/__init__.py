"""Decoders of event files: each opens a binary file, reads its header and yields blocks of events of bounded size."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from zoo.errors import ConfigError, DataError

__all__ = ["FORMATS", "decoder", "detect"]

# Format -> "module:function(file, name, options) -> Recording".
FORMATS = {
    "aedat2": "aedat:open_aedat2",
    "aedat3": "aedat:open_aedat3",
    "aedat4": "aedat4:open_aedat4",
    "csv": "csv:open_csv",
    "dat": "prophesee:open_dat",
    "evt2": "prophesee:open_evt2",
    "evt21": "prophesee:open_evt21",
    "evt3": "evt3:open_evt3",
    "hdf5": "hdf5:open_hdf5",
    "nmnist": "nmnist:open_nmnist",
    "npy": "arrays:open_npy",
    "npz": "arrays:open_npz",
}

_MAGIC = {
    b"#!AER-DAT2.": "aedat2",
    b"#!AER-DAT3.": "aedat3",
    b"#!AER-DAT4.": "aedat4",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"PK\x03\x04": "npz",
    b"\x93NUMPY": "npy",
}
_SUFFIXES = {".bin": "nmnist", ".csv": "csv", ".txt": "csv"}
HEAD = 2**14


def decoder(name: str) -> Callable:
    """The function that opens a format.

    Raises:
        ConfigError: If the format is not known.
    """
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    module, function = FORMATS[name].split(":")
    opened: Callable = getattr(importlib.import_module(f"modalities.events.formats.{module}"), function)
    return opened


def detect(head: bytes, suffix: str, name: str) -> str:
    """Decides the format by the first bytes, and by suffix for the formats that have no mark of their own.

    Args:
        head: The first `HEAD` bytes.
        suffix: Of the file name, lower case; may be empty.
        name: What errors call the source.

    Raises:
        DataError: If it is empty or no event file.
    """
    if not head:
        raise DataError(f"{name}: the file is empty")
    for magic, found in _MAGIC.items():
        if head.startswith(magic):
            return found
    if head.startswith(b"%") and suffix not in _SUFFIXES:
        from modalities.events.formats.prophesee import detect_prophesee

        return detect_prophesee(head, suffix, name)
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if head.startswith(b"#"):
        raise DataError(f"{name}: a header without #!AER-DAT2.0, 3.x or 4.0 (AEDAT 1.0 is not read)")
    raise DataError(
        f"{name}: no event file: it starts with {head[:8]!r}; pass format= if it is one of {', '.join(FORMATS)}"
    )
