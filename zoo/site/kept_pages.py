"""Pages that results come with, such as the player of a chorale: kept for a while, and shown cut off from the site."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

__all__ = ["HEADERS", "KeptPages"]

_MOST = 8
# They run a script of their own, and so in a frame without an origin.
HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "no-store",
}


class KeptPages:
    """The last few pages, by keys that nobody can guess; threads may share it."""

    def __init__(self) -> None:
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, page: str) -> str:
        """Keeps a page, and lets the oldest go; returns its key."""
        key = secrets.token_hex(16)
        with self._lock:
            self._pages[key] = page.encode()
            while len(self._pages) > _MOST:
                self._pages.popitem(last=False)
        return key

    def get(self, key: str) -> bytes | None:
        """A page, or `None` if it is not kept any more."""
        with self._lock:
            return self._pages.get(key)
