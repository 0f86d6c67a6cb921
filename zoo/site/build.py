"""Writes the browsing site: plain files that work from `file://` and from any server."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import zoo
from zoo.cards import card
from zoo.errors import ConfigError
from zoo.files import write_whole
from zoo.site.facts import models
from zoo.site.index_page import index_page
from zoo.site.markup import fill, read_static, script_data
from zoo.site.measurements_page import measurements_page
from zoo.site.model_page import model_page
from zoo.site.shell import page

__all__ = ["MARK", "build"]

# Tells a folder of ours from others.
MARK = "pape-zoo-site.json"


def build(folder: Path) -> Path:
    """Writes the whole site; what a site of ours in the folder has too much is deleted.

    Args:
        folder: New, empty, or a site that was built before.

    Returns:
        Its first page.

    Raises:
        ConfigError: If the folder holds something else, cannot be written, or a record or measurement is damaged.
    """
    folder = Path(folder)
    _check(folder)
    files = _files()
    try:
        for part in ("assets", "models"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        # First of all, so that a build that was interrupted is known as ours.
        write_whole(folder / MARK, files.pop(MARK))
        for name, text in files.items():
            write_whole(folder / name, text)
        for old in sorted((folder / "models").glob("*.html")):
            if f"models/{old.name}" not in files:
                old.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write the site to {folder}: {error.strerror or error}") from None
    return folder / "index.html"


def _check(folder: Path) -> None:
    """Refuses a folder with anything in it that is no site of ours."""
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file: name a folder for the site")
        if folder.is_dir() and os.listdir(folder) and not (folder / MARK).is_file():
            raise ConfigError(f"{folder} is not empty and holds no site of ours: choose another folder")
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror or error}") from None


def _files() -> dict[str, str]:
    """Path within the site -> text."""
    found = models()
    families: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        families.setdefault(one["family"], []).append(one)
    files = {
        MARK: json.dumps({"pape-zoo": zoo.__version__}) + "\n",
        "index.html": index_page(found),
        "advise.html": _advise_page(),
        "measurements.html": measurements_page(),
        "assets/data.js": script_data("ZOO", {"version": zoo.__version__, "models": found}),
        "assets/advice_data.js": script_data("ZOO_ADVICE", _advice()),
    }
    for one in found:
        relatives = [other for other in families[one["family"]] if other is not one]
        files[f"models/{one['name']}.html"] = model_page(one, card(one["name"]), relatives)
    static = resources.files("zoo.site").joinpath("static")
    for asset in static.iterdir():
        if asset.name.endswith((".css", ".js", ".svg")):
            files[f"assets/{asset.name}"] = read_static(asset.name)
    return files


def _advice() -> dict[str, Any]:
    from zoo.advice import page_data

    return page_data()


def _advise_page() -> str:
    about = "A few questions about the tokens lead to a ranked list of position encodings, with our measurements."
    scripts = ("advice_data.js", "dom.js", "advise.js", "advise_page.js")
    return page(fill("advise.html"), title="Choose an encoding", about=about, scripts=scripts, here="advise.html")
