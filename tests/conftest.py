"""Fixtures shared by all tests, and one thread per process so that parallel workers do not fight over cores."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Before torch is imported; child processes inherit it.

# The same examples in every CI run: what is searched for at the desk should not fail somebody else's change.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _compile_afresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test meets the compiler's bound on how often a function is compiled because of those before it."""
    yield
    if "compile" in request.node.name and "torch" in sys.modules:
        sys.modules["torch"].compiler.reset()


ROOT = Path(__file__).resolve().parent.parent

TINY_CONFIG: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny",
    "modality": "image",
    "task": "classification",
    "architecture": "vit",
    "model": {
        "dim": 32,
        "depth": 2,
        "num_heads": 2,
        "head_dim": 16,
        "mlp_dim": 64,
        "patch_size": 8,
        "in_chans": 3,
        "num_classes": 3,
        "encoding": "pape",
        "encoding_options": {"parabolas": 4},
        "coordinate_origin": 0,
        "class_token_position": None,
        "size_policy": "refuse",
        "drop_path": 0.0,
    },
    "data": {
        "input_size": [3, 32, 32],
        "resize": "shortest",
        "crop_fraction": 1.0,
        "interpolation": "bicubic",
        "antialias": True,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
    "labels": ["circle", "square", "triangle"],
}


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of data sets and reference outputs; a relative ZOO_SHARED counts from the repository root."""
    folder = (ROOT / os.environ.get("ZOO_SHARED", "../shared")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set ZOO_SHARED")
    return folder


@pytest.fixture
def official(shared: Path) -> Callable[[str], Path]:
    """Gives the folder of a toy-size PaPE checkpoint in the released layout, by data set."""

    def find(dataset: str) -> Path:
        source = shared / "parity" / f"{dataset}-pape"
        if not source.is_dir():
            pytest.skip(f"no reference outputs at {source}")
        return source

    return find


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    """A vision transformer of a few thousand parameters: 32 x 32 pictures, patch 8, three classes."""
    return copy.deepcopy(TINY_CONFIG)


@pytest.fixture
def file_size_limit() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Makes writing more than so many bytes into a file fail, as on a disk that fills up."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit
