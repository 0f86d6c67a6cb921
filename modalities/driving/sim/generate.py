"""Makes a simulated set of driving scenes in the format of nuScenes."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path

from PIL import Image

from modalities.driving.sim.options import DriveOptions
from modalities.driving.sim.records import MAP_FILE, Record, fixed_tables, table_text
from modalities.driving.sim.rig import CAMERAS, LIDAR
from modalities.driving.sim.scene_files import SPLITS, scene_name, write_scene
from zoo.errors import ConfigError, DataError
from zoo.files import new_folder
from zoo.progress import progress_bar

__all__ = ["FACTS_FILE", "VERSION", "make_drive"]

VERSION = "v1.0-simdrive"
FACTS_FILE = "simdrive.json"
"""In the folder of the tables: says that the set is simulated, and of what options it was made."""


def make_drive(out: Path, options: DriveOptions | None = None, *, workers: int = 1, quiet: bool = True) -> Path:
    """Makes the set in a new folder; it appears whole or not at all.

    The files are a function of the options (and of the versions of NumPy and Pillow), whatever the number of workers;
    more scenes leave the first ones as they are.

    Args:
        out: Where to; must not exist, or be an empty folder.
        options: What is drawn.
        workers: Processes that simulate scenes.
        quiet: Show no progress bar.

    Returns:
        The folder of the tables.

    Raises:
        ConfigError: If the folder holds something, or `workers` is not positive.
        DataError: If the folder cannot be written, or a process was killed.
    """
    options = options or DriveOptions()
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    jobs = [(split, i) for split, n in zip(SPLITS, (options.scenes, options.val_scenes), strict=True) for i in range(n)]
    tables = fixed_tables(options)
    with new_folder(out) as folder:
        for kind in ("samples", "sweeps") if options.sweeps else ("samples",):
            (folder / kind / LIDAR.channel).mkdir(parents=True)
        for camera in CAMERAS:
            (folder / "samples" / camera.channel).mkdir()
        with progress_bar("simulating scenes", len(jobs), quiet) as update:
            for done, found in enumerate(_simulated(folder, options, jobs, workers), 1):
                for name, records in found.items():
                    tables[name].extend(records)
                update(done, "")
        (folder / VERSION).mkdir()
        for name, records in tables.items():
            (folder / VERSION / f"{name}.json").write_text(table_text(records), encoding="utf-8")
        splits = {split: [scene_name(s, i) for s, i in jobs if s == split] for split in SPLITS}
        facts = {"dataset": "simdrive", "simulated": True, "options": asdict(options)}
        for file, content in (("splits.json", splits), (FACTS_FILE, facts)):
            (folder / VERSION / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        # The devkit opens the picture of the map, which says nothing here.
        (folder / MAP_FILE).parent.mkdir()
        Image.new("L", (8, 8)).save(folder / MAP_FILE)
    return out / VERSION


def _simulated(
    folder: Path, options: DriveOptions, jobs: list[tuple[str, int]], workers: int
) -> Iterator[dict[str, list[Record]]]:
    """Records of all scenes, in order."""
    write = partial(_write, folder, options)
    workers = min(workers, len(jobs))
    if workers == 1:
        yield from map(write, jobs)
        return
    # Spawned, since a forked process would inherit the threads of torch. A few scenes at a time cost little to pass.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(write, jobs, chunksize=max(1, min(8, len(jobs) // (4 * workers))))
        except BrokenProcessPool as error:
            raise DataError(f"a process that simulated scenes was killed (too little memory?): {error}") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _write(folder: Path, options: DriveOptions, job: tuple[str, int]) -> dict[str, list[Record]]:
    # NumPy's own loops use one thread; so that nothing else starts more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return write_scene(folder, options, *job)
