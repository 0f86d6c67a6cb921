"""Reading and writing model folders: `config.json`, `model.safetensors` and a card. Tensors only, never pickles."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo import int8_storage
from zoo.config_file import dump_config, open_regular, parse_json, read_json, regular_file_size
from zoo.errors import ConfigError, WeightsError

__all__ = ["CARD", "CONFIG", "WEIGHTS", "compare_shapes", "file_sha256", "read_shapes", "read_tensors"]
__all__ += ["stored_dtype", "write_folder"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
MAX_HEADER_BYTES = 16 << 20
FLOATS = ("F64", "F32", "F16", "BF16")
PICKLES = ("model.pt", "pytorch_model.bin", "model.bin", "model.pth", "checkpoint.pt")


def find_weights(folder: Path) -> Path:
    """Path of the weights in a model folder.

    Raises:
        WeightsError: If there are none; a folder with a pickle instead is told what to do.
    """
    path = folder / WEIGHTS
    if path.exists():
        return path
    for name in PICKLES:
        if (folder / name).exists():
            raise WeightsError(
                f"{folder} has {name} but no {WEIGHTS}: pickled weights are not loaded; an official PaPE checkpoint "
                f"(config.json + model.pt) becomes a folder of ours with `zoo convert {folder} OUT`"
            )
    raise WeightsError(f"{folder} has no {WEIGHTS}")


def file_sha256(path: Path) -> str:
    """Sha256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a safetensors file, from its header alone.

    Raises:
        WeightsError: If the file is absent, is something else (a pickle is named as such), or is damaged.
    """
    return {key: tuple(item["shape"]) for key, item in _read_header(path).items()}


def stored_dtype(path: Path) -> str:
    """Dtype of the tensors of a safetensors file, such as `"float16"`; several are joined by commas."""
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
    return ", ".join(sorted({names[item["dtype"]] for item in _read_header(path).values()}))


def _read_header(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Tensors of a safetensors file as a model knows them: name -> `{"dtype", "shape"}`."""
    size = regular_file_size(path)
    with open_regular(path) as file:
        start = file.read(9)
        length = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
        if len(start) < 9 or start[8:9] != b"{" or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise WeightsError(_explain_foreign(path, start, size))
        file.seek(8)
        header_bytes = file.read(length)
    try:
        header = parse_json(header_bytes, f"the header of {path}")
    except ConfigError as error:
        raise WeightsError(f"damaged weights: {error}") from None
    in_rows = int8_storage.stored_in_rows(header.pop("__metadata__", None), path)
    allowed = (*FLOATS, "I8") if in_rows else FLOATS
    tensors = {}
    for key, item in header.items():
        shape = item.get("shape") if isinstance(item, dict) else None
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise WeightsError(f"damaged weights: {path} has no usable shape for {key!r:.80}")
        if item.get("dtype") not in allowed:
            raise WeightsError(
                f"{path}: {key!r:.80} has dtype {item.get('dtype')!r:.20}, expected one of {', '.join(allowed)}"
                f"{'; that it holds int8 with scales the file does not state' if item.get('dtype') == 'I8' else ''}"
            )
        tensors[key] = item
    return int8_storage.check_scales(tensors, path) if in_rows else tensors


def _explain_foreign(path: Path, start: bytes, size: int) -> str:
    if size == 0:
        return f"{path} is empty"
    if start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"):
        return (
            f"{path} is a pickle or zip archive (as torch.save writes), not safetensors: it is never unpickled; "
            "convert an official PaPE checkpoint with `zoo convert FOLDER OUT`"
        )
    if start.startswith(b"version "):
        return f"{path} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"
    return f"{path} is not a safetensors file, or is cut short or damaged ({size} bytes)"


def compare_shapes(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Checks that a checkpoint holds exactly the tensors that a model needs.

    Raises:
        WeightsError: Listing missing, unexpected and misshapen tensors.
    """
    missing = [key for key in expected if key not in found]
    unexpected = [f"{key:.80}" for key in found if key not in expected]
    shapes = [
        f"{key} is {found[key]}, expected {expected[key]}"
        for key in expected
        if key in found and tuple(found[key]) != tuple(expected[key])
    ]
    problems = [
        f"{what}: {', '.join(keys[:8])}{f' and {len(keys) - 8} more' if len(keys) > 8 else ''}"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("shape", shapes))
        if keys
    ]
    if problems:
        raise WeightsError(f"the weights of {source} do not fit the model; {'; '.join(problems)}")


def read_tensors(path: Path, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a safetensors file one by one, copied out of the file and cast.

    Raises:
        WeightsError: If the file is damaged, a tensor holds NaN or infinite values (in `dtype`), or the device's memory
            does not suffice.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for key, stored in int8_storage.unpacked(file, path):
                try:
                    tensor = stored.to(device=device, dtype=dtype, copy=True)
                    finite = bool(torch.isfinite(tensor).all())
                except RuntimeError as error:  # The file is not to blame.
                    raise WeightsError(f"{path} cannot be put on {device}: {' '.join(str(error).split())}") from None
                if not finite:
                    raise WeightsError(f"{path}: {key} holds NaN or infinite values in {dtype}")
                yield key, tensor
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"damaged weights: {path}: {' '.join(str(error).split())}") from None


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], card: str) -> None:
    """Writes a model folder: all of it or nothing.

    A new folder appears complete in one step. In a folder that already holds a model of this library the files are
    replaced one by one, each complete; a README.md that was edited is kept.

    Raises:
        ConfigError: If `folder` is a file or holds files of another origin that would be overwritten.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from zoo.cards import is_generated

    text = dump_config(config)
    try:
        folder = folder.expanduser().resolve()
        _refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # On the same file system; unlike a folder of tempfile, with the usual permissions.
        staging = (folder if folder.exists() else folder.parent) / f".{folder.name}.{uuid.uuid4().hex[:12]}"
        staging.mkdir()
    except (OSError, ValueError, RuntimeError) as error:  # A null byte, a loop of links; but also errors of our own.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot write {str(folder):.300}: {getattr(error, 'strerror', None) or error}") from None
    try:
        in_rows = any(value.dtype == torch.int8 for value in tensors.values())
        contiguous = {key: value.contiguous() for key, value in tensors.items()}
        save_file(contiguous, staging / WEIGHTS, int8_storage.METADATA if in_rows else {"format": "pt"})
        (staging / CONFIG).write_text(text, encoding="utf-8")
        (staging / CARD).write_text(card, encoding="utf-8")
        shutil.copymode(staging / CONFIG, staging / WEIGHTS)  # safetensors makes files that only the owner reads.
        if not folder.exists():
            os.replace(staging, folder)
            return
        keep_card = (folder / CARD).exists() and not is_generated((folder / CARD).read_text("utf-8", "replace"))
        # The configuration first: whoever is killed in between must find the folder to be ours.
        for name in (CONFIG, WEIGHTS) if keep_card else (CONFIG, WEIGHTS, CARD):
            os.replace(staging / name, folder / name)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file: a model is saved into a folder")
    if not any((folder / name).exists() for name in (CONFIG, WEIGHTS)):
        return
    try:
        ours = "schema_version" in read_json(folder / CONFIG)
    except (ConfigError, WeightsError):
        ours = False
    if not ours:
        raise ConfigError(f"{folder} holds a {CONFIG} or {WEIGHTS} that pape-zoo did not write: choose another folder")
