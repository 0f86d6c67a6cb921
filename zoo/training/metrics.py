"""Metrics as JSON lines, continued without gaps or duplicates when a run resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["MetricsLog", "read_metrics"]


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; a last line cut by a kill is left out."""
    path = Path(path)
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


class MetricsLog:
    """Appends one JSON object a line.

    Args:
        path: The file.
        after_step: Steps done at the start. Lines of later steps (written by a run that was killed after its last
            checkpoint) are dropped, since those steps will run again.
    """

    def __init__(self, path: str | os.PathLike[str], after_step: int = 0) -> None:
        self.path = Path(path)
        kept = [r for r in read_metrics(self.path) if r.get("step", 0) <= after_step] if after_step else []
        partial = self.path.with_name(self.path.name + ".tmp")
        partial.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
        os.replace(partial, self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line and flushes it."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Waits until all lines are on the disk: a checkpoint must not outlive the lines before it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
