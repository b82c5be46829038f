"""A distribution of latencies: the share of all that took longer, on logarithmic axes.

The tail of a latency is what matters, and on a plain axis it is a line of zero height. The median, the 90th and the
99th percentile are marked on each curve.
"""

from matplotlib.ticker import FuncFormatter, LogLocator

from experiments.plots.figure import MARK_COLOUR, add_legend, colours, new_figure, to_svg

MARKED_SHARES = (0.5, 0.1, 0.01)


def svg(title: str, across: str, up: str, curves: dict[str, list[float]], bar: float | None = None) -> str:
    """The share of values above x, for each curve; `bar` is a vertical line."""
    figure, axes = new_figure(title, across, up)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, colour in colours(list(curves)).items():
        ordered = sorted(curves[name])
        count = len(ordered)
        above = [(count - rank) / count for rank in range(count)]
        marks = [min(count - 1, round((1 - share) * count)) for share in MARKED_SHARES]
        axes.plot(ordered, above, color=colour, linewidth=1.5, label=name, marker="o", markersize=5, markevery=marks)
    if bar:
        axes.axvline(bar, color=MARK_COLOUR, linestyle="--", linewidth=1, label=f"bar at p99: {bar:g}")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: "all" if share == 1 else f"1 in {1 / share:,.0f}"))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    add_legend(axes)
    return to_svg(figure)
