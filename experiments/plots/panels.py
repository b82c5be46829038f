"""Values over time in several panels below each other, as an SVG, drawn by hand so that a picture needs no library.

All panels have the same logarithmic vertical axis, so that milliseconds and seconds can be read in one picture. A value
below its smallest mark lies on the axis.
"""

import math
import textwrap
from dataclasses import dataclass

from experiments.plots.cdf import COLOURS, LEFT, RIGHT, WIDTH, line, text

TITLE, PANEL, NAMES, FOOT = 30, 120, 92, 40
WRAPPED, NAME_ROW = 17, 11
BAND_COLOUR, BOUND_COLOUR = "#d62728", "#777777"


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
    height = TITLE + len(panels) * (NAMES + PANEL) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
        text((LEFT + WIDTH - RIGHT) / 2, height - 8, across, "middle"),
    ]
    for number, panel in enumerate(panels):
        top = TITLE + number * (NAMES + PANEL) + NAMES
        shown = [point for point in points if panel.begin <= point[0] < panel.end]
        parts += drawn(panel, shown, top, up, marks, bound)
    return "\n".join([*parts, "</svg>", ""])


def drawn(
    panel: Panel,
    points: list[tuple[float, float]],
    top: float,
    up: str,
    marks: tuple[float, ...],
    bound: tuple[str, float],
) -> list[str]:
    """One panel, whose area begins at `top`."""
    low, high = math.log10(marks[0]), math.log10(marks[-1])

    def x(at: float) -> float:
        share = (at - panel.begin) / (panel.end - panel.begin)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = (math.log10(max(value, marks[0])) - low) / (high - low)
        return top + (1 - min(1.0, share)) * PANEL

    parts = [text(LEFT, top - NAMES + 34, panel.name, "start", size=13), text(LEFT - 6, top - 8, up, "end")]
    for name, begin, end in panel.bands:
        left, right = x(begin), x(end)
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{PANEL}" fill="{BAND_COLOUR}"'
            ' opacity="0.12"/>'
        )
        for row, words in enumerate(reversed(textwrap.wrap(name, WRAPPED))):
            parts.append(text(left, top - 5 - NAME_ROW * row, words, "start", size=10))
    for mark in marks:
        parts.append(line(LEFT, y(mark), WIDTH - RIGHT, y(mark)))
        parts.append(text(LEFT - 6, y(mark) + 4, f"{mark:,.0f}", "end"))
    name, value = bound
    parts.append(line(LEFT, y(value), WIDTH - RIGHT, y(value), BOUND_COLOUR, 'stroke-dasharray="6 4"'))
    parts.append(text(WIDTH - RIGHT, y(value) - 3, name, "end", size=10))
    for band in panel.bands:
        parts.append(text(x(band[1]), top + PANEL + 14, f"{band[1]:.0f}", "middle", size=10))
    path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
    floor = f"{x(panel.begin):.1f},{top + PANEL} {path} {x(panel.end):.1f},{top + PANEL}"
    parts.append(f'<polygon points="{floor}" fill="{COLOURS[0]}" opacity="0.25"/>')
    parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.4"/>')
    return parts
