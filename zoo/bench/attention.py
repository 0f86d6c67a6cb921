"""What each position encoding costs the core of attention with every kernel, next to attention without positions.

The core is the encoding on x, q, k and v and `zoo.kernels.attend`, without the projections around them; attention alone
is `attend` on what the encoding made once.

Legend: B batch, H heads, N tokens, D head width, C = H D features.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import torch

from zoo.bench.accuracy import all_errors
from zoo.bench.block import BASELINE
from zoo.bench.core import STEPS, Attend, Core, Inputs
from zoo.bench.goals import Goal, judge
from zoo.bench.timing import (
    Timing,
    compile_afresh,
    environment,
    interleaved,
    peak_mib,
    pick_batch,
    pick_device,
    pick_dtype,
    recorded,
    threads,
)
from zoo.bench.workloads import Sample, grid_workload, packed_workload
from zoo.errors import ConfigError, DataError
from zoo.kernels import FORCIBLE, forced
from zoo.results import one_line

__all__ = ["AUTO", "KERNELS", "measure", "parse_kernels"]

AUTO = "auto"
KERNELS = (AUTO, *FORCIBLE)
_BASELINE_NAME = f"{BASELINE}/{AUTO}"
_ALONE = ", attention alone"
_BACKWARD = 2.5  # Operations of backward relative to forward: five products instead of two.
_PACKED_SAMPLES = {"cuda": 32, "cpu": 4}


def parse_kernels(text: str) -> list[str]:
    """Comma-separated names of attention kernels, `auto` among them for the one that the call gets by default.

    Raises:
        ConfigError: If there is no name, or one is unknown.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in KERNELS]
    if unknown or not names:
        close = get_close_matches(unknown[0], KERNELS, n=1) if unknown else []
        hint = f", did you mean {close[0]!r}?" if close else "."
        wrong = f"unknown attention kernel {unknown[0]!r:.80}" if unknown else "no attention kernel is named"
        raise ConfigError(f"{wrong}{hint} Known: {', '.join(KERNELS)}")
    return list(dict.fromkeys(names))


def measure(
    *,
    encodings: Sequence[str],
    kernels: Sequence[str] = KERNELS,
    grids: Sequence[int],
    packed: bool = False,
    heads: int = 12,
    head_dim: int = 64,
    batch: int | None = None,
    steps: Sequence[str] = STEPS[:1],
    compiled: bool = False,
    graphs: bool = False,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 15,
    error_tokens: int = 1100,
) -> dict[str, Any]:
    """Measures the attention core for every encoding and every kernel that runs it, in turn.

    Frames (what follows from coordinates alone) are made beforehand, as layers of a network share them. In 16 bit,
    inference has parameters of that dtype and a train step float32 ones under autocast.

    Args:
        encodings: Names from `zoo.bench.block.parse_names`.
        kernels: Names from `parse_kernels`.
        grids: Sides of square token grids; a class token without position is added.
        packed: Measure packed samples of uneven lengths too.
        heads: Heads H.
        head_dim: Head width D, whatever an encoding makes of it.
        batch: Samples; by default about 16,384 tokens on CUDA and one sample on the CPU, packed 32 and 4 samples.
        steps: `"inference"`, `"train"` (forward and backward) or both.
        compiled: Use `torch.compile`.
        graphs: Time CUDA graphs of the calls, which leaves out the launches from Python.
        device: `cpu`, `cuda` or `cuda:N`; by default CUDA where there is one.
        dtype: float32, bfloat16 or float16.
        cpu_threads: Threads of torch on the CPU.
        repeats: Samples of each timing.
        error_tokens: Errors are computed for samples up to this length; dense float64 attention is slow beyond.

    Returns:
        A JSON-ready dict. `rows` has one entry per workload, encoding and kernel: `refused` says why it does not run.
        Under the name of each step it has `runs` (what runs), `median_ms`, `p90_ms`, `ratio` (of medians to attention
        without positions by its default kernel), `alone_ms` and `alone_ratio` (the same for `attend` without what the
        encoding does before), `tflops` (10^12 operations a second of the core, counted for D), on CUDA
        `memory_mib` (peak above what was held) and `memory_ratio`, and `errors`: relative Frobenius norms against
        float64 of `output` and, in a train step, of `dq`, `dk`, `dv` and the gradients of all `parameters`. `goals` are
        those of `zoo.bench.goals` that this run can be held against.

    Raises:
        ConfigError: On sizes below 1, an unknown device or dtype, or a kernel forced from outside.
    """
    device, torch_dtype = pick_device(device), pick_dtype(dtype)
    if name := forced():
        raise ConfigError(f"attention kernels are compared here, but ZOO_KERNEL or use() forces {name!r}: undo that")
    for what, size in {"heads": heads, "head_dim": head_dim, "error_tokens": error_tokens}.items():
        if size < 1:
            raise ConfigError(f"{what} must be at least 1, got {size}")
    workloads = [grid_workload(side, pick_batch(batch, side * side + 1, device), device) for side in grids]
    if packed:
        samples = _PACKED_SAMPLES[device.partition(":")[0]] if batch is None else batch
        workloads.append(packed_workload(samples, device))
    # The baseline comes first, and is measured whatever was asked for.
    pairs = list(dict.fromkeys([(BASELINE, AUTO), *itertools.product(encodings, kernels)]))
    rows: list[dict[str, Any]] = []
    with threads(cpu_threads):
        for workload in workloads:
            inputs = Inputs.draw(workload, heads, head_dim, device, torch_dtype)
            rows += _measure_workload(inputs, pairs, steps, compiled, graphs, repeats, workload.sample(error_tokens))
        made = environment(device)
    settings = {"device": device, "dtype": dtype, "compiled": compiled}
    return {
        "bench": "attention-core",
        "compiled": compiled,
        "graphs": graphs,
        "heads": heads,
        "head_dim": head_dim,
        "dtype": dtype,
        "repeats": repeats,
        "error_tokens": error_tokens,
        "packed_lengths": list(workloads[-1].lengths) if packed else None,
        "environment": made,
        "rows": rows,
        "goals": _judged(rows, settings) if (heads, head_dim) == (12, 64) else [],
    }


