"""Batches that other processes make."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modalities.driving.workers import BatchWorkers
from tests.training_toys import soon
from zoo.errors import DataError

ROOT, HERE = Path(__file__).parents[1], os.getpid()
# A process that prints the numbers of the two that make batches for it, and is then busy.
PARENT = """
import os, time, torch
from modalities.driving.workers import BatchWorkers

def numbered(number):
    time.sleep(0.2)  # So that both have one.
    return torch.tensor([os.getpid()])

workers = BatchWorkers(numbered, 9, 2, 2)
print(*{int(workers(number)) for number in range(4)}, flush=True)
time.sleep(60)
"""


def squares(number: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    if number == 3:
        raise DataError("no batch 3")
    return torch.tensor([number**2]), {"empty": torch.zeros(0, 2), "away": torch.tensor(os.getpid() != HERE)}


def running(number: int) -> bool:
    """Whether there is such a process that is no zombie."""
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_batches_come_from_processes_in_any_order() -> None:
    workers = BatchWorkers(squares, 10, 2, 2)
    for number in (0, 1, 2, 7, 5, 9, 12):
        square, rest = workers(number)
        assert square.tolist() == [number**2] and rest["empty"].shape == (0, 2) and rest["away"]
    with pytest.raises(DataError, match="no batch 3"):
        workers(3)
    assert workers(4)[0].tolist() == [16]
    workers.close()


def test_without_processes_batches_are_made_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, count in ((sys.platform, 0), ("darwin", 2)):
        monkeypatch.setattr(sys, "platform", platform)
        square, rest = BatchWorkers(squares, 10, count, 2)(6)
        assert square.tolist() == [36] and not rest["away"]


def test_processes_end_when_closed() -> None:
    before = set(multiprocessing.active_children())
    workers = BatchWorkers(squares, 10, 2, 2)
    assert workers(5)[0].tolist() == [25]
    made = [child for child in multiprocessing.active_children() if child not in before]
    assert len(made) == 2
    workers.close()
    assert soon(lambda: not any(child in multiprocessing.active_children() for child in made))


def test_a_process_that_ends_is_said_and_the_others_end() -> None:
    before = set(multiprocessing.active_children())
    workers = BatchWorkers(lambda number: os._exit(1) if number == 1 else torch.zeros(number), 3, 3, 1)
    assert workers(0).shape == (0,)
    with pytest.raises(DataError, match="set workers to fewer"):
        workers(1)
    assert soon(lambda: set(multiprocessing.active_children()) <= before)


def test_signals_to_the_whole_group_leave_the_processes_at_work() -> None:
    def number_and_signal(number: int) -> torch.Tensor:
        for sign in (signal.SIGINT, signal.SIGTERM):  # As Ctrl-C or a job scheduler sends them to all processes.
            os.kill(os.getpid(), sign)
        return torch.tensor([number])

    workers = BatchWorkers(number_and_signal, 4, 1, 1)
    assert [workers(number).item() for number in range(4)] == [0, 1, 2, 3]
    workers.close()


def test_the_collector_does_not_copy_what_is_shared() -> None:
    kept = gc.get_freeze_count()
    workers = BatchWorkers(lambda number: torch.tensor(gc.get_freeze_count()), 1, 1, 1)
    assert workers(0).item() > 1000 and gc.get_freeze_count() == kept
    workers.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_processes_do_not_outlive_the_one_that_asks() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        made = [int(word) for word in parent.stdout.readline().split()]
        assert len(made) == 2 and all(map(running, made))
        parent.kill()  # As the kernel does where memory is short.
    assert soon(lambda: not any(map(running, made)))
