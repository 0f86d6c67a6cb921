"""What is known about every encoding, for `zoo encodings`: facts to choose by, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.encodings.parameter_count import count_attention, count_token

__all__ = ["EXTENSIONS", "FACTS", "PARAMETERS", "EncodingFacts", "facts_row"]


@dataclass(frozen=True)
class EncodingFacts:
    """Properties of an encoding with its default options, among tokens that have a position.

    Attributes:
        kind: `"token"` (added to the features once), `"fold"` (maps q and k), `"group"` (maps q, k, v and the output),
            `"score"` (added to the logits) or `"none"`.
        translation: Logits do not change when all coordinates move by the same offset.
        rotation: Logits do not change when all coordinates are turned about a point.
        directional: A bias or phase may tell left from right.
        decay: Attention falls with distance by construction.
        content: The position term depends on what the tokens hold.
        axes: Coordinate axes it takes.
        source: Where it comes from.
        fast_side: Tokens a side of the largest square grid that fused attention kernels run in 16 bit, where there is a
            limit; beyond it the block changes to a score by itself.
    """

    kind: str
    translation: bool
    rotation: bool
    directional: bool
    decay: bool
    content: bool
    axes: str
    source: str
    fast_side: int | None = None

    @property
    def fast_kernels(self) -> str:
        """Whether fused attention kernels run it unchanged: only an additive score of the logits stops them."""
        if self.kind == "score":
            return "no"
        return "yes" if self.fast_side is None else f"to {self.fast_side} x {self.fast_side}"


# Where the position term of a quadratic encoding stops being folded (`zoo.encodings.quadratic.safe_radius`).
_QUADRATIC_SIDE = 91


def _rotary(source: str, *, axes: str = "any", translation: bool = True) -> EncodingFacts:
    return EncodingFacts(
        "fold", translation, rotation=False, directional=True, decay=False, content=True, axes=axes, source=source
    )


def _group(source: str) -> EncodingFacts:
    return EncodingFacts(
        "group", True, rotation=False, directional=True, decay=False, content=True, axes="any", source=source
    )


def _ablation(lacks: str, *, directional: bool = True, decay: bool = True, content: bool = True) -> EncodingFacts:
    source = f"2602.01418, ablation: {lacks}"
    return EncodingFacts("fold", True, False, directional, decay, content, "any", source, _QUADRATIC_SIDE)


FACTS = {
    "alibi": EncodingFacts("score", True, True, False, True, False, "any", "2108.12409; n-D: CROMA 2311.00566"),
    "comrope-ld": _rotary("ComRoPE 2506.03737"),
    "cpb": EncodingFacts("score", True, False, True, False, False, "any", "Swin V2 2111.09883"),
    "golden-rope": _rotary("golden-angle directions, jerryxio.ng", axes="2"),
    "gta": _group("2310.10375"),
    "kerple": EncodingFacts("score", True, True, False, True, False, "any", "2205.09921"),
    "learned": EncodingFacts("token", False, False, True, False, False, "1 to 3, on a grid", "ViT 2010.11929"),
    "liere": _rotary("2406.10322", translation=False),
    "lookhere": EncodingFacts("score", True, False, True, True, False, "2", "2405.13985"),
    "mrope": _rotary("Qwen2-VL 2409.12191; Qwen3-VL 2511.21631"),
    "none": EncodingFacts("none", True, True, False, False, False, "any", "the control"),
    "pape": EncodingFacts("fold", True, False, True, True, True, "any", "2602.01418", _QUADRATIC_SIDE),
    "pape-linear": _ablation("no quadratic term", decay=False),
    "pape-quadratic": _ablation("no linear term", directional=False),
    "pape-ri": EncodingFacts("fold", True, True, False, True, True, "any", "2602.01418", _QUADRATIC_SIDE),
    "pape-signed": _ablation("no softplus", decay=False),
    "pape-static": _ablation("coefficients without content", content=False),
    "pape-unprojected": _ablation("no projection, m = p"),
    "pope": _rotary("2509.10534"),
    "prope": _group("2507.10496"),
    "rope": _rotary("2104.09864; axial: 2403.13298"),
    "rope-1d": _rotary("2104.09864, on the index of the token (a control)"),
    "rope-mixed": _rotary("2403.13298"),
    "rope-normalised": _rotary("DINOv3 2508.10104"),
    "sincos": EncodingFacts("token", False, False, True, False, False, "any", "1706.03762"),
    "spiral-rope": _rotary("2602.03227", axes="2"),
    "string": _rotary("2502.02562"),
    "table": EncodingFacts("score", True, False, True, False, False, "any", "Swin 2103.14030"),
}

# Learned numbers that an encoding adds to each layer (kind token: to the whole network), as a formula in the feature
# width C, H heads of width D, p axes and the defaults in brackets. Encodings that are not here add none.
PARAMETERS = {
    "comrope-ld": "HD(b-1)/2 + HDp/b (b=8)",
    "cpb": "(p+1)w + wH (w=512)",
    "kerple": "2H",
    "learned": "Cg^p (g=14)",
    "liere": "HDp(b-1)/2 (b=8)",
    "pape": "2HmC + Hmp (m=50)",
    "pape-linear": "HmC + Hmp (m=50)",
    "pape-quadratic": "HmC + Hmp (m=50)",
    "pape-ri": "HC + H",
    "pape-signed": "2HmC + Hmp (m=50)",
    "pape-static": "2Hm + Hmp (m=50)",
    "pape-unprojected": "2HpC",
    "pope": "HD",
    "rope-mixed": "HDp/2",
    "string": "HD(D-1)/2",
    "table": "H(2e+1)^p (e=13)",
}

# Methods of context extension (`zoo.encodings.extension`). Encodings that are not here have nothing to extend.
_LADDER, _BIAS = "pi, ntk, dynamic-ntk, yarn", "rescale, pi"
EXTENSIONS = {
    "alibi": _BIAS,
    "comrope-ld": "pi",
    "cpb": "pi",
    "golden-rope": _LADDER,
    "gta": _LADDER,
    "kerple": _BIAS,
    "liere": "pi",
    "lookhere": _BIAS,
    "mrope": _LADDER,
    "pape": _BIAS,
    "pape-linear": _BIAS,
    "pape-quadratic": _BIAS,
    "pape-ri": _BIAS,
    "pape-signed": _BIAS,
    "pape-static": _BIAS,
    "pape-unprojected": _BIAS,
    "pope": _LADDER,
    "prope": _LADDER,
    "rope": _LADDER,
    "rope-1d": _LADDER,
    "rope-mixed": "pi",
    "sincos": "pi",
    "spiral-rope": _LADDER,
    "string": _LADDER,
    "table": "pi",
}


def facts_row(name: str) -> dict[str, str | bool | int]:
    """All that `zoo encodings` says about an encoding, JSON-ready, in the order of its columns."""
    facts = FACTS[name]
    sizes = {"num_heads": 12, "head_dim": 64}
    number = count_token(name, {}, dim=768, axes=2) + count_attention(name, {}, dim=768, axes=2, **sizes)
    return {
        "name": name,
        "kind": facts.kind,
        "translation": facts.translation,
        "rotation": facts.rotation,
        "directional": facts.directional,
        "decay": facts.decay,
        "content": facts.content,
        "axes": facts.axes,
        "parameters_added": PARAMETERS.get(name, "0"),
        "parameters_vit_b16": number,
        "fast_kernels": facts.fast_kernels,
        "extend": EXTENSIONS.get(name, ""),
        "source": facts.source,
    }
