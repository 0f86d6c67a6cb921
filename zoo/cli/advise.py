"""`zoo advise`: which position encodings suit some tokens, with reasons and our own measurements."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

__all__ = ["advise"]


def advise(
    tokens: Annotated[str | None, typer.Option(help="line, grid, space-time, points or mixed.")] = None,
    size: Annotated[str | None, typer.Option(help="fixed, or changing: other sizes than in training.")] = None,
    times: Annotated[float | None, typer.Option(help="Largest extent over that of training; by default 2.")] = None,
    landmarks: Annotated[str | None, typer.Option(help="no, or yes: places in the input mean something.")] = None,
    rotation: Annotated[str | None, typer.Option(help="no, or invariant: a turned input is the same.")] = None,
    phase: Annotated[str | None, typer.Option(help="training, or inference of existing weights.")] = None,
    kernel: Annotated[str | None, typer.Option(help="any, or plain: fused attention without a bias alone.")] = None,
    memory: Annotated[str | None, typer.Option(help="ample or tight.")] = None,
    side: Annotated[int | None, typer.Option(help="Tokens along the longest axis, at the largest size.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Encodings to show in full.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Advise on a position encoding: a ranked list with reasons, measurements, models and commands.

    Without --tokens, in a terminal, every question without an option is asked; otherwise questions without an option
    take the first choice named, and the answer says so.
    """
    from zoo import advice

    given: dict[str, Any] = {
        "tokens": tokens, "size": size, "times": times, "landmarks": landmarks, "rotation": rotation, "phase": phase,
        "kernel": kernel, "memory": memory, "side": side,
    }  # fmt: skip
    if tokens is None and sys.stdin.isatty():
        _ask(given)
    if given["tokens"] is None:
        from zoo.errors import ConfigError

        raise ConfigError("say how the tokens lie: --tokens line, grid, space-time, points or mixed")
    found = advice.advise(**given)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found, top)))


def _ask(given: dict[str, Any]) -> None:
    """Fills in what was not given; prompts go to stderr, so that output can be piped."""
    from zoo.advice import questions

    for question in questions():
        key = question["id"]
        asked = all(given[other] == value for other, value in question.get("only", {}).items())
        if given[key] is not None or not asked:
            continue
        print(question["ask"], file=sys.stderr)
        for choice, words in question.get("choices", {}).items():
            print(f"  {choice}: {words}", file=sys.stderr)
        number = type(question.get("default", 0)) if "number" in question else None
        while True:
            value = typer.prompt(key, default=question.get("default"), type=number or str, err=True)
            low, high = question.get("number", (0, 0))
            if low <= value <= high if number else value in question["choices"]:
                break
            wanted = f"{low} to {high}" if number else ", ".join(question["choices"])
            print(f"one of: {wanted}", file=sys.stderr)
        given[key] = value


def _lines(found: dict[str, Any], top: int) -> list[str]:
    tables = {table["id"]: table for table in found["tables"]}
    said = ", ".join(f"{key} {value}" for key, value in found["answers"].items() if key not in found["assumed"])
    lines = [f"For {said} (assumed: {', '.join(found['assumed']) or 'nothing'}):", ""]
    for one in found["ranked"][:top]:
        level = " (level with the first within noise)" if one["level_with_first"] and one["rank"] > 1 else ""
        extend = f" with --extend {one['extend']}" if one["extend"] else ""
        lines.append(f"{one['rank']}. {one['encoding']}{extend}, {one['points']:+.2f} points{level}")
        lines += [f"   {line}" for line in _details(one, tables)]
        lines.append("")
    rest = [f"{one['encoding']} {one['points']:+.1f}" for one in found["ranked"][top:]]
    if rest:
        lines += [f"Then: {', '.join(rest)}", ""]
    lines.append("Excluded:")
    for one in found["excluded"]:
        lines.append(f"  {one['encoding']}: {'; '.join(reason['text'] for reason in one['reasons'])}")
    lines += ["", *found["notes"]]
    used = [table for table in tables.values() if table["rows"] and "caveat" in table]
    return lines + [f"{table['title']}: {table['caveat']}" for table in used]


def _details(one: dict[str, Any], tables: dict[str, Any]) -> list[str]:
    lines = []
    for result in one["measured"]:
        table = tables[result["table"]]
        metric = result["metric"]
        unit = " %" if table["lower"] else ""
        behind = f", {result['gap']:.2f}{unit} behind the best" if result["gap"] else ", the best"
        aside = "" if result["counts"] else "; not counted"
        lines.append(f"measured: {metric} {result['mean']:.2f}{behind}, {_seeds(result)} ({table['title']}{aside})")
    if not one["measured"]:
        lines.append("measured: not on such tokens")
    for tried in one["options_tried"]:
        options = ", ".join(f"{key}={value}" for key, value in tried["options"].items())
        lines.append(f"with {options}: {tried['mean']:.2f} in the table {tried['table']}, {_seeds(tried)}")
    for reason in one["reasons"]:
        points = f"{reason['points']:+g}: " if reason["points"] else ""
        lines.append(f"{points}{reason['text']} [{reason['source']['kind']}: {reason['source']['ref']}]")
    lines += [f"model: {model['name']} (weights: {model['weights']})" for model in one["models"]]
    return lines + [f"run: {command}" for command in one["commands"]]


def _seeds(result: dict[str, Any]) -> str:
    return "one seed" if result["seeds"] == 1 else f"{result['seeds']} seeds"
