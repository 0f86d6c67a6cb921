"""A running server of the browsing site, and requests to it over real HTTP."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conftest import TINY_CONFIG
from decoder_toys import toy
from saved_models import make_model

import zoo
from zoo.site.predictor import Predictor
from zoo.site.server import make_server


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one line that says what was wrong."""
        assert self.headers["Content-Type"] == "application/json", self
        (message,) = self.json.values()
        assert list(self.json) == ["error"] and message and "\n" not in message and "Traceback" not in message
        return str(message)


class Client:
    """Asks one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request; `Host` may be another."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            got = connection.getresponse()
            return Answer(got.status, dict(got.getheaders()), got.read())

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        """POST."""
        return self.ask("POST", path, body, **headers)

    def raw(self, request: bytes) -> bytes:
        """All that comes back for bytes that need be no request."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            parts = []
            while part := connection.recv(65_536):
                parts.append(part)
            return b"".join(parts)


@contextlib.contextmanager
def running(folder: Path, predictor: Predictor | None = None) -> Iterator[Client]:
    """A server on a free port."""
    server = make_server(folder, predictor=predictor)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Client(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def site(folder: Path) -> Path:
    """A folder with a page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text("<title>models</title>", encoding="utf-8")
    return folder


def toy_models(folder: Path) -> dict[str, str]:
    """Tiny random models in a folder: classifiers with and without a bias between patches, and two decoders."""
    targets = {}
    for name, encoding in (("with", "pape"), ("without", "rope"), ("both", "sincos+alibi")):
        config = copy.deepcopy(TINY_CONFIG)
        config["model"] |= {"encoding": encoding, "encoding_options": {"parabolas": 4} if encoding == "pape" else {}}
        zoo.save(make_model(config | {"name": name}), folder / name)
        targets[name] = f"local-dir:{folder / name}"
    for known in ("shakespeare", "jsb"):
        zoo.save(toy(known), folder / known)
        targets[known] = f"local-dir:{folder / known}"
    return targets
