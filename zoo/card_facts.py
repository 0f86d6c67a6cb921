"""Folding facts into a card's record: results of `zoo eval`, the record of a training run, the weights file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ConfigError

__all__ = ["add_evaluation", "add_sweep", "add_training", "add_weights", "portable_command"]

# Settings of a run that say nothing about the weights it gives, or are stated apart.
NOT_RECIPE = (
    "checkpoint_every",
    "checkpoint_seconds",
    "data",
    "device",
    "epochs",
    "eval_every",
    "log_every",
    "max_minutes",
    "model",
    "model_options",
    "output",
    "pretrained",
    "seed",
    "task",
    "weights_dtype",
)
FOLDER_PREFIX = "local-dir:"


def add_evaluation(record: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """Folds a results file of `zoo eval --out` into a record.

    Results of the record's own model replace those of the same data set, split and size; results of another model
    become its row in the comparison.

    Args:
        record: As `zoo.cards.read_record` gives it; not changed.
        results: `{"name", "dataset", "split", "images", "command", "device", "dtype", "results": [{"size", "top1"}]}`.
            A name of the form `local-dir:FOLDER` stands for the name in that folder's configuration.

    Returns:
        The new record.

    Raises:
        ConfigError: If the results lack something or are of another kind.
    """
    common = ("dataset", "split", "images", "command", "device", "dtype")
    rows = results.get("results")
    missing = [key for key in ("name", *common) if key not in results]
    if missing or not isinstance(rows, list) or not rows:
        raise ConfigError(f"not a results file of `zoo eval --out`: lacks {', '.join(missing) or 'results'}")
    values = dict(sorted(_square_top1(row) for row in rows))
    name = _model_name(str(results["name"]))
    if name != record["name"]:
        others = [item for item in record["comparison"] if item["name"] != name]
        return {**record, "comparison": [*others, {"name": name, "sizes": values}]}
    about = {key: results[key] for key in common} | {"command": portable_command(str(results["command"]))}
    new = [
        {**{key: about[key] for key in ("dataset", "split", "images")}, "size": size, "metric": "top1", "value": value}
        | {key: about[key] for key in ("command", "device", "dtype")}
        for size, value in values.items()
    ]
    keys = {(item["dataset"], item["split"], item["size"]) for item in new}
    kept = [item for item in record["evaluation"] if (item["dataset"], item["split"], item["size"]) not in keys]
    return {**record, "evaluation": [*kept, *new]}


def _square_top1(row: Any) -> tuple[int, float]:
    size, top1 = (row.get("size"), row.get("top1")) if isinstance(row, dict) else (None, None)
    if isinstance(size, list) and len(size) == 2 and size[0] == size[1]:
        size = size[0]
    if type(size) is not int or not isinstance(top1, (int, float)) or not 0 <= top1 <= 100:
        raise ConfigError(f"results file: expected square sizes with a top1 in percent, got {row!r:.80}")
    return size, round(float(top1), 2)


def _model_name(name: str) -> str:
    if not name.startswith(FOLDER_PREFIX):
        return name
    from zoo.config_file import read_config

    return str(read_config(Path(name.removeprefix(FOLDER_PREFIX)) / "config.json")["name"])


def add_sweep(record: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Folds the table of a sweep (`zoo sweep NAME --table --json`) into a record (which is not changed).

    A name without published weights gets the results of its own setting as its evaluation, means over seeds, and the
    training of the first seed. A name with weights of its own, which the sweep did not make, gets all rows as its
    comparison.

    Args:
        record: As `zoo.cards.read_record` gives it.
        table: `{"sweep": its name, "rows": what zoo.training.sweep.summarise returned}`.

    Raises:
        ConfigError: If that is not such a table, or no row is of this model by its own options.
    """
    keys = {"name", "model", "model_options", "recipe", "extend", "seeds", "dataset", "images", "training", "top1"}
    rows = table.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and keys <= set(row) for row in rows):
        raise ConfigError("not the table of a sweep: make one with `zoo sweep NAME --out DIR --table --json`")
    if record["weights"]["source"] != "none":
        return {**record, "comparison": [_compared(row) for row in rows]}
    own = [row for row in rows if row["model"] == record["name"] and not row["model_options"]]
    if not own:
        raise ConfigError(f"the sweep has no results of {record['name']} with its own options")
    first = own[0]
    sweep_command = f"zoo sweep {table.get('sweep')} --data DIR --out OUT --only {first['name']}"
    evaluation = [
        {
            "dataset": row["dataset"],
            "split": "validation",
            "images": row["images"],
            "size": int(size),
            "metric": "top1",
            "value": top1["mean"],
            "std": top1["std"],
            "seeds": len(row["seeds"]),
            **({} if row["extend"] == "none" else {"extend": row["extend"]}),
            "command": sweep_command,
            "device": row["training"]["device"],
            "dtype": row["dtype"],
        }
        for row in own
        for size, top1 in row["top1"].items()
    ]
    run = first["training"]
    training = {**record["training"], **{key: run[key] for key in ("epochs", "device", "duration_s", "date")}}
    training |= {"seed": first["seeds"][0], "final_train_loss": round(float(run["final_train_loss"]), 4)}
    return {**record, "evaluation": evaluation, "training": training}


