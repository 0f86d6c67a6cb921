"""Checks that hold for the tokens of every modality: extensions, biases, tables, origin and unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.measured import drop
from zoo.diagnosis.rotary import LEARNED, ROTARY
from zoo.diagnosis.setup import Setup, least_factor
from zoo.encodings.facts import EXTENSIONS, FACTS

__all__ = [
    "check_biases",
    "check_extension",
    "check_order",
    "check_places",
    "check_tables",
]

_FADED = 10.0  # exp(-10) is 5e-5: what is left of the weight of a token.
_FLAT = 0.5  # A bias below this changes a weight by less than two thirds.
_STRETCH = 3.0
_BEYOND = 1.4
_SHORT, _STRONG = 0.8, 1.5  # Factor of an extension over the ratio of the extents.


def check_extension(setup: Setup) -> Iterator[Finding]:
    """Whether the extension in force fits the ratio of the extents."""
    options = setup.options
    method = options.get("extend")
    if method is None:
        return
    given = options.get("factor", 1.0)
    factors = [float(one) for one in given] if isinstance(given, (list, tuple)) else [float(given)] * len(setup.ratios)
    for axis, factor, ratio in zip(setup.now.axes, factors, setup.ratios, strict=False):
        if method == "dynamic-ntk":
            break
        if ratio > 1 and factor < _SHORT * ratio:
            what = (
                f"along {axis.name} the input reaches {ratio:.3g} times as far as in training, with factor {factor:g}"
            )
            yield Finding("extension-short", "warning", what, f"encoding_options={{..., 'factor': {ratio:.3g}}}")
            break
        if factor > max(_STRONG * ratio, 1.0) and axis.extent is not None:
            what = f"along {axis.name} the factor is {factor:g}, the input {ratio:.3g} times as large as in training"
            mend = "leave the extension out at the trained size; zoo eval --extend makes the factor follow the size"
            yield Finding("extension-strong", "note", what, mend)
            break
    extent, known = options.get("extent"), setup.before.extents
    if extent is not None and known is not None and method in ("yarn", "dynamic-ntk"):
        stated = [float(one) for one in extent] if isinstance(extent, (list, tuple)) else [float(extent)] * len(known)
        if any(abs(a - b) > 0.05 * b for a, b in zip(stated, known, strict=False)):
            what = f"the extent is {_numbers(stated)}, that of training is {_numbers(known)}"
            yield Finding("extension-extent", "warning", what, f"encoding_options={{..., 'extent': {list(known)}}}")
    if method in ("rescale", "pi") and FACTS[setup.attention].decay and setup.ratio > 1:
        words, _ = drop(setup, method)
        plain, _ = drop(setup, None)
        if "no measurement" not in words:
            what = f"with {method}{words}; as it is{plain[1:]}"
            yield Finding("extension-hurts", "note", what, "leave the extension out: zoo eval without --extend")


def check_biases(setup: Setup) -> Iterator[Finding]:
    """Slopes that fade or are flat over the extent, and the extent at which a quadratic term stops folding."""
    extents, name = setup.now.extents, setup.attention
    if extents is None:
        return
    reach, factor = max(extents), setup.factor
    slopes = _slopes(setup)
    if slopes:
        far, near = min(slopes) / factor, max(slopes) / factor
        counted = math.prod(extents) if setup.options.get("metric") == "index" else reach
        if far * counted / 2 > _FADED:
            yield Finding(
                "faded-slopes",
                "warning",
                f"the smallest slope of {name} is {far:.3g}: half way across the extent of {counted:g} it takes "
                f"{far * counted / 2:.3g} off the logits of every head",
                f"divide the slopes: encoding_options={{'extend': 'rescale', 'factor': {max(setup.ratio, 2):.3g}}}, or "
                "use more heads",
            )
        if near * counted < _FLAT:
            yield Finding(
                "flat-bias",
                "warning",
                f"the largest slope of {name} is {near:.3g}, so that over the extent of {counted:.3g} units the bias "
                f"changes by {near * counted:.2g} at the most",
                "give coordinates in the pitch of the tokens (a unit is a step from one to the next), not normalised",
            )
    if name.startswith("pape"):
        yield from _quadratic(setup, extents)


def _slopes(setup: Setup) -> list[float]:
    heads = setup.now.shapes[0][1]
    if setup.attention == "alibi":
        from zoo.encodings.alibi import slopes

        return [float(one) for one in slopes(heads)]
    if setup.attention == "lookhere":
        first, last = setup.options.get("layer_slopes", (1.5, 0.5))
        least = min(first, last) * setup.options.get("global_slope", 2.0)
        return [least / 256, max(first, last) * setup.options.get("global_slope", 2.0) / 2]
    return []


def _quadratic(setup: Setup, extents: tuple[float, ...]) -> Iterator[Finding]:
    from zoo.encodings.quadratic import SAFE_RADIUS_16_BIT, SAFE_RADIUS_BFLOAT16_INEXACT

    on_grid = setup.now.on_grid
    radius = sum(((extent - on_grid) / 2) ** 2 for extent in extents)  # Of a grid between the outer tokens.
    limit = SAFE_RADIUS_16_BIT if on_grid else SAFE_RADIUS_BFLOAT16_INEXACT
    if radius > limit:
        yield Finding(
            "slow-extent",
            "note",
            f"the sum over axes of (half extent)^2 is {radius:,.0f}; kernels in {'16 bit' if on_grid else 'bfloat16'} "
            f"fold up to {limit:,.0f}",
            "nothing, on CUDA with Triton; elsewhere run in float32 where it fits, or expect it to be slower "
            '(print(zoo.kernels.explain("pape", tokens=...)) says which kernel runs)',
        )
    parabolas, (_, _, width), axes = setup.options.get("parabolas"), setup.now.shapes[0], len(extents)
    if setup.attention == "pape" and isinstance(parabolas, int):
        # The mean curvature that PaPE starts with: E[softplus] = 0.735, E[w^2] = 1 / (3 p).
        curvature = parabolas * 0.735 / (3 * axes) / math.sqrt(width)
        if curvature * max(extents) ** 2 < _FLAT:
            yield Finding(
                "flat-bias",
                "warning",
                f"PaPE starts with a curvature of {curvature:.2g}, so that over the extent of {max(extents):.3g} units "
                f"the bias is {curvature * max(extents) ** 2:.2g} at the most",
                "give coordinates in the pitch of the tokens (a unit is a step from one to the next), not normalised",
            )


def check_tables(setup: Setup) -> Iterator[Finding]:
    """Learned tables: stretched, too short, or for tokens that lie on no grid."""
    before, now = setup.before.extents, setup.now.extents
    if setup.token == "learned":
        options = setup.token_options
        stretch, grid = options.get("stretch", True), options.get("grid", 14)
        if stretch and not setup.now.on_grid:
            mend = "use an encoding of coordinates (pape, rope), or sincos"
            yield Finding("table-off-grid", "error", "the tokens have coordinates between those of a grid", mend)
        elif now is not None:
            cells = [grid] * len(now) if isinstance(grid, int) else list(grid)
            times = max(extent / cell for extent, cell in zip(now, cells, strict=False))
            if not stretch and times > 1:
                what = f"the table has {_numbers(cells)} positions, the input needs {_numbers(now)}"
                yield Finding("short-table", "error", what, f"encoding_options={{'grid': {math.ceil(max(now))}}}")
            elif times > _STRETCH:
                words, severity = drop(setup, None) if setup.ratio > 1 else ("", "warning")
                what = f"the table of {_numbers(cells)} cells is stretched over {_numbers(now)} tokens{words}"
                mend = (
                    f"train at larger sizes, with a table as large: encoding_options={{'grid': {math.ceil(max(now))}}}"
                )
                yield Finding("stretched-table", severity, what, mend)
    factor = least_factor(setup.token_options)
    if setup.token == "sincos" and setup.ratio > _BEYOND * factor:
        words, severity = drop(setup, setup.token_options.get("extend"))
        yield Finding(
            "unseen-angles",
            severity,
            f"the input reaches {setup.ratio:.3g} times as far as in training, where the vectors that sincos adds are "
            f"new{words}",
            f"--extend pi, or encoding_options={{'extend': 'pi', 'factor': {setup.ratio:.3g}}}",
        )
    if setup.attention == "table" and before is not None and now is not None:
        extent = setup.options.get("extent", 13)
        half = [extent] * len(now) if isinstance(extent, (int, float)) else list(extent)
        if any(reach - 1 > most for reach, most in zip(now, half, strict=False)) and not setup.options.get("extend"):
            words, severity = drop(setup, None) if setup.ratio > 1 else ("", "warning")
            most = _numbers([extent - 1 for extent in now])
            what = f"the table has offsets up to {_numbers(half)}, the input up to {most}{words}"
            mend = f"encoding_options={{'extent': {math.ceil(max(now)) - 1}}} for training, or --extend pi"
            yield Finding("short-table", severity, what, mend)


def check_order(setup: Setup) -> Iterator[Finding]:
    """Positions that count tokens on a grid, and those that depend on tokens to come."""
    axes = len(setup.now.axes)
    if axes > 1 and (setup.attention == "rope-1d" or setup.options.get("metric") == "index"):
        columns = [axis.extent for axis in setup.now.axes] != [axis.extent for axis in setup.before.axes]
        yield Finding(
            "flat-order",
            "warning" if columns or setup.attention == "alibi" else "note",
            f"{setup.attention} counts tokens of {axes} axes in their order"
            + (", and the grid differs from that of training" if columns else ""),
            "use rope, or alibi with metric euclidean, unless a control is wanted",
        )
    by_sample = setup.attention == "rope-normalised" or setup.options.get("extend") == "dynamic-ntk"
    options = setup.token_options
    if setup.now.causal and (by_sample or (setup.token == "learned" and options.get("stretch", True))):
        name = "learned" if setup.token == "learned" and not by_sample else setup.attention
        mend = {"learned": "encoding_options={'stretch': False}", "rope-normalised": "use rope"}
        what = f"{name} measures the whole sequence, also what comes after a token"
        yield Finding("depends-on-length", "warning", what, mend.get(name, "use yarn, whose factor is fixed"))


def check_places(setup: Setup) -> Iterator[Finding]:
    """Class token, origin and unit, against those of training."""
    larger = setup.ratio > 1
    if setup.now.class_token == "origin" and setup.encoding != "none":
        yield Finding(
            "class-token-corner",
            "warning" if larger or "class_token_position" in setup.chosen else "note",
            "the class token is at the origin, in front of the first token"
            + (f", and the far corner moves away by {setup.ratio:.3g} times" if larger else ""),
            "keep it for released weights, which were trained so; in a model of your own set class_token_position to "
            "null",
        )
    if setup.before.class_token != setup.now.class_token:
        places = [_place(layout.class_token) for layout in (setup.before, setup.now)]
        what = f"the class token was {places[0]} in training and is {places[1]}"
        yield Finding("origin-differs", "warning", what, "set class_token_position as in training")
    if setup.before.origin != setup.now.origin and setup.encoding != "none":
        absolute = setup.token is not None or not FACTS[setup.attention].translation
        unplaced = setup.attention in (*ROTARY, *LEARNED) and setup.now.class_token == "nowhere"  # So at the origin.
        from_origin = setup.now.class_token == "origin" or unplaced
        severity = "error" if absolute else "warning" if from_origin else "note"
        what = f"coordinates count from {setup.before.origin} in training and from {setup.now.origin} now"
        yield Finding("origin-differs", severity, what, "set the origin as in training")
    changed = [(a, b) for a, b in zip(setup.before.axes, setup.now.axes, strict=True) if a.unit != b.unit]
    if changed and setup.encoding != "none":
        before, now = (axes[0].unit for axes in zip(*changed, strict=True))
        what = f"a unit of {', '.join(axis.name for _, axis in changed)} was {before} in training and is {now}"
        methods = EXTENSIONS.get(setup.attention)
        more = f"; for larger inputs there is --extend ({methods})" if methods else ""
        yield Finding("unit-differs", "error", what, f"leave it at {before}{more}")


def _place(token: str | None) -> str:
    return {None: "absent", "origin": "at the origin", "nowhere": "without a position"}[token]


def _numbers(values: object) -> str:
    return " x ".join(f"{one:g}" for one in values)  # type: ignore[attr-defined]
