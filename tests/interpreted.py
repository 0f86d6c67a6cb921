"""Runs code or a test file in a process of its own in which Triton's kernels run on the CPU, by its interpreter.

Triton decides at its import whether it interprets, so that a process which has imported it cannot change its mind.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from zoo.kernels.fused import interpreted

ROOT = Path(__file__).resolve().parent.parent
HERE = interpreted() or torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
Test = TypeVar("Test", bound=Callable[..., None])


def kernel_test(test: Test) -> Test:
    """Marks a test that runs kernels: on a CUDA device it is one of `-m gpu`, else it needs the interpreter."""
    if DEVICE == "cuda":
        return pytest.mark.gpu(test)
    return pytest.mark.skipif(not HERE, reason="no CUDA device; runs in a process of its own by the interpreter")(test)


def run(code_or_path: str, timeout: float = 300, marked: str | None = None) -> str:
    """Runs Python code, or pytest on a file (`.py`) with `TRITON_INTERPRET=1`.

    Args:
        code_or_path: Python code, or the path of a test file.
        timeout: Seconds.
        marked: Of a file, run the tests with this mark in place of those that run by default.

    Returns:
        What it wrote to standard output.

    Raises:
        AssertionError: If it fails, or if no test of the file ran.
    """
    is_file = code_or_path.endswith(".py") and "\n" not in code_or_path
    how = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", code_or_path] if is_file else ["-c", code_or_path]
    how += ["-m", marked] if marked else []
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    environment.pop("ZOO_KERNEL", None)
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *how], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not is_file or " passed" in done.stdout, done.stdout[-4000:]
    return done.stdout
