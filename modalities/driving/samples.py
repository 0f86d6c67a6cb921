"""A simulated key frame as one file, to try models with."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

from modalities.driving.sim.generate import make_drive
from modalities.driving.sim.options import DriveOptions

__all__ = ["drive"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # The earliest time of a ZIP archive: the same bytes every time.


def drive() -> bytes:
    """A ZIP archive of a simulated set in the format of nuScenes with one key frame, by day and without rain."""
    options = DriveOptions(scenes=1, val_scenes=0, frames=1, night=0, rain=0)
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="pape-zoo-") as temporary:
        folder = Path(temporary) / "drive"
        make_drive(folder, options)
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    name = path.relative_to(folder.parent).as_posix()
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
