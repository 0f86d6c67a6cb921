"""`zoo doctor`: what is wrong with a set-up, before it is trained or used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["doctor"]


def doctor(
    name: Annotated[
        str,
        typer.Argument(help="A registered name, local-dir:FOLDER, a config.json, or a recipe (YAML or built-in name)."),
    ],
    size: Annotated[
        str | None,
        typer.Option(help="Size of the inputs in use: 448 or 480x640 (height x width); points or tokens of others."),
    ] = None,
    data_config: Annotated[
        Path | None, typer.Option("--data-config", help="JSON file with data keys of the use, or another config.json.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A data key of the use, such as frame_rate=30."),
    ] = None,
    coordinates: Annotated[
        Path | None,
        typer.Option(help="Also look at coordinates of one sample: a .npy file (tokens, axes), floating point."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for wrong-looking set-ups: units, origins, frequencies, slopes, tables, extensions, sizes, keys.

    Nothing is downloaded but the config.json of an hf-hub: name. The exit code is 1 if there are errors.
    """
    from zoo.cli.eval import parse_sizes
    from zoo.diagnosis import doctor as run
    from zoo.diagnosis.read import read_data
    from zoo.errors import ConfigError
    from zoo.training.recipe import parse_overrides

    sides = parse_sizes(size, "--size") or []
    if len(sides) > 1:
        raise ConfigError("--size takes one size")
    changes: dict[str, Any] = read_data(str(data_config)) if data_config else {}
    report = run(name, size=sides[0] if sides else None, data={**changes, **parse_overrides(settings or [])} or None)
    if coordinates is not None:
        report["findings"] += _of_file(coordinates)
        report["errors"] = sum(finding["severity"] == "error" for finding in report["findings"])
    print(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))
    if report["errors"]:
        raise typer.Exit(1)


def _of_file(path: Path) -> list[dict[str, Any]]:
    import numpy as np
    import torch

    from zoo.coordinates import Coordinates
    from zoo.diagnosis import check_coordinates
    from zoo.errors import DataError

    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a .npy file: {error}") from None
    usable = isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind == "f"
    if not usable or not np.isfinite(values).all():
        raise DataError(f"{path}: expected finite floating-point numbers (tokens, axes)")
    wide = torch.from_numpy(values.astype(np.float64 if values.dtype == np.float64 else np.float32))
    return check_coordinates(Coordinates(wide.unsqueeze(0)))


def _lines(report: dict[str, Any]) -> list[str]:
    from zoo.results import one_line

    lines = [f"{one_line(report['name'])}: {report['encoding'] or 'cannot be used as it is'}"]
    for title, axes in (("trained", report["trained"]), ("in use", report["target"])):
        if axes:
            each = ", ".join(f"{a['name']} {'?' if a['extent'] is None else format(a['extent'], 'g')}" for a in axes)
            lines.append(f"{title}: {each} (units: {', '.join(dict.fromkeys(a['unit'] for a in axes))})")
    for finding in report["findings"]:
        lines += [
            "",
            f"{finding['severity']}: {finding['title']} [{finding['code']}]",
            f"  what: {one_line(finding['what'])}",
            f"  why:  {finding['why']}",
            f"  mend: {one_line(finding['mend'])}",
            f"  from: {finding['source']}",
        ]
    counts = {key: sum(one["severity"] == key for one in report["findings"]) for key in ("error", "warning", "note")}
    found = ", ".join(f"{count} {key}{'s' * (count != 1)}" for key, count in counts.items() if count)
    return [*lines, "", found or "nothing looks wrong"]
