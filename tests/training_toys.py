"""A toy picture set, a tiny recipe and a way to interrupt it, for the training tests."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SIZE = 16  # side of a toy picture in pixels
TINY = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64, "patch_size": 8}


def toy_picture(label: int, index: int, size: tuple[int, int] = (SIZE, SIZE), mode: str = "RGB") -> bytes:
    """PNG bytes: class 0 is dark, class 1 bright, both noisy."""
    rng = np.random.default_rng(1000 * label + index)
    values = rng.integers(0, 60, (*size, 3)) + (40 if label == 0 else 150)
    buffer = io.BytesIO()
    Image.fromarray(values.astype(np.uint8)).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def write_parquet(path: Path, records: list[tuple[bytes, int]], names: list[str] | None = None) -> None:
    """A Parquet file as the Hub has them, with class names in its metadata."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [{"bytes": data, "path": None} for data, _ in records]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array([label for _, label in records], pa.int64())})
    if names:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_toys(folder: Path, train: int = 32, validation: int = 12) -> Path:
    """Both splits of the toy set: `train` and `validation` pictures, half of each class."""
    for split, count, offset in (("train", train, 0), ("validation", validation, 500)):
        records = [(toy_picture(i % 2, offset + i, mode="L" if i == 3 else "RGB"), i % 2) for i in range(count)]
        write_parquet(folder / f"{split}.parquet", records, ["dark", "bright"])
    return folder


def tiny_settings(data: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Keys of a recipe that trains in a second on the CPU."""
    return {
        "model": "pape-vit-t-imagenette",
        "model_options": dict(TINY),
        "data": str(data),
        "output": str(output),
        "image_size": SIZE,
        "epochs": 3,
        "batch_size": 8,
        "lr": 3e-3,
        "precision": "float32",
        "device": "cpu",
        "augment_group": 4,
        "drop_path": 0.2,
        "ema": 0.9,
        "checkpoint_seconds": 0.0,
        **changes,
    }


class Stop:
    """Asks to stop after a number of questions."""

    def __init__(self, after: int) -> None:
        self.left = after

    def reason(self) -> str | None:
        self.left -= 1
        return "test" if self.left == 0 else None


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Makes a run stop as a time budget would."""
    from zoo.training.stopping import StopRequest

    stop = Stop(steps)
    monkeypatch.setattr(StopRequest, "reason", lambda self: stop.reason())


def soon(what: Callable[[], bool]) -> bool:
    """Whether it becomes true within ten seconds."""
    end = time.monotonic() + 10
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
