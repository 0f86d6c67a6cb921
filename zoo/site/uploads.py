"""Files as a browser sends them: what they are called, and data sets that come as a ZIP archive."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from zoo.errors import DataError

__all__ = ["source_name", "unpacked"]

MOST_FILES = 5_000
MOST_BYTES = 256 * 2**20
"""Most bytes that an archive may unpack to."""

_SUFFIX = re.compile(r"(\.pcd)?\.[a-z0-9]{1,8}\Z")
_CHUNK = 2**16


def source_name(what: str, filename: str) -> str:
    """A name for errors, and for readers that look at the suffix.

    Args:
        what: The kind of file, as `"picture"`.
        filename: What the user calls it; nothing but a suffix of letters and digits is kept.
    """
    found = _SUFFIX.search(filename.lower())
    return what + (found.group() if found else "")


@contextmanager
def unpacked(body: bytes, name: str) -> Iterator[Path]:
    """Gives a temporary folder with the files of a ZIP archive; it is removed after the body.

    Where all files lie in one folder of the archive, that folder is given.

    Args:
        body: The archive.
        name: What errors call it.

    Raises:
        DataError: If it is no archive, is damaged, names files outside itself, or unpacks to more than 5,000 files or
            256 MiB.
    """
    with tempfile.TemporaryDirectory(prefix="pape-zoo-") as temporary:
        root = Path(temporary)
        try:
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                _unpack(archive, root, name)
        except DataError:
            raise
        except OSError as error:
            raise DataError(f"{name}: cannot be unpacked ({error.strerror or error})") from error
        # What zipfile raises for damage, encryption (RuntimeError) and methods that it does not know.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise DataError(f"{name}: is no ZIP archive that can be read ({error})") from error
        inside = list(root.iterdir())
        yield inside[0] if len(inside) == 1 and inside[0].is_dir() else root


def _unpack(archive: zipfile.ZipFile, root: Path, name: str) -> None:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > MOST_FILES:
        raise DataError(f"{name}: {len(members)} files; at most {MOST_FILES} are unpacked")
    left = MOST_BYTES
    for member in members:
        parts = PurePosixPath(member.filename.replace("\\", "/")).parts
        if not parts or ".." in parts or parts[0].startswith("/") or any(":" in part for part in parts):
            raise DataError(f"{name}: names a file outside itself, {member.filename!r:.80}")
        path = root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link becomes the plain file that it is in an archive. What is read is counted, not what is stated.
        with archive.open(member) as packed, path.open("wb") as file:
            while chunk := packed.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise DataError(f"{name}: unpacks to more than {MOST_BYTES // 2**20} MiB")
                file.write(chunk)
