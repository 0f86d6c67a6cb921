"""Folding facts into a card's record: results of `zoo eval`, the record of a training run, the weights file."""

from __future__ import annotations

import copy
import functools
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.card_metrics import MAIN_METRICS, digits, item_key, measured_metrics, unit
from zoo.errors import ConfigError

__all__ = [
    "add_evaluation",
    "add_sweep",
    "add_training",
    "add_weights",
    "over_seeds",
    "portable_command",
    "training_seed",
]

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
    "memory_gib",
    "model",
    "model_options",
    "output",
    "pretrained",
    "seed",
    "task",
    "weights_dtype",
    "workers",
)
FOLDER_PREFIX = "local-dir:"


def add_evaluation(record: Mapping[str, Any], results: Mapping[str, Any], note: str | None = None) -> dict[str, Any]:
    """Folds a results file of `zoo eval --out` into a record.

    Results of the record's own model become its evaluation; those of another model, or of the model with a `note`,
    become a row of the comparison. Results that state the `seed` of their training run are gathered with those of
    other seeds: a number is then the mean, with the standard deviation. Other results replace those of the same data
    set, split and size.

    Args:
        record: As `zoo.cards.read_record` gives it; not changed.
        results: `{"name", "dataset", "split", "images", "command", "device", "dtype", "results": [{"size", ...}]}`,
            with metrics in percent (a row may state `"extend"` and, what else it was measured on, `"condition"`), and
            optionally `"task"` (without it classification), `"model"` (the name in the
            configuration) and `"seed"`. Without `"model"`, a name of the form `local-dir:FOLDER` stands for the name in
            that folder's configuration.
        note: What sets this run apart from the record's own training, for example `"from scratch"`.

    Returns:
        The new record.

    Raises:
        ConfigError: If the results lack something or are of another kind, or seeds were measured under different
            conditions.
    """
    from zoo import registry

    common = ("dataset", "split", "images", "command", "device", "dtype")
    rows = results.get("results")
    missing = [key for key in ("name", *common) if key not in results]
    if missing or not isinstance(rows, list) or not rows:
        raise ConfigError(f"not a results file of `zoo eval --out`: lacks {', '.join(missing) or 'results'}")
    images, seed, task = results["images"], results.get("seed"), results.get("task", "classification")
    if type(images) is not int or images < 1 or (seed is not None and type(seed) is not int):
        raise ConfigError(f"results file: images and seed are whole numbers, got {images!r:.40} and {seed!r:.40}")
    entry = registry.entry(record["name"])
    if task != entry.task:
        raise ConfigError(f"results file: of a model for {task!r:.40}, but {entry.name} is for {entry.task}")
    name = _model_name(results)
    about: dict[str, Any] = {key: str(results[key]) for key in common} | {"images": images}
    about["command"] = portable_command(str(results["command"]))
    new = [
        {
            **{key: about[key] for key in ("dataset", "split", "images")},
            **copy.deepcopy(where),  # YAML would refer from one number to the size of another.
            "metric": metric,
            "value": value,
            **({} if seed is None else {"runs": {seed: value}}),
            **{key: about[key] for key in ("command", "device", "dtype")},
        }
        for where, values in map(functools.partial(_measured_row, task, entry.modality == "image"), rows)
        for metric, value in values.items()
    ]
    new.sort(key=lambda item: item["size"] if isinstance(item["size"], list) else [item["size"]])
    if name == record["name"] and not note:
        published = record["training"]["seed"] if results["name"] == name else None
        return {**record, "evaluation": _gathered(record["evaluation"], new, published)}
    row = {"name": name, **({"note": note} if note else {})}
    new = [item for item in new if item["metric"] in MAIN_METRICS[task]]
    comparison = list(record["comparison"])
    for place, item in enumerate(comparison):
        if (item["name"], item.get("note")) == (name, note or None) and "evaluation" in item:
            comparison[place] = {**row, "evaluation": _gathered(item["evaluation"], new, None)}
            return {**record, "comparison": comparison}
    return {**record, "comparison": [*comparison, {**row, "evaluation": new}]}


