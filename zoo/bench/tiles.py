"""Attention alone with one of its Triton kernels in other tiles, next to those it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zoo.bench.core import Attend, Inputs
from zoo.bench.timing import environment, interleaved, pick_batch, pick_device, pick_dtype, recorded
from zoo.bench.workloads import grid_workload
from zoo.errors import ConfigError
from zoo.kernels.plans import Tiling, trying
from zoo.results import one_line

__all__ = ["KERNELS", "OWN", "measure", "parse_tiles"]

KERNELS = ("forward", "queries", "keys")
OWN = "own"
_TILE = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)(?:x(\d+))?")


def parse_tiles(text: str) -> dict[str, Tiling]:
    """Comma-separated tilings as QUERIESxKEYSxWARPSxSTAGES or with a bound, QUERIESxKEYSxWARPSxSTAGESxREGISTERS.

    Raises:
        ConfigError: If there is none, or one has another form or sizes that Triton does not take.
    """
    found = {}
    for name in (part.strip() for part in text.split(",") if part.strip()):
        match = _TILE.fullmatch(name)
        numbers = [int(number) for number in match.groups() if number] if match else []
        if not numbers or any(size < 16 or size & (size - 1) for size in numbers[:2]) or numbers[2] not in (1, 2, 4, 8):
            raise ConfigError(
                f"tiles are QUERIESxKEYSxWARPSxSTAGES such as 128x64x8x3, powers of two from 16 and up to 8 warps, and "
                f"xREGISTERS if bounded; got {name!r:.80}"
            )
        found[name] = Tiling(*numbers)
    if not found:
        raise ConfigError("no tiles are named: give --tiles 128x64x8x3,64x64x4x3")
    return found


def measure(
    *,
    encoding: str,
    kernel: str,
    tiles: dict[str, Tiling],
    grids: Sequence[int],
    heads: int = 12,
    head_dim: int = 64,
    batch: int | None = None,
    device: str | None = None,
    dtype: str = "bfloat16",
    repeats: int = 15,
) -> dict[str, Any]:
    """Measures attention alone from CUDA graphs, with one kernel in each of some tilings.

    Args:
        encoding: Name of a position encoding that our kernels run, or `none`.
        kernel: `"forward"`, or one of backward: `"queries"` or `"keys"`, whose times are of forward and backward.
        tiles: From `parse_tiles`.
        grids: Sides of square token grids; a class token without position is added.
        heads: Heads H.
        head_dim: Head width D.
        batch: Samples; by default about 16,384 tokens.
        device: `cuda` or `cuda:N`.
        dtype: bfloat16 or float16.
        repeats: Samples of each timing.

    Returns:
        A JSON-ready dict; `rows` has one entry per grid and tiling, the kernel's own tiles (`"own"`) first, with
        `median_ms`, `p90_ms` and `ratio` to its own, or `refused` where the tiling does not compile.

    Raises:
        ConfigError: If the kernel is unknown, the device no GPU, or the call not one that Triton runs.
    """
    device, torch_dtype = pick_device(device), pick_dtype(dtype)
    if kernel not in KERNELS:
        raise ConfigError(f"unknown kernel {kernel!r:.80}: there are {', '.join(KERNELS)}")
    if not device.startswith("cuda"):
        raise ConfigError("tiles are measured on a CUDA device")
    step = "inference" if kernel == "forward" else "train"
    rows: list[dict[str, Any]] = []
    for side in grids:
        workload = grid_workload(side, pick_batch(batch, side * side + 1, device), device)
        inputs = Inputs.draw(workload, heads, head_dim, device, torch_dtype)
        attend = Attend(inputs, encoding, "triton", step, compiled=False)
        calls: dict[str, Callable[[], object]] = {OWN: recorded(attend, device)}
        refused: dict[str, str] = {}
        for name, tiling in tiles.items():
            try:
                with trying(kernel, tiling):
                    calls[name] = recorded(attend, device)
            except Exception as error:  # Triton's own, for too much shared memory above all.
                torch.cuda.synchronize(device)
                refused[name] = one_line(str(error))[:200] or type(error).__name__
        timings = interleaved(calls, repeats=repeats, device=device)
        for name in (OWN, *tiles):
            own = timings.get(name)
            rows.append(
                {
                    "grid": side,
                    "tokens": workload.tokens,
                    "batch": len(workload.lengths),
                    "tiles": name,
                    "refused": refused.get(name),
                    "median_ms": own and own.median_ms,
                    "p90_ms": own and own.p90_ms,
                    "ratio": own and own.median_ms / timings[OWN].median_ms,
                }
            )
    return {
        "bench": "tiles",
        "encoding": encoding,
        "kernel": kernel,
        "step": step,
        "heads": heads,
        "head_dim": head_dim,
        "dtype": dtype,
        "repeats": repeats,
        "environment": environment(device),
        "rows": rows,
    }
