"""A row for each case, and in it a dot for each name, on a logarithmic axis. A line leads from the dot to the range."""

import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.plots.figure import WIDTH_INCHES, add_legend, colours, to_svg

ROW_INCHES = 0.34
WRAPPED = 46
ROW_HEIGHT = 0.6

# A value, and the smallest and the largest one seen.
Point = tuple[float, float, float]


def svg(title: str, across: str, rows: dict[str, dict[str, Point]]) -> str:
    """One row a key, from the top; a name that is missing in a row has no dot there."""
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * len(rows) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=24)
    axes.set_xlabel(across)
    axes.set_xscale("log")
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    for number, (name, colour) in enumerate(colours(names).items()):
        offset = ROW_HEIGHT * ((number + 0.5) / len(names) - 0.5)
        points = [(place + offset, *row[name]) for place, row in enumerate(rows.values()) if name in row]
        heights, values, lows, highs = zip(*points, strict=True)
        axes.hlines(heights, lows, highs, color=colour, linewidth=1.2)
        axes.plot(values, heights, "o", color=colour, markersize=4.5, label=name)
    axes.set_yticks(range(len(rows)), [textwrap.fill(name, WRAPPED) for name in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    add_legend(axes)
    return to_svg(figure)
