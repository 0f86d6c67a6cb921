"""Progress bars on standard error, shown on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Update", "no_update", "progress_bar"]

# Called with the amount done so far and a short text beside the bar.
Update = Callable[[float, str], None]


@contextmanager
def progress_bar(label: str, total: float | None, quiet: bool = False) -> Iterator[Update]:
    """Shows a bar while the body runs; silent when `quiet` or when standard error is no terminal.

    Args:
        label: What is going on.
        total: Amount of work, or `None` when unknown.
        quiet: Show nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield no_update
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(label, total=total, text="")

        def update(done: float, text: str) -> None:
            bar.update(task, completed=done, text=text)

        yield update


def no_update(done: float, text: str) -> None:
    """Shows nothing."""
