"""What we measured of a change of size, for findings to say."""

from __future__ import annotations

from typing import Any

from zoo.diagnosis.setup import Setup
from zoo.encodings import EXTENSION_OPTIONS
from zoo.network_sizes import ENCODING_OPTIONS

__all__ = ["drop"]


def drop(setup: Setup, extend: str | None) -> tuple[str, str]:
    """What we measured at the ratio of the extents of a set-up or just below it, and how severe that is.

    Args:
        setup: With its encoding and ratio.
        extend: Extension in force.

    Returns:
        Words to go on with (`"; on Imagenette ..."`), and of models of pictures `"error"` where less than half of the
        accuracy is left and `"note"` where less than 3 points are lost; else, and where nothing was measured,
        `"warning"`.
    """
    from zoo.advice.measurements import tables

    table, ratio = tables()["imagenette"], setup.ratio
    rows = [row for row in table["rows"] if row["encoding"] == setup.encoding and not row["options"]]
    trained = [row["value"] for row in rows if row["kind"] == "trained"]
    changed = [row for row in rows if row["kind"] == "changed" and row["extend"] == extend]
    later = [row for row in changed if row["times"] <= ratio * 1.05]
    if not trained or not later:
        return "; we have no measurement of it", "warning"
    last = max(later, key=lambda row: row["times"])
    lost = trained[0] - last["value"]
    words = (
        f"; on Imagenette we measured {table['metric']} to go from {trained[0]:.1f} to {last['value']:.1f} at "
        f"{last['times']:.1f} times the trained extent"
    )
    if _without_extension(setup) != ENCODING_OPTIONS.get(setup.encoding, {}):
        return f"{words}, with the default options", "warning"
    if setup.target["modality"] != "image":
        return words, "warning"
    return words, "error" if last["value"] < trained[0] / 2 else "note" if lost < 3 else "warning"


def _without_extension(setup: Setup) -> dict[str, Any]:
    options = {**setup.token_options, **setup.options}
    return {key: value for key, value in options.items() if key not in EXTENSION_OPTIONS}