def _judged(rows: list[dict[str, Any]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    def ratio(goal: Goal) -> float | None:
        for row in rows:
            if (row["encoding"], row["kernel"], row["tokens"]) == ("pape", AUTO, goal.tokens) and row[goal.step]:
                return row[goal.step]["alone_ratio"]
        return None

    return [one for step in STEPS for one in judge("attention-core", ratio, step=step, **settings)]


def _measure_workload(
    inputs: Inputs,
    pairs: Sequence[tuple[str, str]],
    steps: Sequence[str],
    compiled: bool,
    graphs: bool,
    repeats: int,
    sample: Sample | None,
) -> list[dict[str, Any]]:
    workload = inputs.workload
    rows: dict[tuple[str, str], dict[str, Any]] = {
        pair: {
            "workload": workload.name,
            "grid": workload.side,
            "tokens": workload.tokens,
            "batch": len(workload.lengths),
            "encoding": pair[0],
            "kernel": pair[1],
            "refused": None,
            **dict.fromkeys(STEPS),
        }
        for pair in pairs
    }
    heads, head_dim = inputs.q.shape[1], inputs.q.shape[3]
    for step in steps:
        flops = workload.forward_flops(heads, head_dim) * (1 + _BACKWARD if step == "train" else 1)
        cores: dict[str, Core] = {}
        timed: dict[str, Callable[[], object]] = {}
        with compile_afresh(compiled):
            for (encoding, kernel), row in rows.items():
                try:
                    chosen = None if kernel == AUTO else kernel
                    core = Core(inputs, encoding, chosen, step, compiled)
                    alone = Attend(inputs, encoding, chosen, step, compiled)
                    for run in (core, alone):
                        run()
                    calls = [recorded(run, inputs.device) if graphs else run for run in (core, alone)]
                except (ConfigError, DataError) as error:
                    row["refused"] = str(error)
                except torch.OutOfMemoryError:
                    row["refused"] = f"out of memory ({step})"
                except Exception as error:
                    if kernel == AUTO:
                        raise
                    # A kernel that fails when forced must not cost the figures of the others.
                    row["refused"] = f"fails ({step}): {one_line(str(error))[:200] or type(error).__name__}"
                else:
                    name = f"{encoding}/{kernel}"
                    cores[name] = core
                    timed[name], timed[name + _ALONE] = calls
            if _BASELINE_NAME not in cores:
                why = rows[BASELINE, AUTO]["refused"]
                raise ConfigError(
                    f"{workload.name}: the baseline of the ratios cannot run ({why}): try a smaller batch"
                )
            timings = interleaved(timed, repeats=repeats, device=inputs.device)
            memory = {name: peak_mib(core, inputs.device) for name, core in cores.items()}
            errors = all_errors(cores, sample)
        for (encoding, kernel), row in rows.items():
            if (name := f"{encoding}/{kernel}") in cores:
                ran = {"runs": f"{cores[name].choice.backend}, {cores[name].choice.method}"}
                row[step] = ran | _figures(name, timings, memory, flops) | {"errors": errors.get(name)}
    return list(rows.values())


def _figures(name: str, timings: dict[str, Timing], memory: dict[str, float | None], flops: float) -> dict[str, Any]:
    own, base = memory[name], memory[_BASELINE_NAME]
    return {
        "median_ms": timings[name].median_ms,
        "p90_ms": timings[name].p90_ms,
        "ratio": timings[name].median_ms / timings[_BASELINE_NAME].median_ms,
        "alone_ms": timings[name + _ALONE].median_ms,
        "alone_ratio": timings[name + _ALONE].median_ms / timings[_BASELINE_NAME + _ALONE].median_ms,
        "tflops": flops / timings[name].median_ms / 1e9,
        "memory_mib": own,
        "memory_ratio": None if own is None or not base else own / base,
    }
