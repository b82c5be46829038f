"""What the pictures share: size, style, and colours.

The background is transparent and text is of a middle grey, so that a picture can be read on a light and on a dark page.
A program has the same colour in every picture. The same figures give the same file.
"""

import io
import itertools

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

GREY = "#848d97"
WIDTH_INCHES, HEIGHT_INCHES = 8.0, 4.4

# By the first word of a curve's name.
COLOURS_OF_PROGRAMS = {
    "lookaside": "#2f81f7",
    "ours": "#2f81f7",
    "memcached": "#db6d28",
    "twemproxy": "#3fb950",
}
OTHER_COLOURS = ("#a371f7", "#d29922", "#39c5cf", "#f778ba")
MARK_COLOUR = "#f85149"

matplotlib.rcParams.update(
    {
        "axes.edgecolor": GREY,
        "axes.grid": True,
        "axes.labelcolor": GREY,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": GREY,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "font.family": "sans-serif",
        "font.size": 10,
        "grid.alpha": 0.25,
        "grid.color": GREY,
        "legend.frameon": False,
        "legend.labelcolor": GREY,
        "svg.fonttype": "none",
        "svg.hashsalt": "lookaside",
        "text.color": GREY,
        "xtick.color": GREY,
        "ytick.color": GREY,
    }
)


def colours(names: list[str]) -> dict[str, str]:
    """A colour for each curve; those of programs are the same in every picture."""
    others = itertools.cycle(OTHER_COLOURS)
    return {name: COLOURS_OF_PROGRAMS.get(name.split()[0].rstrip(",")) or next(others) for name in names}


def new_figure(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; `across` and `up` name them, with their units."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=24)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def add_legend(axes: Axes, columns: int | None = None) -> None:
    """The curves' names, between the title and the axes, in that number of columns: in one row if it is None."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns or len(handles), borderaxespad=0.2, handlelength=1.4
        )


def to_svg(figure: Figure) -> str:
    """The picture."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "\n".join(map(str.rstrip, written.getvalue().splitlines())) + "\n"
