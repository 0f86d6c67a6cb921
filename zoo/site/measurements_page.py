"""The page of plots: accuracy beyond the training resolution, and speed, each beside its numbers and their source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.advice.measurements import comparison, measured_file
from zoo.errors import ConfigError
from zoo.site.charts import Series, bar_chart, line_chart, swatch
from zoo.site.markup import Html, fill, join, scroll, tag
from zoo.site.shell import page

__all__ = ["measurements_page", "read_speed"]

EXTENSIONS = {"pi": "position interpolation", "ntk": "NTK scaling", "yarn": "YaRN", "rescale": "rescaling"}
# Settings that are drawn at first: (name, extension).
FIRST = (
    ("pape", "none"),
    ("rope", "none"),
    ("rope", "yarn"),
    ("alibi", "none"),
    ("lookhere", "none"),
    ("pope", "none"),
    ("pape-m2", "none"),
    ("none", "none"),
)


def measurements_page() -> str:
    """The page, from `docs/comparison.json` and `docs/speed.json`.

    Raises:
        ConfigError: If one of them is missing or damaged.
    """
    rows, speed = comparison(), read_speed()
    sizes = sorted({int(size) for row in rows for size in row["top1"]})
    drawn = [(row, style) for row, style in zip(rows, _styles(rows), strict=True)]
    series = [
        Series(_name(row), _key(row), {int(size): one["mean"] for size, one in row["top1"].items()}, style, _first(row))
        for row, style in drawn
    ]
    chart = line_chart(
        series,
        name="extrapolation",
        title="Top-1 accuracy against resolution, by position encoding",
        about=f"Models trained at {sizes[0]} px, measured up to {sizes[-1]} px. The table below has every number.",
        x_label="Side of the picture in px",
        y_label="Top-1 accuracy in %",
    )
    body = fill(
        "measurements.html",
        trained=sizes[0],
        chart=scroll("Chart: accuracy against resolution", chart),
        lines=join(
            tag("li", swatch(one.style), one.name, data_series=one.key, hidden=not one.shown)
            for one in sorted(series, key=lambda one: one.style)
        ),
        table=scroll("Table: accuracy against resolution", _table(drawn, sizes)),
        speed=join(_ratios(one) for one in speed["ratios"]),
        times=scroll("Table: times", _times(speed["times"])),
        speed_source=speed["source"],
    )
    about = "Accuracy beyond the training resolution by position encoding, and what encodings cost in time."
    scripts = ("dom.js", "measurements.js")
    return page(body, title="Measurements", about=about, scripts=scripts, here="measurements.html")


def read_speed() -> dict[str, Any]:
    """`docs/speed.json`: figures of the README with device and command.

    Raises:
        ConfigError: If it is missing or damaged.
    """
    path = measured_file("speed.json", "the measured speed")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for one in found["ratios"]:
            if any(len(values) != len(one["columns"]) for values in one["rows"].values()):
                raise ValueError(f"{one['id']}: every row needs {len(one['columns'])} numbers")
        return {"source": found["source"], "ratios": found["ratios"], "times": found["times"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read {path}: {error!r:.200}") from None


def _styles(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of looks: those drawn at first have a colour each, the others follow with dashes."""
    first = [row for row in rows if _first(row)]
    first.sort(key=lambda row: FIRST.index((row["name"], row["extend"])))
    others = [row for row in rows if not _first(row)]
    start = max(8, len(first))
    looks = {_key(row): style for style, row in enumerate(first)}
    looks |= {_key(row): start + place for place, row in enumerate(others)}
    return [looks[_key(row)] for row in rows]


def _first(row: Mapping[str, Any]) -> bool:
    return (row["name"], row["extend"]) in FIRST


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['name']}/{row['extend']}"


def _name(row: Mapping[str, Any]) -> str:
    return row["name"] + ("" if row["extend"] == "none" else f" with {EXTENSIONS.get(row['extend'], row['extend'])}")


def _table(drawn: Sequence[tuple[Mapping[str, Any], int]], sizes: Sequence[int]) -> Html:
    head = [tag("th", name, scope="col") for name in ("Setting", "Seeds", *(f"{size} px" for size in sizes))]
    rows = []
    for row, style in drawn:
        box = tag("input", type="checkbox", data_series=_key(row), checked=_first(row))
        named = tag("th", tag("label", box, swatch(style), tag("span", _name(row))), scope="row")
        cells = [tag("td", _number(row["top1"].get(str(size))), class_="number") for size in sizes]
        rows.append(tag("tr", named, tag("td", len(row["seeds"]), class_="number"), *cells))
    caption = tag("caption", "Top-1 accuracy in percent, mean ± standard deviation over seeds; ticked rows are drawn")
    return tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="numbers", id="settings")


def _number(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['mean']:.1f}" + ("" if found["std"] is None else f" ± {found['std']:.1f}")


def _ratios(one: Mapping[str, Any]) -> Html:
    name = one["id"]
    chart = bar_chart(
        one["rows"],
        one["columns"],
        name=name,
        title=f"{one['title']}: {one['quantity']}",
        about="The line stands at 1, the block without positions. The table below has the same numbers.",
        base=1.0,
    )
    head = [tag("th", words, scope="col") for words in ("Encoding", *one["columns"])]
    rows = [
        tag("tr", tag("th", encoding, scope="row"), *(tag("td", f"{value:.2f}", class_="number") for value in values))
        for encoding, values in one["rows"].items()
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="numbers")
    source = join(
        [f"{one['quantity'].capitalize()}; {one['device']}; {one['settings']}. ", tag("code", one["command"])]
    )
    return join(
        [
            tag("h3", one["title"]),
            tag("figure", scroll(f"Chart: {one['title']}", chart), tag("figcaption", source)),
            scroll(f"Table: {one['title']}", table),
        ]
    )


def _times(times: Sequence[Mapping[str, Any]]) -> Html:
    head = [tag("th", words, scope="col") for words in ("What", "Time", "Device", "Command")]
    rows = [
        tag(
            "tr",
            tag("th", one["what"], scope="row"),
            tag("td", one["time"]),
            tag("td", one["device"]),
            tag("td", tag("code", one["command"])),
        )
        for one in times
    ]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
