"""Makes a folder that is a complete Gradio Space: the app, the code of pape-zoo, and weights of image models.

    python spaces/build.py SPACE [--models pape-vit-n-imagenette,...]

It needs nothing from this checkout afterwards, and nothing but PyPI and the index of PyTorch to run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from zoo import registry  # noqa: E402
from zoo.errors import ConfigError, ZooError  # noqa: E402
from zoo.files import new_folder  # noqa: E402

PACKAGES = ("zoo", "modalities", "hub_cards")
WEIGHTS = "model.safetensors"
# The Hub takes binary files through LFS alone.
ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def build(out: Path, models: list[str] | None = None) -> Path:
    """Makes the Space; it appears whole or not at all.

    Args:
        out: A new folder.
        models: Image models whose weights are in this checkout; by default all of them.

    Returns:
        The folder.

    Raises:
        ConfigError: If there is something at `out`, or a model is none of these.
        DataError: If it cannot be written.
    """
    known = registry.list_models(modality="image", weights="embedded")
    models = known if models is None else models
    if unknown := [name for name in models if name not in known]:
        raise ConfigError(f"{unknown[0]}: no image model with weights here; there are {', '.join(known)}")
    if not models:
        raise ConfigError("a Space needs a model at least")
    with new_folder(out) as folder:
        for path in sorted((ROOT / "spaces" / "gradio").iterdir()):
            if path.is_file():
                shutil.copy(path, folder)
        shutil.copy(ROOT / "LICENSE", folder)
        (folder / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", WEIGHTS))
        for name in models:
            shutil.copy(ROOT / "hub_cards" / name / WEIGHTS, folder / "hub_cards" / name)
    return out


def main(arguments: list[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Make a folder that is a complete Gradio Space.")
    parser.add_argument("folder", type=Path, help="where to; must not exist, or be empty")
    parser.add_argument("--models", help="comma-separated image models; by default all with weights here")
    given = parser.parse_args(arguments)
    models = None if given.models is None else [name.strip() for name in given.models.split(",") if name.strip()]
    try:
        print(build(given.folder, models))
    except ZooError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
