"""The unit of coordinates of LAS files, as far as their records of the coordinate system state it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["horizontal_unit"]

_LINEAR_UNITS = 3076  # GeoTIFF: ProjLinearUnitsGeoKey; its codes are those of EPSG.
_METRES = {9001: 1.0, 9002: 0.3048, 9003: 1200 / 3937}
_UNIT = re.compile(r'\b(?:LENGTH)?UNIT\s*\[\s*"([^"]{0,80})"\s*,\s*([-+.\deE]{1,40})')
_ANGLES = ("degree", "radian", "grad", "gon", "arc", "second", "minute")
_LONGEST = 2**16  # letters


def horizontal_unit(records: Iterable[Any]) -> float | None:
    """Metres of one unit of x and y.

    Args:
        records: Variable length records as laspy has them.

    Returns:
        By the text of the coordinate system (WKT 1 or 2), else by its GeoTIFF keys; `None` where neither tells, as
        where coordinates are angles.
    """
    found = {type(record).__name__: record for record in records}
    text = getattr(found.get("WktCoordinateSystemVlr"), "string", None)
    if isinstance(text, str) and (unit := _unit_of_text(text[:_LONGEST])) is not None:
        return unit
    for key in getattr(found.get("GeoKeyDirectoryVlr"), "geo_keys", ()):
        if key.id == _LINEAR_UNITS and key.tiff_tag_location == 0:
            return _METRES.get(int(key.value_offset))
    return None


def _unit_of_text(text: str) -> float | None:
    if not re.search(r"\bPROJ(?:CS|CRS)\s*\[", text):
        return None
    # Heights have a unit of their own, and stand last, as does the unit of the plane within what is before them.
    plane = re.split(r"\bVERT(?:_CS|CRS)\s*\[", text)[0]
    linear = [size for name, size in _UNIT.findall(plane) if not name.lower().startswith(_ANGLES)]
    try:
        size = float(linear[-1])
    except (IndexError, ValueError):
        return None
    return size if 1e-6 < size < 1e6 else None
