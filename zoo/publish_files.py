"""What a model folder sends to the Hub: files with size and sha256, after a check that names every fault at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from zoo import checkpoints, registry
from zoo.checkpoints import CARD, CONFIG, WEIGHTS
from zoo.config_file import read_config, regular_file_size
from zoo.errors import ConfigError, WeightsError, ZooError
from zoo.published_card import EVAL_RESULTS, card_problems, eval_results, published_card
from zoo.results import one_line

__all__ = ["MAX_CARD_BYTES", "RECORD", "Upload", "UploadFile", "folder_upload", "source_folder"]

RECORD = "record.yaml"
MAX_CARD_BYTES = 1 << 20
MAX_FAULTS = 30  # Of which a message tells.
_TAKEN = (CARD, CONFIG, WEIGHTS, RECORD, "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")
# What training leaves beside a model; it names folders of the machine and is of no use to others.
_LEFT = ("metrics.jsonl", "recipe.yaml", "train_record.json")
_PICKLES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")


@dataclass(frozen=True)
class UploadFile:
    """A file that goes up.

    Attributes:
        path: In the repository.
        size: In bytes.
        sha256: In hexadecimal.
        content: The file on the disk, or its bytes where they were made for the Hub.
    """

    path: str
    size: int
    sha256: str
    content: Path | bytes = field(repr=False)


@dataclass(frozen=True)
class Upload:
    """All that goes up.

    Attributes:
        folder: Where it comes from.
        name: Of the model.
        files: In the order of their paths.
        left_out: Names of files of the training run that stay.
    """

    folder: Path
    name: str
    files: tuple[UploadFile, ...]
    left_out: tuple[str, ...]


def source_folder(name_or_folder: str) -> Path:
    """The folder of a registered name with weights, of `local-dir:PATH`, or of a path.

    Raises:
        UnknownModelError: If it is neither a name nor a folder.
        ConfigError: If it is on the Hub already.
        WeightsError: If the name has no weights, or there is no such folder.
    """
    from zoo.sources import locate

    if name_or_folder.startswith("hf-hub:"):
        raise ConfigError(f"{name_or_folder:.200} is on the Hub already; give a registered name or a folder")
    if name_or_folder not in registry.list_models() and not name_or_folder.startswith("local-dir:"):
        try:
            if name_or_folder and Path(name_or_folder).expanduser().is_dir():
                return Path(name_or_folder).expanduser()
        except (OSError, ValueError, RuntimeError):  # Too long, a null byte, no such user: no folder.
            pass
    elif name_or_folder.startswith("local-dir:"):
        path = Path(name_or_folder.removeprefix("local-dir:")).expanduser()
        if not path.is_dir():
            raise WeightsError(f"'{name_or_folder:.200}': there is no folder {str(path):.200}")
        return path
    weights = locate(name_or_folder, pretrained=True).weights
    assert weights is not None
    return weights.parent


def folder_upload(folder: Path, repo_id: str, url: str, licence: str | None = None) -> Upload:
    """Checks a folder and lists what goes up.

    Args:
        folder: With `config.json`, `model.safetensors` and `README.md`.
        repo_id: Where it goes.
        url: Page of that repository.
        licence: Of the weights, which replaces that of the card.

    Raises:
        ConfigError: Naming everything that is wrong: files that are missing, foreign, links or pickles, weights that
            do not load strictly, a card that lacks something or says what is not so.
    """
    if not any((folder / name).exists() for name in (CONFIG, WEIGHTS)):
        raise ConfigError(f"{folder} holds no model: there is no {CONFIG} and no {WEIGHTS}")
    problems, left = [], []
    for path in _all_files(folder):
        name = path.relative_to(folder).as_posix()
        if name in _LEFT:
            left.append(name)
        elif problem := _file_problem(path, name):
            problems.append(problem)
    absent = [name for name in (CONFIG, WEIGHTS, CARD) if not (folder / name).exists()]
    problems += [f"there is no {name}" for name in absent]
    config, digest, files = None, None, []
    if not {CONFIG, WEIGHTS} & set(absent):
        config, faults = _model(folder)
        problems += faults
    try:
        if WEIGHTS not in absent:
            digest = checkpoints.file_sha256(folder / WEIGHTS)
        files = [_plain(folder, name) for name in _TAKEN if name != CARD and (folder / name).is_file()]
        problems += list(_record_problems(folder, digest))
    except ZooError as error:
        problems.append(str(error))
    if CARD not in absent and config is not None:
        made, faults = _card(folder, config, repo_id, url, digest, licence)
        files += made
        problems += faults
    if problems:
        found = list(dict.fromkeys(problems))
        shown = found if len(found) <= MAX_FAULTS else [*found[:MAX_FAULTS], f"and {len(found) - MAX_FAULTS} more"]
        several = [f"({number}) {text}" for number, text in enumerate(shown, 1)]
        raise ConfigError(f"{folder} cannot be published: {'; '.join(several) if len(several) > 1 else problems[0]}")
    assert config is not None
    return Upload(folder, config["name"], tuple(sorted(files, key=lambda file: file.path)), tuple(left))


def _all_files(folder: Path) -> Iterator[Path]:
    """Everything in a folder; of a sub-folder or a link the entry itself."""
    try:
        yield from sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror or error}") from None


def _file_problem(path: Path, name: str) -> str | None:
    shown = one_line(name)[:100]
    if path.is_symlink():
        return f"{shown} is a link: publish plain files"
    if name == EVAL_RESULTS and path.is_dir():
        return f"{shown} is made from the model-index of README.md when publishing: move it out"
    if path.is_dir():
        return f"{shown}/ is a folder that does not belong to a model: move it out"
    if path.suffix.lower() in _PICKLES or name.startswith("checkpoint.pt"):
        running = " (the run is not finished)" if name.startswith("checkpoint.pt") else ""
        return f"{shown} is a pickle{running}: move it out"
    return None if name in _TAKEN else f"{shown} is a foreign file: move it out"


def _plain(folder: Path, name: str) -> UploadFile:
    path = folder / name
    return UploadFile(name, regular_file_size(path), checkpoints.file_sha256(path), path)


def _made(path: str, text: str) -> UploadFile:
    data = text.encode()
    return UploadFile(path, len(data), sha256(data).hexdigest(), data)


def _model(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The configuration, and what keeps the weights from loading."""
    from zoo.loading import load

    config, problems = None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config = read_config(folder / CONFIG)
            load(f"local-dir:{folder}")
        except ZooError as error:
            problems.append(str(error))
    told = dict.fromkeys(str(item.message) for item in caught if issubclass(item.category, UserWarning))
    return config, problems + list(told)


