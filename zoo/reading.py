"""Sources of data: what users pass (paths, folders, patterns, addresses, bytes, arrays) and which reader takes it.

The core knows kinds by name only; the readers live in the modalities and are looked up when used.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, overload

from zoo.errors import ConfigError, DataError
from zoo.kinds import BOTH, kind_of_bin, kind_of_table

if TYPE_CHECKING:
    from modalities.events.events import Events
    from modalities.image.read import Image
    from modalities.points.points import Points
    from modalities.video.clip import Clip

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_BYTES",
    "VIDEO_SUFFIXES",
    "Source",
    "as_source",
    "expand",
    "fetch",
    "holds_many",
    "is_url",
    "policy",
    "read",
    "read_bounded",
]

MAX_BYTES = 256 * 2**20
"""Most bytes taken from a URL or standard input (256 MiB)."""

TIMEOUT_S = 20.0
"""Longest wait for a server to answer, or to send its next piece."""

TOTAL_TIMEOUT_S = 120.0
"""Longest whole transfer."""

# Kind -> "module:function(value, *, name, path, errors, **options)".
READERS = {
    "image": "modalities.image.read:read_image",
    "clip": "modalities.video.read:read_clip",
    "events": "modalities.events.read:read_events",
    "points": "modalities.points.read:read_points",
}

IMAGE_SUFFIXES = frozenset(
    (".apng", ".avif", ".bmp", ".dib", ".gif", ".ico", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jpx")
    + (".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tif", ".tiff", ".webp")
)
VIDEO_SUFFIXES = (
    ".3gp",
    ".avi",
    ".flv",
    ".m2ts",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".ogv",
    ".webm",
    ".wmv",
)
# What the things in a folder are called, and examples of their suffixes.
_WHAT = {"image": "picture", "clip": "video", "events": "recording", "points": "cloud"}
# Other kinds by suffix.
_OTHER_SUFFIXES = {
    "clip": VIDEO_SUFFIXES,
    "events": (".aedat", ".aedat4", ".csv", ".dat", ".h5", ".hdf5", ".npz", ".raw"),
    "points": (".asc", ".las", ".laz", ".obj", ".off", ".pcd", ".ply", ".pts", ".stl", ".xyz"),
}
_IMAGE_MAGIC = (
    b"\xff\xd8\xff",
    b"\x89PNG",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"qoif",
    b"\0\0\0\x0cjP",
    b"\xff\x4f\xff\x51",
)
_CHUNK = 2**16


@dataclass(frozen=True, eq=False)
class Source:
    """One thing to read, with the name that errors and results give it.

    Attributes:
        value: A `Path`, a URL, bytes, or an object in memory (PIL image, array, tensor).
        name: The path or address as the user wrote it, or a description such as `"array"`.
    """

    value: Any
    name: str


@overload
def read(source: Any, kind: Literal["events"], *, errors: str | None = ..., **options: Any) -> Events: ...


@overload
def read(source: Any, kind: Literal["points"], *, errors: str | None = ..., **options: Any) -> Points: ...


@overload
def read(source: Any, kind: Literal["clip"], *, errors: str | None = ..., **options: Any) -> Clip: ...


@overload
def read(source: Any, kind: Literal["image"] = ..., *, errors: str | None = ..., **options: Any) -> Image: ...


@overload
def read(source: Any, kind: str | None = ..., *, errors: str | None = ..., **options: Any) -> Any: ...


def read(
    source: Any, kind: str | None = None, *, errors: str | None = None, **options: Any
) -> Image | Clip | Events | Points:
    """Reads one picture, one video, one event recording or one point cloud.

    Args:
        source: A path, an http(s) URL, the bytes of a file, or a `Source`; for pictures also a PIL image, an array
            (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), or a tensor (H, W) or (C, H, W); for videos an array or tensor
            uint8 (T, H, W, 3); for points an array (N, 3).
        kind: `"image"`, `"clip"`, `"events"` or `"points"`; `None` decides for a path by suffix and content, and takes
            bytes and objects as pictures. A `.pcd.bin` is points (nuScenes); another `.bin` is points (KITTI) when its
            size divides by 16 and its floats are finite and within 1 km, and events (N-MNIST) when its size divides by
            5. Tables (`.csv`, `.txt`) and NumPy files tell by the names of their columns.
        errors: What to do with a truncated file: `"raise"`, or `"keep"` what can be decoded of it. `None` raises, but
            of videos keeps, with a warning: recordings that break off are common and their frames are whole.
        **options: For the reader of pictures: `frame` (of an animation; the first unless asked) and `max_pixels`. For
            that of videos: `start_s`, `end_s`, `max_bytes`, and `fps` of arrays; long videos are read piece by piece
            with `modalities.video.open_clip`. For that of events: see `modalities.events.open_events`. For that of
            points: `max_points`, `columns`, `format`, see `modalities.points.read`.

    Returns:
        An `Image`: `rgb` uint8 (H, W, 3), `name`, `path`; a `Clip`: `frames` uint8 (T, H, W, 3), `times_s` float64
        (T,), `name`, `path`; `Events`: `t_us` int64, `x` and `y` int32, `p` bool, all (N,), `width`, `height`; or
        `Points`: `xyz` float64 (N, 3), `fields`, `faces` of meshes.

    Raises:
        DataError: If it cannot be read; the message names the source.
    """
    source = as_source(source)
    if errors not in (None, "raise", "keep"):
        raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
    path = source.value if isinstance(source.value, Path) else None
    if path is not None:
        _require_file(path, source.name)
    if is_url(source.value):
        source = Source(fetch(source.value), source.name)
    if kind is None:
        kind = _kind_of(source)
    if kind not in READERS:
        raise DataError(f"{source.name}: unknown kind {kind!r}; there are {', '.join(READERS)}")
    module, function = READERS[kind].split(":")
    found: Image | Clip | Events | Points = getattr(importlib.import_module(module), function)(
        source.value, name=source.name, path=path, errors=policy(errors, kind), **options
    )
    return found


def policy(errors: str | None, kind: str) -> str | None:
    """What to do with a truncated file of a kind where the user has not said: raise; readers of videos decide."""
    return errors if errors is not None or kind == "clip" else "raise"


def as_source(value: Any, index: int | None = None) -> Source:
    """Names a single source; `index` is its place in a list, for those without a name of their own."""
    if isinstance(value, Source):
        return value
    if isinstance(value, str):
        if is_url(value):
            return Source(value, value)
        if not value:  # A path of nothing would be the current folder.
            raise DataError("an empty name is no source; the current folder is '.'")
        scheme, separator, _ = value.partition("://")
        if separator and not os.path.exists(value):
            raise DataError(f"{value}: {scheme}:// addresses are not read; pass http(s)://, a path or the bytes")
        return Source(Path(value).expanduser(), value)
    if isinstance(value, os.PathLike):
        return Source(Path(value), os.fspath(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        value, label = bytes(value), "bytes"
    else:
        package = type(value).__module__.partition(".")[0]
        label = {"numpy": "array", "torch": "tensor", "PIL": "PIL image"}.get(package, type(value).__name__)
        label = getattr(value, "filename", None) or label  # PIL keeps it.
    return Source(value, str(label) if index is None else f"{label} (item {index})")


def holds_many(source: Any) -> bool:
    """Says whether a source stands for any number of things: a list, an iterator, a folder or a pattern."""
    if isinstance(source, (list, tuple, Iterator)):
        return True
    if isinstance(source, (str, os.PathLike)) and source != "" and not is_url(source):
        path = Path(source).expanduser()
        with contextlib.suppress(OSError, ValueError):
            return path.is_dir() or (not os.path.lexists(path) and glob.has_magic(str(path)))
    return False


def expand(source: Any, index: int | None = None, *, kind: str = "image") -> list[Source]:
    """Expands a folder or a pattern into its pictures, videos or recordings; anything else is one source.

    A folder gives those directly in it and a pattern (`*`, `?`, `[...]`, `**` for any depth) those that match:
    by suffix, in sorted order, without hidden files; symbolic links to files are followed.

    Args:
        source: Anything `read` takes, a folder or a pattern.
        index: Its place in a list, for the name of sources in memory.
        kind: `"image"`, `"clip"`, `"events"` or `"points"`.

    Raises:
        DataError: If a folder or pattern holds nothing of this kind.
    """
    if not holds_many(source) or isinstance(source, (list, tuple, Iterator)):
        return [as_source(source, index)]
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            # Broken links stay in the list: the reader reports them, instead of a picture missing in silence.
            found = [entry.path for entry in os.scandir(path) if not entry.name.startswith(".") and not entry.is_dir()]
        else:
            found = [match for match in glob.iglob(str(path), recursive=True) if not os.path.isdir(match)]
    except OSError as error:
        raise DataError(f"{source}: cannot be listed ({error.strerror or error})") from error
    what, suffixes = _WHAT[kind], IMAGE_SUFFIXES if kind == "image" else frozenset(_OTHER_SUFFIXES[kind])
    if kind in ("events", "points"):
        suffixes |= {".bin"} | (BOTH if kind == "points" else frozenset())
    # A link to a folder further up makes `**` find the same entry again and again: keep the shortest way to it.
    unique: dict[tuple[str, str], str] = {}
    for match in sorted(found, key=len):
        if os.path.splitext(match)[1].lower() in suffixes:
            unique.setdefault((os.path.realpath(os.path.dirname(match)), os.path.basename(match)), match)
    if not unique:
        where = "the folder holds" if path.is_dir() else "the pattern matches"
        hint = f"; {what}s in folders below it: '{path}/**/*'" if path.is_dir() else ""
        examples = ".jpg, .png, .webp, ..." if kind == "image" else ", ".join(sorted(suffixes))
        raise DataError(f"{source}: {where} no {what} (by suffix: {examples}){hint}")
    return [Source(Path(match), match) for match in sorted(unique.values())]


def fetch(
    url: str, *, max_bytes: int = MAX_BYTES, timeout_s: float = TIMEOUT_S, total_s: float = TOTAL_TIMEOUT_S
) -> bytes:
    """Downloads an http(s) URL into memory.

    Args:
        url: The address; redirects are followed within http and https only.
        max_bytes: Refuses more than this.
        timeout_s: Longest wait for an answer or for the next piece.
        total_s: Longest time for the whole.

    Raises:
        DataError: If the address is malformed, does not answer, answers with an error or sends too much.
    """
    # Not `build_opener`: its default handlers would follow a redirect to ftp:.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    try:
        parts = urllib.parse.urlsplit(url)
        # Addresses copied from a browser's bar may hold spaces or letters beyond ASCII.
        address = urllib.parse.urlunsplit(
            parts._replace(
                path=urllib.parse.quote(parts.path, "/%:@!$&'()*+,;=~"),
                query=urllib.parse.quote(parts.query, "/?%:@!$&'()*+,;=~"),
                fragment="",
            )
        )
        request = urllib.request.Request(address, headers={"User-Agent": "pape-zoo"})
        with opener.open(request, timeout=timeout_s) as answer:
            length = answer.headers.get("Content-Length", "")
            if length.isdigit() and int(length) > max_bytes:
                raise DataError(f"{url}: {int(length)} bytes; at most {max_bytes} are taken from an address")
            data = read_bounded(answer, url, max_bytes=max_bytes, seconds=total_s)
            if length.isdigit() and len(data) != int(length):  # urllib takes a closed connection for the end.
                raise ConnectionError(f"it ended after {len(data)} of {length} bytes")
            return data
    except urllib.error.HTTPError as error:
        raise DataError(f"{url}: the server answered {error.code} {error.reason}") from error
    except TimeoutError as error:
        raise DataError(f"{url}: no answer within {timeout_s:g} s") from error
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url}: cannot be fetched ({reason})") from error


def read_bounded(
    stream: BinaryIO | Any, name: str, *, max_bytes: int = MAX_BYTES, seconds: float | None = None
) -> bytes:
    """Reads a stream to its end, at most `max_bytes` and for at most `seconds`.

    Raises:
        DataError: If there is more, or it takes longer.
    """
    start, data = time.monotonic(), bytearray()
    while chunk := stream.read(_CHUNK):
        data += chunk
        if len(data) > max_bytes:
            raise DataError(f"{name}: more than {max_bytes} bytes")
        if seconds is not None and time.monotonic() - start > seconds:
            raise DataError(f"{name}: not complete after {seconds:g} s")
    return bytes(data)


def is_url(value: object) -> bool:
    """Says whether a source is an http(s) address."""
    return isinstance(value, str) and value.lower().startswith(("http://", "https://"))


def _require_file(path: Path, name: str) -> None:
    try:
        if path.is_file():
            return
        if path.is_dir():
            raise DataError(f"{name}: is a folder; pass one file, or the folder to a predictor")
        if path.is_symlink() and not path.exists():
            raise DataError(f"{name}: is a link to a file that does not exist")
        what = "is not a regular file" if path.exists() else "no such file"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name.
        if isinstance(error, DataError):
            raise
        what = f"cannot be opened ({getattr(error, 'strerror', None) or error})"
    raise DataError(f"{name}: {what}")


def _kind_of(source: Source) -> str:
    """Decides by content where that is plain, then by suffix; whatever is left goes to the image reader."""
    if not isinstance(source.value, Path):
        return "image"
    suffix = source.value.suffix.lower()
    if source.value.name.lower().endswith(".pcd.bin"):
        return "points"
    if suffix == ".bin":
        return kind_of_bin(source.value, source.name)
    other = next((kind for kind, suffixes in _OTHER_SUFFIXES.items() if suffix in suffixes), None)
    if other is None and suffix not in BOTH:
        return "image"
    try:
        with source.value.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise DataError(f"{source.name}: cannot be opened ({error.strerror or error})") from error
    if head.startswith(_IMAGE_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return "image"
    return kind_of_table(source.value, source.name) if suffix in BOTH else str(other)
