"""Go the whole way of a reproduction, from data to table and plot, as a dry run: ITS NUMBERS MEAN NOTHING.

Every run is a small network that learns for two steps. Prints what reproductions there are, and the table with the
numbers of the paper beside ours. Without `--dry-run`, `zoo reproduce index` does the same at full length.

python examples/reproduce_table.py [NAME] [DATA]
"""

import sys
import tempfile
from pathlib import Path

from zoo.reproduce import reproduce, reproductions


def main(name: str = "index", data: str | None = None) -> None:
    for key, sweep in reproductions().items():
        print(f"{key}: {len(sweep.jobs())} runs, {'no data needed' if sweep.about.needs is None else 'needs data'}")

    with tempfile.TemporaryDirectory() as folder:
        made = reproduce(name, data, Path(folder), only=["rope", "pope"], device="cpu", dry_run=True, quiet=True)
        print(made.table)
        print(f"wrote {', '.join(sorted(path.name for path in made.files))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
