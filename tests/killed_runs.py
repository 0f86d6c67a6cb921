"""What the processes of `test_training_kills` do: train, and die at a given moment as by `kill -9`.

A process of its own, `forkserver`, has everything imported; each run is a fork of it, without the seconds of a start.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from zoo import checkpoints
from zoo.training import checkpoint, loop, record
from zoo.training.recipe import recipe_from_dict


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(settings: dict[str, Any], moment: tuple[str, float]) -> None:
    """Continues the run of a recipe until it is finished, or until `moment`.

    `("calls", n)`: at the n-th call or return of any Python function or builtin from here on. `("write", share)`: when
    that share of the next checkpoint is in its file. `("save", 0)`: when the first of the files of `zoo.save` has its
    name. `("export", 0)`: with the weights written, before the record is.
    `("after", 0)`: with the record written, before the checkpoint is removed. `("never", 0)`: not at all.
    """
    kind, amount = moment
    assert kind in ("calls", "write", "save", "export", "after", "never")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if kind == "write":
        _die_in_save(amount)
    elif kind == "save":
        checkpoints.os = _DyingOs()  # type: ignore[attr-defined]
    elif kind == "export":
        loop.write_record = lambda *arguments: die()
    elif kind == "after":
        write_whole = record.write_whole

        def write_and_die(*arguments: Any) -> None:
            write_whole(*arguments)
            die()

        record.write_whole = write_and_die
    elif kind == "calls":
        left = int(amount)

        def count(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                die()

        sys.setprofile(count)
    loop.train(recipe_from_dict(settings), resume=True)


class _DyingOs:
    """The module `os`, but for what happens after a file has got its name."""

    def replace(self, *names: Any) -> None:
        os.replace(*names)
        die()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def _die_in_save(share: float) -> None:
    save = torch.save

    def cut(state: Any, file: Any) -> None:
        save(state, file)
        file.flush()
        os.truncate(file.name, int(share * Path(file.name).stat().st_size))
        die()

    checkpoint.torch.save = cut  # type: ignore[attr-defined]
