"""Which file of a folder an address names, and nothing outside of it."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

__all__ = ["TYPES", "find"]

# Not those of the system, which differ from one to the next.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".gif": "image/gif",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".mp4": "video/mp4",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
    ".xml": "application/xml",
}


def find(folder: Path, address: str) -> Path | None:
    """The file for the path of an address; of a folder its `index.html`.

    Args:
        folder: What may be served.
        address: Such as `/models/a%20b.html`, without the query.

    Returns:
        `None` where there is none: no such file, a hidden one, one that lies outside (also by a link), no regular file.
    """
    try:
        path = urllib.parse.unquote(address, errors="strict")
    except UnicodeDecodeError:
        return None
    parts = path.split("/")[1:]
    parts = [*parts[:-1], parts[-1] or "index.html"] if parts else ["index.html"]
    if any(not part or part.startswith(".") or any(letter in part for letter in "\\:\0") for part in parts):
        return None
    try:
        root = folder.resolve()
        found = root.joinpath(*parts).resolve(strict=True)
        if found.is_relative_to(root) and found.is_file():
            return found
    except (OSError, ValueError, RuntimeError):  # Nothing there, a name that is too long, links in a circle.
        pass
    return None
