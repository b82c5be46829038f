"""Values over time, or over a number, as an SVG, drawn by hand so that a picture needs no library."""

import math

from experiments.plots.cdf import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line, text

LINES = 6
# Names of bands that are close to each other are written below each other.
LABEL_ROWS = 6


class Axis:
    """From a value to its share of an axis that begins at 0 and ends at `end`."""

    def __init__(self, end: float) -> None:
        self.end = end or 1.0
        self.marks = [self.end * step / LINES for step in range(LINES + 1)]

    def share(self, value: float) -> float:
        return value / self.end


class LogarithmicAxis:
    """The same from the mark below the smallest of `values` to the one above the largest, all above 0."""

    def __init__(self, values: list[float]) -> None:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        marks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
        first = max(mark for mark in marks if mark <= min(values))
        last = min(mark for mark in marks if mark >= max(values))
        self.marks = [mark for mark in marks if first <= mark <= last]

    def share(self, value: float) -> float:
        return math.log(value / self.marks[0]) / math.log(self.marks[-1] / self.marks[0])


def svg(
    title: str,
    across: str,
    up: str,
    curves: dict[str, list[tuple[float, float]]],
    is_logarithmic: bool = False,
    bands: list[tuple[str, float, float]] | None = None,
) -> str:
    """One line for each curve; both axes begin at 0 or are logarithmic. `bands` are named spans of the lower axis."""
    horizontal, vertical = ([point[axis] for points in curves.values() for point in points] for axis in (0, 1))
    if is_logarithmic:
        x_axis, y_axis = LogarithmicAxis(horizontal), LogarithmicAxis(vertical)
    else:
        x_axis, y_axis = Axis(max(horizontal)), Axis(max(vertical) * 1.1)

    def place(x: float, y: float) -> tuple[float, float]:
        left, down = x_axis.share(x) * (WIDTH - LEFT - RIGHT), y_axis.share(y) * (HEIGHT - TOP - BOTTOM)
        return LEFT + left, HEIGHT - BOTTOM - down

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, across, "middle"),
        text(LEFT, TOP - 6, up, "end"),
    ]
    for number, (name, begin, end) in enumerate(bands or []):
        left, right = (place(min(x, x_axis.marks[-1]), y_axis.marks[0])[0] for x in (begin, end))
        parts.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{max(1.0, right - left):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            ' fill="#d62728" opacity="0.1"/>'
        )
        is_far = left > LEFT + 0.7 * (WIDTH - LEFT - RIGHT)
        at, anchor = (right - 2, "end") if is_far else (left + 2, "start")
        parts.append(text(at, TOP + 12 + 13 * (number % LABEL_ROWS), name, anchor, size=10))
    for mark in y_axis.marks:
        _, y = place(x_axis.marks[0], mark)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y))
        parts.append(text(LEFT - 6, y + 4, f"{mark:.0f}" if mark >= 100 else f"{mark:.2g}", "end"))
    for mark in x_axis.marks:
        x, _ = place(mark, y_axis.marks[0])
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{mark:.0f}", "middle"))
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<rect x="{LEFT + 180 * number}" y="33" width="14" height="4" fill="{colour}"/>')
        parts.append(text(LEFT + 180 * number + 20, 40, name, "start"))
    return "\n".join([*parts, "</svg>", ""])