def _measured_row(task: str, pictures: bool, row: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Where a row of results was measured, and the metrics."""
    size = row.get("size") if isinstance(row, dict) else None
    if isinstance(size, (list, tuple)) and len(size) == 2:
        size = size[0] if size[0] == size[1] else list(size)
    sides = size if isinstance(size, list) else [size]
    wanted = "square sizes" if pictures and task == "classification" else "sizes"
    good = all(type(side) is int and side > 0 for side in sides) and (len(sides) == 1 or wanted == "sizes")
    values = measured_metrics(task, row) if good else {}
    main = next(iter(MAIN_METRICS[task]))
    scale = "percent" if unit(main) == "%" else unit(main)
    if main not in values or not all(type(v) in (int, float) and 0 <= v <= 100 for v in values.values()):
        raise ConfigError(f"results file: expected {wanted} with a {main} in {scale}, got {row!r:.80}")
    where = {"size": size, **{key: str(row[key]) for key in ("extend", "condition") if key in row}}
    return where, {metric: round(float(value), digits(metric)) for metric, value in values.items()}


def _gathered(
    items: Sequence[Mapping[str, Any]], new: Sequence[dict[str, Any]], published: int | None
) -> list[dict[str, Any]]:
    """Measured numbers of a record with new ones.

    Args:
        items: Those there are.
        new: Replace those of the same key, or add a seed to their runs.
        published: Seed that new numbers without one have, where those there are have seeds; `None` if not known.
    """
    gathered = {item_key(item): dict(item) for item in items}
    for item in new:
        old = gathered.get(item_key(item), {})
        runs = dict(old.get("runs", {}))
        if "runs" not in item and runs and published is not None:
            item = {**item, "runs": {published: item["value"]}}
        if "runs" not in item or not runs or set(runs) == set(item["runs"]):
            gathered[item_key(item)] = item
            continue
        for key in ("images", "device", "dtype"):
            if old[key] != item[key]:
                raise ConfigError(
                    f"results file: {key} {item[key]!r:.60}, but the other seeds were measured with {old[key]!r:.60}: "
                    "measure all in the same way, or remove the old ones from record.yaml"
                )
        gathered[item_key(item)] = {**item, **over_seeds(dict(sorted((runs | item["runs"]).items())), item["metric"])}
    return list(gathered.values())


def over_seeds(runs: Mapping[int, float], metric: str) -> dict[str, Any]:
    """The fields of a measured number that follow from the values of its training runs, by seed."""
    values, places = list(runs.values()), digits(metric)
    return {
        "value": round(statistics.fmean(values), places),
        **({"std": round(statistics.stdev(values), places), "seeds": len(values)} if len(values) > 1 else {}),
        "runs": dict(runs),
    }


def _model_name(results: Mapping[str, Any]) -> str:
    name = str(results["name"])
    if "model" in results or not name.startswith(FOLDER_PREFIX):
        return str(results.get("model", name))
    from zoo.config_file import read_config

    return str(read_config(Path(name.removeprefix(FOLDER_PREFIX)) / "config.json")["name"])


def training_seed(name: str) -> int | None:
    """Seed of the training run that left the weights in a folder, `None` if that is not known.

    Args:
        name: Of a model, as for `zoo.load`; folders of training runs, `local-dir:FOLDER`, hold a record of it.

    Raises:
        ConfigError: If the record is not a JSON object.
    """
    from zoo.config_file import read_json

    path = Path(name.removeprefix(FOLDER_PREFIX)) / "train_record.json"
    if not name.startswith(FOLDER_PREFIX) or not path.is_file():
        return None
    seed = read_json(path).get("seed")
    return seed if type(seed) is int else None


def add_sweep(record: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Folds the table of a sweep into a record (which is not changed).

    Such a table is what `zoo sweep NAME --table --json` prints, and `results.json` of `zoo reproduce`.

    A name without published weights gets the results of its own setting as its evaluation, means over seeds, and the
    training of the first seed. A name with weights of its own, which the sweep did not make, gets all rows as its
    comparison.

    Args:
        record: As `zoo.cards.read_record` gives it.
        table: `{"sweep": its name, "rows": what zoo.training.sweep.summarise returned}`, and maybe its `"command"`.

    Raises:
        ConfigError: If that is not such a table, or no row is of this model by its own options.
    """
    from zoo import registry

    keys = {"name", "model", "model_options", "recipe", "extend", "seeds", "dataset", "images", "training"}
    metrics = MAIN_METRICS[registry.entry(record["name"]).task]
    rows = table.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and keys <= set(row) for row in rows):
        raise ConfigError("not the table of a sweep: make one with `zoo sweep NAME --out DIR --table --json`")
    if table.get("dry_run"):
        raise ConfigError("the table is of a dry run, whose numbers mean nothing")
    if not all(metrics.keys() & row for row in rows):
        raise ConfigError(f"the sweep has no metric of {record['name']}: those are {', '.join(metrics)}")
    command = str(table.get("command", f"zoo sweep {table.get('sweep')} --data DIR --out OUT"))
    if record["weights"]["source"] != "none":
        return {**record, "comparison": [_compared(row, metrics, command) for row in rows]}
    own = [row for row in rows if row["model"] == record["name"] and _own_setting(row)]
    if not own:
        raise ConfigError(f"the sweep has no results of {record['name']} with its own options")
    first = own[0]
    command = f"{command} --only {first['name']}"
    evaluation = [item for row in own for item in _sweep_items(row, metrics, command)]
    run = first["training"]
    training = {**record["training"], **{key: run[key] for key in ("epochs", "device", "duration_s", "date")}}
    training |= {"seed": first["seeds"][0], "final_train_loss": round(float(run["final_train_loss"]), 4)}
    return {**record, "evaluation": evaluation, "training": training}


