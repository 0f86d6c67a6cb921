"""Where a model comes from: the registry, a folder or a Hub repository, and the errors when it is not there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo import checkpoints, hub, registry
from zoo.config_file import read_config
from zoo.errors import ConfigError, WeightsError

__all__ = ["Source", "is_exported", "locate", "verify"]


@dataclass(frozen=True)
class Source:
    """Where a model comes from: its configuration and, unless only that is wanted, its weights."""

    label: str
    config: dict[str, Any]
    weights: Path | None = None
    sha256: str | None = None


def is_exported(name: object) -> bool:
    """Whether a name is that of a file that `zoo.export` wrote."""
    return isinstance(name, str) and name.endswith((".onnx", ".pt2")) and not name.startswith(("hf-hub:", "local-dir:"))


def locate(
    name: str,
    *,
    pretrained: bool,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool | None = None,
) -> Source:
    """Finds the configuration of a name and, when `pretrained`, its weights; arguments as for `zoo.load`.

    Raises:
        UnknownModelError: If the name is not registered.
        ConfigError: If the configuration or the form of the name is unusable.
        WeightsError: If there are no weights; says where they were looked for and how to get them.
    """
    if isinstance(name, str) and name.startswith("hf-hub:"):
        repo_id, revision = hub.split_repository(name.removeprefix("hf-hub:"), revision)
        return _from_hub(repo_id, revision, None, pretrained, cache_dir, local_files_only)
    if isinstance(name, str) and name.startswith("local-dir:"):
        path = name.removeprefix("local-dir:")
        folder = Path(path).expanduser()
        if not path or not _is_folder(folder):
            raise WeightsError(f"'{name:.200}': there is no folder {str(folder):.200}")
        return _from_folder(folder, pretrained)
    entry = registry.entry(name)
    if revision is not None:
        raise ConfigError(f"revision={revision!r} is for hf-hub: names; {name} is pinned by this version of pape-zoo")
    if not pretrained:
        return Source(name, entry.new_config())
    if entry.weights == "embedded":
        return _embedded(entry)
    if entry.weights == "hub" and entry.hub:
        return _from_hub(entry.hub.repo_id, entry.hub.revision, entry.hub.sha256, True, cache_dir, local_files_only)
    if entry.weights == "release":
        return _released(entry, hub.release_folder(name, cache_dir))
    how = f"train them with `{entry.command}`, or get" if entry.command else "train it yourself, or get"
    raise WeightsError(f"{name} has no published weights: {how} the architecture alone with pretrained=False")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # Too long.
        return False


def _from_folder(folder: Path, pretrained: bool, sha256: str | None = None) -> Source:
    if pretrained and not (folder / checkpoints.CONFIG).exists():
        checkpoints.find_weights(folder)  # A folder of pickles is best told so first.
    config = read_config(folder / checkpoints.CONFIG)
    return Source(str(folder), config, checkpoints.find_weights(folder) if pretrained else None, sha256)


def _from_hub(
    repo_id: str,
    revision: str | None,
    sha256: str | None,
    pretrained: bool,
    cache_dir: str | os.PathLike[str] | None,
    local_files_only: bool | None,
) -> Source:
    path = hub.download(
        repo_id, checkpoints.CONFIG, revision=revision, cache_dir=cache_dir, local_files_only=local_files_only
    )
    config = read_config(path)
    commit = path.parent.name  # The cache keeps files as snapshots/COMMIT/NAME.
    label = f"hf-hub:{repo_id}@{commit}"
    if not pretrained:
        return Source(label, config)
    weights = hub.download(
        repo_id,
        checkpoints.WEIGHTS,
        revision=commit,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    return Source(label, config, weights, sha256 or hub.stated_sha256(weights))


def _embedded(entry: registry.Entry) -> Source:
    from zoo.cards import card_folder, read_record

    folder = card_folder(entry.name)
    if not (folder / checkpoints.WEIGHTS).exists():
        raise WeightsError(
            f"the embedded weights of {entry.name} are not in this installation (looked for "
            f"{folder / checkpoints.WEIGHTS}): install pape-zoo again, train them with `{entry.command}`, "
            "or get the architecture alone with pretrained=False"
        )
    sha256 = (read_record(entry.name) or {}).get("weights", {}).get("sha256")
    if not sha256:
        raise WeightsError(f"{folder / 'record.yaml'} states no sha256 for the weights of {entry.name}: not loaded")
    return _from_folder(folder, True, sha256)


def _released(entry: registry.Entry, folder: Path) -> Source:
    if not (folder / checkpoints.WEIGHTS).exists():
        raise WeightsError(
            f"the released weights of {entry.name} are not installed (looked in {folder}; ZOO_CACHE or cache_dir "
            f"changes where): download the official archive from data.dtu.dk, article 32076279, unpack it, and run "
            "`zoo convert FOLDER OUT --install` on the folder with its config.json and model.pt; the architecture "
            "alone comes with pretrained=False"
        )
    source = _from_folder(folder, True)
    if source.config["model"] != entry.config["model"]:
        raise WeightsError(f"{folder} holds another model than {entry.name}: remove it and convert again")
    return source


def verify(path: Path, expected: str) -> None:
    """Raises `WeightsError` unless the file has this sha256."""
    found = checkpoints.file_sha256(path)
    if found != expected:
        raise WeightsError(
            f"{path} is damaged or was changed: its sha256 is {found}, recorded is {expected}; delete "
            f"{path.resolve()} and get it again"
        )
