"""A server of a built site whose answers are made up, so that the panel is tested without running models."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LAYERS, HEADS, PATCH = 3, 4, 8
SAMPLES = Path(__file__).resolve().parent.parent / "samples"
CLASSIFIER, DETECTOR, CLOUD = "pape-vit-t-imagenette", "pape-vit-det-n-bccd", "pape-ptv3-n-als3"
MODELS = [
    {
        "name": CLASSIFIER,
        "modality": "image",
        "task": "classification",
        "input": "picture",
        "default_size": 112,
        "sizes": [64, 112, 160, 224],
        "patch_bias": True,
        "samples": ["golf_ball.jpg", "church.jpg"],
    },
    {
        "name": DETECTOR,
        "modality": "image",
        "task": "detection",
        "input": "picture",
        "default_size": None,
        "sizes": None,
        "patch_bias": False,
        "samples": ["golf_ball.jpg"],
    },
    {
        "name": CLOUD,
        "modality": "points",
        "task": "segmentation",
        "input": "points",
        "default_size": None,
        "sizes": None,
        "patch_bias": False,
        "samples": ["golf_ball.jpg"],
    },
]
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA"
    "DUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EMPTY = {"classes": [], "boxes": [], "picture": None, "text": None, "download": None, "note": None}


class Site(SimpleHTTPRequestHandler):
    """Files of the site, and the made-up answers below `/api/`."""

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        address = urllib.parse.urlsplit(self.path).path
        if address == "/api/status":
            self._json({"ok": True, "version": "test"})
        elif address == "/api/models":
            self._json(MODELS)
        elif address.startswith("/api/sample/"):
            self._bytes((SAMPLES / Path(urllib.parse.unquote(address)).name).read_bytes(), "image/jpeg")
        else:
            super().do_GET()

    def do_POST(self):
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        if address.path == "/api/load":
            self._json({"ok": True, "milliseconds": 1.0})
            return
        given = self.rfile.read(int(self.headers["Content-Length"]))
        name = urllib.parse.unquote(self.headers.get("X-Filename", ""))
        with self.server.lock:
            self.server.asked.append({"path": address.path, "name": name, "bytes": len(given), **query})
        if name.startswith("broken"):
            self._json({"error": "broken.jpg: cannot be read as a picture"}, 400)
        elif address.path == "/api/predict":
            self._json(self._predict(query))
        else:
            self._json(self._bias(query))

    def _predict(self, query):
        size = int(query.get("size", 0))
        if size == 64:
            time.sleep(self.server.slow)  # The answer that comes too late.
        answer = {"model": query["model"], "size": size or None, "milliseconds": 12.4, "width": 320, "height": 240}
        if query["model"] == CLASSIFIER:
            found = [{"label": f"thing at {size}", "score": 0.9}, {"label": "<b>markup</b>", "score": 0.1}]
            side, view = size // PATCH, {"x1": 40, "y1": 0, "x2": 280, "y2": 240}
            return {**EMPTY, **answer, "kind": "classes", "classes": found, "grid": [side, side], "view": view}
        if query["model"] == DETECTOR:
            box = {"x1": 10, "y1": 20.4, "x2": 60, "y2": 90, "label": "RBC", "score": 0.875}
            return {**EMPTY, **answer, "kind": "boxes", "boxes": [box]}
        download = {"name": "classes.csv", "data-URL": "data:text/csv;base64,YQ=="}
        return {**EMPTY, **answer, "kind": "points", "note": "3 points", "picture": PIXEL, "download": download}

    def _bias(self, query):
        side = int(query["size"]) // PATCH
        row, col, layer = (int(query[key]) for key in ("row", "col", "layer"))
        heads = [
            [[-(head + 1) * ((y - row) ** 2 + (x - col) ** 2) / 50 - layer for x in range(side)] for y in range(side)]
            for head in range(HEADS)
        ]
        return {"grid": [side, side], "layers": LAYERS, "layer": layer, "row": row, "col": col, "heads": heads}

    def _json(self, value, status=200):
        self._bytes(json.dumps(value).encode(), "application/json", status)

    def _bytes(self, value, kind, status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


@contextmanager
def serve_site(folder: Path) -> Iterator[ThreadingHTTPServer]:
    """The server on a free port; `asked` holds what was posted, `slow` the seconds that size 64 takes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(folder)))
    server.asked, server.lock, server.slow = [], threading.Lock(), 0.0
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