def _record_problems(folder: Path, digest: str | None) -> Iterator[str]:
    import yaml

    path = folder / RECORD
    if not path.is_file():
        return
    if regular_file_size(path) > MAX_CARD_BYTES:
        yield f"{RECORD} is larger than 1 MiB"
        return
    try:
        record = yaml.load(path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        stated = record["weights"]["sha256"]
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        yield f"{RECORD} is not the record of a model: remove it"
        return
    if digest is not None and stated != digest:
        yield f"{RECORD} states sha256 {str(stated)[:16]}..., but that of the weights is {digest[:16]}..."


def _card(
    folder: Path, config: Mapping[str, Any], repo_id: str, url: str, digest: str | None, licence: str | None
) -> tuple[list[UploadFile], list[str]]:
    """The card and the files of results made from it, and what is wrong with it."""
    path = folder / CARD
    try:
        if regular_file_size(path) > MAX_CARD_BYTES:
            return [], [f"{CARD} is larger than 1 MiB"]
        text = path.read_text(encoding="utf-8")
        if digest is not None:
            text = published_card(text, repo_id, digest, licence)
    except UnicodeDecodeError:
        return [], [f"{CARD} is not UTF-8 text"]
    except OSError as error:
        return [], [f"cannot read {CARD}: {error.strerror or error}"]
    except ZooError as error:
        return [], [str(error)]
    if problems := [*card_problems(text, config, digest), *_storage_problems(text, folder, digest)]:
        return [], problems
    return [_made(CARD, text), *(_made(name, body) for name, body in eval_results(text, url).items())], []


def _storage_problems(text: str, folder: Path, digest: str | None) -> Iterator[str]:
    """Other readers take int8 for numbers without scales, so a card has to say that it is there."""
    with suppress(WeightsError):  # Which the check of the weights tells.
        if digest is not None and "int8" in checkpoints.stored_dtype(folder / WEIGHTS) and "int8" not in text:
            yield f"{CARD} does not say that the weights are stored as int8 with scales"
