"""The figure of a reproduction: its main metric over size, a line per row, and the published numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.card_metrics import heading, unit
from zoo.training.sweep_plan import Sweep
from zoo.training.sweep_results import Measured
from zoo.viz import COLOURS, INK, add_legend, draw_curve, mark_trained, new_figure, shown, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_of"]


def figure_of(sweep: Sweep, rows: list[Measured], title: str) -> Figure:
    """Draws the main metric over size.

    Lines are means over seeds, with a band from the smallest to the largest. Level dashes are published numbers, in the
    colour of their row; those that do not compare are left out.

    Args:
        sweep: With `about`, what it says of sizes.
        rows: What was measured; those that `about.plot` names are drawn, or all of them.
        title: Heading.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    metric, about = sweep.metrics[0], sweep.about
    named = [row.run.name if row.extend == "none" else f"{row.run.name} with {row.extend}" for row in rows]
    wanted = set(about.plot if about else ()) & set(named) or set(named)
    drawn = [row for row, name in zip(rows, named, strict=True) if name in wanted]
    labels = [shown(name) for name in named if name in wanted]
    with style():
        figure = new_figure((7.2, 4.2))
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        colours: dict[str, str] = {}
        ticks: set[int] = set()
        for index, (row, label) in enumerate(zip(drawn, labels, strict=True)):
            values = {int(size): found for size, found in sorted(row.values(metric).items(), key=lambda x: int(x[0]))}
            ticks |= values.keys()
            draw_curve(axes, {size: sum(v) / len(v) for size, v in values.items()}, label, index, len(drawn))
            colour = COLOURS[index % len(COLOURS)]
            colours.setdefault(row.run.name, colour)
            if any(len(found) > 1 for found in values.values()):
                low, high = ([edge(found) for found in values.values()] for edge in (min, max))
                axes.fill_between(list(values), low, high, color=colour, alpha=0.2, linewidth=0)
        papers = {row.run.name: row.run.paper for row in drawn}
        first = True
        for name, paper in papers.items():
            if paper is None or paper.value is None or not paper.comparable:
                continue
            axes.axhline(
                paper.value,
                color=colours[name],
                linewidth=1,
                linestyle=(0, (5, 4)),
                zorder=2,
                label="paper" if first else None,
            )
            first = False
        axes.set_xticks(sorted(ticks), [f"{size:,}" for size in sorted(ticks)])
        axes.minorticks_off()
        axes.set_xlabel(about.size if about else "size")
        axes.set_ylabel(f"{heading(metric)} ({unit(metric)})")
        if sweep.trained_size is not None:
            mark_trained(axes, sweep.trained_size, f"trained at {sweep.trained_size:,}")
        add_legend(figure, labels)
        axes.set_title(title, loc="left", color=INK)
    return figure
