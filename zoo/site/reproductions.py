"""The part of the page of measurements about sequences: what `zoo reproduce` measured, each table with its plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.advice.measurements import reproduced
from zoo.card_metrics import heading, smaller_is_better, unit
from zoo.errors import ConfigError
from zoo.site.charts import Series, line_chart, swatch
from zoo.site.markup import Html, join, scroll, tag
from zoo.training.sweep_plan import About, Sweep, built_in_sweeps, load_sweep

__all__ = ["EXTENSIONS", "not_measured", "number", "reproductions"]

EXTENSIONS = {"pi": "position interpolation", "ntk": "NTK scaling", "yarn": "YaRN", "rescale": "rescaling"}


def reproductions() -> Html:
    """A section for every table that was made.

    Raises:
        ConfigError: If a file of results is missing or damaged.
    """
    found = []
    for name, rows in reproduced().items():
        try:
            found.append(_section(name, rows))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"reproduce/{name}/results.json is not as it should be: {error!r:.200}") from None
    return join(found)


def not_measured() -> list[str]:
    """Names of the tables that `zoo reproduce` knows and that nobody has made yet."""
    known = (name for name in built_in_sweeps() if name != "comparison")
    return [name for name in known if name not in reproduced()]


def number(found: Mapping[str, Any] | None, digits: int = 1) -> str:
    """Mean and standard deviation, or nothing."""
    if found is None:
        return ""
    return f"{found['mean']:.{digits}f}" + ("" if found["std"] is None else f" ± {found['std']:.{digits}f}")


def _section(name: str, rows: Sequence[Mapping[str, Any]]) -> Html:
    sweep: Sweep | None = load_sweep(name) if name in built_in_sweeps() else None
    about = sweep.about if sweep else None
    metric = sweep.metrics[0] if sweep else next(key for key, value in rows[0].items() if _is_metric(value))
    sizes = sorted({int(size) for row in rows for size in row[metric]})
    named = heading(metric)[0].upper() + heading(metric)[1:]
    better = "less" if smaller_is_better(metric) else "more"
    sized = about.size if about else "size"
    series = [
        Series(_name(row), f"{name}/{_name(row)}", {int(size): one["mean"] for size, one in row[metric].items()}, style)
        for style, row in enumerate(rows)
    ]
    chart = line_chart(
        series,
        name=f"reproduced-{name}",
        title=f"{name}: {heading(metric)} against length, by setting",
        about=f"Trained at {sizes[0]}, measured up to {sizes[-1]} ({sized}). The table below has every number.",
        x_label=sized[0].upper() + sized[1:],
        y_label=f"{named} ({unit(metric)}), {better} is better",
        step=_step([value for one in series for value in one.values.values()]) if unit(metric) == "nats" else None,
    )
    return join(
        [
            tag("h3", name, id=f"reproduced-{name}-heading"),
            _words(about, rows, sizes[0], sized),
            tag(
                "figure",
                scroll(f"Chart: {name}", chart),
                tag("ul", *(tag("li", swatch(one.style), one.name) for one in series), class_="lines"),
                tag(
                    "figcaption",
                    "From ",
                    tag("code", f"docs/reproduce/{name}"),
                    "; measured by ",
                    _command(name, about),
                ),
            ),
            scroll(
                f"Table: {name}", _table(rows, metric, sizes, f"{named} in {unit(metric)}, {better} is better; {sized}")
            ),
        ]
    )


def _words(about: About | None, rows: Sequence[Mapping[str, Any]], trained: int, sized: str) -> Html:
    devices = ", ".join(sorted({str(row["training"]["device"]) for row in rows}))
    split = rows[0]["split"]
    said = f"Trained at {trained:,} ({sized}), on {devices}; measured on {rows[0]['dataset']}, split {split}. "
    if about is None:
        return tag("p", said)
    return tag("p", f"{about.reproduces}. {said}{' '.join(about.difference.split())}")


def _command(name: str, about: About | None) -> Html:
    data = "" if about is None or about.needs is None else f" --data {about.needs.files[0]}"
    return tag("code", f"zoo reproduce {name}{data}")


def _table(rows: Sequence[Mapping[str, Any]], metric: str, sizes: Sequence[int], caption: str) -> Html:
    digits = 3 if smaller_is_better(metric) else 1
    head = [tag("th", words, scope="col") for words in ("Setting", "Seeds", *(f"{size:,}" for size in sizes))]
    body = [
        tag(
            "tr",
            tag("th", _name(row), scope="row"),
            tag("td", len(row["seeds"]), class_="number"),
            *(tag("td", number(row[metric].get(str(size)), digits), class_="number") for size in sizes),
        )
        for row in rows
    ]
    return tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body), class_="numbers")


def _name(row: Mapping[str, Any]) -> str:
    extend = row["extend"]
    return str(row["name"]) + ("" if extend == "none" else f" with {EXTENSIONS.get(extend, extend)}")


def _step(values: Sequence[float]) -> float:
    """A round number that the range has four times or more, as 0.01, 0.02 or 0.05."""
    span = max(max(values) - min(values), 1e-3)
    scale = 10.0 ** math.floor(math.log10(span / 4))
    return max(scale * factor for factor in (1, 2, 5) if 4 * scale * factor <= span * 1.000001)


def _is_metric(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(one, dict) and "mean" in one for one in value.values())
