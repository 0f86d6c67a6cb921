"""From what a user names to the configuration of training and that of the use, and what is wrong on the way."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.config_file import KNOWN, check_config, read_json
from zoo.diagnosis.catalogue import Finding
from zoo.errors import ConfigError, ZooError

__all__ = ["Read", "read", "with_data", "with_size"]

# Keys of recipes that say the size of a training input.
_SIZES = ("image_size", "num_points")


@dataclass
class Read:
    """What was named.

    Attributes:
        name: What it is called.
        trained: Configuration of the training, checked; `None` where it cannot be used.
        target: That of the use; so far that of the training, or what a recipe makes of it.
        fresh: Training is yet to come.
        findings: What was found on the way.
        recipe: The recipe, where one was named.
    """

    name: str
    trained: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    fresh: bool = False
    findings: list[Finding] = field(default_factory=list)
    recipe: Any = None


def read(named: str) -> Read:
    """Reads a registered name, `local-dir:FOLDER`, `hf-hub:REPOSITORY`, a config.json, or a recipe.

    Args:
        named: What to read; a recipe is a YAML file or the name of a built-in one.

    Raises:
        ZooError: If there is no such thing, or it cannot be read.
    """
    from zoo.training.recipe import built_in_recipes

    if named in registry.list_models():
        return _config(named, registry.entry(named).new_config())
    if named.endswith((".yaml", ".yml")) or named in built_in_recipes():
        return _recipe(named)
    path = Path(named)
    if named.startswith("local-dir:"):
        path = Path(named.removeprefix("local-dir:")).expanduser() / "config.json"
    elif named.startswith("hf-hub:") or not (named.endswith(".json") or path.is_dir()):
        from zoo.sources import locate

        return _config(named, locate(named, pretrained=False).config)
    return _config(named, read_json(path / "config.json" if path.is_dir() else path))


def _config(name: str, config: dict[str, Any]) -> Read:
    found = Read(name)
    for part, known in _known(config).items():
        values = config if part == "config" else config.get(part)
        if isinstance(values, Mapping):
            found.findings += [_unknown(key, part, known) for key in values if key not in known]
    with _refusals(found, "bad-config", "mend the value that is named"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They name the unknown keys, which were found.
        checked = check_config(copy.deepcopy(config), name)
        checked["data"] = registry.architecture(checked).data_config(checked["data"]).to_dict()
        found.trained, found.target = checked, copy.deepcopy(checked)
    return found


def _known(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Part of a configuration -> keys that are known in it, as far as its architecture is known."""
    known = {"config": list(KNOWN)}
    key = (config.get("modality"), config.get("architecture"))
    names = [
        name
        for name in registry.list_models(modality=str(key[0]))
        if registry.entry(name).config["architecture"] == key[1]
    ]
    if names:  # Registered ones have every key of a model.
        known["model"] = sorted({k for name in names for k in registry.entry(name).config["model"]})
        entry = registry.entry(names[0])
        known["data"] = sorted(registry.architecture(entry.config).data_config(entry.config["data"]).to_dict())
        if config["modality"] == "points":
            known["data"].append("class_names")  # Of former files.
    return known


def _unknown(key: str, part: str, known: list[str]) -> Finding:
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return Finding("unknown-key", "warning", f"{part} has the key {str(key)[:60]!r}, which nothing reads", hint)


@contextmanager
def _refusals(found: Read, code: str, mend: str) -> Iterator[None]:
    try:
        yield
    except ZooError as error:
        found.findings.append(refusal(error, code, mend))


def refusal(error: ZooError, code: str, mend: str) -> Finding:
    """The finding that an error of a builder is."""
    message = " ".join(str(error).split())
    if message.startswith("extension ") or "'extend'" in message:
        return Finding("extension-refused", "error", message, "leave 'extend' out, or give a factor of 1 or more")
    return Finding(code, "error", message, mend)


def _recipe(named: str) -> Read:
    from zoo.training.recipe import load_recipe

    found = Read(named, fresh=True)
    try:
        recipe = load_recipe(named)
    except ConfigError as error:
        if str(error).startswith("no recipe"):
            raise
        found.findings.append(Finding("recipe-refused", "error", str(error), "mend the key that is named"))
        return found
    found.recipe, found.fresh = recipe, not recipe.pretrained
    from zoo.sources import locate

    source = locate(recipe.model, pretrained=False).config
    base = _config(named, source)
    found.findings += base.findings
    if base.trained is None:
        return found
    with _refusals(found, "recipe-refused", "mend model_options of the recipe"):
        target = _with_options(base.trained, recipe.model_options)
        for key in _SIZES:
            if (size := getattr(recipe.options, key, None)) is not None:
                target = with_size(target, list(size) if isinstance(size, tuple) else size)
        found.target = target
        found.trained = base.trained if recipe.pretrained else copy.deepcopy(target)
    return found


def _with_options(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with keyword arguments of `zoo.load` in it."""
    made = copy.deepcopy(dict(config))
    model = made["model"]
    given = dict(options)
    size, more = given.pop("input_size", None), given.pop("encoding_options", {})
    if unknown := [key for key in given if key not in model]:
        raise ConfigError(f"model_options: unknown option {unknown[0]!r:.60}; known: input_size, {', '.join(model)}")
    if given.get("encoding", model["encoding"]) != model["encoding"]:
        model["encoding_options"] = {}
    model.update(given)
    model["encoding_options"] = {**model["encoding_options"], **more}
    return with_size(made, size) if size is not None else made


def with_size(config: Mapping[str, Any], size: Any) -> dict[str, Any]:
    """A configuration for inputs of another size, see `with_size` of its data.

    Raises:
        ConfigError: If its data have no such size.
    """
    data = registry.architecture(config).data_config(config["data"])
    return {**config, "data": data.with_size(size).to_dict()}


def with_data(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with other values in its data.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    unknown = [key for key in changes if key not in config["data"]]
    if unknown:
        known = ", ".join(config["data"])
        raise ConfigError(f"data has no key {unknown[0]!r:.60}; the keys of this model are {known}")
    merged = {**config["data"], **changes}
    return {**config, "data": registry.architecture(config).data_config(merged).to_dict()}


def read_data(path: str) -> dict[str, Any]:
    """The `"data"` part in a file: a config.json, or that part alone.

    Raises:
        ZooError: If the file cannot be read, or holds no such thing.
    """
    values = read_json(Path(path))
    data = values.get("data", values)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: data must be an object, got {json.dumps(data)[:60]}")
    return data
