"""Two processes on the CPU that work together, joined by gloo."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

import torch

__all__ = ["together"]


def together(context: ForkServerContext, what: Callable[..., None], *arguments: Any) -> None:
    """Runs something in two processes, as `accelerate launch` would start them; it must be in a module.

    Args:
        context: Where they come from.
        what: Called in both.
        *arguments: For it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=_work, args=(rank, port, what, arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0, 0]


def _work(rank: int, port: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    what(*arguments)