def _own_setting(row: Mapping[str, Any]) -> bool:
    """Whether a row of a sweep is of the model as its recipe has it, perhaps trained for less long."""
    return not row["model_options"] and not set(row.get("settings", {})) - {"epochs", "steps"}


def _sweep_items(row: Mapping[str, Any], metrics: Mapping[str, str], command: str) -> list[dict[str, Any]]:
    """The measured numbers of a row of a sweep, by metric and size."""
    conditions = row.get("conditions", {})
    return [
        {
            "dataset": row["dataset"],
            "split": row.get("split", "validation"),
            "images": row["images"],
            "size": int(size),
            "metric": metric,
            **_mean(row, metric, value),
            **({} if row["extend"] == "none" else {"extend": row["extend"]}),
            **({"condition": conditions[size]} if size in conditions else {}),
            "command": command,
            "device": row["training"]["device"],
            "dtype": row["dtype"],
        }
        for metric in metrics
        if metric in row
        for size, value in row[metric].items()
    ]


def _mean(row: Mapping[str, Any], metric: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A number over seeds, with that of each seed where the table has them."""
    if "runs" in value:
        return over_seeds({int(seed): found for seed, found in value["runs"].items()}, metric)
    return {"value": value["mean"], "std": value["std"], "seeds": len(row["seeds"])}


def _compared(row: Mapping[str, Any], metrics: Mapping[str, str], command: str) -> dict[str, Any]:
    """A row of a comparison: mean over seeds by size, and what sets it apart."""
    seeds = len(row["seeds"])
    note = f"{row['training']['epochs']} epochs, {'one seed' if seeds == 1 else f'mean of {seeds} seeds'}"
    note += "" if row["extend"] == "none" else f", {row['extend']}"
    if "top1" not in row:
        return {"name": row["name"], "note": note, "evaluation": _sweep_items(row, metrics, command)}
    return {"name": row["name"], "note": note, "sizes": {int(size): v["mean"] for size, v in row["top1"].items()}}


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
        if any(not character.isprintable() for character in command):
            raise ValueError(command)
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
