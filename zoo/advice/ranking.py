"""A ranked list of encodings for an answer to a few questions, with reasons and our own measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from zoo.advice.candidates import candidates, commands, models_of, properties
from zoo.advice.measurements import measured
from zoo.advice.rules import check_answers, load_rules, matches

__all__ = ["MODELS", "advise"]

MODELS = 3
"""That are named for an encoding."""


def advise(
    tokens: str,
    *,
    size: str | None = None,
    times: float | None = None,
    landmarks: str | None = None,
    rotation: str | None = None,
    phase: str | None = None,
    kernel: str | None = None,
    memory: str | None = None,
    side: int | None = None,
) -> dict[str, Any]:
    """Which position encodings suit some tokens, best first.

    An encoding has the points of the rules that apply (`zoo/advice/rules.yaml`) and, from our measurements on such
    tokens, minus the mean gap to the best one in percent, each with the extension that did best. One that was not
    measured on such tokens counts as if it were level with no positions (or with the last of those left, where that
    control was not measured). Of the tables, what is as in training counts for a fixed size, what is not, up to
    `times`, for a changing one, and results on turned inputs where rotation must not matter.

    Args:
        tokens: `"line"`, `"grid"`, `"space-time"`, `"points"` or `"mixed"`.
        size: `"fixed"` (default) or `"changing"`.
        times: Largest extent over that of training, along an axis; by default 2.
        landmarks: `"no"` (default) or `"yes"`: whether it matters where in the input something is.
        rotation: `"no"` (default) or `"invariant"`.
        phase: `"training"` (default) or `"inference"` of existing weights.
        kernel: `"any"` (default) or `"plain"`: fused attention without a bias alone.
        memory: `"ample"` (default) or `"tight"`.
        side: Tokens along the longest axis at the largest size; 0 (default) for unknown.

    Returns:
        Plain data: `answers`, `assumed` (ids of the questions whose default was taken), `ranked` (of each encoding
        `rank`, `encoding`, `points`, `measured`, `reasons`, `extend`, `options_tried`, `models`, `commands`, `source`),
        `excluded` (`encoding` and `reasons`), `tables` (with all rows) and `notes`.

    Raises:
        ConfigError: If an answer is none of the choices.

    Example:
        >>> found = advise("points", rotation="invariant")
        >>> found["ranked"][0]["encoding"]
        'pape-ri'
    """
    given = {
        "tokens": tokens, "size": size, "times": times, "landmarks": landmarks, "rotation": rotation, "phase": phase,
        "kernel": kernel, "memory": memory, "side": side,
    }  # fmt: skip
    answers, assumed = check_answers(given)
    reasons_of, known_of, excluded = {}, {}, []
    for name in candidates():
        known = known_of[name] = properties(name, answers)
        rules = [rule for rule in load_rules()["rules"] if _applies(rule, answers, known)]
        if out := [_reason(rule, known) for rule in rules if rule.get("exclude")]:
            excluded.append({"encoding": name, "reasons": out})
        else:
            reasons_of[name] = [_reason(rule, known) for rule in rules]
    every = {table["id"]: _gaps(table, answers, set(reasons_of)) for table in measured(tokens)}
    counted = [table for table in measured(tokens) if not table.get("shown_only")]
    gaps = {table["id"]: every[table["id"]] for table in counted}
    unmeasured = _unmeasured(gaps)
    ranked: list[dict[str, Any]] = []
    for name, reasons in reasons_of.items():
        own = {table: found[name] for table, found in gaps.items() if name in found}
        points = sum(reason["points"] for reason in reasons)
        points -= _mean(one["gap"] for one in own.values()) if own else unmeasured
        extend = next((one["extend"] for one in own.values() if one["extend"]), None)
        ranked.append(
            {
                "encoding": name,
                "points": round(points, 2),
                "measured": [
                    {"table": table, "counts": table in gaps, **found[name]}
                    for table, found in every.items()
                    if name in found
                ],
                "reasons": reasons,
                "extend": extend,
                "options_tried": _options_tried(name, answers),
                "models": models_of(name, answers)[:MODELS],
                "commands": commands(name, extend, answers),
                "source": known_of[name]["source"],
            }
        )
    ranked.sort(key=lambda one: (-one["points"], not one["measured"], one["encoding"]))  # Measured before unmeasured.
    noise = _noise(counted, answers)
    for rank, one in enumerate(ranked, 1):
        one["rank"] = rank
        one["level_with_first"] = None if noise is None else ranked[0]["points"] - one["points"] <= noise
    return {
        "answers": answers,
        "assumed": assumed,
        "ranked": ranked,
        "excluded": excluded,
        "tables": measured(tokens),
        "notes": _notes(answers, gaps, unmeasured, noise),
    }


def _applies(rule: Mapping[str, Any], answers: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    return matches(rule.get("answers", {}), answers) and matches(rule["encoding"], known)


def _reason(rule: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    text = " ".join(rule["reason"].split()).format_map(known)
    return {"rule": rule["id"], "text": text, "points": rule.get("points", 0), "source": dict(rule["source"])}


def _counted(table: Mapping[str, Any], answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table that count for these answers."""
    rows: list[dict[str, Any]] = table["rows"]
    if answers["rotation"] == "invariant" and any(row["kind"] == "turned" for row in rows):
        return [row for row in rows if row["kind"] == "turned"]
    if answers["size"] == "changing":
        changed = [row for row in rows if row["kind"] == "changed" and row["times"] <= answers["times"]]
        if changed:
            return changed
    return [row for row in rows if row["kind"] == "trained"]


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {f"{row['size']} {row['condition'] or ''}": row["value"] for row in rows}


