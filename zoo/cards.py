"""Model cards: text for the terminal and the Hub, generated from the structured facts in `record.yaml`.

`hub_cards/NAME/record.yaml` is edited (or filled from results, see `zoo.card_facts`); `hub_cards/NAME/README.md`
never is.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.card_facts import over_seeds
from zoo.card_text import render_config, render_entry, render_record
from zoo.errors import ConfigError
from zoo.files import write_whole

__all__ = [
    "ModelCard",
    "card",
    "card_folder",
    "is_generated",
    "model_card",
    "read_record",
    "write_card",
    "write_record",
]

MAX_RECORD_BYTES = 1 << 20
# What every measured number says of itself.
NUMBER = ("dataset", "split", "images", "size", "metric", "value", "command", "device", "dtype")
# Part of a record -> what it must hold, and the keys of those that are mappings.
RECORD: dict[str, tuple[type, tuple[str, ...]]] = {
    "name": (str, ()),
    "summary": (str, ()),
    "parameters": (int, ()),
    "license": (dict, ("code", "weights", "terms")),
    "data": (dict, ("name", "source", "train_split", "eval_split", "sha256", "terms")),
    "weights": (dict, ("source", "sha256", "size_bytes", "dtype", "command")),
    "training": (
        dict,
        ("command", "recipe", "epochs", "seed", "device", "duration_s", "final_train_loss", "date"),
    ),
    "evaluation": (list, NUMBER),
    "comparison": (list, ("name",)),
    "comparison_note": (str, ()),
    "notice": (str, ()),
    "paper": (list, ("claim", "source")),
    "intended_use": (str, ()),
    "limits": (list, ()),
    "citation": (str, ()),
}
OPTIONAL = ("comparison_note", "notice")


@dataclass(frozen=True)
class ModelCard:
    """A model card.

    Attributes:
        name: Registry name.
        text: Markdown, with the YAML front matter of the Hub.
        record: The facts it was made from; `None` for names without a record.
        path: The `README.md` in `hub_cards`; `None` for names without a record.
    """

    name: str
    text: str = field(repr=False)
    record: Mapping[str, Any] | None = field(default=None, repr=False)
    path: Path | None = None

    def __str__(self) -> str:
        return self.text


def card(name: str) -> ModelCard:
    """The card of a registered name; names that were never trained have one that says so.

    Raises:
        UnknownModelError: If the name is not registered.
        ConfigError: If its record is damaged.
    """
    entry = registry.entry(name)
    record = read_record(name)
    if record is None:
        return ModelCard(name, render_entry(entry))
    return ModelCard(name, render_record(record, entry), record, card_folder(name) / "README.md")


def card_folder(name: str) -> Path:
    """The folder of a name in `hub_cards`, whether it exists or not."""
    package = importlib.import_module("hub_cards")
    return Path(next(iter(package.__path__))) / name


def read_record(name: str) -> dict[str, Any] | None:
    """The facts in `hub_cards/NAME/record.yaml`, or `None` if there is no record.

    Raises:
        ConfigError: If a part is missing or of the wrong kind.
    """
    import yaml

    path = card_folder(name) / "record.yaml"
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_RECORD_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        record = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    return check_record(record, name, str(path))


def check_record(record: Any, name: str, where: str = "record.yaml") -> dict[str, Any]:
    """Checks that a record has every part (see `RECORD`), of the right kind, and agrees with the registry.

    Raises:
        ConfigError: Naming the first part that does not.
    """
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: expected a mapping")
    if unknown := [str(key) for key in record if key not in RECORD]:
        raise ConfigError(f"{where}: unknown parts {', '.join(unknown)}; known: {', '.join(RECORD)}")
    for part, (kind, keys) in RECORD.items():
        if part in OPTIONAL and part not in record:
            continue
        value = record.get(part)
        if type(value) is not kind:
            raise ConfigError(f"{where}: {part} must be a {kind.__name__}, got {value!r:.60}")
        items: list[Any] = record[part] if kind is list else [record[part]] if kind is dict else []
        for item in items:
            missing = [key for key in keys if not isinstance(item, dict) or key not in item]
            if missing:
                raise ConfigError(f"{where}: {part} lacks {', '.join(missing)}")
    for item in record["evaluation"]:
        _check_measured(item, where)
    for item in record["comparison"]:
        if ("sizes" in item) == ("evaluation" in item):
            raise ConfigError(f"{where}: {item['name']!r:.60} of comparison needs either sizes or evaluation")
        measured = item.get("evaluation", [])
        if not isinstance(measured, list) or not all(
            isinstance(number, dict) and number.keys() >= set(NUMBER) for number in measured
        ):
            raise ConfigError(f"{where}: {item['name']!r:.60} of comparison: every number needs {', '.join(NUMBER)}")
        for number in measured:
            _check_measured(number, where)
    entry = registry.entry(name)
    stated = {"name": (record["name"], name), "parameters": (record["parameters"], entry.parameters)}
    stated["weights.source"] = (record["weights"]["source"], entry.weights)
    for key, (found, expected) in stated.items():
        if found != expected:
            raise ConfigError(f"{where}: {key} is {found!r}, but the registry has {expected!r}")
    return record


def _check_measured(item: Mapping[str, Any], where: str) -> None:
    """Refuses a number that does not say of what it is, or is not the mean of its runs."""
    named = f"{where}: {item['metric']!r:.60} on {item['dataset']!r:.60}"
    for key in ("dataset", "split", "metric", "command", "device", "dtype"):
        if not isinstance(item[key], str) or not item[key].strip():
            raise ConfigError(f"{named}: {key} must be a text, got {item[key]!r:.60}")
    if not isinstance(item.get("condition", ""), str):
        raise ConfigError(f"{named}: condition must be a text, got {item['condition']!r:.60}")
    sides = item["size"] if isinstance(item["size"], list) else [item["size"]]
    if not all(type(number) is int and number > 0 for number in (*sides, item["images"])) or len(sides) not in (1, 2):
        raise ConfigError(f"{named}: size and images must be positive whole numbers")
    runs = item.get("runs", {})
    if not isinstance(runs, dict) or not all(
        type(seed) is int and type(value) in (int, float) for seed, value in runs.items()
    ):
        raise ConfigError(f"{named}: runs must be a mapping of seed to value, got {runs!r:.60}")
    if type(item["value"]) not in (int, float):
        raise ConfigError(f"{named}: value must be a number, got {item['value']!r:.60}")
    for key, expected in (over_seeds(runs, item["metric"]) if runs else {}).items():
        found = item.get(key)
        if found != expected:
            raise ConfigError(f"{named}: {key} is {found!r:.60}, but the runs give {expected!r:.60}")


def write_record(name: str, record: dict[str, Any]) -> None:
    """Writes `hub_cards/NAME/record.yaml`, after checking it.

    Raises:
        ConfigError: If the record is not valid or the folder is not writable.
    """
    import yaml

    check_record(record, name, f"the record of {name}")

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as such."""

    def text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, text_node)
    text = yaml.dump(record, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    _write(card_folder(name) / "record.yaml", text)


def write_card(name: str) -> Path:
    """Writes `hub_cards/NAME/README.md` from the record.

    Raises:
        ConfigError: If the name has no record, or the folder is not writable.
    """
    made = card(name)
    if made.path is None:
        raise ConfigError(f"{name} has no record.yaml to generate a card from (looked in {card_folder(name)})")
    _write(made.path, made.text)
    return made.path


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def model_card(
    config: Mapping[str, Any],
    facts: Sequence[str] | None = None,
    front: Mapping[str, Any] | None = None,
    stored: str = "",
) -> str:
    """The card that `zoo.save` puts beside weights, with a mark that tells whether it was edited since.

    Arguments as for `zoo.card_text.render_config`.
    """
    text = render_config(config, facts, front, stored)
    return f"{text}\n<!-- generated by pape-zoo {_digest(text)}: once edited, this card is kept when saving again -->\n"


def is_generated(text: str) -> bool:
    """Whether a card is as `model_card` made it, unedited."""
    match = re.fullmatch(r"(.*)\n<!-- generated by pape-zoo ([0-9a-f]{16}): [^\n]* -->\n", text, re.DOTALL)
    return match is not None and match[2] == _digest(match[1])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
