"""How soon the try-it panel answers: requests over HTTP to the local server, as a browser sends them."""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from zoo.bench.predict import sample_picture
from zoo.bench.timing import environment, interleaved, threads
from zoo.errors import ConfigError

__all__ = ["GOAL_MS", "measure"]

GOAL_MS = 1000.0
"""For a picture at 112 px, after the model is loaded."""


def measure(
    name: str, *, size: int | None = None, image: Path | None = None, cpu_threads: int = 1, repeats: int = 20
) -> dict[str, Any]:
    """Times requests to a server in this process.

    Args:
        name: An image model whose weights are in this package.
        size: Longer side of the input in pixels; by default that of training.
        image: Picture file; by default a JPEG of 500 x 375 pixels made here.
        cpu_threads: Threads of torch.
        repeats: Requests of each kind.

    Returns:
        `name`, `size`, `load_ms` (the first request, which loads and warms the model), `timings` (`"predict"`, and
        `"bias"` where the model has one, to `median_ms` and `p90_ms`), `goal_ms`, `environment`.

    Raises:
        ConfigError: If it is no such model, or the server refuses the request.
    """
    from zoo.site.predictor import Predictor
    from zoo.site.server import make_server

    predictor = Predictor()
    about = next((about for about in predictor.models() if about["name"] == name), None)
    if about is None or about["input"] != "picture":
        known = ", ".join(about["name"] for about in predictor.models() if about["input"] == "picture")
        raise ConfigError(f"{name}: this times models of pictures with weights in this package: {known}")
    body = sample_picture() if image is None else image.read_bytes()
    size = about["default_size"] if size is None else size
    with tempfile.TemporaryDirectory(prefix="pape-zoo-") as folder, threads(cpu_threads):
        (Path(folder) / "index.html").write_text("", encoding="utf-8")
        with make_server(Path(folder), predictor=predictor) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            port = server.server_address[1]
            try:
                start = time.perf_counter()
                _ask(port, f"/api/load?model={name}", b"")
                load_ms = 1000 * (time.perf_counter() - start)
                calls = {"predict": lambda: _ask(port, f"/api/predict?model={name}&size={size}", body)}
                if about["patch_bias"]:
                    where = f"/api/bias?model={name}&size={size}&row=0&col=0&layer=0"
                    calls["bias"] = lambda: _ask(port, where, body)
                timings = interleaved(calls, repeats=repeats)
                made = environment("cpu")
            finally:
                server.shutdown()
                thread.join()
    return {
        "bench": "browse",
        "name": name,
        "size": size,
        "picture": "made here, 500 x 375 JPEG" if image is None else str(image),
        "repeats": repeats,
        "load_ms": load_ms,
        "timings": {key: {"median_ms": t.median_ms, "p90_ms": t.p90_ms} for key, t in timings.items()},
        "goal_ms": GOAL_MS,
        "environment": made,
    }


def _ask(port: int, path: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", path, body, {"X-Filename": "picture.jpg"})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise ConfigError(str(json.loads(content).get("error")))
