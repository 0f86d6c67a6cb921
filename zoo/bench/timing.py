"""Timing of alternatives side by side, so that their ratios survive a machine whose speed drifts."""

from __future__ import annotations

import contextlib
import functools
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ConfigError

__all__ = [
    "Timing",
    "compile_afresh",
    "environment",
    "interleaved",
    "parse_whole",
    "peak_mib",
    "pick_batch",
    "pick_device",
    "pick_dtype",
    "precision",
    "recorded",
    "threads",
]

# Short calls are repeated within a sample until it lasts about this long: the clock and the launch jitter vanish in it.
_SAMPLE_MS = 5.0
_DTYPES = ("float32", "bfloat16", "float16")
_CUDA_TOKENS = 2**14  # Enough to fill a large GPU; the batch is this over the tokens of a sample.
_VERSIONS = 64  # Of one function, one for each alternative that is measured.


@dataclass(frozen=True)
class Timing:
    """Samples of one call, in milliseconds."""

    samples_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Median, the figure to compare."""
        return statistics.median(self.samples_ms)

    @property
    def p90_ms(self) -> float:
        """The time that nine of ten calls stay under (nearest rank)."""
        ordered = sorted(self.samples_ms)
        return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 3,
    device: str = "cpu",
    sample_ms: float = _SAMPLE_MS,
) -> dict[str, Timing]:
    """Times calls in turn: each repeat takes one sample of every call, so that slow drifts hit all of them alike.

    Args:
        calls: What to time, by name; each is run to completion on `device` before the clock stops.
        repeats: Samples per call.
        warmup: Runs of each call before the first sample.
        device: `"cpu"` or a CUDA device.
        sample_ms: A sample averages as many runs as fit into about this time, at least one.

    Raises:
        ConfigError: On fewer than one repeat.
    """
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, got {repeats}")
    runs: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(warmup):
            call()
        runs[name] = max(1, round(sample_ms / max(_elapsed_ms(call, 1, device), 1e-3)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(_elapsed_ms(call, runs[name], device) / runs[name])
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def recorded(call: Callable[[], object], device: str) -> Callable[[], object]:
    """A CUDA graph of a call: replaying it costs the work of the GPU alone, not the launches from Python.

    Short kernels are otherwise bound by Python; a training loop that uses CUDA graphs is not.

    Args:
        call: Always works on the same tensors, and does not wait for the device.
        device: Where it works.

    Raises:
        ConfigError: If the device is not a CUDA device.
    """
    if not device.startswith("cuda"):
        raise ConfigError(f"CUDA graphs need a CUDA device, this is {device}")
    import torch

    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # Kernels are compiled and chosen, and workspaces made, before the recording.
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    # The graph works on the tensors of the call: they must live as long.
    return functools.partial(_replay, graph, call)


def _replay(graph: Any, call: Callable[[], object]) -> None:
    graph.replay()


def _elapsed_ms(call: Callable[[], object], runs: int, device: str) -> float:
    _synchronise(device)
    start = time.perf_counter()
    for _ in range(runs):
        call()
    _synchronise(device)
    return (time.perf_counter() - start) * 1e3


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def pick_device(device: str | None) -> str:
    """The device to measure on: the one named, else CUDA where there is one, else the CPU.

    Raises:
        ConfigError: If the device is not `cpu`, `cuda` or `cuda:N`, or is not there.
    """
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"device must be cpu, cuda or cuda:N, got {device!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r} is not there: PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return device


def pick_dtype(dtype: str) -> Any:
    """The torch dtype of a name.

    Raises:
        ConfigError: If it is not a floating type that models run in.
    """
    import torch

    if dtype not in _DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return getattr(torch, dtype)


def pick_batch(batch: int | None, tokens: int, device: str) -> int:
    """The number of samples asked for; by default about 16,384 tokens on CUDA and one sample on the CPU.

    Args:
        batch: What was asked for.
        tokens: Tokens of a sample.
        device: From `pick_device`.

    Raises:
        ConfigError: If it is below 1.
    """
    if batch is None:
        return max(1, _CUDA_TOKENS // tokens) if device.startswith("cuda") else 1
    if batch < 1:
        raise ConfigError(f"batch must be at least 1, got {batch}")
    return batch


def parse_whole(text: str, what: str, *, highest: int, example: str) -> list[int]:
    """Comma-separated whole numbers from 1 to `highest`.

    Raises:
        ConfigError: If there is none, or one is not such a number.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= highest for part in parts):
        raise ConfigError(f"{what} are whole numbers from 1 to {highest} such as {example}; got {text!r}")
    return [int(part) for part in parts]


def precision(device: str, dtype: Any, train: bool) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """How a network runs in a dtype: converted for inference, float32 parameters under autocast for a train step.

    Returns:
        The dtype of parameters and inputs, and the context to run in.
    """
    import torch

    if train and dtype != torch.float32:
        return torch.float32, torch.autocast(device.partition(":")[0], dtype)
    return dtype, contextlib.nullcontext()


def peak_mib(call: Callable[[], object], device: str) -> float | None:
    """Peak memory of one call above what was held before it, in MiB; known on CUDA only."""
    if not device.startswith("cuda"):
        return None
    import torch

    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / 2**20


@contextlib.contextmanager
def compile_afresh(compiled: bool) -> Iterator[None]:
    """Forgets what was compiled before, and lets torch compile the code that alternatives share once for each of them.

    By default it gives up after 8 versions and runs the others uncompiled. Does nothing when not `compiled`.
    """
    if not compiled:
        yield
        return
    import torch
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=_VERSIONS):
        yield


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Limits torch to `count` CPU threads within the block."""
    import torch

    if count < 1:
        raise ConfigError(f"threads must be at least 1, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment(device: str) -> dict[str, Any]:
    """What a figure depends on besides the code: device, versions and threads, ready for JSON."""
    import torch

    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.startswith("cuda") else None,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
