"""What tables, arrays and HDF5 share: names of columns, units of time, codes of polarity."""

from __future__ import annotations

import numpy as np

from modalities.events.formats.base import UNITS
from zoo.errors import ConfigError, DataError

__all__ = ["NAMES", "name_columns", "polarity", "unit_of"]

# A column's name in lower case -> t, x, y or p.
NAMES = {"x": "x", "y": "y", "col": "x", "row": "y"}
NAMES |= dict.fromkeys(("p", "pol", "polarity"), "p")
NAMES |= dict.fromkeys(("t", "ts", "time", "timestamp", "timestamps"), "t")


def name_columns(names: list[str]) -> tuple[dict[str, int], str | None]:
    """Finds t, x, y and p among the names; a time may carry its unit, as in `t_us` or `timestamp [s]`.

    Returns:
        Index of each column found, and the unit.
    """
    found: dict[str, int] = {}
    unit = None
    for index, raw in enumerate(names):
        name = raw.strip().strip("\"'").lower()
        base, suffix = name, None
        for candidate in UNITS:
            for ending in (f"_{candidate}", f"[{candidate}]", f"({candidate})"):
                if name.endswith(ending):
                    base, suffix = name.removesuffix(ending).strip(), candidate
        if NAMES.get(base) == "t" and "t" not in found:
            found["t"], unit = index, suffix
        elif suffix is None and base in NAMES and NAMES[base] not in found:
            found[NAMES[base]] = index
    return found, unit


def unit_of(dtype: np.dtype, asked: str | None, name: str, *, stated: str | None = None, default: str = "us") -> str:
    """The unit of times: that asked for or stated, else microseconds for whole numbers.

    Raises:
        DataError: If floating-point times have no unit.
        ConfigError: If the caller contradicts the file.
    """
    if asked and stated and asked != stated:
        raise ConfigError(f"{name}: unit={asked!r}, but the file says {stated!r}")
    if asked or stated:
        return str(asked or stated)
    if dtype.kind == "f":
        raise DataError(f'{name}: times are floating-point numbers without a unit; pass unit="s", "ms", "us" or "ns"')
    return default


def polarity(values: np.ndarray, name: str) -> np.ndarray:
    """Maps 0 and 1, or -1 and 1, to bool.

    Raises:
        DataError: If there are other values.
    """
    if values.dtype.kind != "b" and not np.isin(values, (-1, 0, 1)).all():
        odd = values[~np.isin(values, (-1, 0, 1))][0]
        raise DataError(f"{name}: a polarity of {odd}; expected 0 and 1, or -1 and 1")
    return values > 0
