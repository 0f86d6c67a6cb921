"""The card of a fine-tuned model, from the record of its run: what it was made from, data, split, metric, terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.card_facts import NOT_RECIPE, portable_command
from zoo.card_metrics import digits, heading, measured_metrics, note, unit
from zoo.card_tables import code, literal, measured_index, noun, table
from zoo.cards import is_generated, model_card, read_record
from zoo.checkpoints import CARD, CONFIG, WEIGHTS, stored_dtype
from zoo.config_file import dump_config, read_config
from zoo.errors import ConfigError, UnknownModelError
from zoo.files import write_whole
from zoo.finetune.run import tuned_name
from zoo.training.loop import RECORD

__all__ = ["finish", "tuned_card"]


def finish(folder: Path) -> None:
    """Gives a finished run the name of a model of its own, and its card, unless that was edited; again changes nothing.

    Raises:
        ConfigError: If the files cannot be written.
    """
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    config = read_config(folder / CONFIG)
    data = Path(str(record["recipe"]["data"]))
    if not config["name"].endswith(tuned_name("", data)):
        config["name"] = tuned_name(config["name"], data)
    try:
        write_whole(folder / CONFIG, dump_config(config))
        card = folder / CARD
        if not card.is_file() or is_generated(card.read_text(encoding="utf-8")):
            write_whole(card, tuned_card(config, record, stored_dtype(folder / WEIGHTS)))
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from error


def tuned_card(config: Mapping[str, Any], record: Mapping[str, Any], stored: str = "") -> str:
    """The text of the card.

    Args:
        config: Of the finished model.
        record: `train_record.json` of its run.
        stored: Dtype of its weights, as `zoo.checkpoints.stored_dtype` gives it.
    """
    base = str(record["recipe"]["model"])
    front = {
        "license": "other",
        "license_name": "unknown",
        "base_model": base.removeprefix("hf-hub:").partition("@")[0] if base.startswith("hf-hub:") else None,
        "model-index": _index(config, record),
    }
    sections = [
        "## Fine-tuned from",
        _origin(base),
        "## Results",
        _results(config, record),
        "## Data and licences",
        _data(base, record),
        "## Training",
        _training(record),
    ]
    return model_card(config, sections, front, stored)


def _shown(base: str) -> str:
    """The name of the model that was tuned, without folders of the machine."""
    return f"local-dir:{Path(base).name}" if base.startswith("local-dir:") else base


def _origin(base: str) -> str:
    return f"The weights of {code(_shown(base))}, with a new head where the classes are others."


def _metrics(task: str, record: Mapping[str, Any]) -> dict[str, float]:
    """What was measured at the end, without the metrics that cards do not show."""
    found = {key.removeprefix("dev_"): value for key, value in record.items() if key.startswith("dev_")}
    return measured_metrics(task, found)


def _validation(record: Mapping[str, Any]) -> str:
    """What was evaluated on, in words."""
    recipe = record["recipe"]
    if share := recipe.get("dev_by_class"):
        return f"{share:.0%} of each class of the training data, held out by a draw that is the same for every seed"
    if share := recipe.get("dev_fraction"):
        return f"{share:.0%} of the training data, held out by a draw that is the same for every seed"
    if count := recipe.get("dev_count"):
        return f"{count} samples of the training data, held out by a draw that is the same for every seed"
    return "the validation split of the data"


def _results(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    found = _metrics(config["task"], record)
    if not found:
        return "Nothing was held out, so nothing was measured."
    rows = [(literal(heading(key)), f"{value:.{digits(key)}f} {unit(key)}") for key, value in found.items()]
    chosen = record.get("selected_by")
    bias = (
        f"The weights are those of step {record.get('selected_step')} of {record['steps']}, chosen by "
        f"{literal(heading(chosen.removeprefix('dev_')))} on the same data: on others it may be lower."
        if chosen
        else ""
    )
    dev = next((value for key, value in record["data"].items() if key.startswith("dev_")), None)
    many = "" if dev is None else f" ({dev:,} {noun(config['modality'])})"
    parts = (
        f"On {_validation(record)}{many}, in {_dtype(record)} on {literal(record['device'] or 'cpu')}:",
        table(("Metric", "Value"), rows),
        bias,
        note(config["modality"], config["task"]),
    )
    return "\n\n".join(part for part in parts if part)


def _dtype(record: Mapping[str, Any]) -> str:
    return "bfloat16" if record["recipe"]["precision"] == "bf16" else "float32"


def _data(base: str, record: Mapping[str, Any]) -> str:
    data = record["data"]
    counts = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in data.items() if isinstance(value, int))
    lines = [
        f"- Data: {literal(data['name'])} ({counts}), identified by sha256 `{data['sha256'][:16]}...`.",
        "- Licence of these data: unknown to this library. Whoever publishes the weights says here what it is.",
        *_terms(base),
        "- Licence of these weights: not stated; it must agree with the terms of the data and of the base weights.",
    ]
    return "\n".join(lines)


def _terms(base: str) -> list[str]:
    """What the weights that were tuned were trained on, and under which terms."""
    try:
        known = read_record(base)
    except (ConfigError, UnknownModelError):
        known = None
    if known is None:
        return [f"- Base weights {code(_shown(base))}: data and licence as their own card says."]
    data, terms = known["data"], known["license"]
    return [
        f"- Base weights {code(base)}: trained on {data['name']}. Terms of those data: {data['terms'].strip()}",
        f"- Licence of the base weights: {terms['weights']}. {terms['terms'].strip()}",
    ]


def _training(record: Mapping[str, Any]) -> str:
    recipe = record["recipe"]
    facts = {
        "epochs planned": record["epochs"],
        "steps done": record["steps"],
        "seed": record["seed"],
        "hardware": record["device"],
        "duration": f"{record['duration_s'] / 60:.1f} minutes",
        "final training loss": record["final_train_loss"],
        "date": record["date"],
    }
    kept = {key: value for key, value in recipe.items() if key not in NOT_RECIPE and value not in (None, {}, [])}
    rows = [(key, literal(value)) for key, value in {**facts, **kept}.items() if value not in (None, "")]
    command = portable_command(record["command"]) if record.get("command") else "zoo train recipe.yaml --out OUT"
    return f"```bash\n{command}\n```\n\n{table(('', ''), rows)}"


def _index(config: Mapping[str, Any], record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    found = _metrics(config["task"], record)
    return measured_index(config, str(record["data"]["name"]), "validation", found) if found else None
