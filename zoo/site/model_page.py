"""The page of one model: facts, a panel to try it, its curve over resolution, its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo import registry
from zoo.cards import ModelCard
from zoo.encodings import split_name
from zoo.encodings.facts import FACTS
from zoo.site.card_html import card_html
from zoo.site.charts import Series, line_chart
from zoo.site.facts import DATA, MODALITIES, SIZES, WEIGHTS, encoding_name
from zoo.site.markup import Html, fill, join, scroll, tag
from zoo.site.shell import page

__all__ = ["model_page"]

_TRY = ("dom.js", "heat.js", "bias.js", "results.js", "tryit.js")


def model_page(one: Mapping[str, Any], card: ModelCard, relatives: Sequence[Mapping[str, Any]]) -> str:
    """The page of a model.

    Args:
        one: Its facts, see `zoo.site.facts.model_facts`.
        card: Its card.
        relatives: Facts of models that differ in the encoding alone.
    """
    embedded = one["weights"] == "embedded"
    body, headings = card_html(card.text)
    curve = _curve(one, card.record)
    places = [
        *([("try-it", "Try it")] if embedded else []),
        *([("resolution", "Accuracy by resolution")] if curve else []),
        *headings,
        *([("relatives", "Other encodings")] if relatives else []),
    ]
    return page(
        fill(
            "model.html",
            name=one["name"],
            facts=_facts(one),
            contents=join(tag("li", tag("a", words, href=f"#{place}")) for place, words in places),
            panel=_panel(one) if embedded else "",
            curve=curve or "",
            card=body,
            relatives=_relatives(relatives) if relatives else "",
        ),
        title=one["name"],
        about=f"{one['name']}: {one['task']} with the position encoding {encoding_name(one['encoding'])}.",
        scripts=_TRY if embedded else (),
        root="../",
    )


def _facts(one: Mapping[str, Any]) -> Html:
    label, about = WEIGHTS[one["weights"]]
    token, attention = split_name(one["encoding"])
    sources = [FACTS[part].source for part in (token, attention) if part in FACTS and part != "none"]
    rows = [
        ("Modality", _filtered("modality", one, MODALITIES.get(one["modality"], one["modality"]))),
        ("Task", _filtered("task", one, one["task"].capitalize())),
        ("Encoding", join([_filtered("encoding", one, encoding_name(one["encoding"])), _source(sources)])),
        ("Size", join([_filtered("size", one, SIZES.get(one["size"], one["size"])), _aside(one["parameters"])])),
        ("Training data", _filtered("data", one, DATA.get(one["data"], one["data"]))),
        ("Weights", join([tag("span", label, class_=f"badge {one['weights']}"), f" {about}"])),
    ]
    if one["result"]:
        rows.append(("Measured", Html(tag("span", one["result"]))))
    if one["weights"] == "recipe":
        rows.append(("Command", tag("code", f"{one['command']} --out OUT")))
    return tag("dl", join(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_="facts")


def _filtered(key: str, one: Mapping[str, Any], words: str) -> Html:
    """A link to the models that have this in common."""
    return tag("a", words, href=f"../index.html#{key}={one[key].replace('+', '%2B')}")


def _source(sources: Sequence[str]) -> Html:
    words = "; ".join(dict.fromkeys(sources))
    return tag("span", f" ({words})", class_="quiet") if words else Html("")


def _aside(parameters: int) -> Html:
    return tag("span", f" {parameters:,} parameters", class_="quiet")


def _panel(one: Mapping[str, Any]) -> Html:
    config = registry.entry(one["name"]).config
    patch = config["model"].get("patch_size")
    return fill("tryit.html", name=one["name"], patch=patch if isinstance(patch, int) else "")


def _curve(one: Mapping[str, Any], record: Mapping[str, Any] | None) -> Html | None:
    """Top-1 by resolution, where it was measured at several."""
    if record is None or (one["modality"], one["task"]) != ("image", "classification"):
        return None
    found: dict[str, dict[float, float]] = {}
    for item in record["evaluation"]:
        if item["metric"] == "top1" and isinstance(item["size"], int):
            found.setdefault(item.get("extend") or "", {})[item["size"]] = item["value"]
    found = {extend: values for extend, values in found.items() if len(values) > 1}
    if not found:
        return None
    series = [
        Series(f"with {extend}" if extend else "as it is", extend or "own", values, style)
        for style, (extend, values) in enumerate(found.items())
    ]
    values = [f"{size:g} px {value:.1f} %" for size, value in sorted(series[0].values.items())]
    drawn = line_chart(
        series,
        name="curve",
        title=f"Top-1 accuracy of {one['name']} against resolution",
        about=f"{series[0].name}: {', '.join(values)}. The card below has the numbers as a table.",
        x_label="Side of the picture in px",
        y_label="Top-1 accuracy in %",
    )
    heading = tag("h2", "Accuracy by resolution", id="resolution")
    about = "On the validation split, measured by us; the numbers are in the table of results below."
    return join([heading, tag("figure", scroll("Chart: accuracy by resolution", drawn), tag("figcaption", about))])


def _relatives(relatives: Sequence[Mapping[str, Any]]) -> Html:
    items = [
        tag(
            "li",
            tag("a", encoding_name(one["encoding"]), href=f"{one['name']}.html", title=one["name"]),
            tag("span", f" {one['result']}" if one["result"] else "", class_="quiet"),
        )
        for one in relatives
    ]
    return join([tag("h2", "Other encodings", id="relatives"), tag("ul", join(items), class_="columns")])
