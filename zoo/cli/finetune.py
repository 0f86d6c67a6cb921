"""`zoo finetune`: a model for data of one's own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from zoo.finetune.run import Plan

__all__ = ["finetune"]


def finetune(
    name: Annotated[str, typer.Argument(help="Model to start from, as for `zoo predict`.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder or file: class folders of pictures, videos, events or clouds; COCO, YOLO; Parquet; "
            "the layouts of known data sets; a text. Or hf-hub:ORG/NAME of a data set with Parquet files."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the run; loadable as local-dir:OUT. By default runs/NAME-DATA.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side in pixels to train at (points of clouds, tokens of sequences).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; by default by their amount.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    lora: Annotated[
        int | None, typer.Option(help="Rank of low-rank adapters (peft), merged at the end; by default none.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; by default 0.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Save and stop then; --resume continues.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any recipe key.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out damaged files instead of refusing.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with the data.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fine-tune a model on data of your own: checked first, then trained, the best weights kept."""
    from zoo.errors import ConfigError
    from zoo.finetune.run import finetune as continued
    from zoo.finetune.run import plan, run
    from zoo.training.recipe import parse_overrides

    given: dict[str, Any] = {
        "epochs": epochs,
        "lr": lr,
        "lora": lora,
        "seed": seed,
        "device": device,
        "max_minutes": max_minutes,
    }
    options = {**parse_overrides(settings or []), **{key: value for key, value in given.items() if value is not None}}
    command = shlex.join(["zoo", *sys.argv[1:]])
    if resume:
        result = continued(name, data or "", out, resume=True, quiet=quiet, command=command, **options)
    else:
        if data is None:
            raise ConfigError("no data: give --data FOLDER (or a file, or hf-hub:ORG/NAME)")
        made = plan(name, data, out=out, size=size, skip_bad=skip_bad, quiet=quiet, **options)
        _print_plan(made)
        made.report.raise_errors()
        if check:
            return
        result = run(made.recipe, quiet=quiet, command=command)
    if not result.finished:
        start = f"zoo finetune {shlex.quote(name)} --out {shlex.quote(str(result.output))} --resume"
        again = command if resume else start
        print(f"stopped at step {result.step} of {result.total_steps} ({result.reason}); continue with: {again}")
        return
    done = f"{result.step} of {result.total_steps} steps in {result.seconds:.0f} s"
    print(f"{result.output}: {done}{_measured(result.output)}")
    print(f"recipe: {result.output}/recipe.yaml; card: {result.output}/README.md")
    print(f"try it: zoo predict local-dir:{result.output} FILE")


def _print_plan(made: Plan) -> None:
    found, recipe = made.found, made.recipe
    names = [name if name.isprintable() else repr(name) for name in found.classes]
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    print(f"data: {found.layout}, about {found.samples:,} samples to train on; classes: {shown or 'none'}")
    print(f"validation: {found.validation}; weights chosen by {recipe['select']}")
    for line in made.report.lines():
        print(line, file=sys.stderr)
    keys = (
        "epochs",
        "batch_size",
        "lr",
        "layer_decay",
        "head_lr",
        "head_first",
        "lora",
        "precision",
        "eval_every",
        "patience",
    )
    print("recipe: " + ", ".join(f"{key} {recipe[key]}" for key in keys))


def _measured(folder: Path) -> str:
    import json

    from zoo.training.loop import RECORD

    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    key = record.get("selected_by")
    return f"; {key} {record[key]:.2f} (best, step {record['selected_step']})" if key in record else ""
