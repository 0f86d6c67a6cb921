"""`zoo make-drive`: makes the simulated set of driving scenes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from zoo.errors import ConfigError

__all__ = ["make_drive"]


def make_drive(
    out: Annotated[Path, typer.Option(help="New or empty folder, in the format of nuScenes.")],
    scenes: Annotated[int, typer.Option(min=1, help="Scenes of the training split.")] = 200,
    val_scenes: Annotated[int, typer.Option(min=0, help="Scenes of the validation split.")] = 40,
    frames: Annotated[int, typer.Option(min=1, help="Key frames of a scene, at 2 Hz.")] = 5,
    sweeps: Annotated[int, typer.Option(min=0, max=9, help="Lidar sweeps before each key frame, at 20 Hz.")] = 0,
    size: Annotated[str, typer.Option(help="Of the pictures, WIDTHxHEIGHT.")] = "352x128",
    azimuths: Annotated[int, typer.Option(help="Columns of a lidar sweep; the real one has about 1085.")] = 360,
    density: Annotated[float, typer.Option(help="Factor for the number of objects.")] = 1.0,
    night: Annotated[float, typer.Option(help="Share of scenes at night.")] = 0.1,
    rain: Annotated[float, typer.Option(help="Share of scenes with rain.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Simulate driving scenes: six cameras, a lidar and boxes of seven classes in the tables of nuScenes."""
    from modalities.driving.sim.generate import make_drive
    from modalities.driving.sim.options import DriveOptions

    if not (match := re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)):
        raise ConfigError(f"--size must be WIDTHxHEIGHT in pixels, such as 352x128; got {size!r}")
    options = DriveOptions(
        scenes=scenes,
        val_scenes=val_scenes,
        frames=frames,
        sweeps=sweeps,
        image_size=(int(match[1]), int(match[2])),
        azimuths=azimuths,
        density=density,
        night=night,
        rain=rain,
        seed=seed,
    )
    workers = workers or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    tables = make_drive(out, options, workers=workers, quiet=quiet)
    total = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    count = (scenes + val_scenes) * frames
    print(f"{tables}: {scenes} + {val_scenes} scenes, {count} key frames (simulated), {total / 1e6:.1f} MB")
