"""A server for this computer alone: the files of the built site, and the answers of its try-it panel.

It listens on 127.0.0.1. A page of another origin can neither ask it, since the Host (a name that was rebound to this
address) and the Origin of what it sends are checked, nor read an answer, since no other origin is allowed to.
"""

from __future__ import annotations

import errno
import http.server
import json
import os
import re
import select
import socket
import sys
import threading
import urllib.parse
import webbrowser
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

import zoo
from zoo.errors import ConfigError, DataError, MissingDependencyError, UnknownModelError, ZooError
from zoo.results import one_line
from zoo.site import kept_pages, samples, static_files
from zoo.site.kept_pages import KeptPages
from zoo.site.predictor import Busy, Predictor

__all__ = ["MOST_BYTES", "make_server", "serve"]

MOST_BYTES = 64 * 2**20
"""Largest file that is taken."""
MOST_JSON = 2**20

_HOSTS = ("localhost", "127.0.0.1")
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_WHOLE = re.compile(r"-?[0-9]{1,12}")
_CHUNK = 2**16


class _Refused(Exception):
    """An answer other than 200.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # Elsewhere it would let two programs listen on one port.
    allow_reuse_address = os.name == "posix"

    def __init__(self, folder: Path, port: int, predictor: Predictor) -> None:
        self.folder, self.predictor = folder, predictor
        self.pages = KeptPages()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of browsers that hang up."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"error: {type(error).__name__}: {one_line(str(error))}", file=sys.stderr)


def make_server(folder: Path, port: int = 0, *, predictor: Predictor | None = None) -> http.server.ThreadingHTTPServer:
    """Makes the server; `serve_forever` runs it, `server_address` says where it listens.

    Args:
        folder: The built site; it has an `index.html`.
        port: Where to listen on 127.0.0.1; 0 takes any free one.
        predictor: What answers; by default one for all models whose weights are in this package.

    Raises:
        ConfigError: If there is no such site, or the port cannot be used.
    """
    folder = Path(folder)
    if not (folder / "index.html").is_file():
        raise ConfigError(f"{folder}: holds no site (index.html); build it first")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535:
        raise ConfigError(f"port must be a whole number from 0 to 65535, not {port!r:.60}")
    try:
        return _Server(folder, port, Predictor() if predictor is None else predictor)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is taken by another program: choose another one, or 0 for any") from error
        raise ConfigError(f"port {port} cannot be used ({error.strerror or error})") from error


def serve(folder: Path, port: int, open_browser: bool) -> None:
    """Serves a built site until Ctrl-C, and prints where.

    Args:
        folder: The built site.
        port: Where to listen on 127.0.0.1; 0 takes any free one.
        open_browser: Show it in the browser.

    Raises:
        ConfigError: If there is no such site, or the port cannot be used.
    """
    from rich.console import Console

    with make_server(folder, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        console = Console()
        console.print(f"serving {folder} at [link={address}]{address}[/link] (Ctrl-C stops)", highlight=False)
        # PyTorch takes a second to import: not in the first request.
        threading.Thread(target=server.predictor.models, daemon=True).start()  # type: ignore[attr-defined]
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("stopped")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds without a byte
    server: _Server
    _left = 0  # bytes of the body that were not read

    def do_GET(self) -> None:
        """Files, and questions that change nothing."""
        self._answered(self._got)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Files to predict."""
        self._answered(self._posted)

    def _got(self, path: str, query: Mapping[str, str]) -> None:
        if path == "/api/status":
            self._send_json({"ok": True, "version": zoo.__version__})
        elif path == "/api/models":
            self._send_json(self.server.predictor.models())
        elif path.startswith("/api/sample/"):
            self._send_sample(urllib.parse.unquote(path.removeprefix("/api/sample/")))
        elif path.startswith("/api/page/"):
            self._send_page(path.removeprefix("/api/page/"))
        elif path.startswith("/api"):
            wrong = path in ("/api/load", "/api/predict", "/api/bias")
            status = HTTPStatus.METHOD_NOT_ALLOWED if wrong else HTTPStatus.NOT_FOUND
            raise _Refused(status, f"{path:.80}: is asked for with POST" if wrong else f"{path:.80}: no such address")
        elif (found := static_files.find(self.server.folder, path)) is not None:
            kind = static_files.TYPES.get(found.suffix.lower(), "application/octet-stream")
            self._send(HTTPStatus.OK, found.read_bytes(), kind, {"Cache-Control": "no-cache"})
        elif not path.endswith("/") and static_files.find(self.server.folder, path + "/") is not None:
            self._send(HTTPStatus.MOVED_PERMANENTLY, b"", "text/plain", {"Location": path + "/"})
        else:
            raise _Refused(HTTPStatus.NOT_FOUND, "not found")

    def _posted(self, path: str, query: Mapping[str, str]) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and origin not in self._origins():
            raise _Refused(HTTPStatus.FORBIDDEN, "pages of other origins may not ask")
        actions: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "/api/load": self._load,
            "/api/predict": self._predict,
            "/api/bias": self._bias,
        }
        if path not in actions:
            raise _Refused(HTTPStatus.NOT_FOUND, f"{path:.80}: no such address")
        self._send_json(actions[path](query))

    def _load(self, query: Mapping[str, str]) -> Any:
        self._body(MOST_JSON)  # None is expected, but a browser may send an empty one.
        return self.server.predictor.load(_named(query, "model"))

    def _predict(self, query: Mapping[str, str]) -> Any:
        name, size = _named(query, "model"), _whole(query, "size")
        if self.headers.get_content_type() == "application/json":
            if size is not None:
                raise ConfigError("size is for pictures and videos, not for prompts")
            made = self.server.predictor.continued(name, self._json())
            page = made.get("page")
            return made if page is None else {**made, "page": f"page/{self.server.pages.keep(page)}"}
        options: dict[str, Any] = {"filename": self._filename(), "size": size, "wanted": self._is_waited_for}
        return self.server.predictor.predict(name, self._body(MOST_BYTES), **options)

    def _bias(self, query: Mapping[str, str]) -> Any:
        name, size = _named(query, "model"), _whole(query, "size")
        place: dict[str, Any] = {key: _whole(query, key) for key in ("row", "col", "layer")}
        if missing := [key for key, value in place.items() if value is None]:
            raise ConfigError(f"{missing[0]} is missing in the address")
        options: dict[str, Any] = {"filename": self._filename(), "size": size, "wanted": self._is_waited_for}
        return self.server.predictor.bias(name, self._body(MOST_BYTES), **options, **place)

    def _send_sample(self, name: str) -> None:
        try:
            content = samples.sample(name)
        except MissingDependencyError:
            raise
        except DataError as error:
            raise _Refused(HTTPStatus.NOT_FOUND, str(error)) from error
        kind = static_files.TYPES.get(Path(name).suffix.lower(), "application/octet-stream")
        self._send(HTTPStatus.OK, content, kind, {"Cache-Control": "no-cache"})

    def _send_page(self, key: str) -> None:
        page = self.server.pages.get(key)
        if page is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "this page is not kept any more: ask again")
        self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", kept_pages.HEADERS)

    def _answered(self, action: Callable[[str, Mapping[str, str]], None]) -> None:
        """Runs an action; whatever goes wrong is one line."""
        try:
            self._left = self._stated_length()
            self._check_host()
            action(*_taken_apart(self.path))
        except _Refused as error:
            self._send_error(error.status, str(error))
        except UnknownModelError as error:
            self._send_error(HTTPStatus.NOT_FOUND, str(error))
        except (DataError, ConfigError) as error:
            self._send_error(HTTPStatus.BAD_REQUEST, str(error))
        except Busy as error:
            self._send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except MissingDependencyError as error:
            self._send_error(HTTPStatus.NOT_IMPLEMENTED, str(error))
        except ZooError as error:
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except MemoryError:
            self._send_error(HTTPStatus.INSUFFICIENT_STORAGE, "not enough memory for this file")
        except Exception as error:
            print(f"error: {type(error).__name__}: {one_line(str(error))} (a defect)", file=sys.stderr)
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"a defect of the server ({type(error).__name__})")

    def _origins(self) -> list[str]:
        return [f"http://{host}:{self.server.server_address[1]}" for host in _HOSTS]

    def _check_host(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or f"http://{hosts[0].lower()}" not in self._origins():
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers as localhost alone")

    def _stated_length(self) -> int:
        """Content-Length, 0 where it is absent."""
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) != 1 or not lengths[0].isascii() or not lengths[0].isdecimal():
            self.close_connection = True
            raise _Refused(HTTPStatus.BAD_REQUEST, "Content-Length is no whole number")
        if len(lengths[0]) > 18:
            self.close_connection = True
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the file is too large")
        return int(lengths[0])

    def _body(self, most: int) -> bytes:
        """The body of the request."""
        if "Content-Length" not in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
        if self._left > most:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{self._left} bytes; at most {most} are taken")
        body = bytearray()
        while self._left:
            chunk = self.rfile.read1(min(_CHUNK, self._left))
            if not chunk:
                raise ConnectionError("the body ended early")
            body += chunk
            self._left -= len(chunk)
        return bytes(body)

    def _json(self) -> Mapping[str, Any]:
        body = self._body(MOST_JSON)
        try:
            found = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the body is no JSON ({one_line(str(error))[:100]})") from error
        if not isinstance(found, dict):
            raise DataError('the body must be an object, such as {"prompt": "..."}')
        return found

    def _is_waited_for(self) -> bool:
        """Whether the browser is still there."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def _filename(self) -> str:
        return urllib.parse.unquote(self.headers.get("X-Filename", ""))[-255:]

    def _send_json(self, values: Any) -> None:
        body = json.dumps(values, allow_nan=False).encode()
        self._send(HTTPStatus.OK, body, "application/json", {"Cache-Control": "no-store"})

    def _send_error(self, status: HTTPStatus, message: str) -> None:
        body, kind = one_line(message).encode(errors="replace"), "text/plain; charset=utf-8"
        if self.path.startswith("/api"):
            body, kind = json.dumps({"error": one_line(message)}).encode(), "application/json"
        self._send(status, body, kind, {"Cache-Control": "no-store"})

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: Mapping[str, str]) -> None:
        if self._left:
            self.close_connection = True
        try:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS, **more}.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self._drain()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _drain(self) -> None:
        """Reads a refused body of up to twice the limit: closing before would lose the answer on its way."""
        self._left = min(self._left, 2 * MOST_BYTES)
        if self._left:
            self.wfile.flush()
            self.connection.settimeout(5)
        while self._left:
            chunk = self.rfile.read1(min(_CHUNK, self._left))
            self._left = self._left - len(chunk) if chunk else 0

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses: a line that is no request, other methods."""
        self.close_connection = True
        self.path, self.command = getattr(self, "path", ""), getattr(self, "command", None) or ""
        self._send_error(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def version_string(self) -> str:
        """Says nothing of the Python that runs it."""
        return f"pape-zoo/{zoo.__version__}"

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the browser shows what went wrong."""


def _taken_apart(address: str) -> tuple[str, dict[str, str]]:
    """The path and the query."""
    path, _, query = address.partition("?")
    try:
        return path, dict(urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"the address cannot be read ({error})") from error


def _named(query: Mapping[str, str], key: str) -> str:
    if not query.get(key):
        raise ConfigError(f"{key} is missing in the address")
    return query[key]


def _whole(query: Mapping[str, str], key: str) -> int | None:
    if key not in query:
        return None
    if not _WHOLE.fullmatch(query[key]):
        raise ConfigError(f"{key} must be a whole number, not {query[key]!r:.60}")
    return int(query[key])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