def _gaps(table: Mapping[str, Any], answers: Mapping[str, Any], left: set[str]) -> dict[str, dict[str, Any]]:
    """Encoding -> mean over the rows that count, gap to the best encoding, and the extension that did best.

    Of the encodings that are left and the control, `none`; nothing where none of the former was measured. Options other
    than the default ones do not count, and neither does a setting that lacks some of the rows.
    """
    by_setting: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in _counted(table, answers):
        if not row["options"]:
            by_setting.setdefault((row["encoding"], row["extend"]), []).append(row)
    wanted = set().union(*(_columns(rows) for rows in by_setting.values()))
    sign = -1 if table["lower"] else 1
    best: dict[str, dict[str, Any]] = {}
    for (encoding, extend), rows in by_setting.items():
        columns = _columns(rows)
        if set(columns) != wanted:
            continue
        mean = _mean(columns.values())
        if encoding not in best or sign * mean > sign * best[encoding]["mean"]:
            seeds = min(row["seeds"] for row in rows)
            best[encoding] = {"metric": rows[0]["metric"], "mean": mean, "extend": extend, "seeds": seeds}
    best = {name: one for name, one in best.items() if name in left or name == "none"}
    if not best.keys() & left:
        return {}
    first = max(sign * one["mean"] for name, one in best.items() if name in left)
    for one in best.values():  # Of likelihoods in percent of the best one; of percentages in points.
        gap = first - sign * one["mean"]
        one["gap"] = round(100 * gap / abs(first) if table["lower"] else gap, 2)
        one["mean"] = round(one["mean"], 3)
    return best


def _unmeasured(gaps: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> float:
    """The gap that stands for an encoding without measurement."""
    control = [found["none"]["gap"] for found in gaps.values() if "none" in found]
    if control:
        return _mean(control)
    return max((one["gap"] for found in gaps.values() for one in found.values()), default=0.0)


def _options_tried(name: str, answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Means of an encoding with other than its default options, where such were measured."""
    tried = []
    for table in measured(answers["tokens"]):
        rows = [row for row in _counted(table, answers) if row["encoding"] == name and row["options"]]
        for options in {str(row["options"]): row["options"] for row in rows}.values():
            own = [row for row in rows if row["options"] == options]
            mean = round(_mean(_columns(own).values()), 3)
            tried.append({"table": table["id"], "options": options, "mean": mean, "seeds": own[0]["seeds"]})
    return tried


def _noise(found: Iterable[Mapping[str, Any]], answers: Mapping[str, Any]) -> float | None:
    """Two standard deviations of the difference of two single runs, where there are spreads over seeds."""
    spreads = [row["std"] for table in found for row in _counted(table, answers) if row["std"] is not None]
    return round(2 * math.sqrt(2 * _mean(std**2 for std in spreads)), 2) if spreads else None


def _notes(
    answers: Mapping[str, Any],
    gaps: Mapping[str, Mapping[str, Any]],
    unmeasured: float,
    noise: float | None,
) -> list[str]:
    notes = []
    if not any(gaps.values()):
        notes.append("We have no measurements on such tokens: the order follows the rules alone.")
    elif unmeasured:
        notes.append(
            f"Encodings without a measurement on such tokens count as {unmeasured:.1f} points behind the best, as no "
            "positions do."
        )
    if noise is not None:
        notes.append(f"Differences up to {noise:.1f} points are within the spread of single runs over seeds.")
    elif any(gaps.values()):
        notes.append("One run each: small differences mean little.")
    if answers["phase"] == "inference":
        notes.append("Only encodings whose weights exist are left; `zoo.load` cannot change the encoding of weights.")
    return notes


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
