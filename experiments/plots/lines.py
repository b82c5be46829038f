"""Values over time, or over a number. Each point is marked; a point of several rounds shows their range."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.plots.figure import MARK_COLOUR, add_legend, colours, new_figure, to_svg

# Names of bands that are close to each other are written below each other.
LABEL_ROWS = 6
# A curve of more points has smaller marks.
LARGE_MARKS_MAX = 30

Point = tuple[float, ...]


def svg(
    title: str,
    across: str,
    up: str,
    curves: dict[str, list[Point]],
    is_logarithmic: bool = False,
    bands: list[tuple[str, float, float]] | None = None,
) -> str:
    """One line for each curve of points (x, y) or (x, y, lowest, highest).

    Both axes begin at 0 or are logarithmic. `bands` are named spans of the lower axis.
    """
    figure, axes = new_figure(title, across, up)
    for name, colour in colours(list(curves)).items():
        draw_curve(axes, name, curves[name], colour)
    if is_logarithmic:
        scale_by_logarithm(axes, sorted({point[0] for points in curves.values() for point in points}))
    else:
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    for number, band in enumerate(bands or []):
        draw_band(axes, number, *band)
    add_legend(axes)
    return to_svg(figure)


def draw_curve(axes: Axes, name: str, points: list[Point], colour: str) -> None:
    """A line with its points, and the ranges of those that have one."""
    across, up = [point[0] for point in points], [point[1] for point in points]
    size = 5 if len(points) <= LARGE_MARKS_MAX else 2
    axes.plot(across, up, color=colour, marker="o", markersize=size, linewidth=1.5, label=name)
    ranged = [point for point in points if len(point) == 4]
    if ranged:
        below = [value - lowest for _, value, lowest, _ in ranged]
        above = [highest - value for _, value, _, highest in ranged]
        axes.errorbar(
            [point[0] for point in ranged],
            [point[1] for point in ranged],
            yerr=[below, above],
            fmt="none",
            ecolor=colour,
            elinewidth=1,
            capsize=4,
        )


def scale_by_logarithm(axes: Axes, across: list[float]) -> None:
    """Logarithmic axes whose marks are plain numbers: below, those of the points."""
    plain = FuncFormatter(lambda value, _: f"{value:,g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(across, minor=False)
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_band(axes: Axes, number: int, name: str, begin: float, end: float) -> None:
    """A named span of the lower axis."""
    axes.axvspan(begin, end, color=MARK_COLOUR, alpha=0.12, linewidth=0)
    axes.annotate(
        name,
        (begin, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, -10 - 11 * (number % LABEL_ROWS)),
        textcoords="offset points",
        fontsize=8,
    )
