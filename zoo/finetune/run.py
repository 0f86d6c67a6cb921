"""From a model and a folder of data to a recipe, a training run by it, and a finished model folder."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.errors import ConfigError
from zoo.files import write_whole
from zoo.finetune.defaults import defaults
from zoo.finetune.found import Found
from zoo.finetune.hub_data import data_name, local_data
from zoo.finetune.report import Report
from zoo.sources import locate
from zoo.training.recipe import Recipe, load_recipe, recipe_from_dict

if TYPE_CHECKING:
    from zoo.training.loop import TrainResult

__all__ = ["RECIPE", "Plan", "check", "finetune", "make_recipe", "plan", "run"]

RECIPE = "recipe.yaml"
# Modality and task of the model -> "module:function" that finds and checks data for it.
_EXAMINERS = {
    ("image", "classification"): "modalities.image.finetune:examine",
    ("image", "detection"): "modalities.image.finetune_detection:examine",
    ("video", "classification"): "modalities.video.finetune:examine",
    ("events", "classification"): "modalities.events.finetune:examine",
    ("events", "detection"): "modalities.events.finetune:examine_scenes",
    ("points", "classification"): "modalities.points.finetune:examine",
    ("points", "segmentation"): "modalities.points.finetune:examine_points",
    ("sequence", "generation"): "modalities.sequence.finetune:examine",
}


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Attributes:
        found: The data.
        report: What is wrong with them.
        recipe: Keys of the recipe.
    """

    found: Found
    report: Report
    recipe: dict[str, Any]


def plan(
    name: str,
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    size: int | None = None,
    skip_bad: bool = False,
    quiet: bool = True,
    **options: Any,
) -> Plan:
    """Finds and checks data, and makes the recipe; trains nothing. Arguments as for `finetune`.

    Raises:
        ConfigError: If the model is for a task that is not trained here, or an option is not a recipe key.
        DataError: If the layout is not known.
    """
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"size must be a whole number of 1 or more, got {size!r:.40}")
    config = locate(name, pretrained=options.get("pretrained", True)).config
    kind = (config["modality"], config["task"])
    if kind not in _EXAMINERS:
        raise ConfigError(f"{name}: models for {' '.join(kind)} are not fine-tuned here")
    where = local_data(data)
    module, function = _EXAMINERS[kind].split(":")
    report = Report(str(data))
    examine = getattr(importlib.import_module(module), function)
    found: Found = examine(where, config, report, size=size, skip_bad=skip_bad, quiet=quiet)
    settings = {**defaults(found, options.get("lora", 0)), **found.settings}
    settings |= {"task": found.task, "model": name, "data": str(where)}
    target = Path(out) if out is not None else Path("runs") / tuned_name(config["name"], where)
    settings["output"] = str(target)
    for key, value in options.items():
        both = key == "model_options" and isinstance(value, Mapping)
        settings[key] = {**settings.get(key, {}), **value} if both else value
    if not settings.get("select"):  # Nothing to wait for.
        settings["patience"] = 0
    recipe = recipe_from_dict({key: value for key, value in settings.items() if value is not None}, "finetune")
    return Plan(found, report, recipe.to_dict())


def tuned_name(base: str, data: Path) -> str:
    """What a tuned model is called: after what it was made from, and the data."""
    stem = data.stem if data.is_file() else data_name(data)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{base}-{stem}").strip("-.")[:100]


def check(name: str, data: str | os.PathLike[str], **options: Any) -> Report:
    """What is wrong with data for a model; arguments as for `finetune`.

    Raises:
        DataError: If the layout is not known.
    """
    return plan(name, data, **options).report


def make_recipe(name: str, data: str | os.PathLike[str], **options: Any) -> Recipe:
    """The recipe that `finetune` trains by; arguments as there.

    Raises:
        DataError: If the data have errors.
    """
    made = plan(name, data, **options)
    made.report.raise_errors()
    return recipe_from_dict(made.recipe)


def finetune(
    name: str,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    skip_bad: bool = False,
    resume: bool = False,
    quiet: bool = True,
    command: str | None = None,
    **options: Any,
) -> TrainResult:
    """Fine-tunes a model on data of one's own, and writes a folder that `zoo.load("local-dir:OUT")` takes.

    The data are checked first; then a recipe is made of what was found and of defaults by the amount of data, written
    to `OUT/recipe.yaml`, and trained by `zoo.training.train`: first the head alone, then all layers with a learning
    rate that falls towards the input. The weights are those of the best evaluation on data that are held out (drawn by
    class) unless there is a validation split.

    Args:
        name: Name for `zoo.load`.
        data: Folder or file, or `"hf-hub:ORG/NAME[@REVISION]"` of a data set on the Hub with Parquet files.
        out: Folder of the run; by default `runs/NAME-DATA`.
        size: Side in pixels (points of a cloud, tokens of a sequence) to train at, instead of the model's.
        skip_bad: Leave out damaged files instead of refusing them.
        resume: Continue the run in `out`, by the recipe there.
        quiet: Show no progress bar.
        command: Command line for the record.
        **options: Keys of the recipe that replace what would be chosen, such as `epochs=20` or `lora=8`.

    Raises:
        ConfigError: If an option cannot be used, or `out` holds a run.
        DataError: If the layout of the data is not known, or the data have errors: says all of them.
        MissingDependencyError: If peft is needed and not installed.
    """
    if resume:
        return run(_known_recipe(out, options), resume=True, quiet=quiet, command=command)
    made = plan(name, data, out=out, size=size, skip_bad=skip_bad, quiet=quiet, **options)
    made.report.raise_errors()
    return run(made.recipe, quiet=quiet, command=command)


def _known_recipe(out: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    if out is None or not (Path(out) / RECIPE).is_file():
        raise ConfigError(f"resume: give the folder of a run (out); {out or 'none'} has no {RECIPE}")
    return load_recipe(Path(out) / RECIPE, {**options, "output": str(out)}).to_dict()


def run(
    recipe: Mapping[str, Any], *, resume: bool = False, quiet: bool = True, command: str | None = None
) -> TrainResult:
    """Trains by the keys of a recipe; a finished folder gets its own name and card.

    Args:
        recipe: As `Plan.recipe`.
        resume: Continue.
        quiet: Show no progress bar.
        command: Command line for the record.
    """
    from zoo.finetune.card import finish
    from zoo.training.loop import RECORD, train
    from zoo.training.lora import require_lora

    parsed = recipe_from_dict(recipe)
    if parsed.lora:
        require_lora()
    folder = Path(str(parsed.output))
    if not resume and not any((folder / name).exists() for name in (RECORD, "metrics.jsonl", "model.safetensors")):
        write_recipe(folder, parsed)
    result = train(parsed, resume=resume, quiet=quiet, command=command)
    if result.finished:
        finish(folder)
    return result


def write_recipe(folder: Path, recipe: Recipe) -> Path:
    """Writes `recipe.yaml`, by which `zoo train` repeats the run.

    Raises:
        ConfigError: If the folder cannot be written.
    """
    path = folder / RECIPE
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"# Repeat this run: zoo train {RECIPE} --out ANOTHER_FOLDER\n{text}")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    return path
