"""What is known about every encoding, for `zoo encodings`: facts to choose by, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FACTS", "EncodingFacts"]


@dataclass(frozen=True)
class EncodingFacts:
    """Properties of an encoding with its default options, among tokens that have a position.

    Attributes:
        kind: `"token"` (added to the features once), `"fold"` (maps q and k, so that any attention kernel runs it),
            `"score"` (added to the logits) or `"none"`.
        translation: Logits do not change when all coordinates move by the same offset.
        rotation: Logits do not change when all coordinates are turned about a point.
        directional: A bias or phase may tell left from right.
        decay: Attention falls with distance by construction.
        content: The position term depends on what the tokens hold.
        axes: Coordinate axes it takes.
        source: Where it comes from.
    """

    kind: str
    translation: bool
    rotation: bool
    directional: bool
    decay: bool
    content: bool
    axes: str
    source: str


def _rotary(source: str, *, axes: str = "any", translation: bool = True) -> EncodingFacts:
    return EncodingFacts(
        "fold", translation, rotation=False, directional=True, decay=False, content=True, axes=axes, source=source
    )


FACTS = {
    "alibi": EncodingFacts("score", True, True, False, True, False, "any", "2108.12409; n-D: CROMA 2311.00566"),
    "comrope-ld": _rotary("ComRoPE 2506.03737"),
    "cpb": EncodingFacts("score", True, False, True, False, False, "any", "Swin V2 2111.09883"),
    "golden-rope": _rotary("golden-angle directions, jerryxio.ng", axes="2"),
    "kerple": EncodingFacts("score", True, True, False, True, False, "any", "2205.09921"),
    "learned": EncodingFacts("token", False, False, True, False, False, "1 to 3, on a grid", "ViT 2010.11929"),
    "liere": _rotary("2406.10322", translation=False),
    "lookhere": EncodingFacts("score", True, False, True, True, False, "2", "2405.13985"),
    "none": EncodingFacts("none", True, True, False, False, False, "any", "the control"),
    "pape": EncodingFacts("fold", True, False, True, True, True, "any", "2602.01418"),
    "pape-ri": EncodingFacts("fold", True, True, False, True, True, "any", "2602.01418"),
    "pope": _rotary("2509.10534"),
    "rope": _rotary("2104.09864; axial: 2403.13298"),
    "rope-1d": _rotary("2104.09864, on the index of the token (a control)"),
    "rope-mixed": _rotary("2403.13298"),
    "sincos": EncodingFacts("token", False, False, True, False, False, "any", "1706.03762"),
    "spiral-rope": _rotary("2602.03227", axes="2"),
    "string": _rotary("2502.02562"),
    "table": EncodingFacts("score", True, False, True, False, False, "any", "Swin 2103.14030"),
}
