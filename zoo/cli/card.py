"""`zoo card`: shows a model card, and regenerates it from its record."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["card"]


def card(
    name: Annotated[str, typer.Argument(help="A registered name; `zoo list` shows them.")],
    plain: Annotated[bool, typer.Option("--plain", help="Markdown as it is, also in a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write hub_cards/NAME/README.md from record.yaml.")] = False,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option("--eval", help="Fold a file of `zoo eval --out` into record.yaml, then write. Repeat for seeds."),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(help="What sets the runs of --eval apart from the card's own, which they are then compared with."),
    ] = None,
    training: Annotated[
        Path | None, typer.Option("--training", help="Fold the record of a training run into record.yaml, then write.")
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep",
            help="Fold the table of `zoo sweep --table --json`, or results.json of `zoo reproduce`, into record.yaml.",
        ),
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="State sha256 and size of the folder's model.safetensors, then write.")
    ] = False,
) -> None:
    """Show the card of a model; --write, --eval, --training, --sweep and --weights bring its files up to date."""
    from zoo import cards
    from zoo.errors import ConfigError

    if note and not evaluation:
        raise ConfigError("--note is of the files of --eval: give some")
    if write or evaluation or training or sweep or weights:
        from zoo import card_facts
        from zoo.config_file import read_json

        record = cards.card(name).record
        if record is None:
            raise ConfigError(f"{name} has no record.yaml (looked in {cards.card_folder(name)})")
        updated = dict(record)
        if training:
            updated = card_facts.add_training(updated, read_json(training))
        for path in evaluation or []:
            updated = card_facts.add_evaluation(updated, read_json(path), note)
        if sweep:
            updated = card_facts.add_sweep(updated, read_json(sweep))
        if weights:
            updated = card_facts.add_weights(updated, cards.card_folder(name) / "model.safetensors")
        if updated != record:
            cards.write_record(name, updated)
        print(f"wrote {cards.write_card(name)}", file=sys.stderr)
        return
    made = cards.card(name)
    if as_json:
        print(json.dumps({"name": name, "record": made.record, "text": made.text}, indent=2, default=str))
    elif sys.stdout.isatty() and not plain:
        from rich.console import Console
        from rich.markdown import Markdown

        body = re.sub(r"\A---\n.*?\n---\n", "", made.text, flags=re.DOTALL)
        Console().print(Markdown(re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)))
    else:
        print(made.text, end="")
