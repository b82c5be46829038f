"""Lines over time, as SVG. Colours are those of the page's style sheet."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 380, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 12, 22


def line_chart(label: str, lines: dict[str, Sequence[float | None]], unit: str, top: float, points: int) -> Markup:
    """A chart of lines by name, oldest value first, each with at most `points` values; None leaves a gap.

    The scale is from 0 to `top`, or to more if a value is larger.
    """
    known = [value for line in lines.values() for value in line if value is not None]
    top = round_up(max([top, *known]))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">',
        *(grid_line(share, top, unit) for share in (0, 0.5, 1)),
        f'<text x="{LEFT}" y="{HEIGHT - 4}" class="axis">{points} s ago</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" class="axis" text-anchor="end">now</text>',
    ]
    for number, line in enumerate(lines.values(), start=1):
        parts += [f'<polyline class="line line-{number}" points="{run}"/>' for run in runs(line, top, points)]
    return Markup("".join(parts) + "</svg>")


def grid_line(share: float, top: float, unit: str) -> str:
    """A horizontal line at a share of the scale."""
    y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
    text = f"{top * share:,g}{unit}"
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="axis" text-anchor="end">{text}</text>'
    )


def round_up(value: float) -> float:
    """The next number of one digit, or 10, 100, ..."""
    power = 10 ** math.floor(math.log10(value))
    return math.ceil(value / power) * power


def runs(line: Sequence[float | None], top: float, points: int) -> list[str]:
    """The points of each run of values without a gap, the last value at the right."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    found: list[list[str]] = [[]]
    for index, value in enumerate(line, start=points - len(line)):
        if value is None:
            found.append([])
        else:
            x, y = LEFT + width * index / (points - 1), TOP + height * (1 - value / top)
            found[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(run) for run in found if run]
