"""Several processes at one sweep, each taking the next run that nobody has taken."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zoo.errors import ZooError
from zoo.training.sweep_plan import Sweep

__all__ = ["run_side_by_side", "visible_gpus"]

_FAILED = 2


def run_side_by_side(
    sweep: Sweep,
    data: str | None,
    out: str | Path,
    jobs: int,
    *,
    device: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    **arguments: Any,
) -> None:
    """Runs a sweep in several processes; one that dies leaves the others at work.

    Where there are several GPUs the processes take turns at them.

    Args:
        sweep: What to do.
        data: See `zoo.training.sweep.run_sweep`.
        out: See there.
        jobs: Processes.
        device: See there.
        say: Gets a line when a process dies; what happens in them they write to standard error.
        arguments: Others of `run_sweep`.

    Raises:
        ZooError: At the end, if a run failed or a process died.
    """
    gpus = visible_gpus(device)
    context = multiprocessing.get_context("spawn")  # A CUDA context cannot be forked.
    workers = []
    for number in range(jobs):
        gpu = gpus[number % len(gpus)] if len(gpus) > 1 else None
        worker = context.Process(target=_work, args=(sweep, data, str(out), jobs, gpu, device, arguments))
        worker.start()
        workers.append(worker)
    _wait(workers)
    died = [worker for worker in workers if worker.exitcode not in (0, _FAILED)]
    for worker in died:
        say(f"process {worker.pid} died ({_cause(worker.exitcode)}); the others went on")
    if died or any(worker.exitcode for worker in workers):
        raise ZooError("not all runs are done; the same command makes those that are missing")


def visible_gpus(device: str | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES can be set to, one GPU each; empty for the CPU."""
    if device == "cpu":
        return []
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is not None:
        return [part.strip() for part in stated.split(",") if part.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _wait(workers: Sequence[Any]) -> None:
    """Waits for all of them, also when interrupted: they save what they have, and end by themselves."""
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.join()
        raise


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _work(
    sweep: Sweep,
    data: str | None,
    out: str,
    jobs: int,
    gpu: str | None,
    device: str | None,
    arguments: dict[str, Any],
) -> None:
    """What a process does. Nothing has imported torch before, so that the environment still counts."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from zoo.training.sweep import run_sweep

    try:
        run_sweep(sweep, data, out, device=device, say=_say, **arguments)
    except (ZooError, KeyboardInterrupt) as error:
        if str(error):
            _say(str(error))
        sys.exit(_FAILED)


def _end_with_parent() -> None:
    """Waits for the end of the process that started this one, and then asks the run to save and stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
