"""Groups of bars, each with its value. A dashed line in a group is its floor."""

from experiments.plots.figure import GREY, add_legend, colours, new_figure, to_svg

FLOOR = "floor"
GROUP_WIDTH = 0.7


def svg(title: str, across: str, up: str, groups: dict[str, dict[str, float]], number: str = "{:g}") -> str:
    """One group a key; in it one bar a name, and the floor as a line."""
    figure, axes = new_figure(title, across, up)
    names = list(dict.fromkeys(name for group in groups.values() for name in group if name != FLOOR))
    width = GROUP_WIDTH / len(names)
    for place, (name, colour) in enumerate(colours(names).items()):
        left = [index - GROUP_WIDTH / 2 + width * (place + 0.5) for index in range(len(groups))]
        drawn = axes.bar(left, [group[name] for group in groups.values()], width * 0.92, color=colour, label=name)
        axes.bar_label(drawn, fmt=number.format, color=GREY, padding=2, fontsize=9)
    for index, group in enumerate(groups.values()):
        ends = (index - GROUP_WIDTH / 2 - 0.04, index + GROUP_WIDTH / 2 + 0.04)
        label = FLOOR if index == 0 else None
        axes.hlines(group[FLOOR], *ends, color=GREY, linestyle="--", linewidth=1.5, label=label)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.12)
    add_legend(axes)
    return to_svg(figure)
