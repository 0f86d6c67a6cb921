"""`zoo train`: trains or fine-tunes a model by a recipe."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

__all__ = ["train"]


def train(
    config: Annotated[str, typer.Argument(help="Recipe: a YAML file, or a built-in name such as imagenette.")],
    model: Annotated[str | None, typer.Option(help="Model name, instead of the recipe's.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set that the recipe is for: folder, archive, or hf-hub:ORG/NAME.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; loadable as local-dir:OUT afterwards.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs, instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the recipe's.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Save and stop then; --resume continues.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a model by a recipe."""
    from zoo.finetune.hub_data import fetched
    from zoo.training.recipe import load_recipe, parse_overrides

    given: dict[str, Any] = {
        "model": model,
        "data": None if data is None else fetched(data),
        "output": out,
        "epochs": epochs,
        "seed": seed,
        "device": device,
        "max_minutes": max_minutes,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    recipe = load_recipe(config, {**parse_overrides(settings or []), **overrides})

    from zoo.training.loop import train as run

    command = shlex.join(["zoo", *sys.argv[1:]])
    result = run(recipe, resume=resume, quiet=quiet, command=command)
    if not result.finished:
        again = command if resume else f"{command} --resume"
        print(
            f"stopped at step {result.step} of {result.total_steps} ({result.reason}); continue with: {again}",
            file=sys.stderr,
        )
        return
    loss = f", loss {result.loss:.4f}" if result.loss is not None else ""
    print(f"{result.output}: {result.step} steps in {result.seconds:.0f} s{loss}; load it as local-dir:{result.output}")
