"""The first page: every registered model in a table, with filters that work on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zoo.site.facts import DATA, MODALITIES, SIZES, WEIGHTS, encoding_name
from zoo.site.markup import Html, fill, join, tag
from zoo.site.shell import page

__all__ = ["index_page"]

# Facet -> heading, and how a value is written.
FACETS: dict[str, tuple[str, Callable[[str], str]]] = {
    "modality": ("Modality", lambda value: MODALITIES.get(value, value)),
    "task": ("Task", str.capitalize),
    "encoding": ("Encoding", lambda value: value),
    "size": ("Size", lambda value: SIZES.get(value, value)),
    "data": ("Training data", lambda value: DATA.get(value, value)),
    "weights": ("Weights", lambda value: WEIGHTS[value][0]),
}
COLUMNS = (
    ("name", "Name"),
    ("modality", "Modality"),
    ("task", "Task"),
    ("encoding", "Encoding"),
    ("parameters", "Parameters"),
    ("data", "Training data"),
    ("weights", "Weights"),
)


def index_page(models: Sequence[Mapping[str, Any]]) -> str:
    """The page with the facts of all models, in their order."""
    weights = Counter(one["weights"] for one in models)
    body = fill(
        "index.html",
        total=len(models),
        with_weights=weights["embedded"],
        legend=join(
            tag("li", _badge(key), f" {about} ({weights[key]})") for key, (_, about) in WEIGHTS.items() if weights[key]
        ),
        facets=join(_facet(key, models) for key in FACETS),
        head=join(_head(key, name) for key, name in COLUMNS),
        rows=join(_row(one) for one in models),
    )
    about = "Models that share one coordinate-aware attention block: filter by modality, task, encoding, size and data."
    return page(body, title="Models", about=about, scripts=("data.js", "dom.js", "models.js"), here="index.html")


def _badge(weights: str) -> Html:
    return tag("span", WEIGHTS[weights][0], class_=f"badge {weights}")


def _facet(key: str, models: Sequence[Mapping[str, Any]]) -> Html:
    name, shown = FACETS[key]
    counts = Counter(one[key] for one in models)
    order = sorted(counts, key=lambda value: _place(key, value))
    options = [tag("option", f"All ({len(models)})", value="", data_label="All")]
    options += [tag("option", f"{shown(one)} ({counts[one]})", value=one, data_label=shown(one)) for one in order]
    select = tag("select", join(options), id=f"filter-{key}", data_facet=key)
    return tag("div", tag("label", name, for_=f"filter-{key}"), select, class_="field")


def _place(key: str, value: str) -> tuple[int, str]:
    """Where a value stands in its list: as it is listed here, the others by length and name."""
    listed: dict[str, list[str]] = {"modality": list(MODALITIES), "size": list(SIZES), "weights": list(WEIGHTS)}
    known = listed.get(key, [])
    return (known.index(value), "") if value in known else (len(known), value.casefold())


def _head(key: str, name: str) -> Html:
    button = tag("button", name, type="button", data_sort=key)
    return tag("th", button, scope="col", role="columnheader", aria_sort="none")


def _row(one: Mapping[str, Any]) -> Html:
    link = tag("a", one["name"], href=f"models/{one['name']}.html")
    result = tag("span", one["result"], class_="result") if one["result"] else None
    cells = [
        tag("th", link, result, scope="row", role="rowheader"),
        *(
            _cell(FACETS[key][0], FACETS[key][1](one[key]), encoding_name(one[key]) if key == "encoding" else None)
            for key in ("modality", "task", "encoding")
        ),
        _cell("Parameters", f"{one['parameters']:,}", class_="number"),
        _cell("Training data", DATA.get(one["data"], one["data"])),
        _cell("Weights", _badge(one["weights"])),
    ]
    return tag("tr", join(cells), role="row", data_name=one["name"])


def _cell(name: str, value: Any, title: str | None = None, class_: str | None = None) -> Html:
    return tag("td", value, role="cell", data_name=name, title=title, class_=class_)
