"""What `zoo doctor` looks for: code of a finding -> title, reason and source. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CATALOGUE", "SEVERITIES", "Finding"]

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
        code: A key of `CATALOGUE`.
        severity: `"error"` (it is refused, or results mean little), `"warning"` or `"note"` (worth knowing).
        what: What was found, with its numbers.
        mend: What to do, with the option or command.
    """

    code: str
    severity: str
    what: str
    mend: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with title, reason and source of the catalogue."""
        title, why, source = CATALOGUE[self.code]
        stated = {"code": self.code, "severity": self.severity, "title": title, "what": self.what}
        return {**stated, "why": why, "mend": self.mend, "source": source}


# Sources: arXiv numbers are papers, files are ours.
CATALOGUE: dict[str, tuple[str, str, str]] = {
    "unknown-key": (
        "a key that nothing reads",
        "Settings under an unknown name are left out without effect, so that the model is not what was meant.",
        "zoo/config_file.py, zoo/network_config.py",
    ),
    "bad-config": (
        "a configuration that is refused",
        "Building the model, or its data, fails with this message.",
        "the builder of the architecture",
    ),
    "recipe-refused": (
        "a recipe that is refused",
        "Training fails with this message before it starts.",
        "zoo/training/recipe.py",
    ),
    "extension-refused": (
        "a context extension that does not apply",
        "A factor is the new extent over the trained one, so at least 1, and an encoding without frequencies or slopes "
        "has nothing to extend.",
        "zoo/encodings/extension.py",
    ),
    "extension-short": (
        "a context extension that is too weak",
        "With a factor below the ratio of the extents, coordinates or frequencies still leave what training has seen.",
        "2306.15595, 2309.00071; zoo/encodings/extension.py",
    ),
    "extension-strong": (
        "a context extension where none is needed",
        "An extension brings tokens closer together than in training, which costs accuracy at the trained size.",
        "2306.15595; docs/comparison.json",
    ),
    "extension-extent": (
        "an extension that counts from another extent than that of training",
        "YaRN and dynamic NTK scaling choose frequencies by how often they turn over the trained extent.",
        "2309.00071; zoo/encodings/extension.py",
    ),
    "extension-hurts": (
        "a context extension that did worse than none",
        "Biases that fall with distance in patches keep their meaning at larger sizes; rescaling changes it.",
        "docs/comparison.json",
    ),
    "unseen-angles": (
        "frequencies that reach angles no training input had",
        "A pair of channels that does not complete a turn over the trained extent meets new angles at a larger one, "
        "where its weights were never fitted.",
        "2309.00071; docs/comparison.json",
    ),
    "still-channels": (
        "channels that never turn",
        "With a base for long text, most pairs turn by less than a radian over a small grid and tell its tokens hardly "
        "apart.",
        "2403.13298 (base 100 for grids of patches); zoo/encodings/rope.py",
    ),
    "aliased-frequencies": (
        "frequencies that fold over between neighbouring tokens",
        "A pair that turns by more than half a turn from one token to the next cannot tell one step from another.",
        "sampling; zoo/encodings/rotary.py",
    ),
    "idle-channels": (
        "a head width that the axes do not divide",
        "Each axis takes whole pairs of channels; those left over carry no position.",
        "zoo/encodings/rope.py",
    ),
    "faded-slopes": (
        "slopes that leave nothing of far tokens",
        "A linear penalty this large makes the weight of the far half of the input vanish in every head.",
        "2108.12409; zoo/encodings/alibi.py",
    ),
    "flat-bias": (
        "a bias that is flat over the whole input",
        "Slopes and the initial curvature are per unit of the coordinates (the patch pitch); over an extent this small "
        "they hardly tell near from far.",
        "2602.01418; zoo/coordinates.py",
    ),
    "flat-order": (
        "positions in the order of the tokens, on a grid",
        "The flattened index knows no rows: neighbours in a column are a whole row apart, and another width of the "
        "grid is another order.",
        "docs/comparison.json (rope-1d); zoo/encodings/rope.py",
    ),
    "stretched-table": (
        "a learned table stretched far",
        "A learned table is resized to the grid; cells between the trained ones are interpolated, and the same step in "
        "patches means less of it.",
        "2010.11929; docs/comparison.json",
    ),
    "short-table": (
        "offsets or positions beyond a learned table",
        "Offsets beyond a table of relative biases all take its edge; positions beyond a table that does not stretch "
        "are refused.",
        "2103.14030; zoo/encodings/relative_table.py, zoo/encodings/learned.py",
    ),
    "table-off-grid": (
        "a learned table for tokens that lie on no grid",
        "A table that stretches has one entry for each cell of a grid and refuses other coordinates.",
        "zoo/encodings/learned.py",
    ),
    "class-token-corner": (
        "a class token at a corner",
        "A class token at the origin is nearer to one corner than to the others, and what it attends to depends on "
        "where in the input it is. To a rotary encoding a token without a position is a token at the origin.",
        "zoo/network_config.py (class_token_position); zoo/encodings/rotary.py",
    ),
    "origin-differs": (
        "an origin of the coordinates other than in training",
        "Encodings of differences do not notice a common shift, but vectors added to the features do, and so do tokens "
        "at the origin.",
        "zoo/coordinates.py",
    ),
    "unit-differs": (
        "a unit of the coordinates other than in training",
        "Frequencies, slopes and curvatures were learned per unit. In another unit every distance has another meaning.",
        "zoo/coordinates.py",
    ),
    "anisotropic": (
        "a unit that is not the same along both axes",
        "When an input is squeezed, or coordinates are normalised along each axis, a step of one patch covers "
        "different lengths in its columns and rows. Encodings of plain distances take both as equal.",
        "2311.00566; zoo/placement.py, zoo/encodings/rope_normalised.py",
    ),
    "time-in-frames": (
        "time counted in frames where the frame rate changes",
        "A coordinate that counts tubelets is the same for slow and fast films, so that motion changes its speed.",
        "modalities/video/model.py (time_unit_s)",
    ),
    "size-refused": (
        "a size that the model refuses",
        "Pictures and frames divide into whole patches.",
        "modalities/image/embed.py, modalities/video/embed.py",
    ),
    "padded-size": (
        "patches that are partly padding",
        "A height or width that is no multiple of the patch is filled with zeros at the right and bottom, which "
        "training at whole patches has not shown.",
        "modalities/image/embed.py",
    ),
    "slow-extent": (
        "an extent beyond which the position term no longer folds",
        "The folded terms of a quadratic bias cancel, and in 16 bit their rounding would exceed it. The block "
        "evaluates exact differences instead, which is right but slower outside our CUDA kernels.",
        "zoo/encodings/quadratic.py, tests/test_pape_numerics.py",
    ),
    "depends-on-length": (
        "positions that depend on the tokens to come",
        "A causal decoder must give a token the same features whatever follows; an encoding that measures the whole "
        "sample does not, and generation cannot keep what it computed.",
        "zoo/encodings/extendable.py (by_sample)",
    ),
    "collision": (
        "tokens that share their coordinates",
        "Several pictures, frames or crops placed at the same coordinates look like one to every encoding.",
        "zoo/position_ids",
    ),
    "far-origin": (
        "coordinates that float32 does not tell apart",
        "Far from the origin the spacing of float32 numbers exceeds the distance of neighbouring tokens.",
        "zoo/coordinates.py",
    ),
}
