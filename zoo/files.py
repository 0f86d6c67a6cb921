"""Writing a file all or nothing, and where files of our own are kept."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

__all__ = ["cache_folder", "write_whole"]


def cache_folder(kind: str) -> Path:
    """Folder for what can be made again from data, such as decoded pictures.

    Args:
        kind: Its name in `$ZOO_CACHE` or `~/.cache/pape-zoo`.
    """
    return Path(os.environ.get("ZOO_CACHE") or Path.home() / ".cache" / "pape-zoo") / kind


def write_whole(path: Path, data: bytes | str) -> None:
    """Writes a file that appears complete or not at all; an earlier one stays until then.

    Args:
        path: Where to; its folder must exist.
        data: Bytes, or text that becomes UTF-8.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
        ValueError: If the path holds a null byte.
    """
    # Beside the file, since a rename must not cross file systems; a short name, since that of the file may be longest.
    partial = path.with_name(f".{uuid.uuid4().hex[:12]}.tmp")
    try:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
