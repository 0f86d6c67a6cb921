"""Weights stored in 8 bits: a matrix as int8 with a float32 scale per row, in safetensors, and back to floats.

A file of this form holds for every large matrix `NAME` of a layer the int8 tensor `NAME` and the scales `NAME.scale`;
all other tensors are float16. Row r of a matrix is `NAME[r] * NAME.scale[r]`, rows being counted along the first axis:
the output channels of a linear layer or a convolution (of a transposed one the input channels), the tokens of an
embedding. The metadata of the file state the form where plain files of PyTorch state `"pt"`; int8 without that
statement is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.errors import WeightsError

__all__ = ["METADATA", "SCALE", "check_scales", "is_int8", "pack", "pack_rows", "stored_in_rows", "unpack_rows"]
__all__ += ["unpacked"]

SCALE = ".scale"
_OURS = "pape-zoo-"
_FORM = f"{_OURS}int8-rows-1"
METADATA = {"format": _FORM}  # No second entry: safetensors writes several in an order that changes.
"""Metadata of a safetensors file of this form."""

LIMIT = 127
# A smaller tensor gains less than its scales and its lines in the header cost.
MIN_ELEMENTS, MIN_ROW = 1024, 16
# Of the 24 bits of a scale's significand the last seven are zero: then 127 times it, and what lies below, is exact.
_CLEARED = (1 << 7) - 1


def is_int8(dtype: Any) -> bool:
    """Whether a dtype asks for this form: `"int8"` or `torch.int8`."""
    return str(dtype).removeprefix("torch.") == "int8"


def packs(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a model is stored as int8.

    Only the `weight` of a layer is: what places tokens (frequencies, slopes, parabolas, tables) is multiplied by
    coordinates, which would multiply its error.
    """
    row = math.prod(shape[1:])
    return name.endswith("weight") and len(shape) > 1 and row >= MIN_ROW and shape[0] * row >= MIN_ELEMENTS


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file of this form.

    Args:
        state: State dict of a model, floating, on any device.

    Returns:
        On the CPU: int8 and float32 for matrices, float16 for the rest. Where no tensor is large enough, all are
        float16, and the file is none of this form.

    Raises:
        WeightsError: If a tensor is NaN or infinite, or not a matrix and beyond the range of float16.
    """
    packed = {}
    for name, value in state.items():
        wide = value.detach().to("cpu", torch.float32)
        if not torch.isfinite(wide).all():
            raise WeightsError(f"not saved: {name} holds NaN or infinite values")
        if packs(name, tuple(wide.shape)):
            packed[name], packed[name + SCALE] = pack_rows(wide)
            continue
        packed[name] = wide.to(torch.float16)
        if not torch.isfinite(packed[name]).all():
            raise WeightsError(f"not saved: {name} exceeds the range of float16, in which it would be stored")
    return packed


def pack_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 with a scale per row, symmetric about zero: the largest of a row becomes 127 or -127.

    Scales are rounded up to 17 significant bits, so that products with int8 are exact in float32, and packing what was
    unpacked gives the same again.

    Args:
        matrix: (R, ...) float32, finite.

    Returns:
        int8 of the same shape, and scales (R,) float32, positive. What `unpack_rows` makes of them is nowhere further
        from `matrix` than half the scale of the row.
    """
    rows = matrix.flatten(1)
    scale = (rows.abs().amax(1) / LIMIT).clamp_min(torch.finfo(torch.float32).tiny)
    scale = ((scale.view(torch.int32) + _CLEARED) & ~_CLEARED).view(torch.float32)
    values = (rows / scale[:, None]).round().clamp(-LIMIT, LIMIT).to(torch.int8)
    return values.view(matrix.shape), scale


def unpack_rows(values: Tensor, scale: Tensor) -> Tensor:
    """The float32 matrix of int8 values (R, ...) and scales (R,)."""
    return values.to(torch.float32) * scale.view(-1, *[1] * (values.dim() - 1))


def stored_in_rows(metadata: Any, path: Path) -> bool:
    """Whether the metadata of a safetensors file state this form.

    Raises:
        WeightsError: If they state another one.
    """
    form = str(metadata.get("format")) if isinstance(metadata, Mapping) else ""
    if form.startswith(_OURS) and form != _FORM:
        raise WeightsError(f"{path} has the format {form!r:.60}, not {_FORM}: a later pape-zoo wrote it, upgrade yours")
    return form == _FORM


def check_scales(tensors: Mapping[str, Mapping[str, Any]], path: Path) -> dict[str, Mapping[str, Any]]:
    """The tensors of a file of this form as a model knows them, without the scales, from its header alone.

    Args:
        tensors: Name -> `{"dtype", "shape"}`.
        path: Of the file, for messages.

    Raises:
        WeightsError: If an int8 tensor has no rows, or no scale of its own for each of them.
    """
    scales = set()
    for name, item in tensors.items():
        if item["dtype"] != "I8":
            continue
        shape, found = item["shape"], tensors.get(name + SCALE)
        if len(shape) < 2:
            raise WeightsError(f"{path}: {name!r:.80} is int8 but no matrix: its shape is {shape}")
        if found is None:
            raise WeightsError(f"{path}: {name!r:.80} is int8 but has no scale ({name + SCALE!r:.90})")
        if found["dtype"] != "F32" or found["shape"] != shape[:1]:
            raise WeightsError(
                f"{path}: {name + SCALE!r:.90} is {found['dtype']} of shape {found['shape']}, expected F32 of shape "
                f"{shape[:1]}, one for each row"
            )
        scales.add(name + SCALE)
    return {name: item for name, item in tensors.items() if name not in scales}


def unpacked(file: Any, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of an open safetensors file, one by one, int8 multiplied out in float32.

    Args:
        file: As `safetensors.safe_open` gives it; `check_scales` has passed its header if it is of this form.
        path: Of the file, for messages.

    Raises:
        WeightsError: If a scale is not a positive number.
    """
    names = set(file.keys())
    scaled = stored_in_rows(file.metadata(), path)
    for name in file.keys():  # noqa: SIM118 (not a mapping)
        if scaled and name.endswith(SCALE) and name.removesuffix(SCALE) in names:
            continue
        tensor = file.get_tensor(name)
        if scaled and tensor.dtype == torch.int8:
            scale = file.get_tensor(name + SCALE)
            if not (torch.isfinite(scale) & (scale > 0)).all():
                raise WeightsError(f"{path}: {name + SCALE!r:.90} holds scales that are not positive numbers")
            tensor = unpack_rows(tensor, scale)
        yield name, tensor
