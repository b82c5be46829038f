"""The paper's figure 11: the share of deletes whose old value is still cached, by the age of the delete.

Both axes are logarithmic. A share of 0 is drawn on the lower edge, which is named so.
"""

from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from experiments.plots.figure import GREY, add_legend, colours, new_figure, to_svg

# The shares on the upper axis; the lowest one stands for none.
SHARES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LEGEND_COLUMNS = 2
UNITS = ((3_600, "h"), (60, "min"), (1, "s"))

Curve = list[tuple[float, float]]


def svg(title: str, curves: dict[str, Curve], facts: dict[str, Curve]) -> str:
    """One line for each curve of points (age in seconds, share). `facts` are what others state, dashed and grey."""
    figure, axes = new_figure(title, "age of the delete", "deletes whose old value is still cached")
    for name, colour in colours(list(curves)).items():
        ages, shares = places(curves[name])
        axes.plot(ages, shares, color=colour, marker="o", markersize=5, linewidth=1.5, label=name)
    for name, marker in zip(facts, ("s", "^", "v", "D"), strict=False):
        ages, shares = places(facts[name])
        axes.plot(ages, shares, color=GREY, linestyle="--", marker=marker, markersize=5, linewidth=1, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(SHARES[0] * 0.7, SHARES[-1])
    ages = sorted({age for curve in (*curves.values(), *facts.values()) for age, _ in curve})
    axes.xaxis.set_major_locator(FixedLocator(ages))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda age, _: age_name(age)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(FixedLocator(SHARES))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: share_name(share)))
    axes.set_title(title, pad=24 + 14 * (len(curves) + len(facts) - 1) // LEGEND_COLUMNS)
    add_legend(axes, LEGEND_COLUMNS)
    return to_svg(figure)


def places(curve: Curve) -> tuple[list[float], list[float]]:
    """Ages and shares as they are drawn."""
    return [age for age, _ in curve], [max(share, SHARES[0]) for _, share in curve]


def age_name(age_s: float) -> str:
    """An age in the largest unit that divides it."""
    seconds, unit = next((seconds, unit) for seconds, unit in UNITS if age_s % seconds == 0)
    return f"{age_s / seconds:g} {unit}"


def share_name(share: float) -> str:
    """A mark of the upper axis."""
    return "none" if share == SHARES[0] else f"{share * 100:g} %"