def _compared(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a comparison: mean over seeds by size, and what sets it apart."""
    seeds = len(row["seeds"])
    note = f"{row['training']['epochs']} epochs, {'one seed' if seeds == 1 else f'mean of {seeds} seeds'}"
    extension = "" if row["extend"] == "none" else f", {row['extend']}"
    sizes = {int(size): top1["mean"] for size, top1 in row["top1"].items()}
    return {"name": row["name"], "note": note + extension, "sizes": sizes}


def add_training(record: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Folds the record that a training run writes into a card's record (which is not changed).

    Args:
        record: As `zoo.cards.read_record` gives it.
        run: `{"command", "recipe", "epochs", "seed", "device", "duration_s", "final_train_loss", "date"}`.

    Raises:
        ConfigError: If the run lacks one of these or is of another model.
    """
    keys = ("name", "command", "recipe", "epochs", "seed", "device", "duration_s", "final_train_loss", "date")
    missing = [key for key in keys if key not in run]
    if missing or not isinstance(run["recipe"], Mapping):
        raise ConfigError(f"not the record of a training run: lacks {', '.join(missing) or 'a recipe'}")
    if run["name"] != record["name"]:
        raise ConfigError(f"the training run is of {run['name']}, not of {record['name']}")
    recipe = {
        key: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for key, value in run["recipe"].items()
        if key not in NOT_RECIPE and value is not None
    }
    training = {key: run[key] for key in keys if key != "name"} | {"recipe": recipe}
    training["final_train_loss"] = round(float(run["final_train_loss"]), 4)
    training["command"] = portable_command(str(run["command"] or record["training"]["command"]))
    return {**record, "training": training}


def add_weights(record: Mapping[str, Any], weights: Path) -> dict[str, Any]:
    """States sha256, size and dtype of a model.safetensors in a record (which is not changed).

    Raises:
        WeightsError: If the file is not a usable safetensors file.
    """
    from zoo import checkpoints

    checkpoints.read_shapes(weights)
    facts = {
        "sha256": checkpoints.file_sha256(weights),
        "size_bytes": weights.stat().st_size,
        "dtype": checkpoints.stored_dtype(weights),
    }
    return {**record, "weights": {**record["weights"], **facts}}


def portable_command(command: str) -> str:
    """A command with the folders of the machine that ran it replaced by what they stand for."""
    try:
        words = shlex.split(command)
    except ValueError:
        raise ConfigError(f"not a command line: {command!r:.80}") from None
    places = {"--data": "DIR", "--out": "OUT"}
    kept: list[str] = []
    for word in words:
        option, equals, value = word.partition("=")
        if kept and kept[-1] in places:
            kept.append(places[kept[-1]])
        elif equals and option in places:
            kept += [option, places[option]]
        elif word.startswith(FOLDER_PREFIX):
            kept.append(f"{FOLDER_PREFIX}OUT")
        elif "/" in value or (equals == "" and re.search(r"[/\\]", word)):
            kept.append(f"{option}=..." if equals else Path(word).name)
        else:
            kept.append(word)
    return shlex.join(kept)
