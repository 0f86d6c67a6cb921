"""Tables of measured numbers for cards, and the same numbers in the form that the Hub reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zoo.card_metrics import digits, heading, hub_type, note, size_text, unit
from zoo.registry import Entry

__all__ = ["code", "literal", "measured_index", "metric_comparison", "metric_results", "model_index", "noun", "table"]

# Modality and task -> task of the Hub, and its name. The Hub has no task with event cameras, point clouds or boxes in
# three dimensions.
_TASKS = {
    ("image", "classification"): ("image-classification", "Image Classification"),
    ("image", "detection"): ("object-detection", "Object Detection"),
    ("events", "classification"): ("other", "Event Camera Classification"),
    ("events", "detection"): ("other", "Event Camera Object Detection"),
    ("video", "classification"): ("video-classification", "Video Classification"),
    ("points", "classification"): ("other", "Point Cloud Classification"),
    ("points", "segmentation"): ("other", "Point Cloud Semantic Segmentation"),
    ("driving", "detection"): ("other", "3D Object Detection"),
    ("sequence", "generation"): ("other", "Sequence Modelling"),
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a cell is one line."""
    lines = [f"| {' | '.join(map(_cell, head))} |", f"|{'|'.join(' --- ' for _ in head)}|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def _cell(text: Any) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(str(text).split()))


def literal(text: Any) -> str:
    """Text from a file, such as the name of a class, that Markdown shows as it is: one line, markup escaped."""
    shown = "".join(character if character.isprintable() else " " for character in str(text))
    return re.sub(r"([\\`*\[\]<>&|])", r"\\\1", " ".join(shown.split()))


def code(text: str) -> str:
    """Text as code within a line, with a fence that is not in it."""
    shown = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def noun(modality: str) -> str:
    """What the samples of a data set are called."""
    names = {
        "image": "pictures",
        "video": "clips",
        "points": "clouds",
        "driving": "key frames",
        "sequence": "sequences",
    }
    return names.get(modality, "samples")


def _conditions(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What numbers of one table have in common."""
    size = item["size"]
    return (
        *(item[key] for key in ("dataset", "split", "images", "device", "dtype")),
        tuple(size) if isinstance(size, list) else size,
        item.get("extend"),
        item.get("condition"),
    )


def _described(item: Mapping[str, Any], record: Mapping[str, Any], entry: Entry) -> str:
    """Data, split, number of samples, size and device of a number, for the line above its table."""
    # What was counted: of sequences the tokens that were scored.
    counted = "tokens" if entry.modality == "sequence" else noun(entry.modality)
    extend = f", {literal(item['condition'])}" if item.get("condition") else ""
    extend += f", extended with {literal(item['extend'])}" if item.get("extend") else ""
    return (
        f"{literal(record['data']['name'])} (data set {code(item['dataset'])}), {literal(item['split'])} split, "
        f"{item['images']:,} {counted}, at {size_text(item['size'], entry.modality)}"
        f"{' (height x width)' if isinstance(item['size'], list) else ''}{extend}, in {literal(item['dtype'])} on "
        f"{literal(item['device'])}"
    )


def _number(value: float, metric: str) -> str:
    places = digits(metric)
    return f"{value:.{1 if places == 2 else places}f}"


def _spread(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return ""
    metric = item["metric"]
    deviation = f" ± {_number(item['std'], metric)}" if item.get("std") is not None else ""
    return _number(item["value"], metric) + deviation


def _commands(items: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(code(command) for command in dict.fromkeys(item["command"] for item in items))


def metric_results(record: Mapping[str, Any], entry: Entry, published: bool) -> str:
    """The results of a model by metric: each training run, and mean and standard deviation over them.

    Args:
        record: Of the card.
        entry: The registered model.
        published: There are weights, of the seed of the record's training.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for item in record["evaluation"]:
        groups.setdefault(_conditions(item), []).append(item)
    parts = []
    for items in groups.values():
        seeds = sorted({seed for item in items for seed in item.get("runs", {})})
        own = record["training"]["seed"] if published else None
        head = [f"Seed {seed}{' (these weights)' if seed == own else ''}" for seed in seeds]
        several = len(seeds) > 1 or any("runs" not in item for item in items)
        if several:
            head.append("Mean ± standard deviation" if len(seeds) > 1 else "Value")
        rows = []
        mixed = any(unit(item["metric"]) != "%" for item in items)
        for item in items:
            named = heading(item["metric"]) + (f" ({unit(item['metric'])})" if mixed else "")
            runs = item.get("runs", {})
            cells = [_number(runs[seed], item["metric"]) if seed in runs else "" for seed in seeds]
            rows.append([literal(named), *cells, *([_spread(item)] if several else [])])
        parts += [
            f"{_described(items[0], record, entry)}, measured by us:",
            table(("Metric" if mixed else "Metric (%)", *head), rows),
        ]
    parts += [note(entry.modality, entry.task), record["data"].get("eval_note", ""), _commands(record["evaluation"])]
    return "\n\n".join(part for part in parts if part)


def metric_comparison(record: Mapping[str, Any], entry: Entry) -> str:
    """The model's numbers beside those of other models, a row for each, a table for each data set and device."""
    rows: dict[tuple[Any, ...], dict[str, dict[str, Mapping[str, Any]]]] = {}
    for name, items in ((entry.name, record["evaluation"]), *_compared(record)):
        for item in items:
            rows.setdefault(_conditions(item), {}).setdefault(name, {})[item["metric"]] = item
    parts = [literal(record["comparison_note"])] if record.get("comparison_note") else []
    shown: list[Mapping[str, Any]] = []
    for models in rows.values():
        others = [items for name, items in models.items() if name != entry.name]
        if not others:
            continue  # Nothing was measured alike.
        metrics = list(dict.fromkeys(metric for items in others for metric in items))
        cells = [
            (name, _seeds(items.values()), *(_spread(items.get(metric)) for metric in metrics))
            for name, items in models.items()
        ]
        first = next(iter(others[0].values()))
        parts += [
            f"{_described(first, record, entry)}; mean ± standard deviation where there are several seeds:",
            table(("Model", "Seeds", *(f"{heading(metric)} ({unit(metric)})" for metric in metrics)), cells),
        ]
        shown += [item for items in models.values() for item in items.values()]
    parts.append(_commands(shown))
    return "\n\n".join(part for part in parts if part)


def _compared(record: Mapping[str, Any]) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    return [
        (literal(item["name"]) + (f" ({literal(item['note'])})" if item.get("note") else ""), item["evaluation"])
        for item in record["comparison"]
        if "evaluation" in item
    ]


def _seeds(items: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(map(str, sorted({seed for item in items for seed in item.get("runs", {})}))) or "not stated"


def measured_index(
    config: Mapping[str, Any], dataset: str, split: str, metrics: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Results of one model on one split in the form the Hub reads.

    Args:
        config: Of the model.
        dataset: Name of the data.
        split: Of them, in words.
        metrics: Names as in results files, and values.
    """
    task, task_name = _TASKS[config["modality"], config["task"]]
    result = {
        "task": {"type": task, "name": task_name},
        "dataset": {"name": dataset, "type": dataset, "split": split},
        "metrics": [{"type": hub_type(key), "name": heading(key), "value": value} for key, value in metrics.items()],
    }
    return [{"name": config["name"], "results": [result]}]


def model_index(record: Mapping[str, Any], entry: Entry) -> list[dict[str, Any]] | None:
    """Measured results of the published weights in the form the Hub reads; they are our own measurements.

    Of numbers over several seeds, that of the seed of the weights; numbers of other seeds alone are left out.
    """
    data, seed = record["data"], record["training"]["seed"]
    groups: dict[tuple[str, str], list[tuple[Mapping[str, Any], float]]] = {}
    for item in record["evaluation"]:
        if "runs" not in item or seed in item["runs"]:
            value = item["runs"][seed] if "runs" in item else item["value"]
            groups.setdefault((item["dataset"], item["split"]), []).append((item, value))
    task, task_name = _TASKS[entry.modality, entry.task]
    results = []
    for (dataset, split), items in groups.items():
        about = {"name": data["name"], "type": data.get("hub_id") or dataset, "split": split}
        about["revision"] = data.get("revision")
        items.sort(key=lambda pair: pair[0]["size"] if isinstance(pair[0]["size"], list) else [pair[0]["size"]])
        metrics = [
            {
                "type": hub_type(item["metric"]),
                "name": f"{heading(item['metric'])} at {size_text(item['size'], entry.modality)}"
                + (f", {item['condition']}" if item.get("condition") else ""),
                "value": value,
                "args": {
                    "size": list(item["size"]) if isinstance(item["size"], list) else item["size"],
                    "dtype": item["dtype"],
                    "command": item["command"],
                    **({"device": item["device"], "seed": seed} if "runs" in item else {}),
                },
                "verified": False,
            }
            for item, value in items
        ]
        results.append(
            {
                "task": {"type": task, "name": task_name},
                "dataset": {key: value for key, value in about.items() if value},
                "metrics": metrics,
                "source": {"name": "self-reported", "url": "#results"},
            }
        )
    return [{"name": entry.name, "results": results}] if results else None
