"""Values over time in several panels below each other.

All panels have the same logarithmic vertical axis, so that milliseconds and seconds can be read in one picture. A value
below its smallest mark lies on the axis.
"""

import textwrap
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.plots.figure import COLOURS_OF_PROGRAMS, GREY, MARK_COLOUR, WIDTH_INCHES, to_svg

PANEL_INCHES = 2.6
WRAPPED = 17
TITLE_PAD = 44


@dataclass(frozen=True)
class Panel:
    """A span of time, and the named bands in it."""

    name: str
    begin: float
    end: float
    bands: list[tuple[str, float, float]]


def svg(
    title: str,
    across: str,
    up: str,
    points: list[tuple[float, float]],
    panels: list[Panel],
    marks: tuple[float, ...],
    bound: tuple[str, float],
) -> str:
    """The points of each panel's span as an area. `marks` are those of the vertical axis; `bound` is a named line."""
    figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * len(panels) + 0.6), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    rows = figure.subplots(len(panels), 1, squeeze=False)
    for axes, panel in zip(rows[:, 0], panels, strict=True):
        draw_panel(axes, panel, [point for point in points if panel.begin <= point[0] < panel.end], marks, bound)
        axes.set_ylabel(up)
    rows[-1, 0].set_xlabel(across)
    return to_svg(figure)


def draw_panel(
    axes: Axes,
    panel: Panel,
    points: list[tuple[float, float]],
    marks: tuple[float, ...],
    bound: tuple[str, float],
) -> None:
    """One panel."""
    colour = COLOURS_OF_PROGRAMS["lookaside"]
    across = [at for at, _ in points]
    values = [min(max(value, marks[0]), marks[-1]) for _, value in points]
    axes.set_title(panel.name, fontsize=10, pad=TITLE_PAD)
    axes.set_yscale("log")
    axes.set_xlim(panel.begin, panel.end)
    axes.set_ylim(marks[0], marks[-1])
    axes.yaxis.set_major_locator(FixedLocator(marks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks([begin for _, begin, _ in panel.bands], [f"{begin:.0f}" for _, begin, _ in panel.bands])
    axes.fill_between(across, values, marks[0], color=colour, alpha=0.25, linewidth=0)
    axes.plot(across, values, color=colour, marker="o", markersize=1.5, linewidth=1)
    name, value = bound
    axes.axhline(value, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(name, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    for words, begin, end in panel.bands:
        axes.axvspan(begin, end, color=MARK_COLOUR, alpha=0.12, linewidth=0)
        label = "\n".join(textwrap.wrap(words, WRAPPED))
        axes.annotate(
            label, (begin, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points", fontsize=8
        )
